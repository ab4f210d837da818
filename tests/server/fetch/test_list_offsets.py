"""ListOffsets: ends, times, epochs, the old list of v0."""

from __future__ import annotations

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    fill,
    fresh_name,
    list_offset,
    now_ms,
    versions_of,
)
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.record.batch import Codec, Record, assemble, build_batch, read_header
from ottla.server.broker import Broker
from ottla.server.handlers.records import list_offsets
from ottla.storage.log.producer_state import Origin

VERSIONS = versions_of(ListOffsetsRequest, first=1)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
HOUR = 3_600_000


@pytest.fixture
def start() -> int:
    """The time of the first record: of today, or retention would take the records away."""
    return now_ms() - HOUR


@pytest.fixture(params=["at once", "in steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few partitions are dealt with at once, if nothing has to be waited for; any number in steps."""
    if request.param == "in steps":
        monkeypatch.setattr(list_offsets, "AT_ONCE", 0)


@pytest.fixture
def timed(wire: Wire, topic: Topic, start: int) -> Topic:
    """Records 0–5, a second apart in the batches but not in order."""
    for batch in ([0, 1000], [2000, 5000], [4000, 3000]):
        fill(
            wire,
            topic,
            build_batch(
                [Record(index, start + late, b"k", b"v") for index, late in enumerate(batch)]
            ),
        )
    return topic


@pytest.mark.parametrize("version", VERSIONS)
def test_ends(wire: Wire, timed: Topic, version: int) -> None:
    latest = list_offset(wire, timed, LATEST, version=version)
    assert (latest.error_code, latest.offset, latest.timestamp) == (0, 6, -1)
    earliest = list_offset(wire, timed, EARLIEST, version=version)
    assert (earliest.error_code, earliest.offset, earliest.timestamp) == (0, 0, -1)
    if version >= 4:
        assert latest.leader_epoch == 0
        assert earliest.leader_epoch == 0


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("late", "offset", "found"),
    [(-5, 0, 0), (0, 0, 0), (1, 1, 1000), (1000, 1, 1000), (1500, 2, 2000), (2500, 3, 5000),
     (5000, 3, 5000), (5001, -1, None)],
)  # fmt: skip
def test_by_time(
    wire: Wire, timed: Topic, start: int, version: int, late: int, offset: int, found: int | None
) -> None:
    answer = list_offset(wire, timed, start + late, version=version)
    assert (answer.error_code, answer.offset) == (0, offset)
    assert answer.timestamp == (-1 if found is None else start + found)
    if version >= 4:
        assert answer.leader_epoch == (-1 if found is None else 0)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", list(Codec))
def test_by_time_inside_a_compressed_batch(
    wire: Wire, topic: Topic, start: int, codec: Codec
) -> None:
    records = [Record(each, start + 10 * each, b"k", b"v" * 50) for each in range(100)]
    fill(wire, topic, build_batch(records, codec=codec))
    answer = list_offset(wire, topic, start + 425)
    assert (answer.offset, answer.timestamp) == (43, start + 430)


@pytest.mark.parametrize("version", versions_of(ListOffsetsRequest, first=7))
def test_largest_timestamp(wire: Wire, timed: Topic, start: int, version: int) -> None:
    answer = list_offset(wire, timed, MAX_TIMESTAMP, version=version)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, 3, start + 5000)


@pytest.mark.parametrize("version", versions_of(ListOffsetsRequest, first=8))
def test_local_and_tiered(wire: Wire, timed: Topic, version: int) -> None:
    assert list_offset(wire, timed, EARLIEST_LOCAL, version=version).offset == 0
    if version >= 9:
        answer = list_offset(wire, timed, LATEST_TIERED, version=version)
        assert (answer.error_code, answer.offset) == (0, -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_empty_log(wire: Wire, topic: Topic, version: int) -> None:
    assert list_offset(wire, topic, LATEST, version=version).offset == 0
    assert list_offset(wire, topic, EARLIEST, version=version).offset == 0
    answer = list_offset(wire, topic, 0, version=version)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, -1, -1)
    if version >= 7:
        answer = list_offset(wire, topic, MAX_TIMESTAMP, version=version)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, -1, -1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("timestamp", [-7, -100, -(2**63)])
