"""A cluster as a client uses it: metadata, connections, and requests to whom they concern.

    cluster = Cluster(settings)
    answer = await cluster.ask(ListGroupsRequest(), ListGroupsResponse, at=OneBroker(1))
    answer = await cluster.ask(request, answer_class, at=Coordinator.of_group("billing"))
    await cluster.close()

`ask` finds the broker, sends, and goes on trying while the trouble is one that passes: a dead
connection, a broker that is not the leader, controller or coordinator any more, an error code that
the table calls retriable. It waits in between (back-off) and ends at its deadline.

Metadata are refreshed when something proves to be out of date, and by age (metadata.max.age.ms).
When no broker known from them can be reached, the bootstrap servers are asked again. While none of them
has ever answered, the addresses are probably wrong: that is told after bootstrap.timeout.ms, as
ClusterUnreachable; whoever was there once is waited for. It is the same where a bootstrap server
answers, and no broker can be reached at the address that the cluster advertises for it
(AdvertisedUnreachable).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

from ottla.client.configuration.clients import ClientSettings
from ottla.client.connections import Connections
from ottla.client.deadline import Deadline
from ottla.client.errors import (
    AdvertisedUnreachable,
    BrokerError,
    ClusterUnreachable,
    OttlaError,
    TimedOut,
    TopicNotFound,
    broker_error,
    client_error,
)
from ottla.client.metadata import Metadata, Node, PartitionInfo, TopicInfo
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.message import Message
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.wire.connection import Connection
from ottla.wire.errors import ConnectFailed, WireError

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer", bound=Message)
_Result = TypeVar("_Result")
# A request, or how to make one for the versions that the connection's broker has.
Request = Message | Callable[[Connection], Message]

_UPKEEP_INTERVAL: Final = 1.0  # seconds between looks at ages
_BATCHED_COORDINATORS_SINCE: Final = 4  # FindCoordinator


class CoordinatorKind(IntEnum):
    """What a coordinator coordinates; the number is FindCoordinator's key type."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class Route(Protocol):
    """Finds the broker that a request is for."""

    async def connect(self, cluster: Cluster, lane: str) -> Connection:
        """A connection to the broker it concerns now. Raises WireError or BrokerError."""

    def failed(self, cluster: Cluster) -> None:
        """That broker could not be reached, or was the wrong one: forget what led there."""


@dataclass(frozen=True, slots=True)
class AnyBroker:
    """The route of requests that any broker can answer."""

    async def connect(self, cluster: Cluster, lane: str) -> Connection:
        return await cluster.any_connection(lane)

    def failed(self, cluster: Cluster) -> None:
        pass


@dataclass(frozen=True, slots=True)
class OneBroker:
    """The route of requests to one broker in particular."""

    node_id: int

    async def connect(self, cluster: Cluster, lane: str) -> Connection:
        return await cluster.connection(self.node_id, lane)

    def failed(self, cluster: Cluster) -> None:
        cluster.request_refresh()


@dataclass(frozen=True, slots=True)
class Controller:
    """The broker that controls the cluster, or (KRaft) one that passes requests on to it."""

    async def connect(self, cluster: Cluster, lane: str) -> Connection:
        if cluster.metadata.controller_id not in cluster.metadata.nodes:
            await cluster.refresh(())
        controller = cluster.metadata.controller_id
        if controller not in cluster.metadata.nodes:
            return await cluster.any_connection(lane)
        return await cluster.connection(controller, lane)

    def failed(self, cluster: Cluster) -> None:
        cluster.metadata.controller_id = -1


