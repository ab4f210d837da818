"""How much replication may take while partitions are moved (KIP-73). No clock.

Two limits in bytes a second: what a broker sends to replicas as leader, and what it fetches as follower.
They hold for the replicas that a topic's settings name (`leader.replication.throttled.replicas`,
`follower.replication.throttled.replicas`), and of these only for replicas that are not in sync: those
who catch up wait, those who keep up never do, so an in-sync set does not shrink by a limit.

A limit is a vessel that what was sent runs into and that drains at the rate. It takes what drains in one
second; while there is more in it, throttled replicas wait. So bytes go out in portions as large as they
come, and the rate holds over a few seconds.

Replicas in sync are sent what they ask for, and it counts. What they take beyond the rate is remembered
for some seconds only: else those who catch up would wait, once the traffic is below the rate again, for
as long as it takes to drain all that was above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.settings import LONG_MAX

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

UNLIMITED: Final = LONG_MAX
_BURST_SECONDS: Final = 1.0
# For what is sent whatever the limit says; Kafka looks at as many.
_REMEMBERED_SECONDS: Final = 10.0
# A limit may be raised or lifted: nobody waits longer without looking.
_LONGEST_WAIT_MS: Final = 1000
_ALL: Final = ("*",)
# A replica that is held back asks for no more than the rate allows in this time, or for so many bytes
# where that is more: those in sync wait for what comes in the same answer.
_PORTION_SECONDS: Final = 0.05
_LEAST_PORTION: Final = 64 << 10


class Limit:
    """A limit in bytes a second. Times are milliseconds of a monotonic clock."""

    __slots__ = ("_filled", "_seen_ms", "is_set", "rate")

    def __init__(self, rate: int = UNLIMITED) -> None:
        self.rate = rate
        self.is_set = rate != UNLIMITED
        self._filled = 0.0
        self._seen_ms = 0

    def change(self, rate: int) -> None:
        self.rate = rate
        self.is_set = rate != UNLIMITED
        if not self.is_set:
            self._filled = 0.0

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes that were sent."""
        self._drain(now_ms)
        # A single portion, however large, counts in full.
        most = max(self._filled, size, self.rate * _REMEMBERED_SECONDS)
        self._filled = min(self._filled + size, most)

    def wait_ms(self, now_ms: int) -> int:
        """How long nothing more may be sent; 0 if it may be now."""
        if not self.is_set:
            return 0
        self._drain(now_ms)
        above = self._filled - self.rate * _BURST_SECONDS
        if above < 0:
            return 0
        if not self.rate:
            return _LONGEST_WAIT_MS
        return max(1, min(_LONGEST_WAIT_MS, int(1000 * above / self.rate)))

    def _drain(self, now_ms: int) -> None:
        passed, self._seen_ms = now_ms - self._seen_ms, now_ms
        self._filled = max(0.0, self._filled - self.rate * passed / 1000)


class Throttle:
    """Both limits of one broker."""

    __slots__ = ("broker_id", "following", "leading")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.leading = Limit()
        self.following = Limit()

    # As leader

    def counts_as_leader(self, partition: Partition) -> bool:
        """Whether what is sent of this partition counts."""
        return self._is_named(partition, partition.config.leader_replication_throttled_replicas)

    def holds_back(self, partition: Partition, replica: int, now_ms: int) -> bool:
        """Whether a replica gets nothing of this partition for now."""
        return (
            replica not in partition.isr
            and self.counts_as_leader(partition)
            and self.leading.wait_ms(now_ms) > 0
        )

    # As follower

    def rest_ms(self, partition: Partition, now_ms: int) -> int:
        """How long this broker asks for nothing of a partition that it follows; 0 if it may."""
        return self.following.wait_ms(now_ms) if self._limits(partition) else 0

    def portion(self, partition: Partition) -> int:
        """How many bytes of a partition this broker asks for at once, at most."""
        if not self._limits(partition):
            return UNLIMITED
        return max(_LEAST_PORTION, int(self.following.rate * _PORTION_SECONDS))

    def _limits(self, partition: Partition) -> bool:
        """Whether the limit holds for this broker's replica of a partition."""
        return (
            self.following.is_set
            and self.broker_id not in partition.isr
            and self._follows(partition)
        )

    def took(self, partition: Partition, size: int, now_ms: int) -> None:
        """Count bytes of a partition that came from its leader."""
        if self.following.is_set and size and self._follows(partition):
            self.following.record(size, now_ms)

    def _follows(self, partition: Partition) -> bool:
        return self._is_named(partition, partition.config.follower_replication_throttled_replicas)

    def _is_named(self, partition: Partition, named: tuple[str, ...]) -> bool:
        return named == _ALL or f"{partition.index}:{self.broker_id}" in named
