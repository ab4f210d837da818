"""The controller over a real store: order, batches, conflicts, lost answers, restarts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_kit.faulty import Faults, FaultyStore

from ottla.cluster import layout
from ottla.cluster.controller import Controller, UnsupportedFeature
from ottla.cluster.decisions.brokers import unregister_broker
from ottla.cluster.decisions.configs import AlteredResource, ConfigChange, full_change
from ottla.cluster.decisions.features import FeatureRange, FeatureUpdate
from ottla.cluster.decisions.moves import WantedMove
from ottla.cluster.decisions.topics import DeadTopic, MorePartitions, NewTopic, TopicDefaults
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.metadata import ClusterImage, ImageDelta, RegisteredBroker, ResourceType
from ottla.cluster.store import Check, Create, Delete, Ok, Operation, Set, Store, StoreError
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import uuid_from_text

ControllerOf = Callable[..., Controller]
BrokerOf = Callable[..., RegisteredBroker]


def over_store(tmp_path: Path, use: Callable[[EmbeddedStore], Awaitable[Any]]) -> Any:
    """Runs `use` with the store in this folder, as one life of a broker would."""

    async def run() -> Any:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())


def comparable(image: ClusterImage) -> ClusterImage:
    """Without what every life of a broker has anew."""
    return replace(
        image,
        brokers={},
        version=0,
        controller_epoch=0,
        leader_epoch_base=0,
        topics={},
        topics_by_id={},
    )


async def code_of(call: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(ProtocolError) as raised:
        await call
    return raised.value.code


def test_a_cluster_has_a_secret_that_stays(tmp_path: Path, controller_of: ControllerOf) -> None:
    async def use(store: EmbeddedStore) -> None:
        first = controller_of(store)
        secret = (await first.open()).secret
        assert len(secret) == 32
        await first.close()
        second = controller_of(store)
        assert (await second.open()).secret == secret
        await second.close()
        # A cluster that an older version made gets one with the next controller.
        await store.multi([Delete(layout.SECRET)])
        third = controller_of(store)
        image = await third.open()
        assert len(image.secret) == 32
        assert image.secret != secret
        assert await load_image(store) == third.image
        await third.close()

    over_store(tmp_path, use)


def test_a_new_cluster(tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf) -> None:
    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        image = await controller.open(broker(1))
        assert len(image.cluster_id) == 22
        uuid_from_text(image.cluster_id)
        assert (image.controller_id, image.controller_epoch) == (1, 1)
        assert image.topics == {}
        assert image.features == {
            "group.version": 1,
            "transaction.version": 2,
            "metadata.version": 30,
        }
        registered = image.brokers[1]
        node = await store.get("/brokers/ids/1")
        assert node is not None
        assert registered.epoch == node.created > 0
        assert node.owner == store.session_id
        await controller.close()

    over_store(tmp_path, use)


def test_everything_is_there_after_a_restart(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def first(store: EmbeddedStore) -> ClusterImage:
        controller = controller_of(store, defaults=TopicDefaults(2, 1))
        await controller.open(broker(1))
        await controller.create_topics(
            [
                NewTopic("a.b", configs={"retention.ms": "1"}),
                NewTopic("gone", 1, 1, configs={"retention.ms": "1"}),
                NewTopic("c", 5, 1),
            ]
        )
        await controller.delete_topics([DeadTopic("gone")])
        await controller.create_partitions([MorePartitions("a.b", 4)])
        changes = [ConfigChange("log.retention.ms", 0, "5")]
        await controller.alter_configs(
            [
                AlteredResource(ResourceType.BROKER, "", changes),
                AlteredResource(ResourceType.BROKER, "1", changes),
                full_change(ResourceType.GROUP, "a/b ü", [("consumer.session.timeout.ms", "1")]),
            ],
            incremental=True,
        )
        await controller.update_features([FeatureUpdate("group.version", 0, 2)])
        assert (await controller.allocate_producer_ids()).first == 0
        await controller.close()
        return controller.image

    async def second(store: EmbeddedStore) -> ClusterImage:
        controller = controller_of(store, seed=2)
        image = await controller.open(broker(1, port=9999))
        assert (await controller.allocate_producer_ids()).first == 1000
        await controller.close()
        return image

    before: ClusterImage = over_store(tmp_path, first)
    after: ClusterImage = over_store(tmp_path, second)
    assert comparable(after) == comparable(before)
    assert [len(topic.partitions) for topic in after.topics.values()] == [4, 5]
    assert set(after.configs) == {
        (ResourceType.TOPIC, "a.b"),
        (ResourceType.BROKER, ""),
        (ResourceType.BROKER, "1"),
        (ResourceType.GROUP, "a/b ü"),
    }
    assert after.version > before.version
    assert (before.controller_epoch, after.controller_epoch) == (1, 2)
    assert after.brokers[1].epoch > before.brokers[1].epoch
    assert after.brokers[1].endpoints[0].port == 9999
    leader_epochs = {
        part.leader_epoch for topic in after.topics.values() for part in topic.partitions
    }
    assert leader_epochs == {1}, "every start is a new term of every leader"


def test_subscribers_are_told_in_order_and_before_the_answer(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        told: list[tuple[ClusterImage, ClusterImage, ImageDelta]] = []

        def listen(old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
            assert controller.image is new
            told.append((old, new, delta))

        def broken(old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
            raise RuntimeError("a subscriber's own fault")

        controller.subscribe(broken)
        unsubscribe = controller.subscribe(listen)
        (result,) = await controller.create_topics([NewTopic("a", 1, 1)])
        assert [delta.created for _, _, delta in told] == [(result.topic,)]
        await controller.create_partitions([MorePartitions("a", 2)])
        await controller.delete_topics([DeadTopic("a")])
        assert [bool(delta.created) for _, _, delta in told] == [True, False, False]
        assert [bool(delta.changed) for _, _, delta in told] == [False, True, False]
        assert [bool(delta.deleted) for _, _, delta in told] == [False, False, True]
        for (_, new, _), (old, newer, _) in itertools.pairwise(told):
            assert old is new
            assert newer.version == new.version + 1
        # Nothing to do, nothing to tell.
        await controller.delete_topics([DeadTopic("a")])
        await controller.create_topics([])
        assert len(told) == 3
        unsubscribe()
        await controller.create_topics([NewTopic("b", 1, 1)])
        assert len(told) == 3
        await controller.close()

    over_store(tmp_path, use)


class Counting(FaultyStore):
    """Counts and keeps the multis that pass."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, 0, Faults())
        self.multis: list[list[Operation]] = []

    async def multi(self, operations: Any) -> Any:
        self.multis.append(list(operations))
        return await super().multi(operations)


