"""The metadata of a large cluster, in one process: `python -m bench.cluster.scale`.

The controller, its decisions, placement, the layout in the store and a broker's image are the real ones;
the store is the embedded one, with ZooKeeper's limit on the size of a write. There are no sockets and no
logs: a broker is a session with a registration. One broker's follower stands for all of them.

What is counted (writes, bytes, nodes, memory of an image) does not depend on the machine. Times do; they
are those of the controller and the follower with a store that answers at once, so that what a ZooKeeper
takes for its writes comes on top. docs/scale.md has the figures, and what follows from them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from ottla.cluster import layout
from ottla.cluster.controller import Controller
from ottla.cluster.decisions.partitions import ElectionType, WantedIsr
from ottla.cluster.decisions.topics import MOST_PARTITIONS_PER_REQUEST, NewTopic
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import folder, load_image
from ottla.cluster.membership.following import MetadataFollower
from ottla.cluster.metadata import ClusterImage, Endpoint, RegisteredBroker, Resource, ResourceType
from ottla.cluster.store import (
    Answer,
    Change,
    Check,
    Create,
    Node,
    Operation,
    SessionEvent,
    Store,
    Stream,
)
from ottla.cluster.zookeeper.store import LARGEST_MULTI
from ottla.replication.partition import Role
from ottla.server.partitions import Partitions
from ottla.storage.config import LogConfig

DEATHS = 3
SETTINGS = LogConfig()
PULSE = 0.005  # seconds between two looks at whether the loop stood still


@dataclass(frozen=True)
class Sizes:
    """How large the cluster is."""

    brokers: int = 100
    partitions: int = 200_000
    per_topic: int = 20
    replicas: int = 3
    racks: int = 3

    @property
    def topics(self) -> list[NewTopic]:
        counts = [self.per_topic] * (self.partitions // self.per_topic)
        rest = self.partitions % self.per_topic
        if rest:
            counts.append(rest)
        return [NewTopic(f"topic-{at:06}", each, self.replicas) for at, each in enumerate(counts)]


class Figure(NamedTuple):
    """One line of the result."""

    key: str
    what: str
    value: float
    unit: str


@dataclass
class Tally:
    """What went to and came from the store in one session."""

    multis: int = 0
    operations: int = 0  # without those that check only
    written: int = 0  # bytes of paths and values
    largest: int = 0  # bytes of the largest multi
    nodes_read: int = 0
    read: int = 0  # bytes


class CountedStore(Store):
    """A session that counts, with ZooKeeper's limit. Its reads may be held up."""

    largest_multi = LARGEST_MULTI

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.tally = Tally()
        self.may_read = asyncio.Event()
        self.may_read.set()

    @property
    def session_id(self) -> int:
        return self._inner.session_id

    @property
    def session_state(self) -> SessionEvent:
        return self._inner.session_state

    async def start(self) -> None:
        await self._inner.start()

    async def close(self) -> None:
        await self._inner.close()

    async def get(self, path: str) -> Node | None:
        return (await self.get_many([path]))[0]

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        await self.may_read.wait()
        nodes = await self._inner.get_many(paths)
        self.tally.nodes_read += len(paths)
        self.tally.read += sum(
            len(path) + len(node.value)
            for path, node in zip(paths, nodes, strict=True)
            if node is not None
        )
        return nodes

    async def children(self, path: str) -> list[str] | None:
        await self.may_read.wait()
        names = await self._inner.children(path)
        self.tally.read += sum(map(len, names or ()))
        return names

    async def multi(self, operations: Sequence[Operation]) -> Answer:
        size = sum(len(each.path) + len(getattr(each, "value", b"")) for each in operations)
        tally = self.tally
        tally.multis += 1
        tally.operations += sum(not isinstance(each, Check) for each in operations)
        tally.written += size
        tally.largest = max(tally.largest, size)
        return await self._inner.multi(operations)

    async def sync(self) -> None:
        await self._inner.sync()

    def watch(self, path: str) -> Stream[Change]:
        return self._inner.watch(path)

    def session_events(self) -> Stream[SessionEvent]:
        return self._inner.session_events()


