"""Bad input to consumer groups: the protocol's own error for each, and nothing changed by it."""

from __future__ import annotations

import copy

import pytest
from groups_kit.consumer_world import check_consumer_group, lasting_groups
from groups_kit.machine import SETTINGS, Machine, MachineTarget
from groups_kit.scenarios import play

from ottla.coordinator.groups.consumer.group import ConsumerGroup
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsRequest,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

# A static member, one without a name, and one that speaks the classic protocol.
GROUP_OF_THREE = """
    a: beat id='a' topics=t instance=one assignor=range -> NONE 'a' epoch=2 [t:0,1,2]
    b: beat id='b' topics=t -> NONE 'b' epoch=3 []
    a: beat id='a' epoch=2 instance=one holds=t:0,1 -> NONE 'a' epoch=3 [t:0,1]
    b: beat id='b' epoch=3 -> NONE 'b' epoch=3 [t:2]
    c: join v=3 protocols=range:@u -> NONE generation=4 ...
    c: sync id=NEW generation=4 -> NONE ...
    a: beat id='a' epoch=3 instance=one -> NONE 'a' epoch=4
    b: beat id='b' epoch=3 -> NONE 'b' epoch=4
    a: commit id='a' instance=one generation=4 -> t:0:NONE
"""

BAD = {
    "unknown member": "x: beat id='x' epoch=4 -> UNKNOWN_MEMBER_ID",
    "unknown member leaves": "x: beat id='x' epoch=-1 -> UNKNOWN_MEMBER_ID",
    "unknown member commits": "x: commit id='x' generation=4 -> t:0:UNKNOWN_MEMBER_ID",
    "unknown member fetches": "x: fetch id='x' epoch=4 -> g:UNKNOWN_MEMBER_ID",
    "unknown member's classic heartbeat": "x: heartbeat id='x' generation=4 -> UNKNOWN_MEMBER_ID",
    "unknown member syncs": "x: sync id='x' generation=4 -> UNKNOWN_MEMBER_ID",
    "unknown member leaves, classic": "x: leave ids='x' -> NONE 'x':UNKNOWN_MEMBER_ID",
    "stale epoch": "x: beat id='b' epoch=1 -> FENCED_MEMBER_EPOCH",
    "stale epoch commits": "x: commit id='b' generation=1 -> t:0:STALE_MEMBER_EPOCH",
    "stale epoch fetches": "x: fetch id='b' epoch=3 -> g:STALE_MEMBER_EPOCH",
    "epoch before, holding too much": "x: beat id='b' epoch=3 holds=t:1,2 -> FENCED_MEMBER_EPOCH",
    "epoch before, holding who knows what": "x: beat id='b' epoch=3 -> FENCED_MEMBER_EPOCH",
    "epoch from the future": "x: beat id='b' epoch=5 -> FENCED_MEMBER_EPOCH",
    "epoch from the future commits": "x: commit id='b' generation=5 -> t:0:STALE_MEMBER_EPOCH",
    "epoch from the future fetches": "x: fetch id='b' epoch=5 -> g:STALE_MEMBER_EPOCH",
    "epoch that is none": "x: beat id='b' epoch=-3 -> INVALID_REQUEST",
    "leaving for a while without a name": "x: beat id='b' epoch=-2 -> INVALID_REQUEST",
    "classic member's wrong generation": "x: heartbeat id=NEW generation=3 -> ILLEGAL_GENERATION",
    "classic member commits, stale": "x: commit id=NEW generation=1 -> t:0:ILLEGAL_GENERATION",
    "classic member commits, future": "x: commit id=NEW generation=9 -> t:0:ILLEGAL_GENERATION",
    "classic request of a new member": "x: heartbeat id='b' generation=4 -> UNKNOWN_MEMBER_ID",
    "other protocol synced": "x: sync id=NEW generation=4 protocol=other -> INCONSISTENT_GROUP_PROTOCOL",
    "fenced instance": "x: beat id='b' epoch=4 instance=one -> FENCED_INSTANCE_ID",
    "fenced instance leaves": "x: beat id='b' epoch=-1 instance=one -> FENCED_INSTANCE_ID",
    "unknown instance": "x: beat id='b' epoch=4 instance=two -> UNKNOWN_MEMBER_ID",
    "instance in use": "x: beat topics=t instance=one -> UNRELEASED_INSTANCE_ID",
    "instance in use, classic leave": "x: leave ids=b/one -> NONE 'b'/one:FENCED_INSTANCE_ID",
    "no subscription": "x: beat -> INVALID_REQUEST",
    "joining with partitions": "x: beat topics=t holds=t:0 -> INVALID_REQUEST",
    "joining without a timeout": "x: beat topics=t rebalance=-1 -> INVALID_REQUEST",
    "joining without an id": "x: beat topics=t id= -> INVALID_REQUEST",
    "no group": "x: beat group= topics=t -> INVALID_REQUEST",
    "blank instance": "x: beat topics=t instance= -> INVALID_REQUEST",
    "blank rack": "x: beat topics=t rack= -> INVALID_REQUEST",
    "unknown assignor": "x: beat topics=t assignor=sticky -> UNSUPPORTED_ASSIGNOR",
    "pattern that is none": "x: beat pattern=*( -> INVALID_REGULAR_EXPRESSION",
    "pattern that looks back": r"x: beat pattern=(a)\1 -> INVALID_REGULAR_EXPRESSION",
    "member's pattern that is none": "x: beat id='b' epoch=4 pattern=[ -> INVALID_REGULAR_EXPRESSION",
    "unknown group": "x: beat group=other id='b' epoch=4 -> GROUP_ID_NOT_FOUND",
    "unknown group left": "x: beat group=other id='b' epoch=-1 -> GROUP_ID_NOT_FOUND",
    "unknown topic": "x: commit id='b' generation=4 topics=no:0=9 -> no:0:UNKNOWN_TOPIC_OR_PARTITION",
    "unknown partition": "x: commit id='b' generation=4 topics=t:9=9 -> t:9:UNKNOWN_TOPIC_OR_PARTITION",
    "long metadata": (
        "x: commit id='b' generation=4 topics=t:0=9/x*4097 "
        "-> t:0:OFFSET_METADATA_TOO_LARGE"
    ),
    "old commit": "x: commit v=8 id='b' generation=4 -> t:0:UNSUPPORTED_VERSION",
    "nobody commits": "x: commit -> t:0:UNKNOWN_MEMBER_ID",
    "deleting a group with members": "x: delete -> g:NON_EMPTY_GROUP",
    "deleting offsets in use": "x: offset-delete -> NONE t:0:GROUP_SUBSCRIBED_TO_TOPIC",
    "classic, no protocols": "x: join v=3 protocols= -> INCONSISTENT_GROUP_PROTOCOL member=''",
    "classic, other type": (
        "x: join v=3 type=connect protocols=range:@t "
        "-> INCONSISTENT_GROUP_PROTOCOL member=''"
    ),
    "classic, malformed": "x: join v=3 protocols=range:m -> INCONSISTENT_GROUP_PROTOCOL member=''",
    "classic, fenced instance": (
        "x: join id='b' instance=one protocols=range:@t "
        "-> FENCED_INSTANCE_ID member='b'"
    ),
    "classic, unknown instance": (
        "x: join id='b' instance=two protocols=range:@t "
        "-> UNKNOWN_MEMBER_ID member='b'"
    ),
    "described by nothing": "x: groups groups=| -> :INVALID_GROUP_ID :INVALID_GROUP_ID",
}  # fmt: skip

