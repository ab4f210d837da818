"""The calls of the console, against a broker."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from console_kit.process import ConsoleProcess

from ottla import Producer
from ottla.testing import BrokerProcess

Left = Callable[..., list[int]]


def test_health(console: ConsoleProcess) -> None:
    answer = console.get("/api/health")
    assert answer.status == 200
    assert answer.body["status"] == "ok"
    assert answer.body["brokers"] == 1
    assert answer.body["cluster_id"]


def test_topics(console: ConsoleProcess, topic: str) -> None:
    (line,) = [each for each in console.get("/api/topics").body["topics"] if each["name"] == topic]
    assert line == {"name": topic, "internal": False, "partitions": 2, "replication_factor": 1}
    page = console.get(f"/api/topics/{topic}").body
    first, second = page["partitions"]
    assert (first["start_offset"], first["stable_offset"], first["end_offset"]) == (0, 10, 10)
    assert second["end_offset"] == 1
    assert first["leader"] == 1
    assert first["error"] is None


def test_records(console: ConsoleProcess, topic: str) -> None:
    path = f"/api/topics/{topic}/partitions/0/records"
    page = console.get(f"{path}?from=3&limit=2").body
    assert [(each["offset"], each["key"], each["value"]) for each in page["records"]] == [
        (3, "b", "value 3"),
        (4, "a", "value 4"),
    ]
    assert (page["start_offset"], page["next_offset"], page["stable_offset"]) == (0, 5, 10)
    rest = console.get(f"{path}?from={page['next_offset']}").body
    assert [each["offset"] for each in rest["records"]] == [5, 6, 7, 8, 9]
    assert rest["next_offset"] == 10
    last = console.get(f"{path}?from=-2").body
    assert [each["offset"] for each in last["records"]] == [8, 9]
    assert console.get(f"{path}?from=latest").body["records"] == []
    assert len(console.get(f"{path}?from=2020-01-01").body["records"]) == 10
    assert console.get(f"{path}?from=2999-01-01").body["records"] == []
    (binary,) = console.get(f"/api/topics/{topic}/partitions/1/records").body["records"]
    assert (binary["key_base64"], binary["value_base64"]) == ("AP8=", "//4=")
    assert isinstance(binary["timestamp"], int)


def test_an_answer_of_records_is_bounded(
    console: ConsoleProcess, broker: BrokerProcess, topic: str
) -> None:
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(20):
        producer.produce(topic, b"x" * 200_000, partition=1)
    assert producer.flush(20) == 0
    page = console.get(f"/api/topics/{topic}/partitions/1/records?from=1").body
    assert 1 <= len(page["records"]) <= 7
    assert page["next_offset"] == 1 + len(page["records"])


def test_delete_by_offsets(console: ConsoleProcess, topic: str, left: Left) -> None:
    answer = console.delete(topic, offsets={"0": [1, {"first": 3, "last": 5}], "1": [0]})
    assert answer.status == 200
    assert answer.body == {
        "topic": topic,
        "dry_run": False,
        "deleted": 5,
        "partitions": {"0": {"deleted": 4}, "1": {"deleted": 1}},
    }
    assert left(0) == [0, 2, 6, 7, 8, 9]
    assert left(1) == []
    page = console.get(f"/api/topics/{topic}/partitions/0/records?limit=3").body
    assert [each["offset"] for each in page["records"]] == [0, 2, 6]
    assert page["next_offset"] == 7


def test_dry_run(console: ConsoleProcess, topic: str, left: Left) -> None:
    answer = console.delete(topic, offsets={"0": [1, 2]}, dry_run=True)
    assert (answer.status, answer.body["deleted"], answer.body["dry_run"]) == (200, 2, True)
    assert console.delete(topic, key="a", dry_run=True).body["deleted"] == 5
    assert console.delete(topic, offsets={"0": [99]}, dry_run=True).status == 409
    assert left() == list(range(10))


def test_delete_by_key(console: ConsoleProcess, topic: str, left: Left) -> None:
    answer = console.delete(topic, key="a")
    assert (answer.status, answer.body["deleted"]) == (200, 5)
    assert answer.body["partitions"] == {"0": {"deleted": 5}}
    assert left() == [1, 3, 5, 7, 9]
    again = console.delete(topic, key="a")
    assert (again.status, again.body["deleted"], again.body["partitions"]) == (200, 0, {})
    assert console.delete(topic, key_base64="AP8=").body["partitions"] == {"1": {"deleted": 1}}
    assert left(1) == []


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([10], "offset 10 is out of range: the log ends at 10"),
        ([0, 2**63 - 1], "out of range"),
        ([{"first": 0, "last": 2**63 - 1}], "out of range"),
    ],
)
def test_offsets_that_cannot_be_deleted(
    console: ConsoleProcess, topic: str, left: Left, offsets: list[Any], words: str
) -> None:
    answer = console.delete(topic, offsets={"0": offsets})
    assert answer.status == 409
    assert answer.body["deleted"] == 0
    error = answer.body["partitions"]["0"]["error"]
    assert (error["status"], error["code"]) == (409, "INVALID_REQUEST")
    assert words in error["message"]
    assert left() == list(range(10))


def test_deleted_already(console: ConsoleProcess, topic: str) -> None:
    assert console.delete(topic, offsets={"0": [4]}).status == 200
    again = console.delete(topic, offsets={"0": [4, 5]})
    assert again.status == 409
    assert "offset 4 is deleted already" in json.dumps(again.body)
    skipping = console.delete(topic, offsets={"0": [4, 5]}, skip_deleted=True)
    assert (skipping.status, skipping.body["deleted"]) == (200, 1)


def test_one_partition_fails_and_the_other_does_not(
    console: ConsoleProcess, topic: str, left: Left
) -> None:
    answer = console.delete(topic, offsets={"0": [2], "1": [7]})
    assert answer.status == 207
    assert answer.body["deleted"] == 1
    assert answer.body["partitions"]["0"] == {"deleted": 1}
    assert answer.body["partitions"]["1"]["error"]["status"] == 409
    assert 2 not in left()
    both = console.delete(topic, offsets={"0": [99], "1": [99]})
    assert both.status == 409


def test_records_of_an_open_transaction(
    console: ConsoleProcess, broker: BrokerProcess, topic: str
) -> None:
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", key=b"a", partition=0)
    assert producer.flush(20) == 0
    refused = console.delete(topic, offsets={"0": [10]})
    assert refused.status == 409
    assert "offset 10 is not committed" in json.dumps(refused.body)
    page = console.get(f"/api/topics/{topic}").body["partitions"][0]
    assert (page["stable_offset"], page["end_offset"]) == (10, 11)
    assert console.delete(topic, key="a").body["deleted"] == 5  # what is committed
    producer.abort_transaction(20)
    aborted = console.delete(topic, offsets={"0": [10]})
    assert aborted.status == 409
    assert "aborted" in json.dumps(aborted.body)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "give offsets, or key, or key_base64"),
        ({"key": None}, "give offsets, or key, or key_base64"),
        ({"key": "a", "offsets": {"0": [1]}}, "one of them"),
        ({"offsets": {}}, "names no offset"),
        ({"offsets": {"0": []}}, "names no offset"),
        ({"offsets": {"-1": [1]}}, "offsets"),
        ({"offsets": {"x": [1]}}, "offsets"),
        ({"offsets": {"0": [-1]}}, "greater than or equal to 0"),
        ({"offsets": {"0": ["1"]}}, "offsets.0.0"),
        ({"offsets": {"0": [1.0]}}, "offsets.0.0"),
        ({"offsets": {"0": [True]}}, "offsets.0.0"),
        ({"offsets": {"0": [None]}}, "offsets.0.0"),
        ({"offsets": {"0": [2**63]}}, "less than or equal to"),
        ({"offsets": {"0": [{"first": 5, "last": 3}]}}, "the range 5 to 3 ends before it begins"),
        ({"offsets": {"0": [{"first": 5}]}}, "last: Field required"),
        ({"offsets": {"0": 1}}, "offsets"),
        ({"offsets": [1]}, "offsets"),
        ({"key_base64": "%%"}, "key_base64 is not base64"),
        ({"key": "\ud800"}, "surrogate"),
        ({"key": 7}, "key"),
        ({"key": "a", "dry-run": True}, "dry-run"),
        ({"key": "a", "dry_run": "yes"}, "dry_run"),
        ([], "dictionary"),
        (None, "dictionary"),
    ],
)
def test_bad_input(
    console: ConsoleProcess, topic: str, left: Left, document: Any, words: str
) -> None:
    answer = console.post(f"/api/topics/{topic}/deletions", document)
    assert answer.status == 400, answer
    assert answer.body["error"]["code"] == "BAD_REQUEST"
    assert words in answer.message
    assert left() == list(range(10))


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, '{"key": "a"', "9" * 5000])
def test_what_is_no_json(console: ConsoleProcess, topic: str, text: str) -> None:
    path = f"/api/topics/{topic}/deletions"
    answer = console.ask("POST", path, text, {"Content-Type": "application/json"})
    assert answer.status == 400
    assert "Traceback" not in answer.message


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("from=nowhere", 400),
        ("from=99999999999999999999", 400),
        ("from=11", 404),
        ("limit=0", 400),
        ("limit=100000", 400),
        ("limit=x", 400),
    ],
)
def test_bad_queries(console: ConsoleProcess, topic: str, query: str, status: int) -> None:
    answer = console.get(f"/api/topics/{topic}/partitions/0/records?{query}")
    assert answer.status == status
    assert answer.message


def test_what_is_not_there(console: ConsoleProcess, topic: str) -> None:
    for answer in (
        console.get("/api/topics/nowhere"),
        console.get("/api/topics/nowhere/partitions/0/records"),
        console.delete("nowhere", key="a"),
        console.delete("nowhere", offsets={"0": [1]}),
        console.get(f"/api/topics/{topic}/partitions/2/records"),
        console.delete(topic, offsets={"2": [1]}),
    ):
        assert answer.status == 404, answer
        assert answer.body["error"]["code"] == "UNKNOWN_TOPIC_OR_PARTITION"
    for path in ("/", "/api", "/docs", "/redoc", "/api/topics/a%2Fb", "/../../etc/passwd"):
        assert console.get(path).status == 404
    assert console.get("/api/topics/%20odd%22name").status == 400
    assert console.get(f"/api/topics/{topic}/deletions").status == 405
    assert console.delete("__consumer_offsets", offsets={"0": [0]}).status in (400, 404)


def test_the_calls_are_described(console: ConsoleProcess) -> None:
    page = console.get("/api/openapi.json")
    assert page.status == 200
    assert set(page.body["paths"]) == {
        "/api/health",
        "/api/topics",
        "/api/topics/{topic}",
        "/api/topics/{topic}/partitions/{partition}/records",
        "/api/topics/{topic}/deletions",
        "/api/clients",
    }
    responses = page.body["paths"]["/api/topics/{topic}/deletions"]["post"]["responses"]
    assert set(responses) == {"200", "207", "400", "401", "403", "404", "409", "503"}


@pytest.mark.long
def test_many_offsets(console: ConsoleProcess, broker: BrokerProcess, topic: str) -> None:
    """More than go into one request to the broker: all of them or none."""
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(50_000):
        producer.produce(topic, b"x", partition=1)
        producer.poll(0)
    assert producer.flush(20) == 0
    scattered = list(range(1, 50_000, 2))
    wrong = console.delete(topic, offsets={"1": [*scattered, 77_777]})
    assert wrong.status == 409
    assert wrong.body["deleted"] == 0
    assert console.delete(topic, offsets={"1": scattered}).body["deleted"] == len(scattered)


def test_whoever_leaves_ends_the_search(console: ConsoleProcess, topic: str, left: Left) -> None:
    """The connection is closed before the answer: the console goes on serving others."""
    body = json.dumps({"key": "a"}).encode()
    head = (
        f"POST /api/topics/{topic}/deletions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    for _ in range(5):
        with socket.create_connection((console.host, console.port)) as connection:
            connection.sendall(head.encode() + body)
    deadline = time.monotonic() + 30
    while console.get("/api/health").status != 200:
        assert time.monotonic() < deadline
    # Whether it was done or not, it was done as a whole.
    assert left() in ([1, 3, 5, 7, 9], list(range(10)))


def test_clients(console: ConsoleProcess, broker: BrokerProcess, topic: str) -> None:
    with Producer(broker.bootstrap, client_id=topic) as producer:
        producer.send(topic, b"x").result(20)
        (found,) = console.get(f"/api/clients?topic={topic}&client_id={topic}").body["clients"]
        assert (found["client_id"], found["software_name"]) == (topic, "ottla")
        assert (found["producing"], found["groups"]) == ([topic], [])
        assert found["doing"] == f"produces to {topic}"
        for nobody in ("principal=User:alice", "address=127.0.0.2", "group=none", "client_id=none"):
            assert console.get(f"/api/clients?topic={topic}&{nobody}").body == {"clients": []}
    every = console.get("/api/clients").body["clients"]
    assert "ottla-console" in {each["client_id"] for each in every}
