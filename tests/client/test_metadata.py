"""What the client knows of its cluster, and which news it believes."""

from __future__ import annotations

from ottla.client.metadata import Metadata, Node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

FIRST, SECOND = b"1" * 16, b"2" * 16


def answer(
    leader: int, epoch: int, topic_id: bytes = FIRST, name: str | None = "t", code: int = 0
) -> MetadataResponse:
    partition = MetadataResponsePartition(leader_id=leader, leader_epoch=epoch)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host="h", port=n) for n in (1, 2)],
        topics=[
            MetadataResponseTopic(
                name=name, topic_id=topic_id, partitions=[partition], error_code=code
            )
        ],
    )


def leader(metadata: Metadata) -> tuple[int, int]:
    info = metadata.partition("t", 0)
    assert info is not None
    return info.leader, info.leader_epoch


def test_an_older_epoch_is_not_believed() -> None:
    metadata = Metadata()
    metadata.learn(answer(1, 5), ["t"], 0)
    metadata.learn(answer(2, 4), ["t"], 1)
    assert leader(metadata) == (1, 5)
    metadata.learn(answer(2, 6), ["t"], 2)
    assert leader(metadata) == (2, 6)


def test_a_topic_made_anew_begins_anew() -> None:
    metadata = Metadata()
    metadata.learn(answer(1, 5), ["t"], 0)
    metadata.learn(answer(2, 0, SECOND), ["t"], 1)
    assert leader(metadata) == (2, 0)
    assert metadata.name_of(SECOND) == "t"
    assert metadata.name_of(FIRST) is None


def test_brokers_that_tell_no_epochs_are_believed() -> None:
    metadata = Metadata()
    metadata.learn(answer(1, -1, bytes(16)), ["t"], 0)
    metadata.learn(answer(2, -1, bytes(16)), ["t"], 1)
    assert leader(metadata) == (2, -1)


def test_leaders_named_by_other_answers() -> None:
    metadata = Metadata()
    metadata.learn(answer(1, 5), ["t"], 0)
    assert not metadata.learn_leader("t", 0, 2, 5)
    assert metadata.learn_leader("t", 0, 2, 6)
    assert leader(metadata) == (2, 6)
    # A broker that nobody knows is of no use; one whose address comes along is.
    assert not metadata.learn_leader("t", 0, 9, 7)
    assert metadata.learn_leader("t", 0, 9, 7, [Node(9, "h", 9)])
    assert leader(metadata) == (9, 7)
    assert not metadata.learn_leader("absent", 0, 1, 1)


def test_topics_that_go() -> None:
    metadata = Metadata()
    metadata.learn(answer(1, 5), ["t"], 0)
    gone = answer(0, 0, bytes(16), code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    metadata.learn(gone, ["t"], 1)
    assert metadata.partition("t", 0) is None
    assert metadata.errors["t"] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    metadata.learn(answer(1, 0, SECOND), ["t"], 2)
    assert "t" not in metadata.errors
    # Asked for by id: the name is null when the id is unknown.
    unknown = answer(0, 0, SECOND, None, ErrorCode.UNKNOWN_TOPIC_ID)
    metadata.learn(unknown, [], 3)
    assert "t" not in metadata.topics
    metadata.learn(answer(1, 0), ["t"], 4)
    everything = MetadataResponse()
    metadata.learn(everything, None, 5)
    assert not metadata.topics