@dataclass(frozen=True, slots=True)
class LeaderOf:
    """The leader of a partition."""

    topic: str
    partition: int

    async def connect(self, cluster: Cluster, lane: str) -> Connection:
        info = await cluster.leader(self.topic, self.partition)
        return await cluster.connection(info.leader, lane)

    def failed(self, cluster: Cluster) -> None:
        cluster.request_refresh(self.topic)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The coordinator of a group, of a transactional id, or of a share partition."""

    kind: CoordinatorKind
    key: str

    @classmethod
    def of_group(cls, group: str) -> Coordinator:
        return cls(CoordinatorKind.GROUP, group)

    @classmethod
    def of_transaction(cls, transactional_id: str) -> Coordinator:
        return cls(CoordinatorKind.TRANSACTION, transactional_id)

    async def connect(self, cluster: Cluster, lane: str) -> Connection:
        found = await cluster.coordinators(self.kind, [self.key])
        return await cluster.connection_to(found[self.key], lane)

    def failed(self, cluster: Cluster) -> None:
        cluster.forget_coordinator(self.kind, self.key)


ANY: Final = AnyBroker()
CONTROLLER: Final = Controller()


# Failures that may be over by the next try; others of a connection are raised at once.
PASSING: Final = (ClusterUnreachable, TimedOut)


def top_level_error(answer: Any) -> int:
    """The error code that stands in the answer itself; 0 where there is none."""
    return getattr(answer, "error_code", 0)


class Cluster:
    """The metadata of a cluster, connections to its brokers, and requests to them.

    It does nothing until it is asked something; `close` it in the end.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.metadata = Metadata()
        self._connections = Connections(settings)
        self._coordinators: dict[tuple[CoordinatorKind, str], Node] = {}
        self._watched: set[str] = set()  # topics that are kept up to date
        self._watches_all = False
        self._stale: set[str] = set()  # topics to refresh soon
        self._stale_nodes = False
        self._wake = asyncio.Event()
        self._upkeep: asyncio.Task[None] | None = None
        self._refreshed = asyncio.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._reached = False  # a broker has answered
        self._tried_since: float | None = None
        self._reached_as_advertised = False  # at an address that the cluster has named itself
        self._advertised_since: float | None = None

    # Requests

    async def ask(
        self,
        request: Request,
        answer: type[_Answer],
        *,
        at: Route = ANY,
        timeout: float | None = None,
        failing: Callable[[_Answer], int] = top_level_error,
        lane: str = "",
        request_timeout: float | None = None,
        at_most: int | Callable[[Connection], int | None] | None = None,
    ) -> _Answer:
        """The answer of the broker at the end of the route.

        `failing` gives the error code by which to judge whether to try again; an answer whose code
        is not retriable is returned. `timeout` (default.api.timeout.ms) is for all tries together,
        `request_timeout` (request.timeout.ms) for each; `at_most` is the newest version to use, or
        what gives it for a connection.
        Raises TimedOut, AuthenticationError, Unsupported, ClusterUnreachable where no broker has ever
        answered, and what finding the broker runs into (TopicNotFound, NotAuthorized, …).
        """
        deadline = Deadline.after(self.settings.api_timeout if timeout is None else timeout)
        patience = self.settings.request_timeout if request_timeout is None else request_timeout
        failures = 0
        problem: OttlaError | None = None
        while True:
            try:
                async with asyncio.timeout(max(deadline.remaining, 0.001)):
                    connection = await at.connect(self, lane)
                    message = request if isinstance(request, Message) else request(connection)
                    newest = at_most(connection) if callable(at_most) else at_most
                    decoded = await connection.request(
                        message,
                        answer,
                        timeout=min(patience, max(deadline.remaining, 0.001)),
                        version=connection.version_of(type(message), newest),
                    )
            except WireError as error:
                problem = client_error(error)
                if not isinstance(problem, PASSING):
                    raise problem from error
            except BrokerError as error:
                if not error.retriable or isinstance(error, TopicNotFound):
                    raise
                problem = error
            except TimeoutError as error:
                if isinstance(error, OttlaError):
                    raise
                raise deadline.missed(_name_of(answer), problem) from problem
            else:
                code = failing(decoded)
                if not code or not error_code(code).retriable:
                    return decoded
                problem = broker_error(code, about=_name_of(answer))
            at.failed(self)
            failures += 1
            logger.debug("%s: try %d failed: %s", _name_of(answer), failures, problem)
            wait = self.settings.retries_backoff.after(failures)
            await deadline.pause(wait, _name_of(answer), problem)

    # Connections

    async def connection(self, node_id: int, lane: str = "") -> Connection:
        """The connection to a broker, opened if need be. Raises WireError, ClusterUnreachable."""
        node = self.metadata.nodes.get(node_id)
        if node is None:
            await self.refresh(())
            node = self.metadata.nodes.get(node_id)
        if node is None:
            known = ", ".join(map(str, sorted(self.metadata.nodes)))
            raise broker_error(
                ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {node_id}; there are {known}"
            )
        return await self.connection_to(node, lane)

    async def connection_to(self, node: Node, lane: str = "") -> Connection:
        """The connection to a broker whose address is known.

        Raises WireError; AdvertisedUnreachable where no broker was ever reached at such an address.
        """
        self._begin_upkeep()
        if self._reached_as_advertised:
            return await self._connections.to(node, lane)
        return await self._first_as_advertised(node, lane)

    def close_lane(self, lane: str) -> None:
        """Close the connections of a lane that nobody will ask for any more."""
        self._connections.close_lane(lane)

    async def any_connection(self, lane: str = "") -> Connection:
        """A connection to any broker; to a bootstrap server if none else can be reached."""
        self._begin_upkeep()
        if not lane and (usable := self._connections.open_one()) is not None:
            return usable
        addresses = [(node.host, node.port) for node in self.metadata.nodes.values()]
        random.shuffle(addresses)
        if not addresses or self.settings.metadata_recovery == "rebootstrap":
            bootstrap = [each for each in self.settings.servers if each not in addresses]
            random.shuffle(bootstrap)
            addresses += bootstrap
        if not self._reached:
            return await self._first_connection(addresses, lane)
        problem: WireError | None = None
        for host, port in addresses:
            try:
                return await self._connections.to_address(host, port, lane)
            except WireError as error:
                if not isinstance(client_error(error), ClusterUnreachable):
                    raise
                problem = problem or error
        assert problem is not None
        raise problem

    async def _first_connection(
        self, addresses: Sequence[tuple[str, int]], lane: str
    ) -> Connection:
        """A connection to a cluster that has never answered. Raises WireError; ClusterUnreachable once
        bootstrap.timeout.ms is over."""
        now = asyncio.get_running_loop().time
        limit = self.settings.bootstrap_timeout
        if self._tried_since is None:
            self._tried_since = now()
        end = self._tried_since + limit
        if now() >= end:  # of calls that come later each may try once
            end = now() + limit
        problems: list[WireError] = []
        for at, (host, port) in enumerate(addresses):
            # Hosts that say nothing at all must leave time for the others.
            share = max(end - now(), 0.05) / (len(addresses) - at)
            try:
                async with asyncio.timeout(share):
                    connection = await self._connections.to_address(host, port, lane)
            except TimeoutError as error:
                if isinstance(error, OttlaError):
                    raise
                problems.append(ConnectFailed(f"{host}:{port}", f"no answer within {share:.2g} s"))
            except WireError as error:
                if not isinstance(client_error(error), ClusterUnreachable):
                    raise
                problems.append(error)
            else:
                self._reached = True
                return connection
        if now() >= self._tried_since + limit:
            raise ClusterUnreachable("; ".join(dict.fromkeys(map(str, problems))))
        raise problems[0]

    async def _first_as_advertised(self, node: Node, lane: str) -> Connection:
        """A connection to the first broker that is asked for at the address it advertises."""
        now = asyncio.get_running_loop().time
        limit = self.settings.bootstrap_timeout
        if self._advertised_since is None:
            self._advertised_since = now()
        left = self._advertised_since + limit - now()
        patience = left if left > 0 else limit  # of calls that come later each may try once
        problem = await self._try_as_advertised(node, lane, patience)
        if not isinstance(problem, WireError):
            return problem
        if now() < self._advertised_since + limit or await self._is_there(node, limit):
            raise problem
        raise AdvertisedUnreachable(
            f"{self.settings.bootstrap} answers and names {node.host}:{node.port} as the address of "
            f"broker {node.id}, which cannot be reached from here ({problem}); "
            "advertised.listeners of the broker says so"
        )

    async def _try_as_advertised(
        self, node: Node, lane: str, patience: float
    ) -> Connection | WireError:
        try:
            async with asyncio.timeout(max(patience, 0.05)):
                connection = await self._connections.to(node, lane)
        except TimeoutError as error:
            if isinstance(error, OttlaError):
                raise
            return ConnectFailed(f"{node.host}:{node.port}", f"no answer within {patience:.2g} s")
        except WireError as error:
            if not isinstance(client_error(error), ClusterUnreachable):
                raise
            return error
        self._reached_as_advertised = True
        return connection

    async def _is_there(self, missed: Node, patience: float) -> bool:
        """Whether the cluster can be reached at its advertised addresses, apart from this broker; also
        True if no broker answers at all any more. Both are waited for; False is a wrong address."""
        if self._connections.open_one() is None:
            return True
        others = [each for each in self.metadata.nodes.values() if each.id != missed.id]
        tries = [self._try_as_advertised(each, "", patience) for each in others]
        return any(isinstance(each, Connection) for each in await asyncio.gather(*tries))

    # Metadata

    async def refresh(
        self, topics: Iterable[str] | None = (), *, allow_auto_create: bool = False
    ) -> None:
        """Ask for metadata now: of these topics, of all (None), or of the brokers alone (empty).

        Raises WireError where no broker answers: `ask` knows what to do about it.
        """
        asked = None if topics is None else sorted(set(topics))
        connection = await self.any_connection()
        answer = await connection.request(
            MetadataRequest(
                topics=None if asked is None else [MetadataRequestTopic(name=n) for n in asked],
                allow_auto_topic_creation=allow_auto_create,
            ),
            MetadataResponse,
        )
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self.metadata.forget_nodes()
            connection.close()
            raise broker_error(ErrorCode.NETWORK_EXCEPTION, "the broker asks to begin anew")
        self.metadata.learn(answer, asked, asyncio.get_running_loop().time())
        for listener in list(self._listeners):
            listener()
        async with self._refreshed:
            self._refreshed.notify_all()

    async def brokers(self, *, timeout: float | None = None) -> dict[int, Node]:
        """The brokers of the cluster, asked for now."""
        answer = await self.ask(MetadataRequest(topics=[]), MetadataResponse, timeout=timeout)
        self.metadata.learn(answer, (), asyncio.get_running_loop().time())
        return self.metadata.nodes

    async def of_every_broker(
        self, ask: Callable[[int], Awaitable[_Result]], *, timeout: float | None = None
    ) -> list[_Result]:
        """What every broker tells. If one leaves the cluster before it has answered, all are asked
        again: others have taken over what it would have told."""
        while True:
            nodes = list(await self.brokers(timeout=timeout))
            try:
                return list(await asyncio.gather(*map(ask, nodes)))
            except BrokerError as error:
                if error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                    raise
                logger.debug("asking all brokers again: %s", error)

    async def topic(
        self,
        name: str,
        *,
        timeout: float | None = None,
        wait: bool = False,
        allow_auto_create: bool = False,
        topic_wait: float = math.inf,
    ) -> TopicInfo:
        """A topic, from the cache if it is there and young enough.

        A topic that does not exist raises TopicNotFound; with `wait` it is waited for, `topic_wait`
        seconds at most.
        """
        found = await self.topics(
            [name],
            timeout=timeout,
            wait=wait,
            allow_auto_create=allow_auto_create,
            topic_wait=topic_wait,
        )
        return found[name]

    async def topics(
        self,
        names: Iterable[str],
        *,
        timeout: float | None = None,
        wait: bool = False,
        allow_auto_create: bool = False,
        topic_wait: float = math.inf,
    ) -> dict[str, TopicInfo]:
        """Several topics; see `topic`."""
        names = list(dict.fromkeys(names))
        missing_since: float | None = None
        deadline = Deadline.after(self.settings.api_timeout if timeout is None else timeout)
        failures = 0
        problem: OttlaError | None = None
        while True:
            missing = [name for name in names if self._is_outdated(name)]
            if not missing:
                return {name: self.metadata.topics[name] for name in names}
            try:
                async with asyncio.timeout(max(deadline.remaining, 0.001)):
                    await self.refresh(missing, allow_auto_create=allow_auto_create)
            except WireError as error:
                problem = client_error(error)
                if not isinstance(problem, PASSING):
                    raise problem from error
            except BrokerError as error:
                problem = error
            except TimeoutError:
                raise deadline.missed("Metadata", problem) from problem
            else:
                problem = self._missing(missing, wait or allow_auto_create)
                if problem is None:
                    continue
                if isinstance(problem, TopicNotFound):
                    now = asyncio.get_running_loop().time()
                    missing_since = now if missing_since is None else missing_since
                    if now - missing_since >= topic_wait:
                        raise problem
            failures += 1
            await deadline.pause(self.settings.retries_backoff.after(failures), "Metadata", problem)

    def _missing(self, names: Iterable[str], wait: bool) -> BrokerError | None:
        """Why one of the topics is not there, raised unless it may still come."""
        problem = None
        for name in names:
            if (code := self.metadata.errors.get(name)) is not None:
                problem = broker_error(code, about=f"topic '{name}'")
                may_come = wait or not isinstance(problem, TopicNotFound)
                if not (problem.retriable and may_come):
                    raise problem
        return problem

    def _is_outdated(self, name: str) -> bool:
        info = self.metadata.topics.get(name)
        if info is None:
            return True
        if name in self._stale:
            self._stale.discard(name)
            return True
        age = asyncio.get_running_loop().time() - info.updated_at
        return age > self.settings.metadata_max_age

    async def leader(self, topic: str, partition: int) -> PartitionInfo:
        """The partition with its leader; LEADER_NOT_AVAILABLE where it has none now."""
        info = await self.topic(topic)
        found = info.partitions.get(partition)
        about = f"partition {partition} of topic '{topic}'"
        if found is None:
            raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such one", about)
        if found.leader < 0:
            self.request_refresh(topic)
            raise broker_error(ErrorCode.LEADER_NOT_AVAILABLE, about=about)
        return found

    def learn_leader(
        self, topic: str, partition: int, leader: int, epoch: int, nodes: Iterable[Any] = ()
    ) -> bool:
        """Take over the current leader that a Produce or Fetch answer names (KIP-951).

        `nodes` are the answer's node endpoints. Whether it was news.
        """
        endpoints = [Node(each.node_id, each.host, each.port, each.rack) for each in nodes]
        return self.metadata.learn_leader(topic, partition, leader, epoch, endpoints)

    # Keeping up to date

    def watch(self, topics: Iterable[str] | None) -> None:
        """Keep these topics (None: all there are) up to date, in place of those watched before."""
        self._watches_all = topics is None
        self._watched = set(topics or ())
        self._begin_upkeep()
        self.request_refresh(*self._watched)

    def watch_also(self, topics: Iterable[str]) -> None:
        """Keep these topics up to date as well, until others are watched."""
        self._watched.update(topics)
        self._begin_upkeep()

    def on_refresh(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener after every refresh; what is returned ends that."""
        self._listeners.append(listener)

        def forget() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return forget

    def request_refresh(self, *topics: str) -> None:
        """Something proved to be out of date: refresh soon, in the background."""
        self._stale.update(topics)
        self._stale_nodes = True
        self._begin_upkeep()
        self._wake.set()

    async def refreshed(self) -> None:
        """Wait for the next refresh."""
        async with self._refreshed:
            await self._refreshed.wait()

    def _begin_upkeep(self) -> None:
        if self._upkeep is None:
            self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())

    async def _keep_up(self) -> None:
        """Refresh what is out of date or old, close what is idle; for as long as the client lives."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UPKEEP_INTERVAL):
                    await self._wake.wait()
            self._wake.clear()
            self._connections.close_idle()
            old = loop.time() - self.metadata.updated_at > self.settings.metadata_max_age
            if not self._stale_nodes and not (old and (self._watched or self._watches_all)):
                continue
            topics = None if self._watches_all else self._watched | self._stale
            self._stale, self._stale_nodes = set(), False
            try:
                await self.refresh(topics)
            except (WireError, OttlaError) as error:
                failures += 1
                logger.info("refreshing the metadata failed: %s", error)
                self._stale_nodes = True
            else:
                failures = 0
            # Also after a success: whoever finds the same trouble again must not make a storm.
            await asyncio.sleep(self.settings.retries_backoff.after(max(failures, 1)))

    # Coordinators

    async def coordinators(self, kind: CoordinatorKind, keys: Iterable[str]) -> Mapping[str, Node]:
        """The coordinator of each key. Raises BrokerError if one has none (now)."""
        found = {}
        missing = []
        for key in dict.fromkeys(keys):
            node = self._coordinators.get((kind, key))
            if node is None:
                missing.append(key)
            else:
                found[key] = node
        if missing:
            found.update(await self._find_coordinators(kind, missing))
        return found

    async def _find_coordinators(
        self, kind: CoordinatorKind, keys: list[str]
    ) -> Mapping[str, Node]:
        connection = await self.any_connection()
        if connection.version_of(FindCoordinatorRequest) < _BATCHED_COORDINATORS_SINCE:
            return {key: await self._find_coordinator(connection, kind, key) for key in keys}
        answer = await connection.request(
            FindCoordinatorRequest(key_type=kind, coordinator_keys=keys), FindCoordinatorResponse
        )
        found = {}
        for each in answer.coordinators:
            about = f"the coordinator of {kind.name.lower()} '{each.key}'"
            if each.error_code:
                raise broker_error(each.error_code, each.error_message, about)
            found[each.key] = self._learn_coordinator(
                kind, each.key, Node(each.node_id, each.host, each.port)
            )
        if missing := [key for key in keys if key not in found]:
            raise broker_error(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, about=f"the coordinator of '{missing[0]}'"
            )
        return found

    async def _find_coordinator(
        self, connection: Connection, kind: CoordinatorKind, key: str
    ) -> Node:
        answer = await connection.request(
            FindCoordinatorRequest(key_type=kind, key=key), FindCoordinatorResponse
        )
        if answer.error_code:
            about = f"the coordinator of {kind.name.lower()} '{key}'"
            raise broker_error(answer.error_code, answer.error_message, about)
        return self._learn_coordinator(kind, key, Node(answer.node_id, answer.host, answer.port))

    def _learn_coordinator(self, kind: CoordinatorKind, key: str, node: Node) -> Node:
        self._coordinators[kind, key] = node
        return node

    def known_coordinator(self, kind: CoordinatorKind, key: str) -> Node | None:
        """The coordinator of the key, if it has been looked for."""
        return self._coordinators.get((kind, key))

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        """It is not the coordinator any more, or cannot be reached: look for it anew."""
        self._coordinators.pop((kind, key), None)

    # The end

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._upkeep
        await self._connections.close()

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _name_of(answer: type[Message]) -> str:
    return answer.__name__.removesuffix("Response")
