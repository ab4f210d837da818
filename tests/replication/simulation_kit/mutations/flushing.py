"""Guards of `visible.when.flushed` broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.replication import following
from ottla.replication.partition import Partition, Role
from simulation_kit.flushing import run_flushing_seed
from simulation_kit.mutations.registry import MUTATIONS, Mutation

Patches = list[tuple[Any, str, Any]]


def mutation(what: str) -> Callable[[Callable[[], Patches]], None]:
    def register(patches: Callable[[], Patches]) -> None:
        name = patches.__name__
        MUTATIONS[name] = Mutation(name, what, patches, run_flushing_seed)

    return register


@mutation(
    "With `visible.when.flushed`, a follower tells what it has appended, not what it has synced"
)
def appended_is_told() -> Patches:
    original = following.position_of

    def position_of(partition: Partition) -> Any:
        position = original(partition)
        return position._replace(flushed_offset=position.offset)

    return [(following, "position_of", position_of)]


@mutation("With `visible.when.flushed`, the leader's own disk does not count")
def leaders_disk_does_not_count() -> Patches:
    def advance(self: Partition) -> None:
        log = self.opened
        if log is None or self.role is not Role.LEADER or self.under_min_isr:
            return
        end = min((each.flushed_offset for each in self._counted), default=log.log_end_offset)
        if end > log.high_watermark:
            log.advance_high_watermark(end)
            self._release_waiters(log)

    return [(Partition, "advance", advance)]


@mutation("With `visible.when.flushed`, a follower joins before it has synced what is committed")
def join_unsynced() -> Patches:
    original = Partition._maybe_join

    def maybe_join(self: Partition, broker_id: int, follower: Any, high_watermark: int) -> None:
        synced, follower.flushed_offset = follower.flushed_offset, follower.end_offset
        original(self, broker_id, follower, high_watermark)
        follower.flushed_offset = synced

    return [(Partition, "_maybe_join", maybe_join)]


@mutation(
    "With `visible.when.flushed`, a follower joins before it has synced what there was when the "
    "leader's term began"
)
def join_unsynced_in_the_term() -> Patches:
    original = Partition._maybe_join

    def maybe_join(self: Partition, broker_id: int, follower: Any, high_watermark: int) -> None:
        start = self.epoch_start_offset
        if follower.end_offset >= start >= 0:
            self.epoch_start_offset = 0
        original(self, broker_id, follower, high_watermark)
        self.epoch_start_offset = start

    return [(Partition, "_maybe_join", maybe_join)]
