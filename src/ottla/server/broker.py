"""The broker: its parts put together, its start and its end.

Start-up is ordered so that nothing is answered before it is true: data folders are locked and logs
recovered, the metadata store is opened, topics find their logs, and only then connections are
accepted. The end runs backwards: no new connections, what is in flight is answered, logs are
flushed, and the marker of a clean shutdown is the last thing written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.cluster.controller import Controller
from ottla.cluster.decisions.brokers import has_old_folders
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.decisions.features import (
    OTTLA_VERSION,
    FeatureRange,
    fault_of_levels,
    registered_ranges,
)
from ottla.cluster.decisions.topics import TopicDefaults
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.membership.membership import Membership, NoCluster
from ottla.cluster.metadata import (
    ClusterImage,
    Endpoint,
    ImageDelta,
    RegisteredBroker,
    ResourceType,
    Topic,
)
from ottla.cluster.metadata import Partition as PartitionState
from ottla.cluster.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.cluster.store import Store, StoreError
from ottla.cluster.tally import Tally
from ottla.coordinator.groups.settings import GroupSettings
from ottla.coordinator.transactions.settings import TransactionSettings
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.frame import frame_response
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.replication.partition import Role
from ottla.replication.throttle import Throttle
from ottla.server import handlers
from ottla.server.api import Api
from ottla.server.configuration.rules import Rules
from ottla.server.coordination.coordinators import Coordinators
from ottla.server.coordination.group_callers import GROUP_VERSION
from ottla.server.coordination.internal_topics import automatic_topic, ensure_internal_topic
from ottla.server.coordination.markers import Markers
from ottla.server.coordination.metadata_view import ImageView
from ottla.server.coordination.producer_ids import ProducerIds
from ottla.server.delayed import Deadlines, Wakeups
from ottla.server.disk.lanes import Lanes
from ottla.server.disk.reads import Reads
from ottla.server.disk.relocations import Relocations
from ottla.server.disk.shortages import Shortages
from ottla.server.disk.threads import started_threads
from ottla.server.disk.topic_logs import DoomedLogs, NewLogs
from ottla.server.disk.workers import Workers
from ottla.server.network.advertised import warn_of_unreachable
from ottla.server.network.connection import Connection
from ottla.server.network.reactor import ConnectionLimits, Reactor
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.partitions import Partitions
from ottla.server.quotas.usage import Quotas, follow_quotas
from ottla.server.replication.balancing import give_leadership_back
from ottla.server.replication.changes import Changes, Client, is_forwarded
from ottla.server.replication.liveness import Liveness
from ottla.server.replication.peers import Peers
from ottla.server.replication.repair import Repairs
from ottla.server.replication.replacing import replace_replicas
from ottla.server.replication.replicas import Replicas
from ottla.server.resources import descriptor_limit, divide_descriptors, request_memory
from ottla.server.security.security import CannotSecure, Security
from ottla.server.sessions import FetchSessions
from ottla.server.unserved import unsupported_version
from ottla.server.upkeep import strays
from ottla.server.upkeep.compaction import Compactor
from ottla.server.upkeep.periodic import PeriodicWork
from ottla.server.upkeep.scrub import Scrubber
from ottla.settings import BrokerLayers
from ottla.storage import config as topic_config
from ottla.storage.config import LogConfig
from ottla.storage.errors import StorageError, is_full_disk
from ottla.storage.index.maps import SHARED_MAPS
from ottla.storage.logs import Logs
from ottla.turns import Turns
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    from ottla.coordinator.groups.shard import GroupShard
    from ottla.coordinator.transactions.shard import TransactionShard
    from ottla.replication.partition import Partition
    from ottla.server.configuration.broker_config import BrokerConfig
    from ottla.server.configuration.listeners import ListenerAddress
    from ottla.server.handlers.records.fetch.handler import Fetch
    from ottla.server.machine.place import Place
    from ottla.server.observability.endpoint import MetricsEndpoint
    from ottla.server.security.authorizer import Authorizer
    from ottla.settings import InvalidSetting
    from ottla.storage.log.log import Log

log = logging.getLogger("ottla.broker")
limited_log = LimitedLog(log)

T = TypeVar("T")

# Threads of each kind for system calls that may block: fsync and unlink; cold reads; writes to a
# slow disk.
BLOCKING_THREADS = 4
# How long a stop waits for appends that are queued behind a worker process or a slow disk.
APPEND_SECONDS = 1.0
# How long it waits for the controller to move its leaders to other brokers.
HAND_OVER_SECONDS = 5.0
# How long it waits for answers to leave.
DRAIN_SECONDS = 1.0
# How long it then waits for clients to close their side.
PART_SECONDS = 0.3
# How often it is looked whether clients that wait for an answer are still there.
HUNG_UP_SECONDS = 30.0
METADATA_FILE = "metadata.db"

# What clients may switch on: the levels known here, and the one a new cluster begins with.
TRANSACTION_VERSION = "transaction.version"
SUPPORTED_FEATURES: Mapping[str, FeatureRange] = {
    TRANSACTION_VERSION: FeatureRange(minimum=0, maximum=2, initial=2),
    GROUP_VERSION: FeatureRange(minimum=0, maximum=1, initial=1),
    OTTLA_VERSION: FeatureRange(minimum=0, maximum=1, initial=1),
}


class CannotStart(Exception):
    """Why a broker does not start, in one sentence for its operator."""


class Broker:
    """One running broker. Everything in it happens on its event loop."""

    def __init__(self, config: BrokerConfig, place: Place | None = None) -> None:
        """`place` if it is one of several brokers of its machine."""
        self.config = config
        self.place = place
        # The store is another process's: other brokers have it too, and a lost session is replaced.
        self.is_in_cluster = config.zookeeper_connect is not None or (
            place is not None and place.store is not None
        )
        self.id = config.node_id
        self.loop = asyncio.get_running_loop()
        self.threads = started_threads(BLOCKING_THREADS, "ottla-blocking")
        # Separate pools, so that neither waits for the other or for a round of flushes.
        self.write_threads = started_threads(BLOCKING_THREADS, "ottla-write")
        self.read_threads = started_threads(BLOCKING_THREADS, "ottla-read")
        self.wakeups = Wakeups(self.loop)
        self.deadlines = Deadlines(self.loop)
        self.lanes = Lanes(self.loop, self.write_threads)
        self.descriptors = divide_descriptors(descriptor_limit())
        self.reads = Reads(
            self.loop,
            self.read_threads,
            self.descriptors.segment_files + self.descriptors.answers,
            lambda: self.apis[ApiKey.PRODUCE].requests,
        )
        self.workers = Workers(self.loop, config.worker_processes)
        self.sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots)
        self.waiting_fetches: set[Fetch] = set()
        self.apis: dict[int, Api] = {}
        self.supported_features = SUPPORTED_FEATURES
        self._request_memory = request_memory()
        SHARED_MAPS.limit = self.descriptors.mapped_indexes
        self.logs = Logs(
            config.log_dirs,
            self.topic_config,
            max_open_files=self.descriptors.segment_files,
            producer_expiration_ms=config.producer_id_expiration_ms,
        )
        # Files that have to be synced before others can be opened are not waited for by the loop.
        loop_thread = threading.get_ident()
        self.logs.open_files.may_wait = lambda: threading.get_ident() != loop_thread
        self.logs.open_files.on_crowded = lambda: self.lanes.hold_back(
            folder.path for folder in self.logs.folders
        )
        self.logs.is_known = lambda key, topic_id: strays.belongs(
            self.image, self.id, key, topic_id
        )
        self.periodic_work = PeriodicWork(self.loop, self.logs, self.threads)
        self.compactor = Compactor(self.loop, self.logs, self.threads, lambda: self.config)
        self.scrubber = Scrubber(self.loop, self.logs, lambda: self.config)
        self.partitions = Partitions(
            self.id,
            self.logs,
            self.wakeups,
            self.topic_config,
            validates_records=config.produce_record_validation_enable,
        )
        self.partitions.is_member = lambda: self.membership.is_member
        self.doomed_logs = DoomedLogs(self.loop, self.logs)
        self.new_logs = NewLogs(self.loop, self.partitions)
        self.partitions.before_load = self.doomed_logs.delete_now
        # Whoever waits for a flush learns of its end, and of a disk that failed (in any thread).
        self.periodic_work.on_flushed = self.partitions.flushed
        self.logs.on_offline = self._log_went_offline
        self.logs.on_refused = self._append_was_refused
        self.shortages = Shortages(self.loop)
        # What its controllers have counted.
        self.tally = Tally()
        self.membership = Membership(
            self.id,
            self._connect_to_store,
            self._make_controller,
            reconnects=self.is_in_cluster,
        )
        self.security = Security(self)
        # None: nobody has any.
        self.quotas: Quotas | None = None
        # None: everybody may do everything.
        self.authorizer: Authorizer | None = self.security.make_authorizer()
        self.peers = Peers(
            self.id,
            lambda: self.config.inter_broker_listener,
            lambda: self.image,
            self.security.between_brokers,
        )
        self.changes = Changes(self)
        self.throttle = Throttle(self.id)
        self.relocations = Relocations(self)
        self.replicas = Replicas(self)
        self.repairs = Repairs(self)
        self.scrubber.on_damage = self.repairs.found
        self.liveness = Liveness(self)
        self.metadata = ImageView(lambda: self.image)
        self.producer_ids = ProducerIds(self.changes.allocate_producer_ids)
        self.markers = Markers(self)
        self.groups: Coordinators[GroupShard] = Coordinators(
            self, CONSUMER_OFFSETS, self._group_shard
        )
        self.transactions: Coordinators[TransactionShard] = Coordinators(
            self, TRANSACTION_STATE, self._transaction_shard, self.markers.forget
        )
        self.reactor = Reactor(self.loop, self.apis, self._limits(), self.refuse_version)
        self.reactor.page_in = self.reads.page_in
        self.reactor.old_data = self.reads.old_data
        # Logs are open and partitions in place: coordinators may be loaded.
        self.is_serving = False
        # Set when the broker cannot go on: its metadata store is gone.
        self.lost = asyncio.Event()
        # Stopped while a thread or a worker process was still busy with an append.
        self.is_stuck = False
        # Addresses that were bound, once it has started.
        self.bound: tuple[ListenerAddress, ...] = ()
        self.metrics_endpoint: MetricsEndpoint | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # What handlers ask for ----------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        return self.membership.image

    @property
    def controller(self) -> Controller:
        """The cluster's controller; ProtocolError if it is not on this broker."""
        controller = self.membership.controller
        if controller is None:
            raise ProtocolError(ErrorCode.NOT_CONTROLLER)
        return controller

    def passes_on(self, connection: Connection) -> bool:
        """Whether what the controller has to decide is to be passed on to it."""
        return self.membership.controller is None and not is_forwarded(connection.client_id)

    def _connect_to_store(self) -> Store:
        config = self.config
        if config.zookeeper_connect is None:
            if self.place is not None and self.place.store is not None:
                from ottla.cluster.shared import SharedStore

                return SharedStore(self.place.store)
            return EmbeddedStore(os.path.join(config.log_dirs[0], METADATA_FILE))
        from ottla.server.configuration.zookeeper_access import zookeeper_store

        return zookeeper_store(config)

    def _make_controller(self, store: Store) -> Controller:
        controller = Controller(
            store,
            self.id,
            Rules(lambda: self.config),
            SUPPORTED_FEATURES,
            defaults=self._topic_defaults(),
            tally=self.tally,
        )
        controller.default_policy = self._default_policy()
        return controller

    def _configure_controller(self) -> None:
        controller = self.membership.controller
        if controller is not None:
            controller.defaults = self._topic_defaults()
            controller.default_policy = self._default_policy()

    def _office_changed(self) -> None:
        """Give the settings known here to a controller that has taken office on this broker: it does not
        know those that were in its first image. Also called when it has resigned."""
        self._configure_controller()
        self.liveness.follow()

    def _default_policy(self) -> ElectionPolicy:
        defaults = self.config.log_defaults
        return ElectionPolicy(defaults.min_insync_replicas, defaults.unclean_leader_election_enable)

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside the loop; it is held until it ends, and its failure is logged."""
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            limited_log.error(
                "background work failed: %s", task.get_name(), exc_info=task.exception()
            )

    def nodes_for(
        self, listener: str, *, fenced: bool = False
    ) -> Iterator[tuple[RegisteredBroker, str, int]]:
        """The brokers with the address each advertises to clients of a listener; with `fenced` those
        that are away, with the address of their last registration."""
        for node in (self.image.fenced if fenced else self.image.brokers).values():
            for endpoint in node.endpoints:
                if endpoint.listener == listener:
                    yield node, endpoint.host, endpoint.port

    def leader_of(self, topic: str, index: int, current_leader_epoch: int) -> Partition:
        """The partition, if this broker leads it and the client does not live in another epoch."""
        partition = self.partitions.get(topic, index)
        if partition is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_leader()
        self.check_leader_epoch(partition, current_leader_epoch)
        return partition

    @staticmethod
    def check_leader_epoch(partition: Partition, known: int) -> None:
        """ProtocolError if the client knows another leader epoch. `known` is that of its metadata, -1 if
        it does not say."""
        if known < 0 or known == partition.leader_epoch:
            return
        if known < partition.leader_epoch:
            raise ProtocolError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def offline_replicas(self, topic: str, state: PartitionState) -> list[int]:
        """Replicas that cannot be served: brokers that are away, and our own on a failed disk."""
        away = [each for each in state.replicas if each not in self.image.brokers]
        if self.id in state.replicas:
            partition = self.partitions.get(topic, state.index)
            if partition is not None and partition.is_offline:
                away.append(self.id)
        return away

    async def create_automatically(
        self, names: Iterable[str], client: Client
    ) -> Mapping[str, ProtocolError]:
        """Create topics that a client asked for by name, within its quota of changes; those that could
        not be, with reasons."""
        wanted = [automatic_topic(self, name) for name in names]
        results = await self.changes.create_topics(wanted, client)
        return {
            result.name: result.error
            for result in results
            if result.name is not None
            and result.error is not None
            # Another client was quicker: it is there now.
            and result.error.code != ErrorCode.TOPIC_ALREADY_EXISTS
        }

    async def internal_topic(self, name: str) -> None:
        """Have a coordinator's topic made if it is not there. ProtocolError if it cannot be."""
        await ensure_internal_topic(self, name)

    def _group_shard(self, _: int) -> GroupShard:
        from ottla.coordinator.groups.shard import GroupShard

        return GroupShard(
            GroupSettings.from_config(self.config),
            self.metadata,
            lambda: str(uuid.uuid4()),
            lambda group_id: self.image.config(ResourceType.GROUP, group_id),
        )

    def _transaction_shard(self, index: int) -> TransactionShard:
        from ottla.coordinator.transactions.shard import TransactionShard

        partition = self.partitions.get(TRANSACTION_STATE, index)
        assert partition is not None
        return TransactionShard(
            TransactionSettings.from_config(self.config),
            coordinator_epoch=partition.leader_epoch,
            level=lambda: self.image.features.get(TRANSACTION_VERSION, 0),
            write_markers=partial(self.markers.write, index),
        )

    def topic_config(self, name: str) -> LogConfig:
        """The settings of a topic: its own over the broker's."""

        def ignore(error: InvalidSetting) -> None:
            log.warning("stored setting ignored: topic=%s %s", name, error)

        overrides = self.image.config(ResourceType.TOPIC, name)
        return topic_config.parse(overrides, self.config.log_defaults, on_invalid=ignore)

    def refuse_version(
        self,
        connection: Connection,
        frame: memoryview,
        key: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Answers or hangs up on a request of an API or a version that is not served."""
        if key == ApiKey.API_VERSIONS:
            # The answer every client can read, so that it can ask again in a version we know.
            own = self.apis[ApiKey.API_VERSIONS]
            refusal = ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                api_keys=[ApiVersion(api_key=key, min_version=own.lowest, max_version=own.highest)],
            )
            connection.answer(frame_response(refusal, 0, correlation_id))
            return
        authentication = connection.authentication
        if authentication is not None and not authentication.is_served:
            limited_log.warning(
                "request without authentication: key=%d peer=%s client=%r %s",
                key, connection.address, connection.client_id, authentication.state.value,
            )  # fmt: skip
            connection.hang_up("it has not authenticated")
            return
        if key not in self.apis:
            unserved = unsupported_version(key, version, frame)
            if unserved is not None:
                connection.answer(frame_response(unserved, version, correlation_id))
                return
        limited_log.warning(
            "unsupported request: key=%d version=%d peer=%s client=%r",
            key, version, connection.address, connection.client_id,
        )  # fmt: skip
        connection.hang_up("unsupported request")

    # The start ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Everything up to the first connection; CannotStart says what is in the way."""
        for declared in handlers.load():
            self.apis[declared.key] = declared.api(self)
        try:
            self._bind()
            os.makedirs(self.config.log_dirs[0], 0o700, exist_ok=True)
            self.membership.on_lost = self._session_lost
            await self._open_membership()
            # Before anything is read that a newer version may have written.
            self._require_support(self.image)
            self._follow_broker_settings()
            # Recovery reads every batch that was not flushed: not on the loop, which has to see signals.
            await self.loop.run_in_executor(self.threads, self.logs.open)
            if self.is_in_cluster:
                # Before a new folder is claimed, which would else look like an old copy.
                await self._begin_run()
            await self.loop.run_in_executor(
                self.threads, strays.set_strays_aside, self.logs, self.image, self.id
            )
            await self.membership.join(self._node(), self._may_have_lost_records())
            # Once more: partitions may have been moved away from here meanwhile.
            await self.loop.run_in_executor(
                self.threads, strays.set_strays_aside, self.logs, self.image, self.id
            )
            await self.loop.run_in_executor(self.threads, self.logs.mark_running)
        except (StorageError, StoreError, OSError, CannotSecure, CannotStart) as error:
            # The cluster need not wait for the session of a broker that never came to be.
            await self.membership.close()
            raise CannotStart(str(error)) from error
        for topic in self.image.topics.values():
            self.partitions.put(topic)
        self.security.load_acls()
        follow_quotas(self)
        self.membership.follower.subscribe(self._changed)
        self.is_serving = True
        self.replicas.start()
        self.relocations.resume()
        self.membership.on_registered = self._follow_or_not
        self.membership.on_office = self._office_changed
        self.liveness.follow()
        # What was decided before a crash is ended now, not when somebody asks.
        self.groups.load_all()
        self.transactions.load_all()
        self.spawn(self._watch_clients(), "watch over clients that wait")
        self.spawn(give_leadership_back(self), "balance of leadership")
        if self.config.replica_replacement_after_ms >= 0:
            self.spawn(replace_replicas(self), "replacement of replicas")
        if self.config.log_stray_retention_ms >= 0:
            self.spawn(strays.remove_old_strays(self), "removal of old strays")
        if self.config.is_set("advertised.listeners"):
            self.spawn(warn_of_unreachable(self._node().endpoints), "look at advertised addresses")
        self.periodic_work.start(self.config.log_retention_check_interval_ms / 1000)
        self.compactor.start()
        self.scrubber.start()
        if self.config.metrics_listener is not None:
            await self._serve_metrics(*self.config.metrics_listener)
        self.security.start()
        self.reactor.start()

    async def _serve_metrics(self, host: str, port: int) -> None:
        from ottla.server.observability.endpoint import MetricsEndpoint

        self.metrics_endpoint = MetricsEndpoint(self)
        try:
            await self.metrics_endpoint.start(host, port)
        except OSError as error:
            raise CannotStart(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}"
            ) from error
        log.info("metrics: http://%s:%d/metrics", host or "127.0.0.1", self.metrics_endpoint.port)

    def _session_lost(self) -> None:
        if not self.is_in_cluster:
            log.error("the metadata store is lost; the broker stops")
            self.lost.set()

    async def _open_membership(self) -> None:
        """Finds the cluster, and founds it if there is none. Logs of another cluster are not touched,
        nor is a cluster founded for them."""
        if not self.is_in_cluster:
            # The store lies beside the logs; see upkeep/strays.py.
            await self.membership.open()
            return
        if self.config.zookeeper_connect is None:
            owner, remedy = "the metadata store", "put the right metadata.db back"
        else:
            owner, remedy = "ZooKeeper", "use another folder, or another path in ZooKeeper"
        claimed = [
            (folder.path, cluster_id)
            for folder in self.logs.folders
            if (cluster_id := folder.peek_cluster_id()) is not None
        ]
        try:
            await self.membership.open(founds=not claimed)
        except NoCluster:
            path, cluster_id = claimed[0]
            raise CannotStart(
                f"data folder {path} belongs to cluster {cluster_id or 'unknown'}, and {owner} has "
                f"none: {remedy}"
            ) from None
        for path, cluster_id in claimed:
            if cluster_id != self.image.cluster_id:
                raise CannotStart(
                    f"data folder {path} belongs to cluster {cluster_id or 'unknown'}, and {owner}'s "
                    f"is {self.image.cluster_id}: {remedy}"
                )
        for folder in self.logs.folders:
            if folder.node_id not in (None, self.id):
                raise CannotStart(
                    f"data folder {folder.path} belongs to broker {folder.node_id}, and this is broker "
                    f"{self.id}: use its own folder, or start it as broker {folder.node_id} (node.id)"
                )

    def _may_have_lost_records(self) -> bool:
        """Whether the cluster has to know that records may be gone. A single broker says which are, and
        goes on without them: there is nobody else who has them."""
        missing = []
        for topic, index in self.logs.missing:
            is_own = strays.belongs(self.image, self.id, (topic, index), None)
            if is_own:
                missing.append(f"{topic}-{index}")
            if not (is_own and self.is_in_cluster):
                self.logs.forget_missing(topic, index)
        if missing:
            log.error(
                "logs with records are gone from the data folders: count=%d %s",
                len(missing), ", ".join(missing[:10]),
            )  # fmt: skip
        return bool(missing) or self.logs.may_have_lost_records

    async def _watch_clients(self) -> None:
        """Close connections whose clients left while they waited for an answer: they may have asked for
        a wait of weeks."""
        while True:
            await asyncio.sleep(HUNG_UP_SECONDS)
            self.reactor.close_hung_up()
            for fetch in list(self.waiting_fetches):
                if fetch.connection.closed:
                    fetch.conclude()

    def _bind(self) -> None:
        bound = []
        for listener in self.config.listeners:
            security = None
            if listener.protocol != "PLAINTEXT":
                security = self.security.of(listener)
            try:
                socket = self.reactor.listen(listener.name, listener.host, listener.port, security)
            except OSError as error:
                raise CannotStart(
                    f"cannot listen on {listener}: {error.strerror or error}"
                ) from error
            bound.append(listener._replace(port=socket.address[1]))
        self.bound = tuple(bound)

    def _node(self) -> RegisteredBroker:
        """This broker as it registers with the cluster."""
        ports = {each.name: each.port for each in self.bound}
        return RegisteredBroker(
            id=self.id,
            epoch=0,
            rack=self.config.broker_rack,
            endpoints=tuple(
                Endpoint(each.name, each.host, each.port, each.protocol)
                for each in self.config.advertised(ports)
            ),
            folder_id=self.logs.folder_ids,
            machine="" if self.place is None else self.place.machine,
            min_isr=self._own_min_isr(),
            features=registered_ranges(SUPPORTED_FEATURES),
            run=self.logs.run,
            former_runs=self.logs.former_runs,
        )

    async def _begin_run(self) -> None:
        """Names this run in the data folders, so that an old copy of them can be told from them."""
        known = self.image.brokers.get(self.id) or self.image.fenced.get(self.id)
        await self.loop.run_in_executor(
            self.threads, self.logs.begin_run, "" if known is None else known.run
        )
        if known is not None and has_old_folders(known, self._node()):
            log.error(
                "the data folders (%s) are an old copy: they know nothing of the last run of broker %d. "
                "Records that it had acknowledged are missing. It follows until it has fetched them "
                "from other brokers, and does not lead what nobody else can: if there is a newer "
                "disk, stop this broker and put that one back",
                ", ".join(folder.path for folder in self.logs.folders), self.id,
            )  # fmt: skip

    def _require_support(self, image: ClusterImage) -> None:
        fault = fault_of_levels(image.features, SUPPORTED_FEATURES)
        if fault is not None:
            raise CannotStart(fault)

    def _stop_without_support(self, image: ClusterImage) -> None:
        """The levels were raised while this broker was away for so long that it was unregistered."""
        fault = fault_of_levels(image.features, SUPPORTED_FEATURES)
        if fault is not None:
            log.error("the broker stops: %s", fault)
            self.lost.set()

    def _own_min_isr(self) -> int:
        """min.insync.replicas as this broker's configuration has it; changes while running are known to
        all brokers."""
        static = BrokerLayers(static=self.config.layers.static)
        return topic_config.broker_defaults(static).min_insync_replicas

    def _limits(self) -> ConnectionLimits:
        config = self.config
        queued = config.queued_max_request_bytes
        return ConnectionLimits(
            max_request_bytes=config.socket_request_max_bytes,
            max_connections=config.max_connections,
            protected_listener=config.protected_listener,
            max_descriptors=self.descriptors.connections,
            max_connections_per_address=config.max_connections_per_ip,
            max_connections_overrides=config.max_connections_per_ip_overrides,
            idle_seconds=config.connections_max_idle_ms / 1000,
            partial_bytes=queued if queued > 0 else self._request_memory,
            send_buffer=config.socket_send_buffer_bytes,
            receive_buffer=config.socket_receive_buffer_bytes,
            backlog=config.socket_listen_backlog_size,
        )

    def _checkpoint_interval_ms(self) -> int:
        """All checkpoints of a folder are written together: as often as one of them asks for it."""
        config = self.config
        return min(
            config.log_flush_offset_checkpoint_interval_ms,
            config.log_flush_start_offset_checkpoint_interval_ms,
            config.replica_high_watermark_checkpoint_interval_ms,
        )

    def _topic_defaults(self) -> TopicDefaults:
        config = self.config
        is_set = config.is_set("default.replication.factor")
        factor = config.default_replication_factor if is_set else 0
        return TopicDefaults(config.num_partitions, factor)

    # Following the cluster ----------------------------------------------------------------------

    def _changed(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        """Bring partitions and settings of this broker up to a new image of the cluster."""
        if delta.features:
            self._stop_without_support(new)
        self.repairs.changed()
        for topic in delta.deleted:
            self.partitions.remove(topic.name)
            self._unload_coordinators(topic)
            self.doomed_logs.add(topic.name, range(len(topic.partitions)))
        for topic in delta.created:
            self.partitions.put(topic, is_new=True)
        for before, topic in delta.changed:
            self.partitions.put(topic, is_new=True)
            self._drop_replicas(before, topic)
        self.doomed_logs.delete()
        grown = [new for old, new in delta.changed if _assignment(old) != _assignment(new)]
        created = [*delta.created, *grown]
        if created:
            self.new_logs.make(topic.name for topic in created)
        if any(kind is ResourceType.BROKER for kind, _ in delta.configs):
            self._follow_broker_settings()
        for kind, name in delta.configs:
            if kind is ResourceType.TOPIC:
                self.partitions.settle(name)
        if any(kind is ResourceType.QUOTA for kind, _ in delta.configs):
            follow_quotas(self)
        if self.authorizer is not None and any(
            kind is ResourceType.ACL for kind, _ in delta.configs
        ):
            self.security.follow_acls(old, new, delta.configs)
        if delta.deleted or created:
            has_new = bool(delta.created)
            self.groups.apply_to_all(
                lambda shard, now: shard.metadata_changed(now, created=has_new)
            )
        if delta.brokers:
            self.spawn(self._look_at_starts(), "logs' starts")
        if delta.brokers or old.controller_id != new.controller_id:
            self.liveness.follow()
        if old.brokers.get(self.id) != new.brokers.get(self.id):
            self._follow_or_not()

    async def _look_at_starts(self) -> None:
        """Ends waits of partitions for replicas on brokers that have gone."""
        turns = Turns()
        for partitions in list(self.partitions.by_name.values()):
            for held in partitions:
                held.look_at_starts()
            await turns.pause()

    def _follow_or_not(self) -> None:
        """Begin or stop leading and following, after this broker was taken in or fenced."""
        self.partitions.lead_or_not(self.image.topics.values())
        for held in self.partitions:
            self.replicas.role_changed(held)

    def _drop_replicas(self, before: Topic, after: Topic) -> None:
        """Delete the logs of partitions that were moved away from this broker."""
        self.doomed_logs.add(
            after.name,
            [
                new.index
                for old, new in zip(before.partitions, after.partitions, strict=False)
                if self.id in old.replicas and self.id not in new.replicas
            ],
        )

    def partition_changed(self, partition: Partition) -> None:
        """Have coordinators follow a partition of theirs whose role, leader or leader epoch changed."""
        if partition.topic == CONSUMER_OFFSETS:
            self.groups.follow_leader(partition)
        elif partition.topic == TRANSACTION_STATE:
            self.transactions.follow_leader(partition)

    def _unload_coordinators(self, topic: Topic) -> None:
        for partition in topic.partitions:
            if topic.name == CONSUMER_OFFSETS:
                self.groups.unload(partition.index)
            elif topic.name == TRANSACTION_STATE:
                self.transactions.unload(partition.index)

    def _log_went_offline(self, failed: Log) -> None:
        self.loop.call_soon_threadsafe(self._give_up_log, failed)

    def _give_up_log(self, failed: Log) -> None:
        """Fail who waits for a log that failed, and have another replica lead, where there is one."""
        self.partitions.flushed(failed)
        partition = self.partitions.get(failed.topic, failed.partition)
        if partition is not None and partition.opened is failed:
            partition.resign()

    def _append_was_refused(self, refused: Log, error: OSError) -> None:
        self.loop.call_soon_threadsafe(self._note_refused_append, refused, error)

    def _note_refused_append(self, refused: Log, error: OSError) -> None:
        """Logs the shortage. If the disk is full, gives up the leadership: another replica leads, whose
        disk may have room; this one follows, and is in sync again once there is room here."""
        folder = os.path.dirname(refused.folder)
        self.shortages.refused(refused.topic, refused.partition, folder, error)
        partition = self.partitions.get(refused.topic, refused.partition)
        if is_full_disk(error) and partition is not None and partition.opened is refused:
            partition.resign()

    def _follow_broker_settings(self) -> None:
        """Take over settings that were changed while running (or in an earlier life)."""
        image = self.image
        default = image.config(ResourceType.BROKER, "")
        own = image.config(ResourceType.BROKER, str(self.id))
        before = self.config

        def ignore(error: InvalidSetting) -> None:
            log.warning("stored setting ignored: broker=%d %s", self.id, error)

        self.config = before.with_dynamic(default=default, broker=own, on_invalid=ignore)
        self._configure_controller()
        self.reactor.limits = self._limits()
        self.security.follow(self.config)
        follow_quotas(self)  # a limit of connections may have changed
        self.throttle.leading.change(self.config.leader_replication_throttled_rate)
        self.throttle.following.change(self.config.follower_replication_throttled_rate)
        self.relocations.limit.change(self.config.replica_alter_log_dirs_io_max_bytes_per_second)
        self.logs.checkpoint_interval_ms = self._checkpoint_interval_ms()
        self.logs.expire_producers_after(self.config.producer_id_expiration_ms)
        settings = GroupSettings.from_config(self.config)
        if settings != GroupSettings.from_config(before):
            self.groups.reconfigure(settings)
        of_transactions = TransactionSettings.from_config(self.config)
        if of_transactions != TransactionSettings.from_config(before):
            self.transactions.reconfigure(of_transactions)
        if self.config.log_defaults != before.log_defaults:
            for name in self.partitions.by_name:
                self.partitions.settle(name)

    # The end ------------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        """Moves leadership to other brokers before this one stops, so that clients notice nothing."""
        if not self.config.controlled_shutdown_enable or len(self.image.brokers) < 2:
            return
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self.changes.shut_down()
                await self.membership.follower.caught_up()
        except (ProtocolError, WireError, StoreError, TimeoutError) as error:
            log.warning("leadership was not handed over: %s", error)
            return
        kept = sum(each.role is Role.LEADER for each in self.partitions)
        if kept:
            log.warning("partitions that only this broker could lead: %d", kept)

    async def stop(self) -> None:
        """Hand leaders over, answer what is in flight, flush, and leave the marker of a clean
        shutdown."""
        await self._hand_over()
        self.membership.leave()
        self.reactor.stop_listening()
        if self.metrics_endpoint is not None:
            self.metrics_endpoint.stop()
        for connection in self.reactor.connections:
            connection.pause()
        for fetch in list(self.waiting_fetches):
            fetch.conclude()
        self.liveness.stop()
        self.replicas.stop()
        self.is_stuck = not await self.lanes.drained(APPEND_SECONDS)
        await self.reactor.drained(DRAIN_SECONDS)
        await self.reactor.close(PART_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        self.peers.close()
        await self.compactor.stop()
        await self.scrubber.stop()
        await self.periodic_work.stop()
        epoch = self.membership.epoch
        await self.membership.close()
        self.new_logs.stop()
        await self.doomed_logs.all_gone()
        await self.loop.run_in_executor(None, self.logs.close, epoch)
        self.workers.stop()
        self.shortages.stop()
        self.reads.warming.stop()
        for threads in (self.threads, self.write_threads, self.read_threads):
            threads.shutdown(wait=False)


def _assignment(topic: Topic) -> list[tuple[int, ...]]:
    """Which brokers hold each partition; leaders and in-sync sets change without it."""
    return [partition.replicas for partition in topic.partitions]
