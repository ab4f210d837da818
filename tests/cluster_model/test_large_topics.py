"""Topics with thousands of partitions: small nodes, small writes, and nothing half made to be seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from store_kit.faulty import Faults, FaultyStore

from ottla.cluster import layout
from ottla.cluster.decisions.partitions import WantedIsr
from ottla.cluster.decisions.topics import DeadTopic, MorePartitions, NewTopic
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.membership.following import MetadataFollower
from ottla.cluster.metadata import ClusterImage, Partition, RegisteredBroker, ResourceType, Topic
from ottla.cluster.store import Answer, Create, Delete, Operation, Set, Store, StoreError
from ottla.protocol.errors import ProtocolError

LIMIT = 512 << 10
PARTITIONS = 10_000
ControllerOf = Callable[..., Any]
BrokerOf = Callable[..., RegisteredBroker]


class Counting(FaultyStore):
    """Notes each multi, and can break the connection for good before one of them."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, 0, Faults())
        self.largest_multi = 400 << 10  # as ZooKeeper's
        self.multis: list[Sequence[Operation]] = []
        self.ends_before: Callable[[Sequence[Operation]], bool] = lambda _: False
        self.ended = False

    async def multi(self, operations: Sequence[Operation]) -> Answer:
        self.ended = self.ended or self.ends_before(operations)
        if self.ended:
            raise StoreError("the process has ended")
        self.multis.append(operations)
        return await super().multi(operations)


def size_of(operations: Sequence[Operation]) -> int:
    return sum(len(each.path) + len(getattr(each, "value", b"")) for each in operations)


def of_interest(operations: Sequence[Operation]) -> list[Operation]:
    skipped = (layout.REVISION, layout.CONTROLLER_EPOCH)
    return [each for each in operations if each.path not in skipped]


async def with_brokers(controller: Any, broker: BrokerOf) -> None:
    await controller.open(broker(1))
    for broker_id in (2, 3):
        await controller.register(broker(broker_id))


async def left_over(store: Store, image: ClusterImage) -> set[str]:
    """Nodes of partitions that belong to no topic."""
    names = await store.children(layout.PARTITIONS)
    assert names is not None
    owned = {
        path
        for topic in image.topics.values()
        if layout.is_large(topic)
        for path in layout.chunk_paths(topic.topic_id, len(topic.partitions))
    }
    return {f"{layout.PARTITIONS}/{name}" for name in names} - owned