# Names the classic member again; changes nothing by itself.
AGAIN = "a: groups -> g:NONE Stable epoch=4 target=4 range ...\n"


@pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
def test_is_refused_and_changes_nothing(line: str) -> None:
    machine = Machine()
    play(MachineTarget(machine), GROUP_OF_THREE)
    state = copy.deepcopy(lasting_groups(machine.shard))
    written = len(machine.log)
    play(MachineTarget(machine), AGAIN + line)
    assert len(machine.log) == written
    assert lasting_groups(machine.shard) == state
    group = machine.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    check_consumer_group(group)
    play(MachineTarget(machine), AGAIN)


def heartbeat(machine: Machine, **fields: object) -> ConsumerGroupHeartbeatResponse:
    answer = machine.call(ConsumerGroupHeartbeatRequest(group_id="g", **fields), 1)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def test_partitions_that_do_not_exist_are_not_held() -> None:
    """A member may claim anything: it gives nothing away, and takes nothing."""
    machine = Machine()
    play(MachineTarget(machine), GROUP_OF_THREE)
    claims = [
        TopicPartitionsRequest(topic_id=b"\7" * 16, partitions=[-5, 2**31 - 1]),
        TopicPartitionsRequest(topic_id=b"\7" * 16, partitions=[1, 1]),
        TopicPartitionsRequest(topic_id=machine.topics.topic_id("t"), partitions=[0, 1, 2, 99]),
    ]
    answer = heartbeat(machine, member_id="b", member_epoch=4, topic_partitions=claims)
    assert answer.error_code == ErrorCode.NONE
    assert answer.assignment is None
    group = machine.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    check_consumer_group(group)


