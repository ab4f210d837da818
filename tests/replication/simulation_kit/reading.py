"""A client that is told where the high watermark is, and must never be told less later.

It asks leaders, as Fetch and ListOffsets do, and knows leader epochs: who leads in an older one than it
has heard of does not serve it. (Followers that serve consumers may be behind their leader.)
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ottla.replication.partition import Role
from simulation_kit.names import name_of

if TYPE_CHECKING:
    from simulation_kit.broker import Life
    from simulation_kit.world import World

Key = tuple[str, int]


def tell_watermark(life: Life, key: Key, known_epoch: int) -> tuple[int, int] | None:
    """The leader epoch and the high watermark. None from who does not lead, or in an older epoch than
    the client knows; or who does not know it."""
    partition = life.partitions.get(key)
    if (
        partition is None
        or partition.role is not Role.LEADER
        or partition.leader_epoch < known_epoch
        or partition.opened is None
        or partition.known_watermark < 0
    ):
        return None
    return partition.leader_epoch, partition.known_watermark


class Reader:
    """See the module. Its questions may overtake each other, and so may the answers: each is compared
    with what was known when it was asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        # Of its own: the seeds that are known to find something go on finding it.
        self._chance = random.Random(world.seed)
        self._epochs: dict[Key, int] = {}
        self._told: dict[Key, int] = {}
        self.answers = 0

    def ask(self) -> None:
        world, chance = self.world, self._chance
        key = chance.choice(world.keys)
        broker_id = world.leader_of(key)
        if broker_id < 0 or chance.random() < 0.3:
            broker_id = chance.choice(list(world.brokers))
        known_epoch = self._epochs.get(key, -1)
        before = self._told.get(key, -1)

        def asked(life: Life) -> None:
            told = tell_watermark(life, key, known_epoch)
            if told is not None:
                world.after(chance.randint(0, 30), lambda: answered(life, *told))

        def answered(life: Life, epoch: int, high_watermark: int) -> None:
            self.answers += 1
            if high_watermark < before:
                world.broken(
                    f"a client was told that {name_of(key)} is committed up to {before}, and then "
                    f"by broker {life.id}, epoch {epoch}, up to {high_watermark}"
                )
            self._epochs[key] = max(self._epochs.get(key, -1), epoch)
            self._told[key] = max(self._told.get(key, -1), high_watermark)

        world.reach(broker_id, chance.randint(0, 30), asked)
