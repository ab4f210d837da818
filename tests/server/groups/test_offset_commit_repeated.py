"""OffsetCommit requests that repeat one before them: read, written and answered as if decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, create_topic
from server_kit.wire import Wire

from ottla.coordinator.groups.group import Group
from ottla.coordinator.groups.shard import GroupShard
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import frame_response
from ottla.protocol.message import MalformedMessage
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.record.batch import Record, records
from ottla.replication.partition import Partition
from ottla.server.broker import Broker
from ottla.server.coordination.coordinators import Coordinators
from ottla.server.handlers.groups import offset_commit
from ottla.server.handlers.groups.offset_commit import repeated
from ottla.server.handlers.groups.offset_commit.general import answer_to_all

OFFSETS = "__consumer_offsets"
GROUP = "readers"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
VERSIONS = range(repeated.FIRST_VERSION, 11)
AT = 3  # where requests begin in the buffers below
PLACES = [(0, -1), (-1, 0), ((1 << 63) - 1, (1 << 31) - 1), (-(1 << 63), -(1 << 31)), (258, 772)]


@pytest.fixture
def running(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> BrokerThread:
    monkeypatch.setattr(
        offset_commit,
        "RepeatedCommits",
        lambda broker, general: repeated.RepeatedCommits(broker, general, learned_one_in=1),
    )
    broker = start_broker(settings={"offsets.topic.num.partitions": "1"})
    broker.run_async(broker.broker.internal_topic(OFFSETS))
    return broker


@pytest.fixture
def wire(running: BrokerThread) -> Iterator[Wire]:
    with running.wire() as opened:
        yield opened


@pytest.fixture
def topic(wire: Wire) -> Topic:
    return create_topic(wire, partitions=8)


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each request that is like one before it: whether it could be served the short way."""
    told: list[bool] = []
    serve = repeated.RepeatedCommits._serve_repeated

    def serve_repeated(self: repeated.RepeatedCommits, *args: object) -> bool:
        told.append(serve(self, *args))  # type: ignore[arg-type]
        return told[-1]

    monkeypatch.setattr(repeated.RepeatedCommits, "_serve_repeated", serve_repeated)
    return told


def request_of(
    topic: Topic,
    places: dict[int, tuple[int, int]],
    metadata: str | None = "",
    **fields: object,
) -> OffsetCommitRequest:
    """Commits an offset and a leader epoch for each partition."""
    parts = [
        OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            committed_metadata=metadata,
        )
        for index, (offset, epoch) in places.items()
    ]
    return OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            OffsetCommitRequestTopic(name=topic.name, topic_id=topic.id, partitions=parts[:3]),
            *(
                OffsetCommitRequestTopic(name=topic.name, topic_id=topic.id, partitions=[part])
                for part in parts[3:]
            ),
        ],
        **fields,
    )


class AnyShard(GroupShard):
    """To which every commit is right."""

    def __init__(self) -> None:
        pass

    def repeatable_commit(self, request: OffsetCommitRequest, version: int) -> object:  # type: ignore[override]
        return object()


def learned(body: bytes, version: int) -> repeated.RepeatedCommit:
    found = repeated.repeatable(body, version, lambda _: AnyShard())
    assert found is not None
    return found


def places_of(message: OffsetCommitRequest) -> list[tuple[int, int]]:
    return [
        (part.committed_offset, part.committed_leader_epoch)
        for topic in message.topics
        for part in topic.partitions
    ]


SHAPES = list(product([[0], [4, 2], [0, 255, 256, 65535, 2**31 - 1]], ["", None, "note", "ä" * 70]))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("indexes", "metadata"), SHAPES)
def test_offsets_and_epochs_are_read_as_the_decoder_reads_them(
    version: int, indexes: list[int], metadata: str | None
) -> None:
    topic = Topic("orders", bytes(range(16)))
    first = request_of(topic, dict.fromkeys(indexes, (1, 1)), metadata)
    known = learned(first.encode(version), version)
    for shift in range(len(PLACES)):
        places = {index: PLACES[(index + shift) % len(PLACES)] for index in indexes}
        body = request_of(topic, places, metadata).encode(version)
        assert known.size == len(body)
        found = known.read(memoryview(b"x" * AT + body + b"rest"), AT)
        assert found is not None
        decoded, _ = OffsetCommitRequest.decode(body, 0, version)
        assert list(zip(*found, strict=True)) == places_of(decoded)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_other_request_is_taken_for_a_repeated_one(version: int) -> None:
    topic = Topic("orders", bytes(range(16)))
    request = request_of(
        topic, {0: (1, 1), 5: (2, 2)}, "m", member_id="me", generation_id_or_member_epoch=7
    )
    body = request.encode(version)
    known = learned(body, version)
    taken = 0
    for at, byte in product(range(len(body)), (0, 1, 2, 0x7F, 0x80, 0xFF)):
        other = body[:at] + bytes([byte]) + body[at + 1 :]
        found = known.read(memoryview(other), 0)
        if found is None:
            assert other != body
            continue
        taken += 1
        decoded, _ = OffsetCommitRequest.decode(other, 0, version)
        assert list(zip(*found, strict=True)) == places_of(decoded)
        for topics in zip(decoded.topics, request.topics, strict=True):
            for part, original in zip(*(each.partitions for each in topics), strict=True):
                part.committed_offset = original.committed_offset
                part.committed_leader_epoch = original.committed_leader_epoch
        assert decoded.encode(version) == body
    assert taken > 2 * 12


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
def test_answers_are_those_of_the_general_way(version: int, code: ErrorCode) -> None:
    request = request_of(Topic("orders", bytes(range(16))), {0: (1, 1), 5: (2, 2)})
    known = learned(request.encode(version), version)
    decoded, _ = OffsetCommitRequest.decode(request.encode(version), 0, version)
    for correlation_id in (0, 77, (1 << 31) - 1, -(1 << 31)):
        expected = frame_response(answer_to_all(decoded, code), version, correlation_id)
        assert known.answer(correlation_id, code) == expected
        if code is ErrorCode.NONE:
            assert known.success(correlation_id) == expected


