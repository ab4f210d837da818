"""Offsets: transactions, expiry, topics that go, requests of all the old forms."""

from __future__ import annotations

import pytest
from groups_kit.machine import SETTINGS, Machine, MachineTarget
from groups_kit.scenarios import play

from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.coordinator.groups.settings import GroupSettings
from ottla.coordinator.groups.shard import TOMBSTONES_AT_ONCE
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

MINUTE = 60_000
WEEK = 7 * 24 * 60 * MINUTE


def in_transaction(
    machine: Machine,
    offset: int,
    *,
    producer_id: int = 7,
    partition: int = 0,
    topic: str = "t",
    group: str = "g",
    generation: int = -1,
    member_id: str = "",
    metadata: str = "",
) -> ErrorCode:
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=group,
        producer_id=producer_id,
        producer_epoch=3,
        generation_id=generation,
        member_id=member_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_metadata=metadata,
                    )
                ],
            )
        ],
    )
    answer = machine.call(request, 5)
    assert isinstance(answer, TxnOffsetCommitResponse)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


# Transactions ---------------------------------------------------------------------------------------


def test_offsets_of_a_transaction_count_when_it_commits() -> None:
    machine = Machine()
    assert in_transaction(machine, 5, metadata="m") == ErrorCode.NONE
    target = MachineTarget(machine)
    play(
        target,
        """
        a: fetch -> g:NONE t:0=-1/
        a: fetch stable=yes topics=t:0,1 -> g:NONE t:0=-1/:UNSTABLE_OFFSET_COMMIT t:1=-1/
        a: list -> NONE g//Empty/classic
        """,
    )
    machine.end_transaction(7, committed=True)
    play(target, "a: fetch stable=yes -> g:NONE t:0=5/m")


def test_offsets_of_a_transaction_vanish_when_it_aborts() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=3 -> t:0:NONE")
    in_transaction(machine, 5)
    machine.end_transaction(7, committed=False)
    play(MachineTarget(machine), "a: fetch stable=yes topics=all -> g:NONE t:0=3/")


def test_the_batch_of_a_transaction_belongs_to_its_producer() -> None:
    machine = Machine()
    in_transaction(machine, 5)
    assert [(record.producer_id, record.producer_epoch) for record in machine.log] == [(7, 3)]


def test_all_topics_are_unstable_where_a_transaction_is_open() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=3|1=4 -> t:0:NONE t:1:NONE")
    in_transaction(machine, 5)
    play(
        MachineTarget(machine),
        "a: fetch stable=yes topics=all -> g:NONE t:0=-1/:UNSTABLE_OFFSET_COMMIT t:1=4/",
    )


def test_a_commit_after_that_of_a_transaction_is_the_later_one() -> None:
    """Whatever the order in which they begin to count: what is later in the log wins."""
    machine = Machine()
    in_transaction(machine, 5)
    play(MachineTarget(machine), "a: commit topics=t:0=9 -> t:0:NONE")
    machine.end_transaction(7, committed=True)
    play(MachineTarget(machine), "a: fetch -> g:NONE t:0=9/")
    machine.reload()
    play(MachineTarget(machine), "a: fetch -> g:NONE t:0=9/")


def test_two_transactions_at_once() -> None:
    machine = Machine()
    in_transaction(machine, 5, producer_id=7)
    in_transaction(machine, 6, producer_id=8)
    machine.end_transaction(8, committed=True)
    play(MachineTarget(machine), "a: fetch stable=yes -> g:NONE t:0=-1/:UNSTABLE_OFFSET_COMMIT")
    machine.end_transaction(7, committed=True)
    play(MachineTarget(machine), "a: fetch stable=yes -> g:NONE t:0=6/")


def test_a_transaction_survives_a_move_of_the_coordinator() -> None:
    machine = Machine()
    in_transaction(machine, 5)
    machine.reload()
    play(MachineTarget(machine), "a: fetch stable=yes -> g:NONE t:0=-1/:UNSTABLE_OFFSET_COMMIT")
    machine.end_transaction(7, committed=True)
    machine.reload()
    play(MachineTarget(machine), "a: fetch stable=yes -> g:NONE t:0=5/")