def test_the_longest_names_are_answered() -> None:
    """What a client says is not repeated in an answer that could not hold it."""
    machine = Machine()
    longest = "x" * 32_767
    for fields in (
        {"member_id": longest, "member_epoch": 3},
        {"member_id": longest, "member_epoch": -1, "instance_id": longest},
        {"member_id": "m", "server_assignor": longest},
        {"member_id": "m", "subscribed_topic_regex": "(" * 32_767},
    ):
        if "member_epoch" not in fields:
            fields = {**fields, "rebalance_timeout_ms": 1, "topic_partitions": []}
            fields.setdefault("subscribed_topic_names", [])
        answer = heartbeat(machine, **fields)
        assert answer.error_code != ErrorCode.NONE
        assert len(answer.encode(1)) < 1_000
    answer = heartbeat(
        machine,
        member_id=longest,
        instance_id=longest,
        rack_id=longest,
        rebalance_timeout_ms=1,
        subscribed_topic_names=[longest, "t"],
        topic_partitions=[],
    )
    assert answer.error_code == ErrorCode.NONE


COMMITS = {
    "member": ("b", None, 4, ErrorCode.NONE),
    "nobody in particular": ("", None, -1, ErrorCode.NONE),
    "unknown member": ("x", None, 4, ErrorCode.UNKNOWN_MEMBER_ID),
    "nobody with an epoch": ("", None, 4, ErrorCode.UNKNOWN_MEMBER_ID),
    "unknown instance": ("", "two", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    "epoch before, of what it has since": ("b", None, 3, ErrorCode.NONE),
    "stale epoch": ("b", None, 2, ErrorCode.ILLEGAL_GENERATION),
    "epoch from the future": ("b", None, 5, ErrorCode.ILLEGAL_GENERATION),
}


@pytest.mark.parametrize(
    ("member_id", "instance_id", "epoch", "code"), COMMITS.values(), ids=COMMITS.keys()
)
def test_who_may_commit_in_a_transaction(
    member_id: str, instance_id: str | None, epoch: int, code: ErrorCode
) -> None:
    machine = Machine()
    play(MachineTarget(machine), GROUP_OF_THREE)
    written = len(machine.log)
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        generation_id=epoch,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[TxnOffsetCommitRequestPartition(partition_index=2, committed_offset=7)],
            )
        ],
    )
    answer = machine.call(request, 4)
    assert isinstance(answer, TxnOffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == code
    assert (len(machine.log) > written) == (code is ErrorCode.NONE)


def test_a_policy_keeps_the_protocols_apart() -> None:
    settings = {"group_initial_rebalance_delay_ms": 0, "group_consumer_assignment_interval_ms": 0}
    machine = Machine(type(SETTINGS)(**settings, group_consumer_migration_policy="DISABLED"))
    play(
        MachineTarget(machine),
        """
        a: join v=3 protocols=range:@t -> NONE generation=1 ...
        a: sync id=A -> NONE ...
        b: beat topics=t -> GROUP_ID_NOT_FOUND
        a: leave ids=A -> NONE A:NONE
        b: beat topics=t -> NONE B2 epoch=2 [t:0,1,2]
        a: join v=3 protocols=range:@t -> INCONSISTENT_GROUP_PROTOCOL member=''
        """,
    )
    # A group may go up and not down again: the classic members stay in the consumer group.
    machine = Machine(type(SETTINGS)(**settings, group_consumer_migration_policy="upgrade"))
    play(
        MachineTarget(machine),
        """
        a: join v=3 protocols=range:@t -> NONE generation=1 ...
        a: sync id=A -> NONE ...
        b: beat topics=t assignor=range -> NONE B epoch=2 [t:2]
        b: beat id=B epoch=-1 -> NONE B epoch=-1
        b: list -> NONE g/consumer/Assigning/consumer
        """,
    )
    # And the other way round.
    machine = Machine(type(SETTINGS)(**settings, group_consumer_migration_policy="Downgrade"))
    play(
        MachineTarget(machine),
        """
        a: join v=3 protocols=range:@t -> NONE generation=1 ...
        a: sync id=A -> NONE ...
        b: beat topics=t -> GROUP_ID_NOT_FOUND
        c: beat group=h topics=t -> NONE C epoch=2 [t:0,1,2]
        d: join v=3 group=h protocols=range:@t -> NONE generation=3 ...
        c: beat group=h id=C epoch=-1 -> NONE C epoch=-1
        d: list -> NONE g/consumer/Stable/classic h/consumer/PreparingRebalance/classic
        """,
    )
