"""What the broker tells of itself, read by Prometheus's own parser."""

from __future__ import annotations

import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_kit.broker_thread import BrokerThread
from server_kit.calls import batch_of, create_topic, fill

from ottla import Consumer, Producer
from ottla.server.broker import CannotStart
from ottla.server.observability.metrics import FAMILIES, SAMPLES_AT_ONCE, label

TOOL = Path(__file__).parents[2] / "tools" / "metrics_table.py"


@pytest.fixture
def measured(start_broker) -> BrokerThread:
    return start_broker(settings={"metrics.listener": "127.0.0.1:0"})


def ask(broker: BrokerThread, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    assert broker.broker.metrics_endpoint is not None
    connection = HTTPConnection("127.0.0.1", broker.broker.metrics_endpoint.port, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(broker: BrokerThread) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    status, text = ask(broker)
    assert status == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, **labels: object) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset((key, str(value)) for key, value in labels.items())


def test_what_a_log_went_through(measured) -> None:
    wire = measured.wire()
    topic = create_topic(wire, partitions=2)
    fill(wire, topic, batch_of(b"a", b"b"), batch_of(b"c"), index=1)
    found = samples(measured)
    where = {"topic": topic.name, "partition": 1}
    assert found[of("ottla_partition_log_end_offset", **where)] == 3
    assert found[of("ottla_partition_log_start_offset", **where)] == 0
    assert found[of("ottla_partition_high_watermark", **where)] == 3
    assert found[of("ottla_partition_last_stable_offset", **where)] == 3
    size = found[of("ottla_partition_size_bytes", **where)]
    assert size == found[of("ottla_partition_appended_bytes_total", **where)]
    folder = measured.data / f"{topic.name}-1"
    assert size == sum(path.stat().st_size for path in folder.glob("*.log"))
    assert found[of("ottla_topic_partitions", topic=topic.name)] == 2
    assert not any(name == "ottla_partition_offline" for name, _ in found)


def test_requests_and_connections(measured) -> None:
    wire = measured.wire()
    topic = create_topic(wire)
    before = samples(measured)
    fill(wire, topic, *[batch_of(b"x" * 100)] * 130)
    after = samples(measured)
    produced = of("ottla_requests_total", api="Produce")
    assert after[produced] - before.get(produced, 0) == 130
    assert after[of("ottla_request_handling_seconds_count", api="Produce")] == 2
    assert after[of("ottla_request_handling_seconds_bucket", api="Produce", le="+Inf")] == 2
    assert after[of("ottla_connections", listener="PLAINTEXT")] == 1
    received = of("ottla_received_bytes_total")
    assert after[received] - before[received] > 130 * 100
    sent = of("ottla_sent_bytes_total")
    assert 130 * 20 < after[sent] - before[sent] < 130 * 200
    assert after[of("process_resident_memory_bytes")] > 10 << 20
    assert after[of("process_cpu_seconds_total")] > 0


@pytest.mark.complains
def test_mistakes_are_counted(start_broker) -> None:
    broker = start_broker(
        settings={"metrics.listener": "127.0.0.1:0", "max.connections.per.ip": "1"}
    )
    with socket.create_connection(("127.0.0.1", broker.port)) as peer:
        with socket.create_connection(("127.0.0.1", broker.port)) as second:
            assert second.recv(1) == b""
        peer.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert peer.recv(1) == b""
    found = samples(broker)
    assert found[of("ottla_malformed_requests_total")] == 1
    assert found[of("ottla_connections_refused_total")] == 1
    assert found[of("ottla_connections_accepted_total")] == 1


def test_groups_and_transactions(measured) -> None:
    server = f"127.0.0.1:{measured.port}"
    group = 'a "group"\\of\nlines'
    with Producer(server, **{"transactional.id": "payments"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in range(5):
                producer.send("orders", str(number))
        options = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        with Consumer(server, group=group, **options) as consumer:
            consumer.subscribe("orders")
            next(iter(consumer.batches()))
            consumer.commit({("orders", 0): 2})
    found = samples(measured)
    where = {"group": group, "topic": "orders", "partition": 0}
    assert found[of("ottla_group_committed_offset", **where)] == 2
    end = found[of("ottla_partition_high_watermark", topic="orders", partition=0)]
    assert end == 6  # five records and the transaction's end
    assert found[of("ottla_group_lag", **where)] == 4
    assert found[of("ottla_groups", type="consumer", state="Empty")] == 1
    assert found[of("ottla_transactional_ids", state="complete_commit")] == 1


def test_a_single_broker_is_the_controller_and_lacks_nothing(measured) -> None:
    create_topic(measured.wire(), partitions=2)
    found = samples(measured)
    assert found[of("ottla_active_controller")] == 1
    for name in (
        "ottla_under_replicated_partitions",
        "ottla_under_min_isr_partitions",
        "ottla_leaderless_partitions",
        "ottla_unclean_elections_total",
        "ottla_isr_shrinks_total",
        "ottla_isr_expands_total",
    ):
        assert found[of(name)] == 0, name
    for reason in ("refused", "session"):
        assert found[of("ottla_fenced_brokers_total", reason=reason)] == 0


def test_more_than_a_piece(measured) -> None:
    """Every partition once, also where an answer is made in several pieces."""
    wire = measured.wire()
    topic = create_topic(wire, partitions=SAMPLES_AT_ONCE + 20)
    for index in (0, SAMPLES_AT_ONCE, SAMPLES_AT_ONCE + 19):
        fill(wire, topic, batch_of(b"x"), index=index)
    found = samples(measured)
    ends = {
        dict(labels)["partition"]: value
        for (name, labels), value in found.items()
        if name == "ottla_partition_log_end_offset" and ("topic", topic.name) in labels
    }
    assert sum(ends.values()) == 3
    assert ends["0"] == ends[str(SAMPLES_AT_ONCE)] == ends[str(SAMPLES_AT_ONCE + 19)] == 1


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/metrics", "HEAD", 200),
        ("/metrics?name=x", "GET", 200),
        ("/healthz", "GET", 200),
        ("/metrics", "POST", 405),
        ("/", "GET", 404),
    ],
)
def test_what_is_asked_for(measured, path, method, status) -> None:
    assert ask(measured, path, method)[0] == status


@pytest.mark.parametrize(
    ("request_text", "answer"),
    [
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", b"HTTP/1.1 431"),
    ],
)
def test_what_is_no_request(measured, request_text, answer) -> None:
    endpoint = measured.broker.metrics_endpoint
    assert endpoint is not None
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as peer:
        peer.sendall(request_text)
        assert peer.recv(100).startswith(answer)
    assert ask(measured, "/healthz") == (200, "ok\n")


def test_an_address_that_is_taken(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        broker = BrokerThread(tmp_path / "data", settings={"metrics.listener": address})
        with pytest.raises(CannotStart, match=f"cannot serve metrics on {address}"):
            broker.start()


def test_a_setting_that_is_no_address() -> None:
    from ottla.server.configuration.broker_config import load
    from ottla.server.configuration.sources import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"metrics.listener.*HOST:PORT"):
        load(environment={}, assignments=["metrics.listener=nowhere"])


def test_nothing_is_served_unless_asked_for(start_broker) -> None:
    assert start_broker().broker.metrics_endpoint is None


def test_labels_are_escaped() -> None:
    assert label(a='"\\\n') == 'a="\\"\\\\\\n"'


def test_names_are_unique_and_counters_end_in_total() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind == "counter")


def test_page_is_up_to_date() -> None:
    checked = subprocess.run([sys.executable, str(TOOL), "--check"], check=False)
    assert checked.returncode == 0, "run: python tools/metrics_table.py"