def test_deleted_offsets_of_a_transaction_do_not_come_back() -> None:
    machine = Machine()
    in_transaction(machine, 5)
    play(MachineTarget(machine), "a: offset-delete topics=t:0 -> NONE t:0:NONE")
    machine.end_transaction(7, committed=True)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE")
    # And nothing keeps the group.
    machine.advance(20 * MINUTE)
    play(MachineTarget(machine), "a: list -> NONE")


def test_a_deleted_group_takes_the_offsets_of_transactions_with_it() -> None:
    machine = Machine()
    in_transaction(machine, 5)
    play(MachineTarget(machine), "a: delete -> g:NONE\na: list -> NONE")
    machine.end_transaction(7, committed=True)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE")


def test_who_may_commit_in_a_transaction() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(
        target,
        "a: join v=3 -> NONE generation=1 ...",
    )
    (member_id,) = machine.shard.groups["g"].members  # type: ignore[attr-defined]
    # Old clients do not say who they are; and a transaction may commit while the group rebalances.
    assert in_transaction(machine, 1) == ErrorCode.NONE
    assert in_transaction(machine, 1, generation=1, member_id=member_id) == ErrorCode.NONE
    assert in_transaction(machine, 1, generation=2, member_id=member_id) == (
        ErrorCode.ILLEGAL_GENERATION
    )
    assert in_transaction(machine, 1, generation=1, member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert in_transaction(machine, 1, group="h", generation=1, member_id="x") == (
        ErrorCode.ILLEGAL_GENERATION
    )
    assert in_transaction(machine, 1, group="") == ErrorCode.INVALID_GROUP_ID
    assert in_transaction(machine, 1, topic="no") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert in_transaction(machine, 1, partition=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert in_transaction(machine, 1, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE


# Expiry ---------------------------------------------------------------------------------------------


def test_offsets_of_a_consumer_without_a_group_expire_after_their_commit() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=3 -> t:0:NONE")
    machine.advance(WEEK // 2)
    play(MachineTarget(machine), "a: commit topics=t:1=4 -> t:1:NONE")
    machine.advance(WEEK // 2 + 11 * MINUTE)
    play(
        MachineTarget(machine),
        "a: fetch topics=all -> g:NONE t:1=4/\na: list -> NONE g//Empty/classic",
    )
    machine.advance(WEEK // 2)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE\na: list -> NONE")


MEMBER_COMMITS = """
    a: join v=3 -> NONE generation=1 ...
    a: sync id=A assign=A:x -> NONE ...
    a: commit id=A generation=1 topics=t:0=3 -> t:0:NONE
"""


def test_offsets_of_a_group_expire_after_its_last_member_has_gone() -> None:
    machine = Machine()
    play(MachineTarget(machine), MEMBER_COMMITS)
    machine.advance(WEEK - MINUTE)  # its session has long ended: it is empty nearly as long
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:0=3/")
    machine.advance(12 * MINUTE)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE\na: list -> NONE")


def heartbeats(machine: Machine, milliseconds: int) -> None:
    """Keep the members of g alive while time passes."""
    end = machine.now.monotonic + milliseconds
    group = machine.shard.groups["g"]
    while machine.now.monotonic < end:
        for member in group.members.values():  # type: ignore[attr-defined]
            machine.shard.timers.set(member.session, end + MINUTE)
        machine.advance(end - machine.now.monotonic)


def test_offsets_of_a_group_with_members_do_not_expire() -> None:
    machine = Machine()
    play(MachineTarget(machine), MEMBER_COMMITS)
    heartbeats(machine, 2 * WEEK)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:0=3/")


def test_offsets_of_topics_that_members_left_expire() -> None:
    machine = Machine()
    play(
        MachineTarget(machine),
        """
        a: join v=3 protocols=range:\0\0\0\0\0\1\0\1t\0\0\0\0 -> NONE generation=1 ...
        a: sync id=A assign=A:x -> NONE ...
        a: commit id=A generation=1 topics=t:0=3;u:0=4 -> t:0:NONE u:0:NONE
        """,
    )
    heartbeats(machine, WEEK + 20 * MINUTE)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:0=3/")


def test_an_old_client_may_ask_for_a_retention_of_its_own() -> None:
    machine = Machine()
    play(
        MachineTarget(machine),
        f"""
        a: commit v=2 topics=t:0=3 retention={30 * MINUTE} -> t:0:NONE
        a: commit v=4 topics=t:1=4 retention={2 * WEEK} -> t:1:NONE
        a: commit v=4 topics=t:2=5 retention=-1 -> t:2:NONE
        """,
    )
    machine.advance(41 * MINUTE)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:1=4/ t:2=5/")
    machine.advance(WEEK)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:1=4/")
    machine.advance(WEEK)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE")


def test_the_oldest_clients_say_when_they_committed() -> None:
    machine = Machine()
    long_ago = machine.now.wall - WEEK + 5 * MINUTE
    play(
        MachineTarget(machine),
        f"""
        a: commit v=1 topics=t:0=3 timestamp={long_ago} -> t:0:NONE
        a: commit v=1 topics=t:1=4 -> t:1:NONE
        """,
    )
    machine.advance(11 * MINUTE)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:1=4/")


def test_offsets_do_not_expire_under_an_open_transaction() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=3 -> t:0:NONE")
    in_transaction(machine, 5)
    machine.advance(2 * WEEK)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:0=3/")
    machine.end_transaction(7, committed=False)
    machine.advance(11 * MINUTE)
    play(MachineTarget(machine), "a: list -> NONE")


def test_a_group_that_nobody_joined_does_not_stay() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(target, "a: join -> MEMBER_ID_REQUIRED member=A\na: list -> NONE g//Empty/classic")
    machine.advance(11 * MINUTE)
    play(target, "a: list -> NONE")


def test_expiry_survives_a_move_of_the_coordinator() -> None:
    machine = Machine()
    play(MachineTarget(machine), MEMBER_COMMITS + "a: leave ids=A -> NONE A:NONE")
    machine.advance(WEEK // 2)
    machine.reload()
    machine.advance(WEEK // 2 + 11 * MINUTE)
    play(MachineTarget(machine), "a: list -> NONE")


def test_the_interval_of_the_check_is_a_setting() -> None:
    settings = GroupSettings(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1000)
    machine = Machine(settings)
    play(MachineTarget(machine), "a: commit topics=t:0=3 -> t:0:NONE")
    machine.advance(MINUTE - 1)
    play(MachineTarget(machine), "a: fetch -> g:NONE t:0=3/")
    machine.advance(1001)
    play(MachineTarget(machine), "a: fetch -> g:NONE t:0=-1/")


# Much of it -----------------------------------------------------------------------------------------

MANY = 2 * TOMBSTONES_AT_ONCE + 5


def with_many_offsets() -> Machine:
    machine = Machine()
    machine.topics.create("wide", MANY)
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="wide",
                partitions=[
                    OffsetCommitRequestPartition(partition_index=each, committed_offset=each)
                    for each in range(MANY)
                ],
            )
        ],
    )
    machine.call(request, 8)
    assert machine.batches == 1
    return machine


def fetched(machine: Machine) -> int:
    wanted = OffsetFetchRequestGroup(group_id="g", topics=None)
    answer = machine.call(OffsetFetchRequest(groups=[wanted]), 9)
    assert isinstance(answer, OffsetFetchResponse)
    return sum(len(topic.partitions) for topic in answer.groups[0].topics)


def test_a_large_group_is_deleted_in_pieces() -> None:
    machine = with_many_offsets()
    ticket = machine.ask(lambda shard, ticket, now: shard.delete_group(ticket, "g", now))
    answer = machine.answers[ticket]
    assert isinstance(answer, DeleteGroupsResponse)
    assert answer.results[0].error_code == ErrorCode.NONE
    assert machine.batches == 4
    assert fetched(machine) == 0
    assert not machine.replayed().groups


def test_many_offsets_expire_in_pieces() -> None:
    machine = with_many_offsets()
    machine.advance(WEEK + 11 * MINUTE)
    assert machine.batches == 4
    assert fetched(machine) == 0
    assert not machine.replayed().groups


def commit_one(machine: Machine, partition: int, offset: int) -> None:
    """A commit that waits for its answer as long as it is not committed."""
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="wide",
                partitions=[
                    OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
                ],
            )
        ],
    )
    machine.request("a", request, 8)


def offsets_of(machine: Machine) -> dict[int, int]:
    topics = machine.shard.offsets.of_group("g")
    assert machine.replayed().offsets.of_group("g") == topics
    assert machine.replayed().groups.keys() == machine.shard.groups.keys()
    return {index: each.offset for index, each in topics.get("wide", {}).items()}


def test_what_is_committed_while_old_offsets_expire_stays() -> None:
    """They go in several batches, and each of them waits until the one before it is committed."""
    machine = with_many_offsets()
    machine.advance(WEEK - MINUTE)
    with machine.uncommitted():
        machine.advance(11 * MINUTE)
        commit_one(machine, 0, 70)
        commit_one(machine, MANY // 2, 71)
        commit_one(machine, MANY - 1, 72)
    machine.advance(MINUTE)
    assert offsets_of(machine) == {0: 70, MANY // 2: 71, MANY - 1: 72}


def test_what_is_committed_for_a_new_topic_while_the_offsets_of_the_old_go_stays() -> None:
    machine = with_many_offsets()
    machine.topics.delete("wide")
    machine.topics.create("wide", MANY)
    with machine.uncommitted():
        machine.metadata_changed()
        commit_one(machine, 0, 70)
        commit_one(machine, MANY // 2, 71)
        commit_one(machine, MANY - 1, 72)
    assert offsets_of(machine) == {0: 70, MANY // 2: 71, MANY - 1: 72}


def test_what_is_committed_while_a_large_group_is_deleted_stays() -> None:
    machine = with_many_offsets()
    with machine.uncommitted():
        ticket = machine.ask(lambda shard, ticket, now: shard.delete_group(ticket, "g", now))
        commit_one(machine, 0, 70)
        commit_one(machine, MANY - 1, 72)
    answer = machine.answers[ticket]
    assert isinstance(answer, DeleteGroupsResponse)
    assert answer.results[0].error_code == ErrorCode.NONE
    assert offsets_of(machine) == {0: 70, MANY - 1: 72}
    # They are a group's, and may be deleted as such.
    ticket = machine.ask(lambda shard, ticket, now: shard.delete_group(ticket, "g", now))
    assert machine.answers[ticket].results[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
    assert offsets_of(machine) == {}
    assert not machine.shard.groups


def test_who_joins_while_a_large_group_is_deleted_is_a_member() -> None:
    machine = with_many_offsets()
    target = MachineTarget(machine)
    with machine.uncommitted():
        machine.ask(lambda shard, ticket, now: shard.delete_group(ticket, "g", now))
        play(target, "a: join v=3 session=60000 -> waits")
    play(
        target,
        """
        a <- NONE generation=1 ...
        a: sync id=A assign=A:x -> NONE ...
        """,
    )
    assert offsets_of(machine) == {}


def test_old_offsets_that_cannot_be_deleted_are_tried_again_after_a_while() -> None:
    machine = with_many_offsets()
    machine.advance(WEEK - MINUTE)
    machine.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    machine.advance(25 * MINUTE)
    machine.failure = None
    assert len(offsets_of(machine)) == MANY
    machine.advance(11 * MINUTE)
    assert offsets_of(machine) == {}
    assert not machine.shard.groups


# Topics that go -------------------------------------------------------------------------------------


def test_offsets_of_a_deleted_topic_are_deleted() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=3|1=4;u:0=5 -> t:0:NONE t:1:NONE u:0:NONE")
    in_transaction(machine, 6, partition=2)
    machine.topics.delete("t")
    machine.metadata_changed()
    machine.end_transaction(7, committed=True)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE u:0=5/")
    assert machine.replayed().offsets._committed == machine.shard.offsets._committed


def test_a_topic_that_is_made_anew_has_no_offsets() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=3 -> t:0:NONE")
    machine.topics.delete("t")
    machine.topics.create("t", 3)
    play(
        MachineTarget(machine),
        """
        a: fetch -> g:NONE t:0=-1/
        a: fetch v=10 -> g:NONE t:0=-1/
        """,
    )
    machine.metadata_changed()
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE")
    play(MachineTarget(machine), "a: commit topics=t:0=8 -> t:0:NONE\na: fetch -> g:NONE t:0=8/")
    machine.metadata_changed()
    play(MachineTarget(machine), "a: fetch -> g:NONE t:0=8/")


def test_offsets_outlast_a_coordinator_that_does_not_know_their_topic_yet() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=3 -> t:0:NONE")
    topic_id = machine.topics.topic_id("t")
    assert topic_id is not None
    machine.topics.delete("t")
    machine.reload()
    machine.metadata_changed()
    machine.topics.create("t", 3)
    machine.topics._ids["t"] = topic_id
    machine.metadata_changed()
    play(MachineTarget(machine), "a: fetch -> g:NONE t:0=3/")


def test_offsets_of_a_topic_that_was_made_anew_while_its_coordinator_took_over_are_kept() -> None:
    """A coordinator is told of no change while it reads its log. What it is told later is not about the
    offsets that were committed since."""
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=3|1=4 -> t:0:NONE t:1:NONE")
    machine.reload()
    machine.topics.delete("t")
    machine.topics.create("t", 3)
    play(MachineTarget(machine), "a: commit topics=t:0=8 -> t:0:NONE")
    in_transaction(machine, 9, partition=2)
    machine.topics.create("other", 1)
    machine.metadata_changed()
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:0=8/")
    machine.end_transaction(7, committed=True)
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:0=8/ t:2=9/")
    assert machine.replayed().offsets._committed == machine.shard.offsets._committed
    # From then on it knows the topic that there is.
    machine.topics.delete("t")
    machine.metadata_changed()
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE")


def test_more_partitions_change_nothing() -> None:
    machine = Machine(SETTINGS)
    play(MachineTarget(machine), "a: commit topics=t:0=3 -> t:0:NONE")
    written = len(machine.log)
    machine.topics._counts["t"] = 9
    machine.metadata_changed()
    assert len(machine.log) == written
    play(MachineTarget(machine), "a: commit topics=t:8=3 -> t:8:NONE")


@pytest.mark.parametrize("version", range(11))
def test_every_version_commits(version: int) -> None:
    machine = Machine()
    play(
        MachineTarget(machine),
        f"""
        a: commit v={version} topics=t:0=3/m -> t:0:NONE
        a: fetch -> g:NONE t:0=3/m
        """,
    )


# Commits that are repeated (every commit of a Machine is made that way, too) ---------------------------


def commit_of(machine: Machine, offset: int, metadata: str = "", topic: str = "t") -> set[int]:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=metadata
    )
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])]
    )
    answer = machine.call(request, 9)
    assert isinstance(answer, OffsetCommitResponse)
    return {part.error_code for topic in answer.topics for part in topic.partitions}


def test_a_commit_is_repeated_with_other_offsets() -> None:
    machine = Machine()
    for offset in (5, 6, -1, (1 << 63) - 1):
        assert commit_of(machine, offset, "note") == {ErrorCode.NONE}
    assert (machine.commits.repeated, machine.commits.refused) == (3, 0)


def test_a_topic_that_changes_is_noticed_by_repeated_commits() -> None:
    machine = Machine()
    for offset in range(3):
        assert commit_of(machine, offset) == {ErrorCode.NONE}
    machine.topics.grow("t", 9)
    machine.metadata_changed()
    assert commit_of(machine, 3) == {ErrorCode.NONE}
    assert (machine.commits.repeated, machine.commits.refused) == (3, 0)
    machine.topics.delete("t")
    assert commit_of(machine, 4) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    machine.topics.create("t", 3)
    assert commit_of(machine, 5) == {ErrorCode.NONE}
    assert (machine.commits.repeated, machine.commits.refused) == (3, 1)


def test_other_settings_are_noticed_by_repeated_commits() -> None:
    machine = Machine()
    for offset in range(3):
        assert commit_of(machine, offset, "a long text") == {ErrorCode.NONE}
    machine.run(machine.shard.reconfigured(GroupSettings(offset_metadata_max_bytes=3)))
    assert commit_of(machine, 3, "a long text") == {ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert (machine.commits.repeated, machine.commits.refused) == (2, 1)


def test_a_repeated_commit_counts_as_a_heartbeat() -> None:
    machine = Machine()
    play(
        MachineTarget(machine),
        """
        a: join v=3 session=10000 -> NONE generation=1 ...
        a: sync id=A assign=A:x -> NONE ...
        """,
    )
    group = machine.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    (member_id,) = group.members
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=1,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
    )
    commit = machine.shard.repeatable_commit(request, 9)
    assert commit is not None
    for _ in range(5):
        machine.advance(6_000)
        assert machine.shard.commit_again(commit, [5], [-1], machine.now) is not None
    machine.advance(10_000)
    assert not group.members
    assert machine.shard.commit_again(commit, [5], [-1], machine.now) is None
