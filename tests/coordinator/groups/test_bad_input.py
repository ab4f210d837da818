"""Bad input: the protocol's own error for each, and nothing changed by it.

Unknown members, stale generations and the like stand in the scenarios too, with Kafka's answers; here
it is the state that counts.
"""

from __future__ import annotations

import copy

import pytest
from groups_kit.machine import Machine, MachineTarget
from groups_kit.scenarios import play
from groups_kit.world import check_group, lasting

from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

STABLE_WITH_TWO = """
    a: join instance=one -> NONE generation=1 ...
    b: join -> MEMBER_ID_REQUIRED member=B
    b: join id=B -> waits
    a: join id=ONE instance=one -> NONE generation=2 ...
    b <- NONE generation=2 ...
    a: sync id=ONE instance=one generation=2 assign=ONE:x|B:y -> NONE ...
    b: sync id=B generation=2 -> NONE ...
    a: commit id=ONE instance=one generation=2 -> t:0:NONE
"""

BAD = {
    "unknown member joins": "x: join id='nobody' -> UNKNOWN_MEMBER_ID member='nobody'",
    "unknown member syncs": "x: sync id='nobody' generation=2 -> UNKNOWN_MEMBER_ID",
    "unknown member's heartbeat": "x: heartbeat id='nobody' generation=2 -> UNKNOWN_MEMBER_ID",
    "unknown member leaves": "x: leave ids='nobody' -> NONE 'nobody':UNKNOWN_MEMBER_ID",
    "unknown member commits": "x: commit id='nobody' generation=2 -> t:0:UNKNOWN_MEMBER_ID",
    "stale generation syncs": "x: sync id=B generation=1 -> ILLEGAL_GENERATION",
    "stale generation's heartbeat": "x: heartbeat id=B generation=1 -> ILLEGAL_GENERATION",
    "stale generation commits": "x: commit id=B generation=1 -> t:0:ILLEGAL_GENERATION",
    "generation from the future syncs": "x: sync id=B generation=3 -> ILLEGAL_GENERATION",
    "generation from the future commits": "x: commit id=B generation=9 -> t:0:ILLEGAL_GENERATION",
    "no generation commits": "x: commit -> t:0:UNKNOWN_MEMBER_ID",
    "fenced instance syncs": "x: sync id=B instance=one generation=2 -> FENCED_INSTANCE_ID",
    "fenced instance joins": "x: join id=B instance=one -> FENCED_INSTANCE_ID member=B",
    "fenced instance commits": "x: commit id=B instance=one generation=2 -> t:0:FENCED_INSTANCE_ID",
    "fenced instance leaves": "x: leave ids=B/one -> NONE B/one:FENCED_INSTANCE_ID",
    "unknown instance leaves": "x: leave ids=/two -> NONE ''/two:UNKNOWN_MEMBER_ID",
    "long metadata": "x: commit id=B generation=2 topics=t:0=9/x*4097 -> t:0:OFFSET_METADATA_TOO_LARGE",
    "unknown topic": "x: commit id=B generation=2 topics=no:0=9 -> no:0:UNKNOWN_TOPIC_OR_PARTITION",
    "unknown topic id": "x: commit v=10 id=B generation=2 topics=no:0=9 -> ?:0:UNKNOWN_TOPIC_ID",
    "unknown partition": "x: commit id=B generation=2 topics=t:3=9 -> t:3:UNKNOWN_TOPIC_OR_PARTITION",
    "negative partition": "x: commit id=B generation=2 topics=t:-1=9 -> t:-1:UNKNOWN_TOPIC_OR_PARTITION",
    "large partition": "x: commit id=B generation=2 topics=t:999=9 -> t:999:UNKNOWN_TOPIC_OR_PARTITION",
    "no protocols": "x: join protocols= -> INCONSISTENT_GROUP_PROTOCOL member=''",
    "no protocol type": "x: join type= -> INCONSISTENT_GROUP_PROTOCOL member=''",
    "other protocol type": "x: join type=connect -> INCONSISTENT_GROUP_PROTOCOL member=''",
    "other protocol": "x: join protocols=other:x -> INCONSISTENT_GROUP_PROTOCOL member=''",
    "member's other protocol": "x: join id=B protocols=other:x -> INCONSISTENT_GROUP_PROTOCOL member=B",
    "other protocol synced": "x: sync id=B generation=2 protocol=other -> INCONSISTENT_GROUP_PROTOCOL",
    "short session": "x: join session=5999 -> INVALID_SESSION_TIMEOUT member=''",
    "long session": "x: join session=1800001 -> INVALID_SESSION_TIMEOUT member=''",
    "negative session": "x: join session=-1 -> INVALID_SESSION_TIMEOUT member=''",
    "no group joined": "x: join group= -> INVALID_GROUP_ID member=''",
    "no group synced": "x: sync group= id=B -> INVALID_GROUP_ID",
    "no group's heartbeat": "x: heartbeat group= id=B -> INVALID_GROUP_ID",
    "no group left": "x: leave group= ids=B -> INVALID_GROUP_ID",
    "unknown group syncs": "x: sync group=other id=B -> UNKNOWN_MEMBER_ID",
    "unknown group's heartbeat": "x: heartbeat group=other id=B -> UNKNOWN_MEMBER_ID",
    "unknown group joined with an id": "x: join group=other id=B -> UNKNOWN_MEMBER_ID member=B",
    "unknown group, no protocols": "x: join group=n protocols= -> INCONSISTENT_GROUP_PROTOCOL member=''",
    "unknown group commits": "x: commit group=other id=B generation=2 -> t:0:GROUP_ID_NOT_FOUND",
    "unknown group commits, v8": "x: commit v=8 group=n id=B generation=2 -> t:0:ILLEGAL_GENERATION",
    "deleting a group with members": "x: delete -> g:NON_EMPTY_GROUP",
    "deleting an unknown group": "x: delete groups=other -> other:GROUP_ID_NOT_FOUND",
    "deleting offsets in use": "x: offset-delete topics=t:0 -> NONE t:0:GROUP_SUBSCRIBED_TO_TOPIC",
    "deleting offsets of no group": "x: offset-delete group= -> INVALID_GROUP_ID",
    "deleting offsets of an unknown group": "x: offset-delete group=other -> GROUP_ID_NOT_FOUND",
}  # fmt: skip


@pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
def test_is_refused_and_changes_nothing(line: str) -> None:
    machine = Machine()
    play(MachineTarget(machine), STABLE_WITH_TWO)
    state = copy.deepcopy(lasting(machine.shard, live=machine.shard))
    written = len(machine.log)
    play(MachineTarget(machine), STABLE_AGAIN + line)
    assert len(machine.log) == written
    assert lasting(machine.shard, live=machine.shard) == state
    group = machine.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    check_group(group)
    play(MachineTarget(machine), STABLE_AGAIN)


# Names the members again; changes nothing by itself.
STABLE_AGAIN = (
    "a: describe -> g:NONE Stable type=consumer data=range "
    "B//b/127.0.0.1:m:y ONE/one/a/127.0.0.1:m:x\n"
)


def subscription(metadata: bytes) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"\0\3",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\x7f\xfft",
        b"\0\0\0\0\0\1\0\1\xff\0\0\0\0",
        b"changed",
    ],
)
def test_a_malformed_subscription_is_its_members_own_affair(metadata: bytes) -> None:
    """The coordinator cannot read it, so it takes the group for one that may read every topic.

    (Apache Kafka 4.3.1 answers some of these with UNKNOWN_SERVER_ERROR, and the group is stuck.)
    """
    machine = Machine()
    joined = machine.call(subscription(metadata), 3)
    assert isinstance(joined, JoinGroupResponse)
    assert joined.error_code == ErrorCode.NONE
    assert joined.members[0].metadata == metadata
    play(
        MachineTarget(machine),
        """
        a: describe -> g:NONE CompletingRebalance type=consumer data= A//a/127.0.0.1::
        a: sync id=A assign=A:x -> NONE ...
        a: commit id=A generation=1 -> t:0:NONE
        a: offset-delete topics=t:0 -> NONE t:0:GROUP_SUBSCRIBED_TO_TOPIC
        """,
    )


