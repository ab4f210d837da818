"""The controller: decides and writes changes of the metadata, one batch at a time, and publishes them.

Every broker of a cluster can be the controller; the one in office holds the node /controller. Its
epoch fences those before it: every write checks that it is still in office.

A request waits in a queue. The controller takes all that wait, lets their decisions (decisions/) work
on one draft, and writes the draft to the store as one multi, or several if it is large. Then, in this
order: the new image is in place, subscribers are called, the requests are answered. So whoever gets an
answer finds the change made, on this broker at least. Other brokers follow (following.py).

All of it is done in slices, with the loop's turn between them. Nobody else makes images or writes while
that goes on, and nothing of a draft is written or published before it has been decided to its end.

Brokers register themselves, each by an ephemeral node of its own session. The controller compares
those nodes with the brokers it has taken in, when it takes office and whenever one changes.

What the store answers:
- Ok: as above.
- Conflict: another has changed the metadata. The image is read anew and everything decided again on
  it; if a newer controller has taken office, this one resigns and answers NOT_CONTROLLER.
- Unknown: the store is synced and the revision node read back. It carries a mark that no other write
  has, so it tells whether the write was made. If it was not, it is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ottla.cluster import layout
from ottla.cluster.decisions import brokers as broker_decisions
from ottla.cluster.decisions import configs as config_decisions
from ottla.cluster.decisions import features as feature_decisions
from ottla.cluster.decisions import moves as move_decisions
from ottla.cluster.decisions import partitions as partition_decisions
from ottla.cluster.decisions import topics as topic_decisions
from ottla.cluster.decisions.brokers import ProducerIdBlock
from ottla.cluster.decisions.configs import AlteredResource, ConfigResult, ConfigRules
from ottla.cluster.decisions.elections import ElectionPolicy, PolicyOf
from ottla.cluster.decisions.features import FeatureRange, FeatureUpdate
from ottla.cluster.decisions.moves import MoveResult, WantedMove
from ottla.cluster.decisions.partitions import (
    ElectionResult,
    ElectionType,
    IsrResult,
    WantedIsr,
)
from ottla.cluster.decisions.policies import policies
from ottla.cluster.decisions.topics import (
    DeadTopic,
    MorePartitions,
    NewTopic,
    TopicDefaults,
    TopicResult,
    new_uuid,
)
from ottla.cluster.draft import Draft
from ottla.cluster.loading import folder, require_same_cluster
from ottla.cluster.metadata import (
    ClusterImage,
    ImageDelta,
    ResourceType,
    difference,
    stages,
)
from ottla.cluster.registrations import Registrations
from ottla.cluster.retries import PAUSES, Retries, Undecided, new_mark
from ottla.cluster.store import (
    Check,
    Conflict,
    Create,
    Delete,
    Node,
    Ok,
    Operation,
    SessionLost,
    Set,
    Store,
    StoreError,
    Unknown,
    in_parts,
)
from ottla.cluster.tally import Tally
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import uuid_text
from ottla.turns import Steps, Turns, in_turns

if TYPE_CHECKING:
    # Imported when they are first needed: few brokers ever do.
    from ottla.cluster.decisions.imports import ImportedTopic
    from ottla.cluster.decisions.quotas import QuotaChange
    from ottla.cluster.decisions.users import ScramChange, UserResult
    from ottla.cluster.security.acls import Acl

log = logging.getLogger(__name__)

Subscriber = Callable[[ClusterImage, ClusterImage, ImageDelta], None]
R = TypeVar("R")

# Requests that are decided and written together at most, so that the first need not wait for all.
_LARGEST_BATCH: Final = 1000
# Of the secret that all brokers of a cluster share.
SECRET_BYTES: Final = 32
# Before the registrations are looked at again that could not be read.
_SHORTEST_PAUSE: Final = 0.05


class UnsupportedFeature(StoreError):
    """The cluster works at a level of some feature that this broker does not know."""


class NotElected(StoreError):
    """Another broker's controller is in office."""