def test_what_is_written_otherwise_is_not_repeated() -> None:
    topic = Topic("orders", bytes(range(16)))
    body = request_of(topic, {0: (1, 1)}).encode(9)
    shard = AnyShard()
    assert repeated.repeatable(body, 9, lambda _: shard) is not None
    assert repeated.repeatable(body + b"more", 9, lambda _: shard) is None
    with_a_tag = body[:-1] + b"\x01\x63\x01x"
    OffsetCommitRequest.decode(with_a_tag, 0, 9)
    assert repeated.repeatable(with_a_tag, 9, lambda _: shard) is None
    assert repeated.repeatable(body, 9, lambda _: None) is None
    with pytest.raises(MalformedMessage):
        repeated.repeatable(body[:-1], 9, lambda _: shard)


# On a broker ----------------------------------------------------------------------------------------


def codes(answer: OffsetCommitResponse) -> set[int]:
    return {part.error_code for each in answer.topics for part in each.partitions}


def written(running: BrokerThread) -> list[Record]:
    """In the log of the offsets."""

    def read(broker: Broker) -> list[Record]:
        log = broker.partitions.by_name[OFFSETS][0].log
        piece = log.read(0, 1 << 20, log.log_end_offset)
        assert piece is not None
        data = memoryview(piece.read())
        found, at = [], 0
        while at < len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            found += records(data[at : at + size])
            at += size
        return found

    return running.run(read)


@pytest.mark.parametrize("version", VERSIONS)
def test_both_ways_write_and_answer_the_same(
    version: int, running: BrokerThread, wire: Wire, topic: Topic, shortened: list[bool]
) -> None:
    bodies, values = [], []
    for _ in range(4):
        wire.send(request_of(topic, {0: (5, 1), 7: (6, 2)}, "note"), version)
        bodies.append(bytes(wire.frame()[4:]))
        *_, first, second = written(running)
        # All but the time of the commit (which stands before the topic's id) and of the record.
        values.append(
            [
                (each.key, (each.value or b"")[:-27], (each.value or b"")[-19:])
                for each in (first, second)
            ]
        )
    # The first makes the group, and tells what may come again.
    assert shortened == [True] * 3
    assert bodies == [bodies[0]] * 4
    assert values == [values[0]] * 4
    assert codes(OffsetCommitResponse.decode(bodies[0], version >= 8, version)[0]) == {0}


def test_repeated_commits_are_there_after_a_restart(
    running: BrokerThread, wire: Wire, topic: Topic, shortened: list[bool]
) -> None:
    def state(broker: Broker) -> object:
        (shard,) = broker.groups.serving_shards()
        return {
            name: dict(partitions) for name, partitions in shard.offsets.of_group(GROUP).items()
        }

    for offset in range(5):
        request = request_of(topic, {0: (offset, 1), 3: (offset + 1, 2)}, "note")
        assert codes(wire.call(request, OffsetCommitResponse, 9)) == {0}
    assert shortened == [True] * 4
    before = running.run(state)
    running.restart()
    running.until(lambda broker: bool(broker.groups.serving_shards()))
    assert running.run(state) == before