def test_a_subscription_that_can_be_read_protects_its_topics_only() -> None:
    machine = Machine()
    machine.call(subscription(b"\0\3\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"), 3)
    play(
        MachineTarget(machine),
        """
        a: describe -> g:NONE CompletingRebalance type=consumer data= A//a/127.0.0.1::
        a: sync id=A assign=A:x -> NONE ...
        a: commit id=A generation=1 topics=t:0=1;u:0=2 -> t:0:NONE u:0:NONE
        a: offset-delete topics=t:0;u:0 -> NONE t:0:GROUP_SUBSCRIBED_TO_TOPIC u:0:NONE
        a: fetch topics=all -> g:NONE t:0=1/
        """,
    )


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("ä" * 4096, ErrorCode.NONE),
        ("ä" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        # A character outside the basic plane counts twice, as in Java.
        ("𝄞" * 2048, ErrorCode.NONE),
        ("𝄞" * 2048 + "a", ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_the_length_of_metadata_is_counted_as_kafka_counts_it(
    metadata: str, code: ErrorCode
) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_metadata=metadata)
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])]
    )
    answer = Machine().call(request, 8)
    assert isinstance(answer, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == code


def test_protocols_named_twice_count_once() -> None:
    machine = Machine()
    request = subscription(b"first")
    request.protocols.append(JoinGroupRequestProtocol(name="range", metadata=b"second"))
    joined = machine.call(request, 3)
    assert isinstance(joined, JoinGroupResponse)
    assert joined.members[0].metadata == b"first"
    group = machine.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    check_group(group)


def test_a_pending_member_with_an_instance_id_is_not_known() -> None:
    play(
        MachineTarget(Machine()),
        """
        a: join -> MEMBER_ID_REQUIRED member=A
        a: join id=A instance=one -> UNKNOWN_MEMBER_ID member=A
        a: join id=A -> NONE generation=1 ...
        """,
    )


def test_a_member_without_any_time_to_rebalance_does_not_stop_the_clock() -> None:
    machine = Machine()
    play(
        MachineTarget(machine),
        """
        a: join instance=one -> NONE generation=1 ...
        a: sync id=ONE instance=one assign=ONE:x -> NONE ...
        a: join instance=one rebalance=0 -> NONE generation=1 ...
        b: join -> MEMBER_ID_REQUIRED member=B
        b: leave ids=B -> NONE B:NONE
        a: heartbeat id=ONE2 instance=one -> REBALANCE_IN_PROGRESS
        after 30000
        c: describe -> g:NONE Empty type=consumer data=
        """,
    )


@pytest.mark.parametrize(
    ("instance", "client"), [("x" * 32_731, "a"), (None, "x" * 32_731), ("ä" * 16_366, "a")]
)
def test_names_to_which_no_uuid_can_be_added(instance: str | None, client: str) -> None:
    machine = Machine()
    request = subscription(b"")
    request.group_instance_id = instance
    answer = machine.call(request, 9, client)
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert not machine.log


def test_the_longest_name_that_fits() -> None:
    machine = Machine()
    request = subscription(b"")
    request.group_id = "x" * 32_767
    request.group_instance_id = "y" * 32_730
    joined = machine.call(request, 9)
    assert isinstance(joined, JoinGroupResponse)
    assert joined.error_code == ErrorCode.NONE
    synced = machine.call(
        SyncGroupRequest(group_id=request.group_id, generation_id=1, member_id=joined.member_id),
        4,
    )
    assert isinstance(synced, SyncGroupResponse)
    assert synced.error_code == ErrorCode.NONE
    machine.reload()
    group = machine.shard.groups[request.group_id]
    assert isinstance(group, ClassicGroup)
    assert list(group.members) == [joined.member_id]
