"""A simulated cluster whose topic has `visible.when.flushed`: machines may lose power, all at once.

Syncs take their time, as those of server/upkeep/periodic.py do in their threads: records come while one
is under way, the process ends in the middle of one. A follower tells its leader what it has synced.

What must hold beside the promises of `world`: what was acknowledged, and what was once below a high
watermark, is there however many brokers lose what they have not synced. (A broker that loses its power
is in no in-sync set any more; where all have lost it, the one that led last leads again.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ottla.replication.partition import Role
from simulation_kit.broker import Broker, Life
from simulation_kit.world import World

if TYPE_CHECKING:
    from ottla.cluster.decisions.partitions import IsrResult
    from ottla.replication.partition import Partition
    from ottla.storage.config import LogConfig
    from ottla.storage.log.flush import FlushJob
    from ottla.storage.log.log import Log

# How long a sync takes, and until the loop hears of its end.
SYNC_MS = (0, 1, 5, 30, 200)
NEWS_MS = (0, 1, 10)


class FlushingLife(Life):
    def __init__(self, broker: Broker, lost_data: bool) -> None:
        super().__init__(broker, lost_data)
        self.logs.on_flush_wanted = lambda log: self.world.after(0, lambda: self._flush(log))

    def log_config(self) -> LogConfig:
        return replace(super().log_config(), visible_when_flushed=True)

    def _flush(self, log: Log) -> None:
        if self.ended or log.offline is not None or log.flushing is not None:
            return
        job = self.logs.flush_now(log, self.world.now)
        if job is not None:
            chance = self.world.chance
            self.world.after(chance.choice(SYNC_MS), lambda: self._sync(job))

    def _sync(self, job: FlushJob) -> None:
        if not self.ended:
            job.run()
            self.world.after(self.world.chance.choice(NEWS_MS), lambda: self._synced(job))

    def _synced(self, job: FlushJob) -> None:
        if self.ended:
            return
        log = job.log
        self.logs.finish(job)
        if log.log_end_offset >= log.flush_at_offset:
            self._flush(log)
        partition = self.partitions.get((log.topic, log.partition))
        if partition is not None and partition.opened is log:
            self.tell_flushed(partition)

    def tell_flushed(self, partition: Partition) -> None:
        """A sync came to its end: who waits for it hears of it, and the leader."""
        partition.flushed()
        following = self.following.get(partition.leader)
        if partition.role is Role.FOLLOWER and following is not None:
            following.changed(partition)

    def work(self) -> None:
        super().work()
        for partition in self.partitions.values():
            if partition.role is not Role.ABSENT and partition.opened is not None:
                self.tell_flushed(partition)


class FlushingWorld(World):
    LIFE: ClassVar[type[Life]] = FlushingLife

    def __init__(self, seed: int, *, brokers: int = 3) -> None:
        self.outages = 0
        super().__init__(seed, brokers=brokers)

    def may_lose_power(self, broker: Broker) -> bool:
        return True

    def faults(self) -> None:
        if self.chance.random() < 0.15:
            self.lose_all_power()
        else:
            super().faults()

    def set_changed(self, result: IsrResult, joined: set[int]) -> None:
        """The worst moment for the power to fail is when those who have just joined have to lead, and
        may not have synced all that they have."""
        if joined and self.loss and self.chance.random() < 0.3:
            self.after(self.chance.randint(20, 900), self.lose_all_power)
        super().set_changed(result, joined)

    def lose_all_power(self) -> None:
        """The power fails in the whole house."""
        if self.is_healing:
            return
        self.note("all brokers lose power")
        self.outages += 1
        for broker in self.brokers.values():
            if broker.life is not None:
                self._end(broker, power=True)


def run_flushing_seed(seed: int, *, steps: int = 60, brokers: int = 3) -> FlushingWorld:
    """As `run_seed`."""
    world = FlushingWorld(seed, brokers=brokers)
    world.run(500)
    for _ in range(steps):
        for _ in range(world.chance.randint(0, 8)):
            world.produce()
        if world.chance.random() < 0.5:
            world.faults()
        world.run(world.chance.choice((5, 20, 100, 400)))
    world.heal()
    return world
