"""Guards of partitions, of their elections and of followers that are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from ottla.cluster.decisions import brokers, elections, partitions
from ottla.protocol.errors import ErrorCode
from ottla.replication import following, positions
from ottla.replication.partition import UNKNOWN, Partition, Role
from simulation_kit.broker import Life
from simulation_kit.mutations.registry import mutation
from simulation_kit.world import run_seed

SLOW_DISKS = partial(run_seed, slow_disks=True)


# The high watermark ---------------------------------------------------------------------------------


def _advance_with(members_of: Callable[[Partition], set[int]]) -> Callable[[Partition], None]:
    """`Partition.advance` that waits for other members than it should."""

    def advance(self: Partition) -> None:
        log = self.opened
        if log is None or self.role is not Role.LEADER or self.under_min_isr:
            return
        end = log.log_end_offset
        for member in members_of(self):
            if member != self.broker_id:
                follower = self.followers.get(member)
                end = min(end, UNKNOWN if follower is None else follower.end_offset)
        if end > log.high_watermark:
            log.advance_high_watermark(end)
            self._release_waiters(log)

    return advance


@mutation("The leader commits what it has, whoever else has it")
def commit_alone() -> list[tuple[Any, str, Any]]:
    return [(Partition, "advance", _advance_with(lambda _: set()))]


@mutation("The leader waits for all in-sync replicas but one")
def commit_early() -> list[tuple[Any, str, Any]]:
    return [(Partition, "advance", _advance_with(lambda here: set(here.isr[:-1])))]


@mutation("A shrink of the in-sync set counts before the controller has confirmed it")
def pending_shrink_counts() -> list[tuple[Any, str, Any]]:
    def members(here: Partition) -> set[int]:
        return set(here.isr if here.wanted_isr is None else here.wanted_isr)

    return [(Partition, "advance", _advance_with(members))]


@mutation("The high watermark moves below `min.insync.replicas`")
def ignore_min_isr() -> list[tuple[Any, str, Any]]:
    settle = Partition._settle

    def settled(self: Partition) -> None:
        settle(self)
        self.under_min_isr = False

    return [(Partition, "_settle", settled)]


@mutation("A new leader takes its whole log for committed")
def watermark_at_end_after_election() -> list[tuple[Any, str, Any]]:
    begin = Partition._begin_term

    def begun(self: Partition, now_ms: int) -> None:
        begin(self, now_ms)
        if self.role is Role.LEADER:
            self.log.advance_high_watermark(self.log.log_end_offset)

    return [(Partition, "_begin_term", begun)]


@mutation("A new leader names the end of what is committed before it knows that of earlier terms")
def tell_before_caught_up() -> list[tuple[Any, str, Any]]:
    return [(Partition, "has_caught_up", True)]


@mutation("Who waits for a commit is told of success when the term ends")
def acknowledge_at_end_of_term() -> list[tuple[Any, str, Any]]:
    def failed(self: Partition, _code: ErrorCode) -> None:
        self._awaiting_commit.fail(ErrorCode.NONE)

    return [(Partition, "fail_waiters", failed)]


# Epochs ---------------------------------------------------------------------------------------------


@mutation("An older image is taken for news")
def follow_older_images() -> list[tuple[Any, str, Any]]:
    def update(self: Partition, state: Any, now_ms: int) -> None:
        if self._follow(state, now_ms):
            self._owner.role_changed(self)

    def learn(self: Life, image: Any) -> None:
        if self.image is not None and image.version <= self.image.version:
            image = replace(image, version=self.image.version + 1)
        original(self, image)

    original = Life.learn
    return [(Partition, "update", update), (Life, "learn", learn)]


@mutation("An election does not raise the leader epoch")
def elections_keep_the_epoch() -> list[tuple[Any, str, Any]]:
    def settled(before: Any, after: Any, new_epoch: bool = False) -> Any:
        if after == before and not new_epoch:
            return before
        return replace(after, partition_epoch=before.partition_epoch + 1)

    return [(elections, "_settled", settled)]


@mutation("A leader that comes back in a new life leads on in its old epoch")
def new_life_keeps_the_epoch() -> list[tuple[Any, str, Any]]:
    original = elections.led_anew

    def led_anew(partition: Any, alive: Any, policy: Any, *, new_epoch: bool = False) -> Any:
        return original(partition, alive, policy)

    return [(elections, "led_anew", led_anew)]


# Truncation -----------------------------------------------------------------------------------------


@mutation("A follower does not cut off what its leader does not have")
def skip_truncation() -> list[tuple[Any, str, Any]]:
    return [(following, "cut_off", lambda *_: iter(()))]


@mutation("A follower does not tell the epoch of its last batch, so the leader cannot compare logs")
def skip_epoch_comparison() -> list[tuple[Any, str, Any]]:
    original = following.position_of

    def position_of(partition: Any) -> Any:
        return original(partition)._replace(last_epoch=-1)

    return [(following, "position_of", position_of)]


@mutation("A follower's position counts before its log is compared with the leader's", SLOW_DISKS)
def count_before_comparing() -> list[tuple[Any, str, Any]]:
    original = positions.note

    def note(partition: Partition, *rest: Any) -> None:
        with patch.object(positions, "divergence", lambda *_: None):
            original(partition, *rest)

    return [(positions, "note", note)]


@mutation("A follower cuts its log off at its high watermark, not where the epochs part")
def truncate_to_watermark() -> list[tuple[Any, str, Any]]:
    begin = Partition._begin_term

    def begun(self: Partition, now_ms: int) -> None:
        begin(self, now_ms)
        if self.role is Role.FOLLOWER:
            self.log.truncate_to(self.log.high_watermark, now_ms)

    return [(Partition, "_begin_term", begun)]


@mutation("A leader that has written nothing in its term does not know that the term began")
def terms_begin_with_a_record() -> list[tuple[Any, str, Any]]:
    def end_offset_for_epoch(self: Partition, epoch: int) -> tuple[int, int]:
        return self.log.end_offset_for_epoch(epoch)

    return [(Partition, "end_offset_for_epoch", end_offset_for_epoch)]


# Who is in sync -------------------------------------------------------------------------------------


@mutation("A broker that lost records stays in the in-sync sets")
def lost_data_stays_in_sync() -> list[tuple[Any, str, Any]]:
    original = brokers.take_in

    def take_in(draft: Any, broker: Any, *, lost_data: bool, policy_of: Any) -> None:
        original(draft, broker, lost_data=False, policy_of=policy_of)

    return [(brokers, "take_in", take_in)]


@mutation("A broker that lost records stays eligible to lead")
def lost_data_stays_eligible() -> list[tuple[Any, str, Any]]:
    original = elections.without_broker

    def without_broker(*arguments: Any, lost_data: bool = False) -> Any:
        return original(*arguments, lost_data=False)

    return [(elections, "without_broker", without_broker)]


@mutation("Who was eligible stays so when the in-sync set is large enough again")
def eligible_for_ever() -> list[tuple[Any, str, Any]]:
    original = elections._with_members

    def with_members(partition: Any, isr: tuple[int, ...], policy: Any) -> Any:
        changed = original(partition, isr, policy)
        had = {*partition.isr, *partition.elr}
        kept = tuple(each for each in partition.replicas if each in had and each not in isr)
        return replace(changed, elr=kept)

    return [
        (elections, "_with_members", with_members),
        (elections, "_eligible", lambda partition, _: partition.elr),
    ]


@mutation("Any replica that is alive may lead")
def elect_outside_the_set() -> list[tuple[Any, str, Any]]:
    original = elections.elected

    def elected(partition: Any, alive: Any, policy: Any) -> Any:
        return original(partition, alive, policy._replace(unclean=True))

    return [(elections, "elected", elected)]


@mutation("A fenced broker stays in the in-sync sets, and does not count")
def fenced_stays_in_sync() -> list[tuple[Any, str, Any]]:
    original = elections.without_broker

    def without_broker(partition: Any, broker_id: int, *rest: Any, **options: Any) -> Any:
        changed = original(partition, broker_id, *rest, **options)
        return replace(changed, isr=partition.isr) if changed.leader >= 0 else changed

    def members(here: Partition) -> set[int]:
        life: Any = here._owner
        return {each for each in here.isr if each in life.image.brokers}

    return [
        (elections, "without_broker", without_broker),
        (Partition, "advance", _advance_with(members)),
    ]


@mutation("A former life of a leader changes the in-sync set")
def stale_leaders_change_the_set() -> list[tuple[Any, str, Any]]:
    original = partitions._fault

    def fault(draft: Any, state: Any, broker_id: int, wanted: Any) -> Any:
        current = replace(
            wanted, leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch
        )
        return original(draft, replace(state, leader=broker_id), broker_id, current)

    return [
        (partitions, "check_broker_epoch", lambda *_: None),
        (partitions, "_fault", fault),
    ]


@mutation("A follower joins before it has what is committed")
def join_early() -> list[tuple[Any, str, Any]]:
    def maybe_join(self: Partition, broker_id: int, follower: Any, _high_watermark: int) -> None:
        if self.broker_id in self.isr and self._owner.may_be_in_sync(
            broker_id, follower.broker_epoch
        ):
            self._want_isr([*self.isr, broker_id])

    return [(Partition, "_maybe_join", maybe_join)]


@mutation("A replica that joins does not count until its joining is confirmed")
def pending_joins_do_not_count() -> list[tuple[Any, str, Any]]:
    return [(Partition, "advance", _advance_with(lambda here: set(here.isr)))]


@mutation("A follower joins before it has what there was when the leader's term began")
def join_before_the_term() -> list[tuple[Any, str, Any]]:
    original = Partition._maybe_join

    def maybe_join(self: Partition, broker_id: int, follower: Any, high_watermark: int) -> None:
        start, self.epoch_start_offset = self.epoch_start_offset, 0
        original(self, broker_id, follower, high_watermark)
        self.epoch_start_offset = start

    return [(Partition, "_maybe_join", maybe_join)]


@mutation("A leader takes what followers had in an earlier term for what they have")
def keep_positions_over_terms() -> list[tuple[Any, str, Any]]:
    original = Partition._begin_term
    kept: dict[int, dict[int, Any]] = {}

    def begun(self: Partition, now_ms: int) -> None:
        kept.setdefault(id(self), {}).update(self.followers)
        original(self, now_ms)
        if self.role is Role.LEADER:
            known = kept[id(self)]
            self.followers = {each: known.get(each, new) for each, new in self.followers.items()}

    return [(Partition, "_begin_term", begun)]


@mutation("The in-sync set is changed by a request that knew an older one")
def change_older_sets() -> list[tuple[Any, str, Any]]:
    original = partitions._fault

    def fault(draft: Any, state: Any, broker_id: int, wanted: Any) -> Any:
        return original(
            draft, state, broker_id, replace(wanted, partition_epoch=state.partition_epoch)
        )

    return [(partitions, "_fault", fault)]


@mutation("A former life of a follower is let into the in-sync set")
def let_former_lives_in() -> list[tuple[Any, str, Any]]:
    original = partitions._fault

    def fault(draft: Any, state: Any, broker_id: int, wanted: Any) -> Any:
        members = [(each, UNKNOWN) for each, _ in wanted.isr]
        return original(draft, state, broker_id, replace(wanted, isr=members))

    return [
        (partitions, "_fault", fault),
        (Life, "may_be_in_sync", lambda *_: True),
    ]


@mutation("A follower cuts its log off at the leader's end only")
def cut_off_at_the_end_only() -> list[tuple[Any, str, Any]]:
    def cut_off(partition: Partition, _epoch: int, end_offset: int, now_ms: int) -> None:
        log = partition.log
        log.truncate_to(min(end_offset, log.log_end_offset), now_ms)

    return [(following, "cut_off", cut_off)]