class AnySetting:
    """No topic here has settings; they would be in order."""

    def check(
        self, resource: Resource, config: Mapping[str, str], altered: Collection[str]
    ) -> None:
        pass

    def is_list(self, resource_type: ResourceType, name: str) -> bool:  # noqa: ARG002
        return False

    def list_default(self, resource_type: ResourceType, name: str) -> str | None:  # noqa: ARG002
        return None


@dataclass
class Stretch:
    """Something that was timed: how long it took, and for how long at most the loop stood still."""

    seconds: float = 0.0
    longest_stop: float = 0.0


@contextmanager
def stretch() -> Iterator[Stretch]:
    """Times what is done inside."""
    loop = asyncio.get_running_loop()
    result = Stretch()
    began = last = time.perf_counter()
    handle: asyncio.TimerHandle | None = None

    def beat() -> None:
        nonlocal last, handle
        now = time.perf_counter()
        result.longest_stop = max(result.longest_stop, now - last - PULSE)
        last = now
        handle = loop.call_later(PULSE, beat)

    beat()
    try:
        yield result
    finally:
        now = time.perf_counter()
        result.seconds = now - began
        result.longest_stop = max(result.longest_stop, now - last - PULSE, 0.0)
        if handle is not None:
            handle.cancel()


@dataclass
class Simulation:
    """The cluster, and what was found out about it."""

    sizes: Sizes
    store: EmbeddedStore
    say: Callable[[str], None] = lambda _: None
    figures: list[Figure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(17)
        self.sessions: dict[int, EmbeddedStore] = {}
        self.of_controller = CountedStore(self.store.join())
        self.of_follower = CountedStore(self.store.join())
        self.controller = self._new_controller()
        self.follower = MetadataFollower(self.of_follower)

    def _new_controller(self) -> Controller:
        return Controller(self.of_controller, 0, AnySetting(), {}, random=self.random)

    def note(self, key: str, what: str, value: float, unit: str) -> None:
        self.figures.append(Figure(key, what, value, unit))
        self.say(_line(self.figures[-1]))

    # What happens to brokers

    async def register(self, broker_id: int) -> None:
        """A broker comes; the controller has not heard of it yet."""
        session = self.sessions[broker_id] = self.store.join()
        await session.start()
        rack = f"rack-{broker_id % self.sizes.racks}" if self.sizes.racks > 1 else None
        host = f"broker-{broker_id}.example.com"
        endpoint = Endpoint("PLAINTEXT", host, 9092, "PLAINTEXT")
        broker = RegisteredBroker(broker_id, -1, rack, (endpoint,), folder_id=f"{broker_id:022}")
        await session.multi(
            [Create(layout.broker_path(broker_id), layout.encode_broker(broker), ephemeral=True)]
        )

    async def until(self, condition: Callable[[ClusterImage], bool]) -> None:
        """Has the controller look at the registrations, and waits until it is done with them."""
        controller = self.controller
        changed = asyncio.Event()
        unsubscribe = controller.subscribe(lambda _old, _new, _delta: changed.set())
        controller.registrations_changed()
        while not condition(controller.image):
            await changed.wait()
            changed.clear()
        unsubscribe()

    def begin(self) -> Tally:
        """From here on the controller's writes are counted anew, and the follower reads nothing."""
        gc.collect()
        self.of_follower.may_read.clear()
        self.of_controller.tally = Tally()
        self.of_follower.tally = Tally()
        return self.of_controller.tally

    async def follow(self, key: str, what: str) -> None:
        """The follower catches up with all that was changed since; it must know what is true then."""
        with stretch() as took:
            self.of_follower.may_read.set()
            await self.follower.caught_up()
        if self.follower.image.topics != self.controller.image.topics:
            raise RuntimeError(f"{what}: the follower's image is another one")
        tally = self.of_follower.tally
        self.note(f"{key}.read", f"{what}: read by each broker", tally.read, "bytes")
        self.note(f"{key}.followed", f"{what}: a broker has followed", took.seconds, "s")
        stop = took.longest_stop
        self.note(f"{key}.followed.stop", f"{what}: longest stop of that broker's loop", stop, "s")

    def wrote(self, key: str, what: str, took: Stretch, tally: Tally) -> None:
        self.note(f"{key}.seconds", f"{what}: decided and written", took.seconds, "s")
        self.note(f"{key}.stop", f"{what}: longest stop of the loop", took.longest_stop, "s")
        self.note(f"{key}.multis", f"{what}: writes", tally.multis, "")
        self.note(f"{key}.operations", f"{what}: nodes written", tally.operations, "")
        self.note(f"{key}.written", f"{what}: written", tally.written, "bytes")

    # The story

    async def run(self) -> None:
        await self.of_controller.start()
        await self.of_follower.start()
        await self.controller.open()
        await self.make_cluster()
        following = await self.load()
        for number in range(DEATHS):
            last = number == DEATHS - 1
            await self.death_and_return(1 + number, noted=last)
        await self.small_changes()
        await self.restart()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    async def make_cluster(self) -> None:
        sizes = self.sizes
        for broker_id in range(sizes.brokers):
            await self.register(broker_id)
        tally = self.begin()
        with stretch() as took:
            await self.until(lambda image: len(image.brokers) == sizes.brokers)
        self.wrote("join", "all brokers join", took, tally)
        tally = self.begin()
        topics = sizes.topics
        at_once = max(1, MOST_PARTITIONS_PER_REQUEST // sizes.per_topic)
        with stretch() as took:
            for at in range(0, len(topics), at_once):
                for result in await self.controller.create_topics(topics[at : at + at_once]):
                    if result.error is not None:
                        raise RuntimeError(result.error.message)
        self.wrote("create", "all topics are created", took, tally)
        image = self.controller.image
        if image.partition_count != sizes.partitions:
            raise RuntimeError(f"{image.partition_count} partitions, not {sizes.partitions}")
        held = Counter(
            replica
            for topic in image.topics.values()
            for partition in topic.partitions
            for replica in partition.replicas
        )
        led = Counter(each.leader for topic in image.topics.values() for each in topic.partitions)
        brokers = range(sizes.brokers)
        self.note(
            "held.fewest", "fewest replicas of a broker", min(map(held.__getitem__, brokers)), ""
        )
        self.note("held.most", "most replicas of a broker", max(map(held.__getitem__, brokers)), "")
        self.note(
            "led.fewest", "fewest leaders of a broker", min(map(led.__getitem__, brokers)), ""
        )
        self.note("led.most", "most leaders of a broker", max(map(led.__getitem__, brokers)), "")

    async def load(self) -> asyncio.Task[None]:
        """A broker starts: it reads all there is. Returns the task that follows from then on."""
        self.begin()
        self.of_follower.may_read.set()
        with stretch() as took:
            await self.follower.open()
        tally = self.of_follower.tally
        self.note("load.seconds", "a broker reads the metadata", took.seconds, "s")
        self.note("load.stop", "the same: longest stop of the loop", took.longest_stop, "s")
        self.note("load.nodes", "nodes in the store that it reads", tally.nodes_read, "")
        self.note("load.read", "metadata in the store", tally.read, "bytes")
        await self.measure_image()
        following = asyncio.create_task(self.follower.run())
        await self.follower.caught_up()
        return following

    async def measure_image(self) -> None:
        """Memory. Topics with equal partitions share them; those of a cluster that has lived for a while
        have epochs of their own, so the most that an image takes is one without that."""
        gc.collect()
        tracemalloc.start()
        image = await load_image(self.of_follower)
        gc.collect()
        memory, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if image is None or image.topics != self.controller.image.topics:
            raise RuntimeError("what was read is not what was written")
        self.note("image.new", "memory of an image, topics as they were made", memory, "bytes")
        del image
        nodes = await folder(self.of_follower, layout.TOPICS)
        paths = [path for name, node in nodes for path in layout.chunks_wanted(name, node.value)]
        chunks = dict(zip(paths, await self.of_follower.get_many(paths), strict=True))
        gc.collect()
        tracemalloc.start()
        topics = {
            name: layout.decode_topic(name, node.value, {}, 0, chunks) for name, node in nodes
        }
        by_id = {topic.topic_id: topic for topic in topics.values()}
        gc.collect()
        memory, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        self.note("image.memory", "memory of an image, no two topics alike", memory, "bytes")
        del by_id
        # What a broker makes of it: an object for each partition, its own or not.
        unused: Any = SimpleNamespace(
            appended=None, advanced=None, find_loaded=lambda _topic, _index: None
        )
        gc.collect()
        tracemalloc.start()
        partitions = Partitions(0, unused, unused, lambda _topic: SETTINGS)
        for topic in topics.values():
            partitions.put(topic)
        gc.collect()
        memory, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        held = sum(each.role is not Role.ABSENT for each in partitions)
        self.note("partitions.held", "partitions that one broker holds", held, "")
        self.note("partitions.memory", "memory of a broker's partitions", memory, "bytes")
        del topics, partitions

    async def death_and_return(self, broker_id: int, *, noted: bool) -> None:
        """A broker dies and comes back, catches up, and gets its leaders back."""
        figures = self.figures
        if not noted:  # the code is warm after the first of them
            self.figures = []
        say, self.say = self.say, self.say if noted else lambda _: None
        try:
            await self._death(broker_id)
            await self._return(broker_id)
        finally:
            self.say = say
            if not noted:
                self.figures = figures

    async def _death(self, broker_id: int) -> None:
        before = self.controller.image
        await self.sessions.pop(broker_id).close()
        tally = self.begin()
        with stretch() as took:
            await self.until(lambda image: broker_id not in image.brokers)
        after = self.controller.image
        states = [
            (old, new)
            for name, topic in before.topics.items()
            for old, new in zip(topic.partitions, after.topics[name].partitions, strict=True)
        ]
        elected = sum(old.leader != new.leader for old, new in states)
        if any(new.leader == broker_id or broker_id in new.isr for _, new in states):
            raise RuntimeError("a broker that is dead still leads")
        if elected != sum(old.leader == broker_id for old, _ in states):
            raise RuntimeError("others than those of the broker got new leaders")
        self.note("death.elected", "a broker dies: leaders elected", elected, "")
        heirs = Counter(new.leader for old, new in states if old.leader != new.leader)
        heaviest = max(heirs.values(), default=0)
        self.note("death.heaviest", "a broker dies: most of them on one other", heaviest, "")
        changed = sum(old is not new for old, new in states)
        self.note("death.changed", "a broker dies: partitions that change", changed, "")
        self.wrote("death", "a broker dies", took, tally)
        await self.follow("death", "a broker dies")

    async def _return(self, broker_id: int) -> None:
        tally = self.begin()
        await self.register(broker_id)
        with stretch() as took:
            await self.until(lambda image: broker_id in image.brokers)
        self.wrote("return", "it comes back", took, tally)
        await self.follow("return", "it comes back")
        image = self.controller.image
        wanted: dict[int, list[WantedIsr]] = {}
        for topic in image.topics.values():
            for state in topic.partitions:
                if broker_id in state.replicas and broker_id not in state.isr:
                    isr = [(each, -1) for each in (*state.isr, broker_id)]
                    wanted.setdefault(state.leader, []).append(
                        WantedIsr(
                            topic.topic_id,
                            state.index,
                            state.leader_epoch,
                            state.partition_epoch,
                            isr,
                        )
                    )
        tally = self.begin()
        with stretch() as took:
            answers = await asyncio.gather(
                *(
                    self.controller.alter_isr(leader, image.brokers[leader].epoch, states)
                    for leader, states in wanted.items()
                )
            )
        if any(result.error for answer in answers for result in answer):
            raise RuntimeError("a leader's change of its in-sync replicas was refused")
        self.wrote("rejoin", "it is in sync again", took, tally)
        await self.follow("rejoin", "it is in sync again")
        tally = self.begin()
        with stretch() as took:
            await self.controller.elect_leaders(ElectionType.PREFERRED, None)
        self.wrote("preferred", "it leads again", took, tally)
        await self.follow("preferred", "it leads again")

    async def small_changes(self) -> None:
        image = self.controller.image
        topic = image.topics[self.sizes.topics[0].name]
        state = topic.partitions[-1]
        wanted = WantedIsr(
            topic.topic_id,
            state.index,
            state.leader_epoch,
            state.partition_epoch,
            [(state.leader, -1)],
        )
        tally = self.begin()
        with stretch() as took:
            await self.controller.alter_isr(
                state.leader, image.brokers[state.leader].epoch, [wanted]
            )
        self.wrote("isr", "one in-sync set changes", took, tally)
        await self.follow("isr", "one in-sync set changes")
        tally = self.begin()
        with stretch() as took:
            await self.controller.create_topics(
                [NewTopic("one-more", self.sizes.per_topic, self.sizes.replicas)]
            )
        self.wrote("topic", "one topic is created", took, tally)
        await self.follow("topic", "one topic is created")

    async def restart(self) -> None:
        """All brokers, and with them the controller, end and start again: a power cut."""
        await self.controller.close()
        for session in self.sessions.values():
            await session.close()
        for broker_id in range(self.sizes.brokers):
            await self.register(broker_id)
        epochs = {
            broker_id: each.epoch for broker_id, each in self.controller.image.brokers.items()
        }
        tally = self.begin()
        self.controller = self._new_controller()
        with stretch() as took:
            await self.controller.open()
            await self.until(
                lambda image: all(
                    broker_id in image.brokers and image.brokers[broker_id].epoch > epoch
                    for broker_id, epoch in epochs.items()
                )
            )
        self.wrote("restart", "all brokers restart", took, tally)
        if any(
            each.leader not in self.controller.image.brokers
            for topic in self.controller.image.topics.values()
            for each in topic.partitions
        ):
            raise RuntimeError("a partition has no leader")
        await self.follow("restart", "all brokers restart")

    async def close(self) -> None:
        await self.controller.close()
        await self.of_follower.close()
        await self.of_controller.close()
        for session in self.sessions.values():
            await session.close()


async def simulate(
    sizes: Sizes, place: Path, say: Callable[[str], None] = lambda _: None
) -> list[Figure]:
    """All figures of a cluster of this size; the store's file is made in the folder."""
    store = EmbeddedStore(place / "metadata.db")
    await store.start()
    simulation = Simulation(sizes, store, say)
    try:
        await simulation.run()
    finally:
        await simulation.close()
        await store.close()
    return simulation.figures


def _line(figure: Figure) -> str:
    value = f"{figure.value:,.3f}" if figure.unit == "s" else f"{figure.value:,.0f}"
    return f"| {figure.what} | {value} {figure.unit}".rstrip() + " |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.scale", description=__doc__)
    sizes = Sizes()
    parser.add_argument("--brokers", type=int, default=sizes.brokers)
    parser.add_argument("--partitions", type=int, default=sizes.partitions)
    parser.add_argument(
        "--per-topic", type=int, default=sizes.per_topic, help="partitions of a topic"
    )
    parser.add_argument("--replicas", type=int, default=sizes.replicas)
    parser.add_argument("--racks", type=int, default=sizes.racks)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    given = parser.parse_args()
    sizes = Sizes(given.brokers, given.partitions, given.per_topic, given.replicas, given.racks)
    if sizes.brokers <= DEATHS or sizes.brokers < sizes.replicas:
        parser.error(f"this needs more than {DEATHS} brokers, and as many as there are replicas")
    if not 0 < sizes.per_topic <= MOST_PARTITIONS_PER_REQUEST or sizes.partitions < 1:
        parser.error(f"a topic has 1 to {MOST_PARTITIONS_PER_REQUEST} partitions")
    logging.getLogger("ottla.cluster").setLevel(logging.ERROR)  # brokers die here on purpose
    with tempfile.TemporaryDirectory(prefix="ottla-scale-") as place:
        say = (lambda _: None) if given.json else print
        say(f"| {sizes.brokers:,} brokers, {sizes.partitions:,} partitions | |")
        say("|---|---:|")
        figures = asyncio.run(simulate(sizes, Path(place), say))
    if given.json:
        print(json.dumps({each.key: each.value for each in figures}))


if __name__ == "__main__":
    main()
