"""Guards of moves that are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from ottla.cluster.decisions import elections, moves
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.metadata import Partition
from simulation_kit.mutations.registry import MUTATIONS, Mutation
from simulation_kit.world import run_seed

Patches = list[tuple[Any, str, Any]]


def mutation(what: str) -> Callable[[Callable[[], Patches]], None]:
    def register(patches: Callable[[], Patches]) -> None:
        name = patches.__name__
        run = partial(run_seed, brokers=5, moves=0.3)
        MUTATIONS[name] = Mutation(name, what, patches, run)

    return register


def _dropped(partition: Partition, alive: Collection[int], policy: ElectionPolicy) -> Partition:
    """The partition at the end of its move, whatever is missing."""
    target = tuple(each for each in partition.replicas if each not in partition.removing)
    changed = replace(partition, replicas=target, adding=(), removing=())
    return elections.without_replicas(partition, changed, alive, policy)


@mutation("A move ends when one of its new replicas is in sync")
def end_with_one() -> Patches:
    def ended(partition: Partition, alive: Collection[int], policy: ElectionPolicy) -> Partition:
        target = {*partition.replicas} - {*partition.removing}
        if not moves.is_moving(partition) or not target & {*partition.isr} & {*alive}:
            return partition
        return _dropped(partition, alive, policy)

    return [(moves, "ended", ended)]


@mutation("A move ends when its new replicas are alive, in sync or not")
def end_when_alive() -> Patches:
    def ended(partition: Partition, alive: Collection[int], policy: ElectionPolicy) -> Partition:
        if not moves.is_moving(partition) or not {*partition.adding} <= {*alive}:
            return partition
        return _dropped(partition, alive, policy)

    return [(moves, "ended", ended)]


@mutation("A second move drops what the first was adding, though too few others have it")
def drop_the_indispensable() -> Patches:
    return [(moves, "_indispensable", lambda *_: [])]


@mutation("A replica is dropped in the epoch in which it was one")
def drop_without_an_epoch() -> Patches:
    without_replicas = elections.without_replicas

    def dropped(before: Partition, after: Partition, *rest: Any) -> Partition:
        changed = without_replicas(before, after, *rest)
        if changed.leader != before.leader:
            return changed
        return replace(changed, leader_epoch=before.leader_epoch)

    return [(elections, "without_replicas", dropped)]


@mutation("A replica that was dropped stays in the in-sync set")
def dropped_in_sync() -> Patches:
    without_replicas = elections.without_replicas

    def dropped(before: Partition, after: Partition, *rest: Any) -> Partition:
        changed = without_replicas(before, after, *rest)
        left = [each for each in before.isr if each not in changed.isr]
        return replace(changed, isr=(*changed.isr, *left))

    return [(elections, "without_replicas", dropped)]