def test_positions_that_nobody_knows(
    wire: Wire, topic: Topic, version: int, timestamp: int
) -> None:
    answer = list_offset(wire, topic, timestamp, version=version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.offset == -1


@pytest.mark.parametrize(
    ("version", "timestamp"), [(6, MAX_TIMESTAMP), (7, EARLIEST_LOCAL), (8, LATEST_TIERED)]
)
def test_positions_before_their_version(
    wire: Wire, topic: Topic, version: int, timestamp: int
) -> None:
    answer = list_offset(wire, topic, timestamp, version=version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("version", versions_of(ListOffsetsRequest))
def test_unknown_topic_and_partition(wire: Wire, topic: Topic, version: int) -> None:
    missing = Topic(fresh_name("missing"), bytes(16))
    answer = list_offset(wire, missing, LATEST, version=version)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = list_offset(wire, topic, LATEST, version=version, index=1)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version:
        assert (answer.offset, answer.timestamp) == (-1, -1)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("version", versions_of(ListOffsetsRequest, first=4))
def test_leader_epochs(wire: Wire, topic: Topic, version: int) -> None:
    known = list_offset(wire, topic, LATEST, version=version, current_leader_epoch=0)
    assert known.error_code == 0
    newer = list_offset(wire, topic, LATEST, version=version, current_leader_epoch=7)
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_named_twice(wire: Wire, version: int) -> None:
    topic = create_topic(wire, partitions=2)
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=topic.name,
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=LATEST)
                    for index in (0, 1, 0)
                ],
            )
        ]
    )
    response = wire.call(request, ListOffsetsResponse, version)
    by_index = {each.partition_index: each for each in response.topics[0].partitions}
    assert by_index[0].error_code == ErrorCode.INVALID_REQUEST
    assert by_index[1].error_code == 0


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("version", versions_of(ListOffsetsRequest, first=2))
def test_isolation(inside: BrokerThread, wire: Wire, topic: Topic, version: int) -> None:
    """Readers of committed records see up to the open transaction."""

    def begin(_: object) -> None:
        log = inside.broker.partitions.by_name[topic.name][0].log
        for fields in (
            {},
            {"transactional": True, "producer_id": 3, "producer_epoch": 0, "base_sequence": 0},
        ):
            log.append(bytearray(batch_of(b"a", **fields)), 0, now_ms())
        log.advance_high_watermark(log.log_end_offset)

    inside.run(begin)
    assert list_offset(wire, topic, LATEST, version=version).offset == 2
    assert list_offset(wire, topic, LATEST, version=version, isolation_level=1).offset == 1
    assert list_offset(wire, topic, 0, version=version).offset == 0


@pytest.mark.parametrize(
    ("timestamp", "most", "expected"),
    [(LATEST, 1, [6]), (LATEST, 5, [6, 0]), (EARLIEST, 5, [0]), (LATEST, 0, []), (LATEST, -1, []),
     (0, 5, [])],
)  # fmt: skip
def test_old_list(wire: Wire, timed: Topic, timestamp: int, most: int, expected: list[int]) -> None:
    """v0: starts of segments, newest first."""
    answer = list_offset(wire, timed, timestamp, version=0, max_num_offsets=most)
    assert (answer.error_code, answer.old_style_offsets) == (0, expected)


@pytest.mark.usefixtures("way")
def test_a_batch_whose_records_are_none(
    inside: BrokerThread, wire: Wire, topic: Topic, start: int
) -> None:
    """Stored by a broker that trusts producers; a search by time must live with it."""
    header = read_header(batch_of(b"a", timestamp=start))
    inside.trust_producers(topic.name)
    fill(wire, topic, assemble(header, b"no records at all"))
    fill(wire, topic, batch_of(b"b", timestamp=start + 1000))
    for version in (1, 7):
        answered = list_offset(wire, topic, start, version=version)
        assert answered.error_code == 0
    assert list_offset(wire, topic, start + 500).offset == 1
    assert list_offset(wire, topic, LATEST).offset == 2


def test_the_end_for_committed_readers_is_never_below_the_start(
    inside: BrokerThread, wire: Wire, topic: Topic
) -> None:
    """Records were deleted beyond where an open transaction begins."""
    open_batch = batch_of(
        b"a", b"b", b"c", transactional=True, producer_id=7, producer_epoch=0, base_sequence=0
    )

    def work(broker: Broker) -> None:
        log = broker.partitions.by_name[topic.name][0].log
        log.append(bytearray(open_batch), 0, now_ms(), Origin.CLIENT)
        log.advance_high_watermark(log.log_end_offset)
        log.advance_start(2)

    inside.run(work)
    answer = list_offset(wire, topic, LATEST, isolation_level=1)
    assert (answer.error_code, answer.offset) == (0, 2)
