"""Paths and values: what is written is read back the same, and looks as the docstring says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.cluster import layout
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import (
    ClusterImage,
    Endpoint,
    Partition,
    RegisteredBroker,
    ResourceType,
    Topic,
)
from ottla.cluster.store import Create, Delete, Node, Set, check_path

ids = st.integers(0, 2**31 - 1)
replicas = st.lists(ids, max_size=4).map(tuple)


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    count = draw(st.integers(1, 4))
    partitions = tuple(
        Partition(
            index,
            draw(replicas),
            draw(replicas),
            draw(st.integers(-1, 2**31 - 1)),
            draw(ids),
            draw(ids),
            draw(replicas),
            draw(replicas),
        )
        for index in range(count)
    )
    return Topic("name", draw(st.binary(min_size=16, max_size=16)), partitions)


@given(st.lists(topics(), max_size=4))
def test_topics_come_back_as_they_were(written: list[Topic]) -> None:
    encoded: dict[int, bytes] = {}
    known: dict[bytes, tuple[Partition, ...]] = {}
    for topic in written:
        value = layout.encode_topic(topic, encoded)
        assert layout.decode_topic("name", value, known) == topic
        # Written by another hand, in another order and with blanks, it means the same.
        fields = dict(reversed(json.loads(value).items()))
        assert layout.decode_topic("name", json.dumps(fields).encode(), known) == topic


def test_equal_partitions_are_shared() -> None:
    partitions = (Partition(0, (1,), (1,), 1), Partition(1, (1,), (1,), 1))
    known: dict[bytes, tuple[Partition, ...]] = {}
    first, second = (
        layout.decode_topic(
            name, layout.encode_topic(Topic(name, bytes([number] * 16), partitions), {}), known
        )
        for number, name in enumerate("ab")
    )
    assert first.topic_id != second.topic_id
    assert first.partitions is second.partitions


@example(".", ResourceType.GROUP)
@example("..", ResourceType.GROUP)
@given(st.text(), st.sampled_from(list(layout.CONFIG_FOLDERS)))
def test_any_name_of_a_resource_fits_into_a_path(name: str, resource_type: ResourceType) -> None:
    path = layout.config_path((resource_type, name))
    check_path(path)
    folder, _, last = path.rpartition("/")
    assert folder == layout.CONFIG_FOLDERS[resource_type]
    assert last not in (".", "..")
    assert layout.config_name(last) == name


def test_the_default_is_no_name() -> None:
    default = layout.config_path((ResourceType.BROKER, ""))
    assert default == "/config/brokers/<default>"
    assert layout.config_path((ResourceType.GROUP, "<default>")) == "/config/groups/%3Cdefault%3E"


def test_a_broker_comes_back_with_the_epoch_of_its_node() -> None:
    broker = RegisteredBroker(
        7, -1, "rack 1", (Endpoint("IN", "host", 1, "SSL"), Endpoint("O", "h", 2, "P"))
    )
    broker = replace(broker, run="3-c", former_runs=("1-a", "2-b"))
    node = Node(layout.encode_broker(broker), 0, 42, 42, 5)
    assert layout.decode_broker(7, node) == (
        replace(broker, epoch=42),
        False,
    )


def test_a_registration_comes_back() -> None:
    broker = RegisteredBroker(
        7, 42, None, (Endpoint("IN", "host", 1, "SSL"),), "folder", leaving=True, run="3-c"
    )
    for fenced in (False, True):
        value = layout.encode_registration(broker, fenced)
        decoded, is_fenced = layout.decode_registration(7, value)
        assert is_fenced == fenced
        assert decoded == (replace(broker, leaving=False) if fenced else broker)


def test_operations_of_a_draft(
    image_of: Callable[..., ClusterImage], broker: Callable[..., RegisteredBroker]
) -> None:
    draft = Draft(image_of(1, features={"f": 1}))
    kept = Topic("kept", b"k" * 16, (Partition(0, (1,), (1,), 1),))
    gone = Topic("gone", b"g" * 16, (Partition(0, (1,), (1,), 1),))
    draft.put_topics([kept, gone])
    draft.set_config((ResourceType.TOPIC, "gone"), {"a": "b"})
    draft.set_config((ResourceType.TOPIC, "kept"), {"a": "b"})
    base, _ = draft.finish(1)

    draft = Draft(base)
    assert layout.operations_of(draft) == []
    grown = Topic("kept", b"k" * 16, (*kept.partitions, Partition(1, (1,), (1,), 1)))
    draft.put_topics([grown, Topic("new", b"n" * 16, kept.partitions)])
    draft.remove_topics(["gone"])
    draft.set_config((ResourceType.TOPIC, "gone"), {})
    draft.set_config((ResourceType.TOPIC, "kept"), {"a": "c"})
    draft.set_config((ResourceType.TOPIC, "new"), {"x": "y"})
    draft.set_feature("g", 2)
    draft.put_broker(broker(1))
    draft.next_producer_id = 1000
    operations = layout.operations_of(draft)
    assert [(type(operation), operation.path) for operation in operations] == [
        (Set, "/config/topics/kept"),
        (Create, "/config/topics/new"),
        (Set, "/brokers/topics/kept"),
        (Create, "/brokers/topics/new"),
        (Delete, "/brokers/topics/gone"),
        (Delete, "/config/topics/gone"),
        (Set, "/features"),
        (Set, "/latest_producer_id_block"),
        (Set, "/brokers/registrations/1"),
    ]
    created = operations[3]
    assert isinstance(created, Create)
    assert json.loads(created.value) == {
        "topic_id": "bm5ubm5ubm5ubm5ubm5ubg",
        "partitions": [
            {"replicas": [1], "isr": [1], "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
        ],
    }
    block = operations[-2]
    assert isinstance(block, Set)
    assert json.loads(block.value)["block_end"] == "999"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/features", b"{"),
        ("/cluster/id", b"{}"),
        ("/cluster/secret", b'{"secret":"%"}'),
        ("/controller_epoch", b"x"),
        ("/brokers/topics/t", b'{"topic_id":"short","partitions":[]}'),
        ("/brokers/topics/t", b"[]"),
    ],
)
def test_an_unreadable_value_is_named(path: str, value: bytes) -> None:
    values: dict[str, bytes] = {}
    for operation in layout.skeleton("id", {}, "mark", b"secret"):
        assert isinstance(operation, Create)
        values[operation.path] = operation.value
    values[path] = value
    nodes = {key: Node(found, 0, 1, 1) for key, found in values.items()}
    listed = [("t", nodes[path])] if path.startswith("/brokers/topics/") else []
    with pytest.raises(layout.UnreadableMetadata, match=path):
        layout.decode_image(nodes, [], listed, [])
