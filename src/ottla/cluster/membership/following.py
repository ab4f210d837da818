"""How a broker follows the cluster's metadata.

Every broker keeps an image of what the store holds and publishes each new one, in order, to those who
subscribe. It watches the whole tree: a change names the nodes to read again. What is read may be newer
than the change that led to it, and states in between may be skipped, so subscribers must not rely on
seeing every state: partition epochs, leader epochs and topic ids tell them what they missed.

The controller's own broker gets its images from the controller, before the store tells of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ottla.cluster import layout
from ottla.cluster.loading import ClusterGone, load_image, require_same_cluster
from ottla.cluster.metadata import (
    ClusterImage,
    ImageDelta,
    Partition,
    RegisteredBroker,
    Resource,
    ResourceType,
    Topic,
    delta_of,
    difference,
    differing,
    stages,
)
from ottla.cluster.names import collision_key
from ottla.cluster.store import (
    Change,
    ChangeKind,
    Node,
    SessionLost,
    Store,
    StoreError,
    StoreUnavailable,
    Stream,
)
from ottla.turns import Steps, in_turns

log = logging.getLogger(__name__)

Subscriber = Callable[[ClusterImage, ClusterImage, ImageDelta], None]

# Pause before the store is asked again after it gave no answer.
_RETRY_SECONDS = 0.1
# Stands in the stream of changes for no change, where somebody waits for those before it.
_BARRIER = Change("/", ChangeKind.SET)
_TOPICS = layout.TOPICS + "/"
_CONFIGS = {path: kind for kind, path in layout.CONFIG_FOLDERS.items()}


class MetadataFollower:
    """The image of one broker, kept up to date. Belongs to one event loop and one session."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._image: ClusterImage | None = None
        self._subscribers: list[Subscriber] = []
        self._dirty: set[str] = set()
        self._resync = False
        self._moved = asyncio.Event()
        self._stream: Stream[Change] | None = None
        # Those who wait until the news before their mark in the stream are in the image, and those
        # whose mark was met.
        self._barriers: deque[asyncio.Future[None]] = deque()
        self._met: list[asyncio.Future[None]] = []
        # The store gave no answer when it was last asked, which was said.
        self._is_silent = False
        # Why what it holds could not be read when it was last looked at.
        self._fault = ""
        # The controller of this broker is in office: its images are ahead of the store's news.
        self.led = False
        # Called when /controller changed, and when a node below /brokers/ids did.
        self.on_controller: Callable[[], None] = lambda: None
        self.on_registrations: Callable[[], None] = lambda: None

    @property
    def image(self) -> ClusterImage:
        """The newest image."""
        if self._image is None:
            raise RuntimeError("there is no image yet")
        return self._image

    @property
    def is_open(self) -> bool:
        """True once there is an image."""
        return self._image is not None

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber(old, new, delta)` for each new image, in order, on the loop. Returns what
        ends the subscription."""
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    def publish(self, new: ClusterImage, delta: ImageDelta | None = None) -> None:
        """Make this the image, and tell the subscribers; it comes from the controller here or from the
        store."""
        old, self._image = self._image, new
        if old is not None:
            delta = difference(old, new) if delta is None else delta
            for subscriber in tuple(self._subscribers):
                try:
                    subscriber(old, new, delta)
                except Exception:
                    # One subscriber's fault must not keep the others from the news.
                    log.exception("a subscriber failed over image %d", new.version)
        self._moved.set()
        self._moved = asyncio.Event()

    async def take_over(self, new: ClusterImage, *, of_controller: bool = False) -> None:
        """A new image of which nobody knows how it differs; published with turns of the loop between."""
        while (base := self._image) is not None:
            delta = await in_turns(difference.steps(base, new))
            if await self._publish_in_stages(base, new, delta, of_controller=of_controller):
                return
            if not (of_controller and self.led):
                return
        self.publish(new)

    def move_to(self, store: Store) -> None:
        """The session was lost; a new one has the news from now on. `run` must have ended."""
        self._store = store
        self._resync = True

    async def open(self) -> ClusterImage | None:
        """Reads the image; None if there is no cluster in the store. ClusterGone if there was one."""
        while True:
            try:
                await self._store.sync()
                image = await load_image(self._store)
            except StoreUnavailable as error:
                log.warning("the metadata store gives no answer: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if self._image is not None:
                require_same_cluster(self._image, image)
            if image is not None:
                await self.take_over(image)
            return image

    async def run(self) -> None:
        """Follows until the session ends. It ends the session if another cluster is found in it."""
        stream = self._stream = self._store.watch("/")
        # What happened before the watch stood.
        self._resync = True
        self._notice()
        try:
            while True:
                await self._look()
                _release(self._met)
                change = await anext(stream, None)
                if change is None:
                    return
                self._note(change)
                self._note_waiting(stream)
        except ClusterGone as error:
            log.error("%s", error)
            await self._store.close()
        finally:
            self._stream = None
            stream.close()
            _release(self._met)
            _release(self._barriers)

    async def caught_up(self) -> None:
        """Returns when all that was written before this call is in the image."""
        await self._store.sync()
        node = await self._store.get(layout.REVISION)
        if self._stream is not None and not self.led:
            # The image may have the revision's version already and lack what it changed: the news of
            # that are in the stream by now, and perhaps not read.
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append(reached)
            self._stream.push(_BARRIER)
            await reached
        while node is not None and self.image.version < node.version:
            await self._moved.wait()

    def resync(self) -> None:
        """Read everything again, now if news are being followed."""
        self._resync = True
        if self._stream is not None:
            self._stream.push(Change("/", ChangeKind.RESYNC))

    def _note_waiting(self, stream: Stream[Change]) -> None:
        for change in stream.take():
            self._note(change)

    def _note(self, change: Change) -> None:
        if change is _BARRIER:
            self._met.append(self._barriers.popleft())
        elif change.kind is ChangeKind.RESYNC:
            self._resync = True
            self._notice()
        elif change.path == layout.CONTROLLER:
            self._dirty.add(change.path)
            self.on_controller()
        elif change.path.startswith(layout.BROKERS + "/"):
            self.on_registrations()
        else:
            self._dirty.add(change.path)

    def _notice(self) -> None:
        self.on_controller()
        self.on_registrations()

    async def _look(self) -> None:
        """Reads what changed, again and again until the store answers. What cannot be read is looked at
        again with the next change, which may be the one that mends it."""
        while self._dirty or self._resync:
            is_whole = self._resync
            try:
                if is_whole:
                    self._resync = False
                    self._dirty.clear()
                    image = await load_image(self._store)
                    if image is not None and not self.led:
                        require_same_cluster(self.image, image)
                        await self.take_over(image)
                else:
                    dirty, self._dirty = self._dirty, set()
                    try:
                        await self._read(dirty)
                    except StoreError:
                        self._dirty |= dirty
                        raise
            except StoreUnavailable as error:
                self._resync = True
                if not self._is_silent:  # it may be so for hours
                    self._is_silent = True
                    log.warning("the metadata store gives no answer: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            except (ClusterGone, SessionLost):
                raise
            except Exception as error:
                # Somebody has spoilt a node, or it is our mistake. Nobody would follow the cluster any
                # more if the task ended here, nor hear of a vacancy.
                self._resync = True
                if not is_whole:
                    continue  # what was read one after the other need not fit together
                if str(error) != self._fault:
                    self._fault = str(error)
                    log.error(
                        "the metadata cannot be followed until that is mended: %s", error,
                        exc_info=not isinstance(error, StoreError),
                    )  # fmt: skip
                return
            else:
                self._is_silent = False
                self._fault = ""

    async def _read(self, dirty: set[str]) -> None:
        paths = sorted(dirty | {layout.REVISION, layout.CONTROLLER, layout.CONTROLLER_EPOCH})
        nodes = dict(zip(paths, await self._store.get_many(paths), strict=True))
        if layout.LEADER_EPOCH_BASE in dirty:
            self._resync = True  # every topic's epochs are other ones
            return
        if self.led:
            return
        revision = nodes[layout.REVISION]
        if revision is None:
            return
        if revision.version < self.image.version:
            self._resync = True  # not what it was: see what there is before anything is believed
            return
        if not await self._read_chunks(nodes):
            self._resync = True  # the topic changed while it was read
            return
        await self._read_late_configs(nodes)
        if not self.led and not self._resync:
            base = self.image
            new, delta = await in_turns(_patched(base, nodes, revision.version))
            await self._publish_in_stages(base, new, delta)

    async def _publish_in_stages(
        self,
        base: ClusterImage,
        new: ClusterImage,
        delta: ImageDelta,
        *,
        of_controller: bool = False,
    ) -> bool:
        """A new image, with the loop's turn between the parts of what is new about it. False if others
        have published meanwhile: a controller has taken office here, and its images are newer."""
        for image, part in stages(base, new, delta):
            if base is not self._image or self.led is not of_controller:
                return False
            self.publish(image, part)
            if image is not new:
                base = image
                await asyncio.sleep(0)
        return True

    async def _read_chunks(self, nodes: dict[str, Node | None]) -> bool:
        """Adds the partitions of large topics that are new or have more of them; False if some are
        not there."""
        wanted = [
            path
            for topic_path, node in nodes.items()
            if node is not None and topic_path.startswith(_TOPICS)
            for path in layout.chunks_wanted(topic_path.removeprefix(_TOPICS), node.value)
        ]
        if not wanted:
            return True
        found = await self._store.get_many(wanted)
        nodes.update(zip(wanted, found, strict=True))
        return None not in found

    async def _read_late_configs(self, nodes: dict[str, Node | None]) -> None:
        """What was read of partitions may be newer than the news that led to it. Settings that were
        changed before that have to be in the same image: with a smaller in-sync set, a leader must
        know the `min.insync.replicas` by which that was decided. Every store tells of a change before
        it shows what came after it, so the news of them are in the stream by now."""
        if self._stream is not None:
            self._note_waiting(self._stream)
        late = sorted(path for path in self._dirty if path.rpartition("/")[0] in _CONFIGS)
        if late:
            nodes.update(zip(late, await self._store.get_many(late), strict=True))


def _release(waiting: deque[asyncio.Future[None]] | list[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)
    waiting.clear()


def _patched(
    image: ClusterImage, nodes: dict[str, Node | None], version: int
) -> Steps[tuple[ClusterImage, ImageDelta]]:
    """The image with these nodes as they are now, and what is new about it, in steps: found by looking
    at what was read, not at all that there is."""
    topics, by_id = dict(image.topics), dict(image.topics_by_id)
    collisions = dict(image.collisions)
    brokers, fenced = dict(image.brokers), dict(image.fenced)
    configs = dict(image.configs)
    known: dict[bytes, tuple[Partition, ...]] = {}
    changes: dict[str, Any] = {}
    chunks: dict[tuple[bytes, int], Node | None] = {}
    read_topics: dict[str, None] = {}
    read_brokers: list[int] = []
    read_configs: list[Resource] = []
    for path, node in nodes.items():
        yield
        folder, _, name = path.rpartition("/")
        if folder == layout.TOPICS:
            base = image.leader_epoch_base
            topic = None
            if node is not None:
                with layout.readable(path):
                    topic = layout.decode_topic(name, node.value, known, base, nodes)
            _put_topic(name, topic, topics, by_id, collisions)
            read_topics[name] = None
        elif folder == layout.PARTITIONS:
            chunks[layout.chunk_of(name)] = node
        elif folder == layout.REGISTRATIONS:
            broker_id = layout.registered_id(name)
            _put_broker(broker_id, node, brokers, fenced)
            read_brokers.append(broker_id)
        elif folder in _CONFIGS:
            resource = (_CONFIGS[folder], layout.config_name(name))
            _put_config(resource, node, configs)
            read_configs.append(resource)
        elif path == layout.FEATURES and node is not None:
            changes["features"] = layout.decode_features(node.value)
        elif path == layout.PRODUCER_IDS and node is not None:
            changes["next_producer_id"] = layout.decode_next_producer_id(node.value)
        elif path == layout.SECRET and node is not None:
            changes["secret"] = layout.decode_secret(node.value)
        elif path == layout.CONTROLLER:
            changes["controller_id"] = layout.decode_controller(node)
        elif path == layout.CONTROLLER_EPOCH and node is not None:
            changes["controller_epoch"] = int(node.value)
    read_topics.update((yield from _put_chunks(chunks, image.leader_epoch_base, topics, by_id)))
    new = replace(
        image,
        version=version,
        topics=topics,
        topics_by_id=by_id,
        collisions=collisions,
        brokers=brokers,
        fenced=fenced,
        configs=configs,
        **changes,
    )
    return new, (
        yield from delta_of(
            image,
            new,
            read_topics,
            frozenset(
                each for each in read_brokers if image.brokers.get(each) != brokers.get(each)
            ),
            frozenset(read_configs),  # also one that was set to what it was, to be heard of
            frozenset(differing(image.features, new.features)),
        )
    )


def _put_topic(
    name: str,
    topic: Topic | None,
    topics: dict[str, Topic],
    by_id: dict[bytes, Topic],
    collisions: dict[str, tuple[str, ...]],
) -> None:
    before = topics.pop(name, None)
    if before is not None:
        by_id.pop(before.topic_id, None)
    if topic is not None:
        # An equal topic stays the same object: that is how a difference is found quickly.
        topics[name] = by_id[topic.topic_id] = before if before == topic and before else topic
    key = collision_key(name)
    if key is not None:
        names = tuple(each for each in collisions.get(key, ()) if each != name)
        if topic is not None:
            names = (*names, name)
        if names:
            collisions[key] = names
        else:
            collisions.pop(key, None)


def _put_chunks(
    chunks: Mapping[tuple[bytes, int], Node | None],
    epoch_base: int,
    topics: dict[str, Topic],
    by_id: dict[bytes, Topic],
) -> Steps[dict[str, None]]:
    """Partitions of large topics that changed; the names of those topics. Those of a topic that is not
    known, or is no longer, concern nobody: the topic's own node tells of it."""
    changed: dict[bytes, list[Partition]] = {}
    for (topic_id, number), node in chunks.items():
        yield
        topic = by_id.get(topic_id)
        if topic is None or node is None or not layout.is_large(topic):
            continue
        partitions = changed.setdefault(topic_id, list(topic.partitions))
        with layout.readable(layout.chunk_path(topic_id, number)):
            found = layout.decode_chunk(number, node.value, epoch_base)
        for each in found:
            if each.index < len(partitions) and each != partitions[each.index]:
                partitions[each.index] = each
    names: dict[str, None] = {}
    for topic_id, partitions in changed.items():
        topic = by_id[topic_id]
        if any(new is not old for new, old in zip(partitions, topic.partitions, strict=True)):
            newer = replace(topic, partitions=tuple(partitions))
            topics[topic.name] = by_id[topic_id] = newer
            names[topic.name] = None
    return names


def _put_broker(
    broker_id: int,
    node: Node | None,
    brokers: dict[int, RegisteredBroker],
    fenced: dict[int, RegisteredBroker],
) -> None:
    brokers.pop(broker_id, None)
    fenced.pop(broker_id, None)
    if node is not None:
        broker, is_fenced = layout.decode_registration(broker_id, node.value)
        (fenced if is_fenced else brokers)[broker_id] = broker


def _put_config(
    resource: tuple[ResourceType, str],
    node: Node | None,
    configs: dict[Resource, Mapping[str, str]],
) -> None:
    if node is None:
        configs.pop(resource, None)
    else:
        configs[resource] = layout.decode_config(resource, node.value)
