"""Limits on what replication takes."""

from __future__ import annotations

import pytest
from replica_kit import TOPIC_ID, Holder, batch, state

from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.replication.following import FetchLimits, Following
from ottla.replication.throttle import UNLIMITED, Limit, Throttle
from ottla.storage.config import LogConfig

BROKER = 1
LEADER = 2


def test_a_limit_holds_over_time() -> None:
    limit = Limit(1000)
    now = sent = 0
    while now < 20_000:
        wait = limit.wait_ms(now)
        if not wait:
            limit.record(1500, now)
            sent += 1500
        now += max(wait, 1)
    # One second's worth may come at once, and one portion may exceed.
    assert 19_000 <= sent <= 22_500


def test_what_was_sent_above_the_rate_is_soon_forgotten() -> None:
    limit = Limit(1000)
    # An hour in which replicas in sync took ten times as much.
    for second in range(3600):
        limit.record(10_000, 1000 * second)
    hour = 3_600_000
    assert limit.wait_ms(hour) > 0
    assert limit.wait_ms(hour + 10_000) == 0
    # A large portion is paid for, however long that takes.
    limit.record(60_000, hour + 20_000)
    assert limit.wait_ms(hour + 20_000 + 58_000) > 0
    assert limit.wait_ms(hour + 20_000 + 60_000) == 0


def test_no_limit_and_a_limit_of_nothing() -> None:
    limit = Limit()
    limit.record(10**12, 0)
    assert limit.wait_ms(0) == 0
    limit.change(0)
    assert limit.wait_ms(10) > 0
    limit.change(UNLIMITED)
    assert limit.wait_ms(20) == 0
    limit.change(10**12)
    assert limit.wait_ms(30) == 0


def throttle() -> Throttle:
    """With both limits at nothing."""
    both = Throttle(BROKER)
    both.leading.change(0)
    both.following.change(0)
    return both


@pytest.mark.parametrize(
    ("named", "counts"),
    [(("*",), True), (("0:1",), True), (("0:2", "1:1"), False), (("10:1",), False), ((), False)],
)
def test_only_replicas_that_are_named_are_held_back(named: tuple[str, ...], counts: bool) -> None:
    led = Holder(state(leader=BROKER, isr=(1,)))
    led.partition.configure(LogConfig(leader_replication_throttled_replicas=named))
    assert throttle().holds_back(led.partition, 2, 0) is counts
    followed = Holder(state(leader=LEADER, isr=(2,)))
    followed.partition.configure(LogConfig(follower_replication_throttled_replicas=named))
    assert bool(throttle().rest_ms(followed.partition, 0)) is counts


def test_those_in_sync_are_never_held_back() -> None:
    everybody = LogConfig(
        leader_replication_throttled_replicas=("*",),
        follower_replication_throttled_replicas=("*",),
    )
    led = Holder(state(leader=BROKER, isr=(1, 2)))
    led.partition.configure(everybody)
    assert not throttle().holds_back(led.partition, 2, 0)
    assert throttle().holds_back(led.partition, 3, 0)
    followed = Holder(state(leader=LEADER, isr=(2, 1)))
    followed.partition.configure(everybody)
    assert throttle().rest_ms(followed.partition, 0) == 0


def test_a_follower_asks_for_nothing_while_it_is_held_back() -> None:
    holder = Holder(state(leader=LEADER, isr=(2,)))
    holder.partition.configure(LogConfig(follower_replication_throttled_replicas=("*",)))
    limits = Throttle(BROKER)
    limits.following.change(10)
    following = Following(LEADER, FetchLimits(), limits)
    following.put(holder.partition)
    assert len(following.request(1, 10, 0).topics) == 1
    answer = PartitionData(partition_index=0, records=batch(1), high_watermark=1)
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[answer])
    following.answered(FetchResponse(session_id=7, responses=[topic]), 0)
    assert holder.partition.log.log_end_offset == 1
    held = following.request(1, 10, 0)
    assert held.topics == []
    assert held.forgotten_topics_data[0].partitions == [0]
    later = following.rest_ms(0)
    assert later > 0
    # What came drains from the limit, and it asks again.
    assert len(following.request(1, 10, 60_000).topics) == 1


@pytest.mark.parametrize(
    ("rate", "most"),
    [(UNLIMITED, 1 << 20), (6_000_000, 300_000), (10, 64 << 10), (1 << 40, 1 << 20)],
)
def test_a_follower_that_is_held_back_asks_for_small_portions(rate: int, most: int) -> None:
    """Those in sync share its requests, and wait for what comes in the same answer."""
    behind, in_sync = Holder(state(leader=LEADER, isr=(2,))), Holder(state(leader=LEADER, index=1))
    limits = Throttle(BROKER)
    limits.following.change(rate)
    following = Following(LEADER, FetchLimits(), limits)
    for holder in (behind, in_sync):
        holder.partition.configure(LogConfig(follower_replication_throttled_replicas=("*",)))
        following.put(holder.partition)
    (topic,) = following.request(1, 10, 0).topics
    asked = {each.partition: each.partition_max_bytes for each in topic.partitions}
    assert asked == {0: most, 1: 1 << 20}