def test_many_that_are_sent_at_once_are_answered_in_order(
    running: BrokerThread, wire: Wire, topic: Topic, shortened: list[bool]
) -> None:
    wire.call(request_of(topic, {0: (0, 0)}), OffsetCommitResponse, 9)
    before = wire.answered
    frames = []
    for offset in range(1, 41):
        # Some of them are of another kind.
        index = 0 if offset % 5 else 99
        frames.append(wire.encode(request_of(topic, {index: (offset, 0)}), 9))
    wire.send_raw(b"".join(frames))
    for offset in range(1, 41):
        answer = codes(wire.receive(OffsetCommitResponse, 9))
        assert answer == {0 if offset % 5 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert wire.answered == before + offset
    assert shortened.count(True) >= 30 - 8
    offsets = [each.value[2:10] for each in written(running) if each.value]
    assert offsets == [n.to_bytes(8, "big") for n in range(41) if n % 5 or not n]


def group_of(broker: Broker) -> Group:
    held = broker.groups.serving(GROUP)
    assert held is not None
    return held.shard.groups[GROUP]


def test_a_group_that_has_members_by_now_refuses(
    running: BrokerThread, wire: Wire, topic: Topic, shortened: list[bool]
) -> None:
    request = request_of(topic, {0: (5, 1)})
    for _ in range(2):
        assert codes(wire.call(request, OffsetCommitResponse, 9)) == {0}
    before = len(written(running))

    with running.wire() as member:
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
        member.send(
            JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            3,
        )
        running.until(lambda broker: not group_of(broker).is_empty)
        answer = wire.call(request, OffsetCommitResponse, 9)
    assert codes(answer) == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert shortened == [True, False]
    assert len(written(running)) == before


@pytest.mark.complains
def test_a_failed_append_is_told(
    running: BrokerThread, wire: Wire, topic: Topic, shortened: list[bool]
) -> None:
    request = request_of(topic, {0: (5, 1), 1: (6, 1)})
    for _ in range(2):
        assert codes(wire.call(request, OffsetCommitResponse, 9)) == {0}
    running.run(
        lambda broker: broker.partitions.by_name[OFFSETS][0].log.go_offline("the test says so")
    )
    answer = wire.call(request, OffsetCommitResponse, 9)
    assert codes(answer) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert [len(each.partitions) for each in answer.topics] == [2]
    assert shortened == [True, True]


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[ErrorCode], None]]:
    """Who waits for what is appended to be committed, as if there were replicas."""
    waiting: list[Callable[[ErrorCode], None]] = []

    def once_committed(_: Partition, _end: int, reached: Callable[[ErrorCode], None]) -> None:
        waiting.append(reached)

    monkeypatch.setattr(Coordinators, "_is_settled", lambda *_: False)
    monkeypatch.setattr(Partition, "once_committed", once_committed)
    return waiting


@pytest.mark.parametrize(
    ("became", "told"),
    [
        (ErrorCode.NONE, ErrorCode.NONE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_the_answer_waits_until_the_commit_is_committed(
    became: ErrorCode,
    told: ErrorCode,
    running: BrokerThread,
    wire: Wire,
    topic: Topic,
    shortened: list[bool],
    request: pytest.FixtureRequest,
) -> None:
    commit = request_of(topic, {0: (5, 1)})
    for _ in range(2):
        assert codes(wire.call(commit, OffsetCommitResponse, 9)) == {0}
    replicas = request.getfixturevalue("replicas")
    wire.send(commit, 9)
    running.until(lambda _: bool(replicas))
    assert shortened == [True, True]
    (connection,) = running.run(
        lambda broker: [each for each in broker.reactor.connections if each.slots]
    )
    assert connection.out_bytes == 0
    running.run(lambda _: replicas[0](became))
    assert codes(wire.receive(OffsetCommitResponse, 9)) == {told}


def test_a_commit_that_takes_too_long_is_given_up_once(
    running: BrokerThread,
    wire: Wire,
    topic: Topic,
    shortened: list[bool],
    request: pytest.FixtureRequest,
) -> None:
    commit = request_of(topic, {0: (5, 1)})
    for _ in range(2):
        assert codes(wire.call(commit, OffsetCommitResponse, 9)) == {0}
    replicas = request.getfixturevalue("replicas")
    usual = running.broker.config.offsets_commit_timeout_ms
    object.__setattr__(running.broker.config, "offsets_commit_timeout_ms", 1)
    answer = wire.call(commit, OffsetCommitResponse, 9)
    object.__setattr__(running.broker.config, "offsets_commit_timeout_ms", usual)
    assert codes(answer) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert shortened == [True, True]
    running.run(lambda _: replicas[0](ErrorCode.NONE))
    assert not any(running.run(lambda broker: [c.out_bytes for c in broker.reactor.connections]))
    wire.send(commit, 9)
    running.until(lambda _: len(replicas) == 2)
    running.run(lambda _: replicas[1](ErrorCode.NONE))
    before = wire.answered
    assert codes(wire.receive(OffsetCommitResponse, 9)) == {0}
    assert wire.answered == before + 1


def test_clients_that_alternate_are_looked_at_once_in_a_while(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt = []
    monkeypatch.setattr(repeated, "repeatable", lambda *_: learnt.append(1))
    running = start_broker()
    running.run_async(running.broker.internal_topic(OFFSETS))
    with running.wire() as wire:
        topic = create_topic(wire, partitions=8)
        for number in range(4 * repeated.LEARNED_ONE_IN):
            wire.call(request_of(topic, {number % 8: (5, 1)}), OffsetCommitResponse, 9)
    assert len(learnt) == 4


def test_with_an_authorizer_every_request_is_decoded(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_commit, "RepeatedCommits", None)
    running = start_broker(
        settings={"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    )
    assert running.broker.authorizer is not None