class _Deposed(Exception):
    """Another controller has taken office."""


@dataclass(slots=True, eq=False)
class _Request(Generic[R]):
    """A request in the queue."""

    decide: Callable[[Draft], Steps[R]]
    answer: asyncio.Future[R]


_Outcome = tuple[_Request[Any], Any, Exception | None]


class Controller:
    """The one place where metadata changes. Belongs to the event loop it was opened on."""

    def __init__(
        self,
        store: Store,
        broker_id: int,
        rules: ConfigRules,
        features: Mapping[str, FeatureRange],
        *,
        defaults: TopicDefaults | None = None,
        tally: Tally | None = None,
        random: Random | None = None,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self.defaults = defaults or TopicDefaults()  # may be replaced while running
        self._tally = Tally() if tally is None else tally
        self._default_policy = ElectionPolicy()
        # Called when another has taken office, or the session is over.
        self.on_resigned: Callable[[], None] = lambda: None
        self._store = store
        self._broker_id = broker_id
        self._rules = rules
        self._features = features
        self._random = random or Random()
        self._pauses = tuple(pauses)
        self._retries = Retries(store, self._pauses)
        self._image: ClusterImage | None = None
        self._epoch = 0  # of this controller's office: value and version of /controller_epoch
        self._subscribers: list[Subscriber] = []
        self._queue: list[_Request[Any]] = []
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._registrations_changed = False
        self._registrations = Registrations(broker_id, self._policy_of)
        self._stale = False  # the image may be behind the store: read it before deciding anything
        self._over: ProtocolError | None = None  # why this controller takes no more requests

    # Start and stop

    @property
    def image(self) -> ClusterImage:
        """The newest image."""
        if self._image is None:
            raise RuntimeError("the controller is not open")
        return self._image

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber(old, new, delta)` for each new image, in order, on the loop, before the
        requests that made it are answered. Returns what ends the subscription."""
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    @property
    def default_policy(self) -> ElectionPolicy:
        """The policy of topics whose settings leave it open. It may be replaced while running."""
        return self._default_policy

    @default_policy.setter
    def default_policy(self, policy: ElectionPolicy) -> None:
        if policy != self._default_policy:
            self._default_policy = policy
            self.registrations_changed()  # all partitions are looked at then

    @property
    def in_office(self) -> bool:
        """True from the election to the resignation."""
        return self._worker is not None and self._over is None

    @property
    def epoch(self) -> int:
        """The controller epoch: the number of this controller's term of office."""
        return self._epoch

    async def open(
        self,
        replacing: Node | None = None,
        elected: Callable[[ClusterImage], Awaitable[None]] | None = None,
        known: ClusterImage | None = None,
    ) -> ClusterImage:
        """Takes office, and makes the cluster if there is none. NotElected while another holds it,
        unless that is the one to replace: the node /controller of one that is known to be dead.
        `elected` is called with the image with which it begins, before anything changes. `known` is
        what the broker knows of its cluster: it leads no other (ClusterGone), and makes none."""
        image = await self._retries.load()
        if known is not None:
            require_same_cluster(known, image)
        if image is None:
            image = await self._found_cluster()
        fault = feature_decisions.fault_of_levels(image.features, self._features)
        if fault is not None:
            raise UnsupportedFeature(fault)
        self._image = image
        await self._take_office(replacing)
        await self._tidy()
        if elected is not None:
            await elected(self.image)
        self._registrations_changed = True
        self._wake.set()
        self._worker = asyncio.create_task(self._work(), name="controller")
        return self.image

    async def close(self) -> None:
        """Resigns. Requests that wait are answered NOT_CONTROLLER; the store stays."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._over = self._over or ProtocolError(
                ErrorCode.NOT_CONTROLLER, "The controller is shutting down."
            )
            self._wake.set()
            await worker
            await self._delete_controller_node()

    # Requests

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Creates topics; results in the order of the request, one for each name."""
        return await self._decide_in_steps(
            lambda draft: topic_decisions.create_topics.steps(
                draft, topics, self.defaults, self._rules, self._random
            ),
            validate_only,
        )

    async def delete_topics(self, topics: Sequence[DeadTopic]) -> list[TopicResult]:
        """Deletes topics and their configuration."""
        return await self._decide(lambda draft: topic_decisions.delete_topics(draft, topics))

    async def create_partitions(
        self,
        topics: Sequence[MorePartitions],
        *,
        allowed: int = topic_decisions.MOST_PARTITIONS_PER_REQUEST,
        validate_only: bool = False,
    ) -> list[TopicResult]:
        """Adds partitions to topics, not more than are allowed."""
        return await self._decide(
            lambda draft: topic_decisions.create_partitions(draft, topics, self._random, allowed),
            validate_only,
        )

    async def alter_configs(
        self,
        resources: Sequence[AlteredResource],
        *,
        incremental: bool,
        receiver: int | None = None,
        validate_only: bool = False,
    ) -> list[ConfigResult]:
        """Changes configurations, whole or entry by entry."""

        def decide(draft: Draft) -> Steps[list[ConfigResult]]:
            results = config_decisions.alter_configs(
                draft, resources, self._rules, incremental=incremental, receiver=receiver
            )
            # Also those whose minimum is no longer set: the default holds for them now.
            changed = draft.touched_configs
            topics: Collection[str] = {name for kind, name in changed if kind is ResourceType.TOPIC}
            if any(kind is ResourceType.BROKER for kind, _ in changed):
                topics = draft.topics
            policy_of = self._policy_of(draft)
            yield from partition_decisions.follow_policies.steps(draft, topics, policy_of)
            # A partition without a leader gets one at once if an unclean election is allowed now.
            yield from broker_decisions.settle_all.steps(draft, policy_of=policy_of, topics=topics)
            touched = [draft.topics[name] for name in topics if name in draft.topics]
            yield from move_decisions.end_moves.steps(draft, touched, policy_of)
            return results

        return await self._decide_in_steps(decide, validate_only)

    async def import_topics(self, topics: Sequence[ImportedTopic], free_producer_id: int) -> None:
        """Makes topics known whose logs are on this broker, all or none; ProtocolError."""
        from ottla.cluster.decisions import imports as import_decisions

        await self._decide(
            lambda draft: import_decisions.import_topics(
                draft, topics, self._broker_id, free_producer_id, self._rules
            )
        )

    async def alter_scram(self, changes: Sequence[ScramChange]) -> list[UserResult]:
        """Sets and deletes credentials of users."""
        from ottla.cluster.decisions import users as user_decisions

        return await self._decide(lambda draft: user_decisions.alter_scram(draft, changes))

    async def create_acls(self, wanted: Sequence[Acl]) -> list[ProtocolError | None]:
        """Adds entries of access control; the error of each."""
        from ottla.cluster.decisions import acls as acl_decisions

        return await self._decide(lambda draft: acl_decisions.create_acls(draft, wanted))

    async def delete_acls(self, entries: Sequence[Acl]) -> None:
        """Deletes entries of access control; those that do not exist are no error."""
        from ottla.cluster.decisions import acls as acl_decisions

        return await self._decide(lambda draft: acl_decisions.delete_acls(draft, entries))

    async def alter_quotas(
        self, changes: Sequence[QuotaChange], *, validate_only: bool = False
    ) -> list[ProtocolError | None]:
        """Changes quotas of clients; the error of each entity."""
        from ottla.cluster.decisions import quotas as quota_decisions

        return await self._decide(
            lambda draft: quota_decisions.alter_quotas(draft, changes), validate_only
        )

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """Changes all these features, or raises ProtocolError and changes none."""
        await self._decide(
            lambda draft: feature_decisions.update_features(draft, updates, self._features),
            validate_only,
        )

    async def allocate_producer_ids(self, asker: tuple[int, int] | None = None) -> ProducerIdBlock:
        """A block of producer ids that no one else ever gets; `asker` is another broker's id and
        epoch."""

        def decide(draft: Draft) -> ProducerIdBlock:
            if asker is not None:
                broker_decisions.check_broker_epoch(draft, *asker)
            return broker_decisions.allocate_producer_ids(draft)

        return await self._decide(decide)

    async def alter_isr(
        self, broker_id: int, broker_epoch: int, wanted: Sequence[WantedIsr]
    ) -> list[IsrResult]:
        """Changes in-sync replicas, as the leader of the partitions asks for it."""
        return await self._decide_in_steps(
            lambda draft: partition_decisions.alter_isr.steps(
                draft, broker_id, broker_epoch, wanted, self._policy_of(draft)
            )
        )

    async def elect_leaders(
        self, kind: ElectionType, wanted: Sequence[tuple[str, int]] | None
    ) -> list[ElectionResult]:
        """Elections on demand; for all partitions that need one if `wanted` is None."""
        return await self._decide_in_steps(
            lambda draft: partition_decisions.elect_leaders.steps(
                draft, kind, wanted, self._policy_of(draft)
            )
        )

    async def alter_moves(
        self, wanted: Sequence[WantedMove], *, may_change_factor: bool = True
    ) -> list[MoveResult]:
        """Begins moves of partitions (reassignments), or cancels them."""
        return await self._decide_in_steps(
            lambda draft: move_decisions.alter_moves.steps(
                draft, wanted, self._policy_of(draft), may_change_factor=may_change_factor
            )
        )

    async def shut_down_broker(self, broker_id: int, broker_epoch: int) -> list[tuple[str, int]]:
        """Moves leaders away from a broker that stops; returns the partitions that only it can lead."""
        return await self._decide_in_steps(
            lambda draft: broker_decisions.shut_down.steps(
                draft, broker_id, broker_epoch, policy_of=self._policy_of(draft)
            )
        )

    async def unregister_broker(self, broker_id: int) -> None:
        """Forgets a broker that is away. In the same write, moves no longer wait for it."""

        def decide(draft: Draft) -> Steps[None]:
            yield from broker_decisions.unregister_broker.steps(draft, broker_id)
            policy_of = self._policy_of(draft)
            yield from move_decisions.move_without_forgotten.steps(draft, policy_of)

        await self._decide_in_steps(decide)

    async def fence_broker(self, broker_id: int, epoch: int) -> None:
        """Fences a broker whose process is known to have ended: its registration is deleted, although
        its session has not timed out yet, and its partitions get other leaders."""
        path = layout.broker_path(broker_id)
        for pause in self._pauses:
            await asyncio.sleep(pause)
            node = await self._retries.read(partial(self._store.get, path))
            if node is None or node.created != epoch:
                break
            self._tally.suspects.add((broker_id, epoch))
            answer = await self._store.multi(
                [Check(layout.CONTROLLER_EPOCH, self._epoch), Delete(path, node.version)]
            )
            log.warning("broker %d of epoch %d is fenced: %s", broker_id, epoch, answer)
            if isinstance(answer, Conflict):
                self._tally.suspects.discard((broker_id, epoch))
            if not isinstance(answer, Unknown):
                break
            await self._retries.read(self._store.sync)
        self.registrations_changed()

    def office_may_be_lost(self) -> None:
        """Called when /controller is another's: finds out whether that one has taken office, and resigns
        then."""
        self._stale = True
        self._wake.set()

    def registrations_changed(self) -> None:
        """Called when the node of a broker was created, changed or deleted: all of them are compared
        with the brokers in the image."""
        self._registrations_changed = True
        self._wake.set()

    async def _decide(self, decide: Callable[[Draft], R], validate_only: bool = False) -> R:
        def steps(draft: Draft) -> Steps[R]:
            yield
            return decide(draft)

        return await self._decide_in_steps(steps, validate_only)

    async def _decide_in_steps(
        self, decide: Callable[[Draft], Steps[R]], validate_only: bool = False
    ) -> R:
        if self._over is not None:
            raise ProtocolError(self._over.code, self._over.message)
        if validate_only:
            return await in_turns(decide(Draft(self.image)))
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.append(_Request(decide, answer))
        self._wake.set()
        return await answer

    # The task

    async def _work(self) -> None:
        while self._over is None:
            await self._wake.wait()
            self._wake.clear()
            if self._stale:
                await self._serve([])
            if self._registrations_changed and self._over is None:
                self._registrations_changed = False
                await self._look_at_registrations()
            while self._queue and self._over is None:
                batch = self._queue[:_LARGEST_BATCH]
                del self._queue[:_LARGEST_BATCH]
                await self._serve(batch)
        _refuse(self._queue, self._over)
        self._queue.clear()
        self.on_resigned()

    async def _look_at_registrations(self) -> None:
        """Takes brokers in that have registered, fences those that are gone."""
        try:
            nodes = await self._retries.read(self._read_registrations)
        except StoreError as error:
            log.error("the registrations of brokers could not be read: %s", error)
            self._look_again()
            return
        self._registrations.take(nodes)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._serve([_Request(self._registrations.settle, answer)])
        if answer.done() and not answer.cancelled() and answer.exception() is not None:
            self._look_again()

    def _look_again(self) -> None:
        """Reads the registrations again after a pause, because the store gave no answer: there may be no
        further change that would have them read."""
        if self._over is None:
            self._registrations_changed = True
            pause = max(self._pauses[-1], _SHORTEST_PAUSE)
            asyncio.get_running_loop().call_later(pause, self._wake.set)

    async def _read_registrations(self) -> list[tuple[str, Node]]:
        await self._store.sync()
        return await folder(self._store, layout.BROKERS)

    def _policy_of(self, draft: Draft) -> PolicyOf:
        return policies(draft, self._default_policy)

    async def _serve(self, batch: list[_Request[Any]]) -> None:
        """Decides, writes and answers a batch of requests, whatever happens."""
        try:
            await self._change(batch)
        except (_Deposed, SessionLost) as error:
            log.warning(
                "controller %d of epoch %d resigns: %s", self._broker_id, self._epoch, error
            )
            self._over = ProtocolError(
                ErrorCode.NOT_CONTROLLER, f"The controller resigned: {error}"
            )
            _refuse(batch, self._over)
        except StoreError as error:
            self._stale = True
            log.error("the metadata could not be changed: %s", error)
            _refuse(batch, ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
        except Exception as error:
            self._stale = True
            log.exception("the controller failed over %d requests", len(batch))
            message = f"The controller failed: {error}"
            _refuse(batch, ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, message))

    async def _change(self, batch: list[_Request[Any]]) -> None:
        for pause in self._pauses:
            await asyncio.sleep(pause)
            if self._stale:
                await self._refresh()
                if not await self._tidy():
                    continue
            draft, outcomes = await self._draft(batch)
            if not await self._write_draft(draft):
                continue
            # Errors wait for this too: on a newer image they might not have been any.
            for request, result, error in outcomes:
                _answer(request, result, error)
            return
        raise Undecided("the metadata store keeps changing under the controller")

    async def _draft(self, batch: list[_Request[Any]]) -> tuple[Draft, list[_Outcome]]:
        """Lets all requests decide on one draft."""
        broken: dict[_Request[Any], Exception] = {}
        turns = Turns()
        while True:
            draft = Draft(self.image)
            outcomes: list[_Outcome] = []
            for request in batch:
                await turns.pause()
                if request.answer.done():  # nobody waits any more
                    continue
                if request in broken:
                    outcomes.append((request, None, broken[request]))
                    continue
                try:
                    outcomes.append((request, await in_turns(request.decide(draft)), None))
                except ProtocolError as error:
                    outcomes.append((request, None, error))
                except Exception as error:
                    # It may have left the draft half changed: begin again without it.
                    log.exception("a decision failed")
                    message = f"The controller failed: {error}"
                    broken[request] = ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, message)
                    break
            else:
                return draft, outcomes

    async def _write_draft(self, draft: Draft) -> bool:
        """Writes what a draft changes, and publishes it; False if another has changed the metadata
        meanwhile, and everything is to be decided anew."""
        operations = await in_turns(layout.operations_of.steps(draft))
        if not operations:
            return True
        version = draft.base.version
        in_office = Check(layout.CONTROLLER_EPOCH, self._epoch)
        self._stale = True  # until the image is that of the store again
        for part in in_parts(operations, self._store.largest_multi):
            answer = await self._write([in_office, *part], version)
            if isinstance(answer, Conflict):
                return False
            version += 1
        old = self.image
        new, delta = await in_turns(draft.finishing(version))
        self._tally.written(draft)
        await self._publish(old, new, delta)
        self._stale = False
        return True

    async def _publish(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        """The new image is in place at once; subscribers get it in parts if it is large."""
        self._image = new
        for image, part in stages(old, new, delta):
            for subscriber in tuple(self._subscribers):
                try:
                    subscriber(old, image, part)
                except Exception:
                    # One subscriber's fault must not keep the image from the others.
                    log.exception("a subscriber failed over image %d", new.version)
            old = image
            if image is not new:
                await asyncio.sleep(0)

    # The store

    async def _found_cluster(self) -> ClusterImage:
        """Makes a cluster without topics in an empty store."""
        cluster_id = uuid_text(new_uuid(self._random))
        mark = new_mark()
        features = feature_decisions.initial_features(self._features)
        skeleton = layout.skeleton(cluster_id, features, mark, os.urandom(SECRET_BYTES))
        await self._retries.write(skeleton, mark, None)
        # If another was quicker, its cluster is the one that is found here.
        image = await self._retries.load()
        if image is None:
            raise StoreError(
                "the metadata store is neither empty nor that of a cluster of Ottla's: choose another "
                "path in ZooKeeper"
            )
        return image

    async def _take_office(self, replacing: Node | None) -> None:
        for pause in self._pauses:
            await asyncio.sleep(pause)
            before = self.image
            holder = await self._retries.read(partial(self._store.get, layout.CONTROLLER))
            operations: list[Operation] = []
            if holder is not None and holder.owner != self._store.session_id:
                if replacing is None or holder.created != replacing.created:
                    raise NotElected(f"broker {layout.decode_controller(holder)} is the controller")
                operations.append(Delete(layout.CONTROLLER, holder.version))
                holder = None
            if holder is None:
                value = layout.encode_controller(self._broker_id)
                operations.append(Create(layout.CONTROLLER, value, ephemeral=True))
            missing = await self._missing_nodes()
            operations += missing
            self._epoch = before.controller_epoch + 1
            operations.append(
                Set(layout.CONTROLLER_EPOCH, str(self._epoch).encode(), before.controller_epoch)
            )
            answer = await self._write(operations, before.version)
            if isinstance(answer, Ok):
                self._image = replace(
                    before,
                    version=before.version + 1,
                    controller_id=self._broker_id,
                    controller_epoch=self._epoch,
                    secret=_secret_among(missing) or before.secret,
                )
                return
            self._image = await self._reload()
        raise StoreError("the metadata store keeps changing: no controller could take office")

    async def _missing_nodes(self) -> list[Operation]:
        """Creates the nodes that a store of an older version does not have."""
        wanted = (
            (layout.REGISTRATIONS, b""),
            (layout.PARTITIONS, b""),
            (layout.LEADER_EPOCH_BASE, b"0"),
            (layout.SECRET, layout.encode_secret(os.urandom(SECRET_BYTES))),
            *((path, b"") for path in layout.CONFIG_FOLDERS.values()),
        )
        nodes = await self._retries.read(
            partial(self._store.get_many, [path for path, _ in wanted])
        )
        return [
            Create(path, value)
            for (path, value), node in zip(wanted, nodes, strict=True)
            if node is None
        ]

    async def _tidy(self) -> bool:
        """Deletes what a change left that was not written to its end, and gives the partitions of
        large topics that an older version wrote nodes of their own. False if another has changed the
        metadata meanwhile."""
        image = self.image
        names = await self._retries.read(partial(self._store.children, layout.PARTITIONS)) or []
        large = [topic for topic in image.topics.values() if layout.is_large(topic)]
        paths = [layout.topic_path(topic.name) for topic in large]
        nodes = await self._retries.read(partial(self._store.get_many, paths)) if paths else []
        old = [
            topic
            for topic, node in zip(large, nodes, strict=True)
            if node is not None and layout.partition_count(node.value) is None
        ]
        unmoved = {topic.name for topic in old}
        owned = {
            path
            for topic in large
            if topic.name not in unmoved
            for path in layout.chunk_paths(topic.topic_id, len(topic.partitions))
        }
        operations: list[Operation] = [
            Delete(path)
            for path in (f"{layout.PARTITIONS}/{name}" for name in names)
            if path not in owned
        ]
        operations += [
            Delete(layout.config_path((kind, name)))
            for kind, name in image.configs
            if kind is ResourceType.TOPIC and name not in image.topics
        ]
        operations += layout.rewritten(old, image.leader_epoch_base)
        if not operations:
            return True
        log.info("%d nodes of changes that were not finished are settled", len(operations))
        self._stale = True
        version = image.version
        in_office = Check(layout.CONTROLLER_EPOCH, self._epoch)
        for part in in_parts(operations, self._store.largest_multi):
            answer = await self._write([in_office, *part], version)
            if isinstance(answer, Conflict):
                return False
            version += 1
        configs = {
            (kind, name): config
            for (kind, name), config in image.configs.items()
            if kind is not ResourceType.TOPIC or name in image.topics
        }
        new = replace(image, version=version, configs=configs)
        await self._publish(image, new, await in_turns(difference.steps(image, new)))
        self._stale = False
        return True

    async def _delete_controller_node(self) -> None:
        """Deletes /controller, so that the next controller need not wait for the end of this session."""
        try:
            holder = await self._store.get(layout.CONTROLLER)
            if holder is not None and holder.owner == self._store.session_id:
                await self._store.multi(
                    [
                        Check(layout.CONTROLLER_EPOCH, self._epoch),
                        Delete(layout.CONTROLLER, holder.version),
                    ]
                )
        except StoreError as error:
            log.info("the controller's node stays until the session ends: %s", error)

    async def _write(self, operations: Sequence[Operation], version: int) -> Ok | Conflict:
        """Makes a change that follows on a revision; returns when its outcome is known."""
        mark = new_mark()
        revision = Set(layout.REVISION, layout.encode_revision(self._epoch, mark), version)
        return await self._retries.write([*operations, revision], mark, version)

    async def _reload(self) -> ClusterImage:
        image = await self._retries.load()
        if image is None:
            raise StoreError("the cluster is gone from the metadata store")
        return image

    async def _refresh(self) -> None:
        """Catches up with the store. What another has changed is published like our own changes."""
        new = await self._reload()
        if new.controller_epoch != self._epoch:
            raise _Deposed(f"a controller of epoch {new.controller_epoch} has taken office")
        old = self.image
        self._stale = False
        delta = await in_turns(difference.steps(old, new))
        if delta or new.version != old.version:
            await self._publish(old, new, delta)


def _secret_among(operations: Iterable[Operation]) -> bytes:
    """The secret that is made by one of these; empty if there is none."""
    for each in operations:
        if isinstance(each, Create) and each.path == layout.SECRET:
            return layout.decode_secret(each.value)
    return b""


def _answer(request: _Request[Any], result: Any, error: Exception | None) -> None:
    if request.answer.done():
        return
    if error is not None:
        request.answer.set_exception(error)
    else:
        request.answer.set_result(result)


def _refuse(requests: Iterable[_Request[Any]], error: ProtocolError) -> None:
    for request in requests:
        _answer(request, None, ProtocolError(error.code, error.message))