def test_ten_thousand_partitions(
    stores: Any, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def run() -> None:
        store = Counting(stores.join())
        await store.start()
        other = stores.join()
        await other.start()
        controller = controller_of(store)
        await with_brokers(controller, broker)
        follower = MetadataFollower(other)
        await follower.open()
        following = asyncio.create_task(follower.run())

        async def both_have_it() -> None:
            await follower.caught_up()
            assert follower.image.topics == controller.image.topics
            assert (await load_image(other)) == controller.image

        # Creation: in several multis, none of them large.
        store.multis.clear()
        (made,) = await controller.create_topics([NewTopic("large", PARTITIONS, 3)])
        assert made.error is None
        assert len(store.multis) > 1
        assert max(map(size_of, store.multis)) < LIMIT
        await both_have_it()
        sizes = [
            len(node.value)
            for node in await other.get_many(
                [*layout.chunk_paths(made.topic_id, PARTITIONS), layout.topic_path("large")]
            )
            if node is not None
        ]
        assert len(sizes) == 1 + -(-PARTITIONS // layout.CHUNK)
        assert max(sizes) < 16 << 10

        # One in-sync set: one node.
        state = controller.image.topics["large"].partitions[4321]
        epoch = controller.image.brokers[state.leader].epoch
        wanted = WantedIsr(
            made.topic_id, 4321, state.leader_epoch, state.partition_epoch, [(state.leader, -1)]
        )
        store.multis.clear()
        await controller.alter_isr(state.leader, epoch, [wanted])
        ((change,),) = [of_interest(each) for each in store.multis]
        assert isinstance(change, Set)
        assert change.path == layout.chunk_path(made.topic_id, 4321 // layout.CHUNK)
        assert follower.image.topics["large"].partitions[4321].index == 4321
        await both_have_it()
        assert follower.image.topics["large"].partitions[4321].isr == (state.leader,)

        # A broker goes, and with it the leaders of a third of them.
        gone = 3 if state.leader != 3 else 2
        await store.multi([Delete(layout.broker_path(gone))])
        store.multis.clear()
        fenced = asyncio.Event()
        controller.subscribe(lambda _old, new, _: fenced.set() if gone in new.fenced else None)
        controller.registrations_changed()
        await asyncio.wait_for(fenced.wait(), 60)
        assert max(map(size_of, store.multis)) < LIMIT
        await both_have_it()
        leaders = {each.leader for each in follower.image.topics["large"].partitions}
        assert leaders == {1, 2, 3} - {gone}

        await controller.register(broker(gone))
        # More partitions, in the last node and in new ones.
        store.multis.clear()
        (grown,) = await controller.create_partitions([MorePartitions("large", PARTITIONS + 500)])
        assert grown.error is None
        written = [each.path for multi in store.multis for each in of_interest(multi)]
        assert len(written) <= 2 + 500 // layout.CHUNK + 1
        assert written[-1] == layout.topic_path("large")
        await both_have_it()
        assert len(follower.image.topics["large"].partitions) == PARTITIONS + 500

        # Deletion: the topic first.
        store.multis.clear()
        await controller.delete_topics([DeadTopic("large")])
        (first, *_) = of_interest(store.multis[0])
        assert first == Delete(layout.topic_path("large"))
        await both_have_it()
        assert await left_over(other, controller.image) == set()
        following.cancel()
        await controller.close()
        await store.close()
        await other.close()

    asyncio.run(run())


def test_small_topics_have_one_node(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        controller = controller_of(store)
        await with_brokers(controller, broker)
        await controller.create_topics([NewTopic("t", layout.CHUNK, 3)])
        assert await store.children(layout.PARTITIONS) == []
        # It grows into a large one, and its old node names the new ones.
        await controller.create_partitions([MorePartitions("t", layout.CHUNK + 1)])
        assert len(await store.children(layout.PARTITIONS) or ()) == 2
        assert await load_image(store) == controller.image
        # Made again under the same name: the old nodes go.
        await controller.delete_topics([DeadTopic("t")])
        await controller.create_topics([NewTopic("t", 70, 1)])
        assert await load_image(store) == controller.image
        assert await left_over(store, controller.image) == set()
        await controller.close()
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("what", ["create", "grow", "delete"])
@pytest.mark.parametrize("ends_at", [0, 1, 2])
def test_a_crash_between_two_multis_leaves_nothing_to_be_seen(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf, what: str, ends_at: int
) -> None:
    async def run() -> None:
        first = EmbeddedStore(tmp_path / "metadata.db")
        store = Counting(first)
        store.largest_multi = 20 << 10
        await store.start()
        controller = controller_of(store)
        await with_brokers(controller, broker)
        await controller.create_topics(
            [NewTopic("old", 500, 3, configs={"retention.ms": "7"}), NewTopic("small", 2, 1)]
        )
        before = controller.image
        written = len(store.multis)
        store.ends_before = lambda _: len(store.multis) == written + ends_at
        if what == "create":
            change = controller.create_topics(
                [NewTopic("t", 500, 3, configs={"retention.ms": "5"})]
            )
        elif what == "grow":
            change = controller.create_partitions([MorePartitions("old", 1000)])
        else:
            store.largest_multi = 300
            change = controller.delete_topics([DeadTopic("old")])
        with pytest.raises((ProtocolError, StoreError)):
            await change
        assert store.ended
        # Another controller takes over.
        other = first.join()
        await other.start()
        seen = await load_image(other)
        assert seen is not None
        gone = what == "delete" and ends_at > 0
        expected = {
            name: each for name, each in before.topics.items() if not (gone and name == "old")
        }
        assert seen.topics == expected
        successor = controller_of(other, 2)
        await successor.open()
        assert successor.image.topics == expected
        assert await left_over(other, successor.image) == set()
        names = {name for kind, name in successor.image.configs if kind is ResourceType.TOPIC}
        assert names <= set(expected)
        assert await load_image(other) == successor.image
        # And what was not done can be done.
        if what == "create":
            (made,) = await successor.create_topics([NewTopic("t", 500, 3)])
            assert made.error is None
            assert (ResourceType.TOPIC, "t") not in successor.image.configs
        elif what == "grow":
            (grown,) = await successor.create_partitions([MorePartitions("old", 1000)])
            assert grown.error is None
        assert await load_image(other) == successor.image
        await successor.close()
        await other.close()
        await first.close()

    asyncio.run(run())


def test_the_same_controller_goes_on_after_half_a_change(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def run() -> None:
        store = Counting(EmbeddedStore(tmp_path / "metadata.db"))
        store.largest_multi = 20 << 10
        await store.start()
        controller = controller_of(store)
        await with_brokers(controller, broker)
        await controller.create_topics([NewTopic("t", 100, 3)])
        written = len(store.multis)
        store.ends_before = lambda _: len(store.multis) == written + 2
        with pytest.raises(ProtocolError):
            await controller.create_partitions([MorePartitions("t", 1000)])
        store.ended, store.ends_before = False, lambda _: False
        (grown,) = await controller.create_partitions([MorePartitions("t", 900)])
        assert grown.error is None
        assert len(controller.image.topics["t"].partitions) == 900
        assert await load_image(store) == controller.image
        assert await left_over(store, controller.image) == set()
        await controller.close()
        await store.close()

    asyncio.run(run())


def test_a_store_of_an_older_version_is_read_and_rewritten(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        controller = controller_of(store)
        await with_brokers(controller, broker)
        (made,) = await controller.create_topics([NewTopic("t", 300, 3)])
        image = controller.image
        await controller.close()
        # As the older version had it: one node, and no folder for partitions.
        fields = {
            "topic_id": made.topic.topic_id,
            "partitions": [
                layout._partition_fields(each, image.leader_epoch_base)
                for each in made.topic.partitions
            ],
        }
        value = layout.dump({**fields, "topic_id": layout.uuid_text(made.topic_id)})
        names = await store.children(layout.PARTITIONS)
        assert names is not None
        await store.multi(
            [
                Set(layout.topic_path("t"), value),
                *(Delete(f"{layout.PARTITIONS}/{name}") for name in names),
                Delete(layout.PARTITIONS),
            ]
        )
        loaded = await load_image(store)
        assert loaded is not None
        assert loaded.topics == image.topics
        successor = controller_of(store)
        await successor.open()
        node = await store.get(layout.topic_path("t"))
        assert node is not None
        assert layout.partition_count(node.value) == 300
        assert len(await store.children(layout.PARTITIONS) or ()) == 5
        assert await load_image(store) == successor.image
        assert successor.image.topics == image.topics
        await successor.close()
        await store.close()

    asyncio.run(run())


def test_a_large_topic_without_its_partitions_is_not_read(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        controller = controller_of(store)
        await with_brokers(controller, broker)
        (made,) = await controller.create_topics([NewTopic("t", 300, 3)])
        await controller.close()
        await store.multi([Delete(layout.chunk_path(made.topic_id, 3))])
        with pytest.raises(layout.UnreadableMetadata, match="/brokers/topics/t"):
            await load_image(store)
        await store.multi([Create(layout.chunk_path(made.topic_id, 3), layout.encode_chunk([]))])
        with pytest.raises(layout.UnreadableMetadata, match="/brokers/topics/t"):
            await load_image(store)
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(5))
def test_followers_of_large_topics_under_faults(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf, seed: int
) -> None:
    """Topics grow over the limit, go, and come back; whoever follows ends with the same image."""

    async def run() -> None:
        own = EmbeddedStore(tmp_path / "metadata.db")
        faults = Faults(lost_before=0.05, lost_after=0.05, lost_late=0.05, unavailable=0.02)
        store, other = (
            FaultyStore(own, seed, Faults()),
            FaultyStore(own.join(), seed + 99, Faults()),
        )
        store.largest_multi = 10 << 10
        await store.start()
        await other.start()
        controller = controller_of(store, pauses=(0.0,) * 60)
        await with_brokers(controller, broker)
        follower = MetadataFollower(other)
        await follower.open()
        following = asyncio.create_task(follower.run())
        store.faults = other.faults = faults
        chance = Random(seed)
        for _ in range(40):
            name = chance.choice("ab")
            match chance.randrange(4):
                case 0:
                    await controller.create_topics(
                        [NewTopic(name, chance.choice((3, 64, 65, 300)), 2)]
                    )
                case 1:
                    await controller.delete_topics([DeadTopic(name)])
                case 2:
                    count = chance.choice((64, 65, 128, 129, 400))
                    await controller.create_partitions([MorePartitions(name, count)])
                case 3 if name in controller.image.topics:
                    topic = controller.image.topics[name]
                    state = chance.choice(topic.partitions)
                    epoch = controller.image.brokers[state.leader].epoch
                    isr = [(each, -1) for each in state.replicas[: chance.randint(1, 2)]]
                    wanted = WantedIsr(
                        topic.topic_id, state.index, state.leader_epoch, state.partition_epoch,
                        isr if (state.leader, -1) in isr else [(state.leader, -1)],
                    )  # fmt: skip
                    await controller.alter_isr(state.leader, epoch, [wanted])
        store.faults = other.faults = Faults()
        await follower.caught_up()
        assert follower.image.topics == controller.image.topics
        assert await load_image(own) == controller.image
        assert await left_over(own, controller.image) == set()
        following.cancel()
        await controller.close()
        await other.close()
        await store.close()

    asyncio.run(run())


def test_a_newer_chunk_than_its_topic_is_cut_to_what_exists(image_of: Any) -> None:
    """A topic that is about to grow has more in its last node than its own node counts."""
    partitions = tuple(Partition(index, (1,), (1,), 1) for index in range(130))
    topic = Topic("t", b"t" * 16, partitions[:100])
    chunks = {
        layout.chunk_path(topic.topic_id, number): layout.Node(
            layout.encode_chunk(partitions[64 * number : 64 * number + 64]), 0, 1, 1
        )
        for number in range(3)
    }
    value = layout.encode_topic(topic, {})
    assert layout.decode_topic("t", value, {}, 0, chunks) == topic
    grown = replace(topic, partitions=partitions)
    assert layout.decode_topic("t", layout.encode_topic(grown, {}), {}, 0, chunks) == grown
    assert layout.chunk_of(layout.chunk_path(topic.topic_id, 2).rpartition("/")[2]) == (
        topic.topic_id,
        2,
    )
