"""Names and partitions: one or several, and never the letters of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ottla import Admin, AsyncAdmin, AsyncConsumer, Consumer
from ottla.client.admin.configs import Resource
from ottla.client.admin.topics import NewTopic
from ottla.client.naming import by_partition, names_of, partition_of, partitions_of
from ottla.client.positions import TopicPartition
from ottla.testing import BrokerProcess

# Every parameter of the two classes that takes names or partitions, one or several.
ADMIN_CALLS: dict[tuple[str, str], Callable[[Admin, Any], object]] = {
    ("describe_topics", "topics"): lambda admin, it: admin.describe_topics(it),
    ("create_topics", "topics"): lambda admin, it: admin.create_topics(it),
    ("delete_topics", "topics"): lambda admin, it: admin.delete_topics(it),
    ("describe_configs", "resources"): lambda admin, it: admin.describe_configs(it),
    ("describe_configs", "names"): lambda admin, it: admin.describe_configs(
        Resource.broker(1), names=it
    ),
    ("alter_configs", "unset"): lambda admin, it: admin.alter_configs(Resource.broker(1), unset=it),
    ("list_groups", "states"): lambda admin, it: admin.list_groups(states=it),
    ("list_groups", "types"): lambda admin, it: admin.list_groups(types=it),
    ("describe_groups", "groups"): lambda admin, it: admin.describe_groups(it),
    ("delete_groups", "groups"): lambda admin, it: admin.delete_groups(it),
    ("remove_members", "instance_ids"): lambda admin, it: admin.remove_members(
        "g", instance_ids=it
    ),
    ("remove_members", "member_ids"): lambda admin, it: admin.remove_members("g", member_ids=it),
    ("committed_offsets", "partitions"): lambda admin, it: admin.committed_offsets("g", it),
    ("group_lag", "partitions"): lambda admin, it: admin.group_lag("g", it),
    ("plan_offsets", "partitions"): lambda admin, it: admin.plan_offsets("g", 0, partitions=it),
    ("plan_offsets", "topics"): lambda admin, it: admin.plan_offsets("g", 0, topics=it),
    ("delete_offsets", "partitions"): lambda admin, it: admin.delete_offsets("g", it),
    ("list_transactions", "states"): lambda admin, it: admin.list_transactions(states=it),
    ("list_transactions", "producer_ids"): lambda admin, it: admin.list_transactions(
        producer_ids=it
    ),
    ("describe_transactions", "transactional_ids"): lambda admin, it: admin.describe_transactions(
        it
    ),
    ("describe_producers", "partitions"): lambda admin, it: admin.describe_producers(it),
    ("find_hanging_transactions", "partitions"): lambda admin, it: admin.find_hanging_transactions(
        it
    ),
    ("find_hanging_transactions", "topics"): lambda admin, it: admin.find_hanging_transactions(
        topics=it
    ),
    ("create_acls", "acls"): lambda admin, it: admin.create_acls(it),
    ("delete_acls", "filters"): lambda admin, it: admin.delete_acls(it),
    ("describe_quotas", "kinds"): lambda admin, it: admin.describe_quotas(kinds=it),
    ("alter_quotas", "unset"): lambda admin, it: admin.alter_quotas({"user": "u"}, unset=it),
    ("describe_scram_users", "users"): lambda admin, it: admin.describe_scram_users(it),
    ("describe_log_folders", "brokers"): lambda admin, it: admin.describe_log_folders(it),
    ("elect_leaders", "partitions"): lambda admin, it: admin.elect_leaders(it),
}
# Those that take partitions by name, in a dictionary.
BY_PARTITION: dict[str, Callable[[Admin, Any], object]] = {
    "list_offsets": lambda admin, it: admin.list_offsets({it: 0}),
    "delete_records": lambda admin, it: admin.delete_records({it: 0}),
    "alter_offsets": lambda admin, it: admin.alter_offsets("g", {it: 0}),
    "alter_reassignments": lambda admin, it: admin.alter_reassignments({it: None}),
}
CONSUMER_CALLS: dict[tuple[str, str], Callable[[Consumer, Any], object]] = {
    ("subscribe", "topics"): lambda consumer, it: consumer.subscribe(it),
    ("assign", "partitions"): lambda consumer, it: consumer.assign(it),
    ("read", "columns"): lambda consumer, it: consumer.read("t", columns=it),
    ("scan", "columns"): lambda consumer, it: consumer.scan("t", columns=it),
    ("seek", "partition"): lambda consumer, it: consumer.seek(it, 0),
    ("position", "partition"): lambda consumer, it: consumer.position(it),
    ("lag", "partitions"): lambda consumer, it: consumer.lag(it),
    ("pause", "partitions"): lambda consumer, it: consumer.pause(it),
    ("resume", "partitions"): lambda consumer, it: consumer.resume(it),
    ("committed", "partitions"): lambda consumer, it: consumer.committed(it),
    ("seek_all", "positions"): lambda consumer, it: consumer.seek_all({it: 0}),
    ("commit", "offsets"): lambda consumer, it: consumer.commit({it: 0}),
}


@pytest.fixture(scope="module")
def here(broker: BrokerProcess) -> Any:
    with Admin(broker.bootstrap) as client:
        yield client


def plural(kind: type) -> set[tuple[str, str]]:
    """The parameters that take several things, of all public calls."""
    return {
        (name, parameter.name)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        for parameter in inspect.signature(method).parameters.values()
        if any(
            word in str(parameter.annotation)
            for word in ("Names", "Topics", "Partitions", "AnyPartition", "Iterable")
        )
    }


def test_no_parameter_is_forgotten() -> None:
    assert plural(AsyncAdmin) == set(ADMIN_CALLS)
    assert plural(AsyncConsumer) == set(CONSUMER_CALLS)


@pytest.mark.parametrize("call", ADMIN_CALLS.values(), ids=map("-".join, ADMIN_CALLS))
@pytest.mark.parametrize("given", [b"orders", b"", [b"orders"], [None], 1.5], ids=repr)
def test_what_is_no_name_is_refused(
    here: Admin, call: Callable[[Admin, Any], object], given: object
) -> None:
    with pytest.raises(TypeError, match=r"expected|among|a partition is"):
        call(here, given)


@pytest.mark.parametrize(
    "call",
    [
        *(call for (_, what), call in ADMIN_CALLS.items() if what == "partitions"),
        *BY_PARTITION.values(),
    ],
)
@pytest.mark.parametrize("given", ["t1", "orders", ("orders", "0"), ("orders", True)], ids=repr)
def test_what_is_no_partition_is_refused(
    here: Admin, call: Callable[[Admin, Any], object], given: object
) -> None:
    # "t1" is as long as a pair.
    with pytest.raises(TypeError, match="partition"):
        call(here, given)


@pytest.mark.parametrize("call", CONSUMER_CALLS.values(), ids=map("-".join, CONSUMER_CALLS))
def test_what_is_no_name_is_refused_by_consumers(
    broker: BrokerProcess, call: Callable[[Consumer, Any], object], group: str
) -> None:
    with Consumer(broker.bootstrap, group=group) as consumer, pytest.raises(TypeError):
        call(consumer, b"t1")
    with pytest.raises(TypeError, match="columns: names"):
        Consumer(broker.bootstrap, columns=b"value")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [call for (name, what), call in CONSUMER_CALLS.items() if what not in ("columns", "topics")],
)
def test_a_topic_is_no_partition(
    broker: BrokerProcess, call: Callable[[Consumer, Any], object], group: str
) -> None:
    with (
        Consumer(broker.bootstrap, group=group) as consumer,
        pytest.raises(TypeError, match="partition"),
    ):
        call(consumer, "t1")


def test_one_name_is_one_topic(here: Admin, broker: BrokerProcess, topic: str) -> None:
    assert set(here.create_topics(topic)) == {topic}
    assert set(here.create_topics(NewTopic(f"{topic}-2", 1, settings={"retention.ms": "1"})))
    assert list(here.describe_topics(topic)) == [topic]
    names = {each.name for each in here.list_topics()}
    assert topic in names
    assert not names & set(topic)
    settings = here.describe_configs(Resource.topic(topic), names="retention.ms")
    assert list(settings[Resource.topic(topic)]) == ["retention.ms"]
    assert here.find_hanging_transactions(topics=topic) == []
    assert here.describe_producers((topic, 0)) == {TopicPartition(topic, 0): ()}
    with Consumer(broker.bootstrap) as consumer:
        assert consumer.read(topic, columns="value").column_names == ["value"]
        consumer.assign((topic, 0))
        assert consumer.assignment == {(topic, 0)}
        consumer.assign([TopicPartition(topic, 0)])
        consumer.subscribe(topic)
        assert consumer.subscription == {topic}
    here.delete_topics(topic)


def test_one_name_where_there_is_one(broker: BrokerProcess) -> None:
    with Consumer(broker.bootstrap) as consumer:
        with pytest.raises(TypeError, match="topic: one name"):
            consumer.read(["t"])  # type: ignore[arg-type]
        # librdkafka would take it for a pattern.
        with pytest.raises(ValueError, match=r"re.compile\('\^t.\*'\)"):
            consumer.subscribe("^t.*")


def test_names() -> None:
    assert names_of("orders", "topics") == ["orders"]
    assert names_of(iter(["b", "a", "b"]), "topics") == ["b", "a"]
    with pytest.raises(TypeError, match=r"topics: names \(str\): among them is b'x' \(bytes\)"):
        names_of(["a", b"x"], "topics")  # type: ignore[list-item]


def test_partitions() -> None:
    assert partitions_of(("t", 1)) == [("t", 1)]
    assert partitions_of([("t", 1), TopicPartition("t", 1)]) == [("t", 1)]
    assert partitions_of({("t", 1): "earliest"}) == [("t", 1)]
    assert partition_of(("t", np.int32(3))) == ("t", 3)  # type: ignore[arg-type]
    assert type(partition_of(("t", np.int32(3))).partition) is int  # type: ignore[arg-type]
    assert by_partition({("t", 1): 5}) == {TopicPartition("t", 1): 5}
    with pytest.raises(TypeError, match="dictionary"):
        by_partition([("t", 1)])  # type: ignore[arg-type]
