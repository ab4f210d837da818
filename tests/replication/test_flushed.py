"""`visible.when.flushed`: what every in-sync replica has synced is committed, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

from replica_kit import BROKER, Holder, batch, state

from ottla.protocol.errors import ErrorCode
from ottla.replication.following import FetchLimits, Following, position_of
from ottla.replication.partition import UNKNOWN

LED = state(leader=BROKER)
ALONE = state(leader=BROKER, replicas=(BROKER,), isr=(BROKER,))


def flushing(holder: Holder) -> Holder:
    holder.partition.configure(replace(holder.partition.config, visible_when_flushed=True))
    return holder


def flush(holder: Holder) -> None:
    holder.partition.log.flush(0)
    holder.partition.flushed()


def test_alone() -> None:
    holder = flushing(Holder(ALONE))
    told: list[ErrorCode] = []
    holder.append(3)
    assert holder.high_watermark == 0
    assert not holder.partition.is_committed(3)
    holder.partition.when_committed(3, told.append)
    flush(holder)
    assert (holder.high_watermark, told) == (3, [ErrorCode.NONE])


def test_followers_say_what_they_have_synced() -> None:
    holder = flushing(Holder(LED))
    partition = holder.partition
    holder.append(3)
    flush(holder)
    for follower in (2, 3):
        partition.fetched(follower, 3, 1, 0, 0)
    assert holder.high_watermark == 0
    partition.fetched(2, 3, 1, 0, 3)
    assert holder.high_watermark == 0
    partition.fetched(3, 3, 1, 0, 2)
    assert holder.high_watermark == 2
    # One that says nothing about it, as a broker that does not know the setting yet.
    holder.append(1)
    flush(holder)
    partition.fetched(2, 4, 1, 0, 4)
    partition.fetched(3, 4, 1, 0)
    assert holder.high_watermark == 2
    partition.fetched(3, 4, 1, 0, 4)
    assert holder.high_watermark == 4


def test_the_leaders_own_disk_counts() -> None:
    holder = flushing(Holder(LED))
    holder.append(3)
    for follower in (2, 3):
        holder.partition.fetched(follower, 3, 1, 0, 3)
    assert holder.high_watermark == 0
    flush(holder)
    assert holder.high_watermark == 3


def test_who_has_not_synced_what_is_committed_does_not_join() -> None:
    holder = flushing(Holder(state(leader=BROKER, isr=(BROKER,))))
    holder.append(3)
    flush(holder)
    assert holder.high_watermark == 3
    holder.partition.fetched(2, 3, 20, 0, 2)
    assert holder.partition.wanted_isr is None
    holder.partition.fetched(2, 3, 20, 0, 3)
    assert holder.partition.wanted_isr is not None


def test_who_has_not_synced_what_there_was_when_the_term_began_does_not_join() -> None:
    """All of it may be committed, though this leader does not know that yet."""
    holder = flushing(Holder(state(leader=2, isr=(BROKER, 2))))
    holder.partition.log.append_replicated(batch(3), 0)
    flush(holder)
    elected = state(leader=BROKER, isr=(BROKER, 2), leader_epoch=6, partition_epoch=10)
    holder.partition.update(elected, 0)
    assert holder.partition.epoch_start_offset == 3
    assert holder.high_watermark == 0
    holder.partition.fetched(3, 3, 30, 0, 1)
    assert holder.partition.wanted_isr is None
    holder.partition.fetched(3, 3, 30, 0, 3)
    assert holder.partition.wanted_isr is not None


def test_who_does_not_sync_for_too_long_leaves() -> None:
    """Its disk stands still: the high watermark would stand still with it."""
    holder = flushing(Holder(LED))
    partition = holder.partition
    holder.append(3)
    flush(holder)
    for now in (0, 50, 100, 150):
        partition.fetched(2, 3, 20, now, 3)
        partition.fetched(3, 3, 30, now, 1)
    partition.drop_lagging(100, 100)
    assert partition.wanted_isr is None
    partition.drop_lagging(101, 100)
    assert partition.wanted_isr is not None
    assert set(partition.wanted_isr) == {1, 2}


def test_who_syncs_what_it_has_fetched_before_stays() -> None:
    holder = flushing(Holder(LED))
    partition = holder.partition
    for now in range(0, 1000, 50):
        holder.append(1)
        end = partition.log.log_end_offset
        for follower in (2, 3):
            partition.fetched(follower, end - 1, 10 * follower, now, end - 1)
        partition.drop_lagging(now, 100)
        assert partition.wanted_isr is None


def test_a_follower_tells_only_where_it_counts() -> None:
    holder = Holder(state(leader=2))
    assert position_of(holder.partition).flushed_offset == UNKNOWN
    before = holder.terms
    flushing(holder)
    assert position_of(holder.partition).flushed_offset == 0
    # Who fetches for it hears of the change, to tell the leader.
    assert holder.terms == before + 1


def test_what_is_not_synced_yet_is_told_again() -> None:
    holder = flushing(Holder(state(leader=2)))
    partition = holder.partition
    following = Following(2, FetchLimits())
    following.put(partition)
    batches = batch(3)
    partition.log.append_replicated(batches, 0)
    (topic,) = following.request(1, 1, 0).topics
    assert [(each.fetch_offset, each.flushed_offset) for each in topic.partitions] == [(3, 0)]
    assert following.unflushed == {partition}
    flush(holder)
    following.changed(partition)
    assert not partition.is_unflushed
    (topic,) = following.request(1, 1, 0).topics
    assert [(each.fetch_offset, each.flushed_offset) for each in topic.partitions] == [(3, 3)]


def test_switched_on_and_off() -> None:
    holder = Holder(ALONE)
    holder.append(2)
    assert holder.high_watermark == 2
    flushing(holder)
    holder.append(1)
    assert holder.high_watermark == 2  # it never goes back, nor on without a sync
    holder.partition.configure(replace(holder.partition.config, visible_when_flushed=False))
    assert holder.high_watermark == 3