def test_requests_that_wait_are_written_together(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        counting = Counting(store)
        controller = controller_of(counting)
        await controller.open(broker(1))
        counting.multis.clear()
        requests = [controller.create_topics([NewTopic(f"t{i}", 1, 1)]) for i in range(50)]
        same = [controller.create_topics([NewTopic("same", 1, 1)]) for _ in range(5)]
        results = await asyncio.gather(*requests, *same)
        assert len(counting.multis) <= 2
        assert all(result.error is None for (result,) in results[:51])
        codes = [result.error.code for (result,) in results[51:]]
        assert codes == [ErrorCode.TOPIC_ALREADY_EXISTS] * 4
        assert len(controller.image.topics) == 51
        await controller.close()

    over_store(tmp_path, use)


def test_every_write_checks_the_epoch_and_moves_the_revision(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        counting = Counting(store)
        controller = controller_of(counting)
        image = await controller.open(broker(1))
        counting.multis.clear()
        await controller.create_topics([NewTopic("a", 1, 1)])
        await controller.allocate_producer_ids()
        assert len(counting.multis) == 2
        for number, operations in enumerate(counting.multis):
            assert Check(layout.CONTROLLER_EPOCH, image.controller_epoch) in operations
            (revision,) = [one for one in operations if one.path == layout.REVISION]
            assert isinstance(revision, Set)
            assert revision.version == image.version + number
        await controller.close()

    over_store(tmp_path, use)


def test_validation_alone_changes_nothing(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        await controller.create_topics([NewTopic("a", 1, 1)])
        before = controller.image
        good, bad = await controller.create_topics(
            [NewTopic("b", 3, 1), NewTopic("a", 1, 1)], validate_only=True
        )
        assert good.topic is not None
        assert len(good.topic.partitions) == 3
        assert bad.error is not None
        assert bad.error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        (grown,) = await controller.create_partitions([MorePartitions("a", 3)], validate_only=True)
        assert grown.error is None
        change = AlteredResource(ResourceType.TOPIC, "a", [ConfigChange("retention.ms", 0, "1")])
        (altered,) = await controller.alter_configs([change], incremental=True, validate_only=True)
        assert altered.error is None
        await controller.update_features([FeatureUpdate("group.version", 0, 2)], validate_only=True)
        update = controller.update_features([FeatureUpdate("x", 1)], validate_only=True)
        assert await code_of(update) is ErrorCode.INVALID_UPDATE_VERSION
        assert controller.image is before
        assert await load_image(store) == before
        await controller.close()

    over_store(tmp_path, use)


def test_one_bad_request_does_not_spoil_the_batch(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf, rules: Any
) -> None:
    """Also when what breaks is a rule of the server's, in the middle of a request."""

    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        healthy = rules.check

        def check(resource: Any, config: Any, altered: Any) -> None:
            if config.get("retention.ms") == "13":
                raise ZeroDivisionError("a bug")
            healthy(resource, config, altered)

        rules.check = check
        results = await asyncio.gather(
            controller.create_topics([NewTopic("a", 1, 1)]),
            controller.update_features([FeatureUpdate("nope", 1)]),
            controller.create_topics(
                [
                    NewTopic("lost", 1, 1, configs={"retention.ms": "1"}),
                    NewTopic("x", 1, 1, configs={"retention.ms": "13"}),
                ]
            ),
            controller.create_topics([NewTopic("b", 1, 1)]),
            return_exceptions=True,
        )
        assert isinstance(results[1], ProtocolError)
        assert results[1].code is ErrorCode.INVALID_UPDATE_VERSION
        assert isinstance(results[2], ProtocolError)
        assert results[2].code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert set(controller.image.topics) == {"a", "b"}
        assert controller.image.configs == {}
        assert await load_image(store) == controller.image
        await controller.close()

    over_store(tmp_path, use)


def test_a_caller_that_gives_up_leaves_the_others_alone(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        impatient = asyncio.create_task(controller.create_topics([NewTopic("a", 1, 1)]))
        patient = asyncio.create_task(controller.create_topics([NewTopic("b", 1, 1)]))
        await asyncio.sleep(0)
        impatient.cancel()
        (result,) = await patient
        assert result.error is None
        assert impatient.cancelled() or impatient.done()
        assert await load_image(store) == controller.image
        await controller.close()

    over_store(tmp_path, use)


def test_after_a_conflict_all_is_decided_anew(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """Another hand creates topic `a` and takes a block of producer ids behind our back."""

    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        image = await controller.open(broker(1))
        (made,) = await controller.create_topics([NewTopic("model", 2, 1)])
        assert made.topic is not None
        told: list[ImageDelta] = []
        controller.subscribe(lambda old, new, delta: told.append(delta))
        other = store.join()
        await other.start()
        value = layout.encode_topic(replace(made.topic, topic_id=b"a" * 16), {})
        answer = await other.multi(
            [
                Set(layout.REVISION, layout.encode_revision(1, "other"), image.version + 1),
                Create("/brokers/topics/a", value),
                Set(layout.PRODUCER_IDS, layout.encode_producer_ids(2, 0, 999)),
            ]
        )
        assert isinstance(answer, Ok)
        taken, free = await controller.create_topics([NewTopic("a", 1, 1), NewTopic("b", 1, 1)])
        assert taken.error is not None
        assert taken.error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert free.error is None
        assert (await controller.allocate_producer_ids()).first == 1000
        assert set(controller.image.topics) == {"model", "a", "b"}
        assert [[topic.name for topic in delta.created] for delta in told] == [["a"], ["b"], []]
        assert await load_image(store) == controller.image
        await other.close()
        await controller.close()

    over_store(tmp_path, use)


def test_a_broker_that_vanished_is_noticed(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """Its node went with its session; it registers anew, is fenced, and is forgotten."""

    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        first = await controller.register(broker(2))
        other = store.join()
        await other.start()
        node = await store.get("/brokers/ids/2")
        assert node is not None
        assert first.epoch == node.created
        await other.multi([Delete("/brokers/ids/2")])
        second = await controller.register(broker(2))
        assert second.epoch > first.epoch
        third = await controller.register(broker(2, port=9999))
        assert third.epoch > second.epoch
        assert await code_of(controller.unregister_broker(2)) is ErrorCode.INVALID_REQUEST
        fenced = asyncio.Event()
        controller.subscribe(lambda _old, new, _delta: fenced.set() if 2 in new.fenced else None)
        await controller.fence_broker(2, third.epoch)
        assert await store.children(layout.BROKERS) == ["1"]
        await fenced.wait()
        await controller.unregister_broker(2)
        assert set(controller.image.brokers) == {1}
        assert await code_of(controller.unregister_broker(2)) is ErrorCode.BROKER_ID_NOT_REGISTERED
        await other.close()
        await controller.close()

    over_store(tmp_path, use)


@pytest.mark.parametrize(
    ("name", "value"), [("7", b"{}"), ("7", b"7"), ("7", b"\xff"), ("seven", b"{}"), ("-7", b"{}")]
)
def test_a_registration_that_nobody_can_read_is_passed_over(
    tmp_path: Path,
    controller_of: ControllerOf,
    broker: BrokerOf,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: bytes,
) -> None:
    """Something else than a broker of Ottla's was let loose on the same path. The others go on."""

    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        await store.multi([Create(f"{layout.BROKERS}/{name}", value)])
        async with asyncio.timeout(10):
            await controller.register(broker(2))
            (made,) = await controller.create_topics([NewTopic("t", 1, 2)])
        assert made.error is None
        assert set(controller.image.brokers) == {1, 2}
        await controller.close()

    over_store(tmp_path, use)
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(told) == 1
    assert f"{layout.BROKERS}/{name}" in told[0]


def test_a_broker_whose_registration_was_overwritten_stays(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """Its session lives. Once the node is another one, it is gone."""

    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        await controller.register(broker(2))
        path = layout.broker_path(2)
        node = await store.get(path)
        assert node is not None
        await store.multi([Set(path, b"?", node.version)])
        controller.registrations_changed()
        await controller.register(broker(3))
        assert set(controller.image.brokers) == {1, 2, 3}
        await store.multi([Delete(path), Create(path, b"?")])
        controller.registrations_changed()
        await controller.register(broker(4))
        assert set(controller.image.brokers) == {1, 3, 4}
        await controller.close()

    over_store(tmp_path, use)


def test_a_move_does_not_wait_for_a_broker_that_is_forgotten(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        await controller.create_topics([NewTopic("a", 1, 1)])
        second = await controller.register(broker(2))
        await controller.alter_moves([WantedMove("a", 0, (2,))])
        assert controller.image.topics["a"].partitions[0].adding == (2,)
        fenced = asyncio.Event()
        controller.subscribe(lambda _old, new, _delta: fenced.set() if 2 in new.fenced else None)
        await controller.fence_broker(2, second.epoch)
        await fenced.wait()
        await controller.unregister_broker(2)
        (partition,) = controller.image.topics["a"].partitions
        assert (partition.replicas, partition.isr, partition.leader) == ((1,), (1,), 1)
        assert (partition.adding, partition.removing) == ((), ())
        await controller.close()

    over_store(tmp_path, use)


def test_a_new_controller_finds_moves_that_wait_for_a_broker_that_was_forgotten(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """An older version has forgotten the broker, and left the move as it was."""

    async def use(store: EmbeddedStore) -> None:
        older = controller_of(store)
        await older.open(broker(1))
        await older.create_topics([NewTopic("a", 1, 1)])
        second = await older.register(broker(2))
        await older.alter_moves([WantedMove("a", 0, (2,))])
        fenced = asyncio.Event()
        older.subscribe(lambda _old, new, _delta: fenced.set() if 2 in new.fenced else None)
        await older.fence_broker(2, second.epoch)
        await fenced.wait()
        await older._decide_in_steps(lambda draft: unregister_broker.steps(draft, 2))
        await older.close()
        newer = controller_of(store)
        (left,) = (await newer.open()).topics["a"].partitions
        assert (left.replicas, left.adding, left.removing) == ((2, 1), (2,), (1,))
        # It looks at the brokers before it serves anybody.
        await newer.create_topics([NewTopic("b", 1, 1)])
        (partition,) = newer.image.topics["a"].partitions
        assert (partition.replicas, partition.isr, partition.leader) == ((1,), (1,), 1)
        assert (partition.adding, partition.removing) == ((), ())
        assert await load_image(store) == newer.image
        await newer.close()

    over_store(tmp_path, use)


def test_a_controller_that_was_replaced_can_do_nothing(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        old = controller_of(store, 1, seed=1)
        await old.open(broker(1))
        session = store.join()
        await session.start()
        new = controller_of(session, 2, seed=2)
        image = await new.open(broker(2))
        assert image.controller_epoch == 2
        assert set(image.brokers) == {1, 2}
        assert await code_of(old.create_topics([NewTopic("a", 1, 1)])) is ErrorCode.NOT_CONTROLLER
        assert await code_of(old.allocate_producer_ids()) is ErrorCode.NOT_CONTROLLER
        (result,) = await new.create_topics([NewTopic("b", 1, 2)])
        assert result.error is None
        assert set((await load_image(store) or image).topics) == {"b"}
        await old.close()
        await new.close()
        await session.close()

    over_store(tmp_path, use)


def test_a_closed_controller_refuses(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        waiting = asyncio.create_task(controller.create_topics([NewTopic("a", 1, 1)]))
        await asyncio.sleep(0)
        await controller.close()
        assert await code_of(waiting) is ErrorCode.NOT_CONTROLLER
        assert await code_of(controller.allocate_producer_ids()) is ErrorCode.NOT_CONTROLLER
        await controller.close()

    over_store(tmp_path, use)


@pytest.mark.parametrize(
    "faults",
    [Faults(lost_before=1.0), Faults(lost_after=1.0), Faults(lost_late=1.0)],
    ids=["before", "after", "late"],
)
def test_a_lost_answer_is_looked_up(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf, faults: Faults
) -> None:
    """The answer to the first try is lost; the second comes through."""

    async def use(store: EmbeddedStore) -> None:
        faulty = FaultyStore(store, 3, Faults())
        controller = controller_of(faulty)
        await controller.open(broker(1))
        told: list[ImageDelta] = []
        controller.subscribe(lambda old, new, delta: told.append(delta))
        for name in "abcdefgh":
            faulty.faults = faults
            request = asyncio.create_task(controller.create_topics([NewTopic(name, 1, 1)]))
            lost = await anext(faulty.session_events())
            assert lost is not None
            faulty.faults = Faults()
            (result,) = await request
            assert result.error is None
        assert [topic.name for delta in told for topic in delta.created] == list("abcdefgh")
        assert await load_image(store) == controller.image
        await controller.close()

    over_store(tmp_path, use)


def test_a_store_that_stays_silent_is_an_error_and_later_forgotten(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        faulty = FaultyStore(store, 3, Faults())
        controller = controller_of(faulty)
        await controller.open(broker(1))
        told: list[ImageDelta] = []
        controller.subscribe(lambda old, new, delta: told.append(delta))
        faulty.faults = Faults(lost_after=1.0, unavailable=1.0)
        silent = controller.create_topics([NewTopic("a", 1, 1)])
        assert await code_of(silent) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "a" not in controller.image.topics
        faulty.faults = Faults()
        # It had been made after all, which comes to light now.
        (late,) = await controller.create_topics([NewTopic("a", 1, 1)])
        assert late.error is not None
        assert late.error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert [topic.name for delta in told for topic in delta.created] == ["a"]
        await controller.close()

    over_store(tmp_path, use)


def test_a_lost_session_ends_the_office(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        session = store.join()
        await session.start()
        controller = controller_of(session)
        await controller.open(broker(1))
        assert await store.children(layout.BROKERS) == ["1"]
        await session.expire()
        request = controller.create_topics([NewTopic("a", 1, 1)])
        assert await code_of(request) is ErrorCode.NOT_CONTROLLER
        assert await store.children(layout.BROKERS) == []
        await controller.close()

    over_store(tmp_path, use)


def test_an_unchanged_broker_configuration_is_told_again(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """That is how a broker is made to read its key files anew."""

    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        told: list[ImageDelta] = []
        controller.subscribe(lambda old, new, delta: told.append(delta))
        change = [ConfigChange("ssl.keystore.location", 0, "/keys")]
        for _ in range(2):
            altered = AlteredResource(ResourceType.BROKER, "1", change)
            (result,) = await controller.alter_configs([altered], incremental=True)
            assert result.error is None
        assert [delta.configs for delta in told] == [{(ResourceType.BROKER, "1")}] * 2
        await controller.close()

    over_store(tmp_path, use)


def test_an_error_that_a_conflict_made_void_is_not_answered(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """Forgetting broker 2 fails on the old image, but another controller has fenced it meanwhile."""

    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        image = await controller.open(broker(1))
        other = store.join()
        await other.start()
        await other.multi(
            [
                Set(layout.REVISION, layout.encode_revision(1, "other"), image.version),
                Create(
                    "/brokers/registrations/2", layout.encode_registration(broker(2), fenced=True)
                ),
            ]
        )
        await asyncio.gather(
            controller.create_topics([NewTopic("a", 1, 1)]), controller.unregister_broker(2)
        )
        assert set(controller.image.brokers) == {1}
        await other.close()
        await controller.close()

    over_store(tmp_path, use)


def test_a_cluster_at_levels_unknown_here_is_left_alone(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf, rules: Any, features: Any
) -> None:
    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        await controller.close()
        before = await load_image(store)
        fewer = {name: known for name, known in features.items() if name != "group.version"}
        lower = {**features, "transaction.version": FeatureRange(0, 1, 1)}
        for supported, name in ((fewer, "group.version"), (lower, "transaction.version")):
            older = Controller(store, 1, rules, supported)
            with pytest.raises(UnsupportedFeature, match=name):
                await older.open(broker(1))
        assert await load_image(store) == before

    over_store(tmp_path, use)


def test_a_damaged_store_is_named(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))
        await controller.close()
        await store.multi([Set(layout.FEATURES, b"{")])
        with pytest.raises(StoreError, match="/features"):
            await controller_of(store).open(broker(1))

    over_store(tmp_path, use)


def test_an_image_is_never_read_half_old_half_new(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """While one reads the image, another changes topics and configuration in one multi."""

    async def use(store: EmbeddedStore) -> None:
        controller = controller_of(store)
        await controller.open(broker(1))

        class Disturbed(FaultyStore):
            disturbances = 3

            async def children(self, path: str) -> list[str] | None:
                found = await super().children(path)
                if path == layout.TOPICS and self.disturbances:
                    self.disturbances -= 1
                    name = f"t{self.disturbances}"
                    await controller.create_topics(
                        [NewTopic(name, 1, 1, configs={"retention.ms": "1"})]
                    )
                return found

        image = await load_image(Disturbed(store, 0, Faults()))
        assert image == controller.image
        assert len(image.topics) == len(image.configs) == 3
        await controller.close()

    over_store(tmp_path, use)


def test_nine_thousand_topics(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def first(store: EmbeddedStore) -> ClusterImage:
        counting = Counting(store)
        controller = controller_of(counting)
        await controller.open(broker(1))
        counting.multis.clear()
        results = await controller.create_topics(
            [NewTopic(f"topic_{number}", 1, 1) for number in range(9000)]
        )
        assert all(result.error is None for result in results)
        assert len(counting.multis) == 1
        await controller.close()
        return controller.image

    async def second(store: EmbeddedStore) -> ClusterImage:
        controller = controller_of(store)
        image = await controller.open(broker(1))
        await controller.close()
        return image

    before: ClusterImage = over_store(tmp_path, first)
    after: ClusterImage = over_store(tmp_path, second)
    assert comparable(before) == comparable(after)
    assert after.partition_count == 9000
    for image in (before, after):
        assert len({id(topic.partitions) for topic in image.topics.values()}) == 1
