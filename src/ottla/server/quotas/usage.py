"""Quotas: how much each client may send, be sent, keep the broker busy with, and change.

What a client uses is taken from a bucket that fills at the rate of its quota and holds what comes in
`quota.window.num` - 1 windows of `quota.window.size.seconds`, so that a short burst costs nothing, as
with Kafka's average over these windows. Who takes more than is there owes it: the answer says for how
long the client should send nothing (throttle time), and for so long no request of its connection is
handled.

A broker whose cluster has no quotas has no `Quotas` (see Broker.quotas). No I/O but for muting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.cluster.metadata import ResourceType
from ottla.cluster.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    candidates,
    entity_key,
    entity_of,
)
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.server.replication.changes import Client
from ottla.server.security.addresses import of_connection, plain_address
from ottla.settings import INT_MAX

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage
    from ottla.server.broker import Broker
    from ottla.server.configuration.broker_config import BrokerConfig
    from ottla.server.network.connection import Connection

# Buckets that are kept at most; full ones are forgotten first, for they are as new.
_KEPT: Final = 50_000
# Client ids are kept with them, and every request may have another one, of up to 32 kB.
_LONGEST_CLIENT_ID: Final = 255
# The longest time that the use of the broker's loop mutes a client for, as in Kafka.
_LONGEST_REQUEST_THROTTLE: Final = 1.0
# The longest time that can be told in milliseconds: 24 days. A large request of a client with a tiny
# quota would cost more.
_LONGEST_THROTTLE: Final = INT_MAX / 1000
# Connections that have to wait for longer than this are not counted: a flood of them must not keep
# others out for hours after it has ended.
_LONGEST_CONNECTION_DEBT: Final = 30.0


class Bucket:
    """What a client may still use. It fills with time and may be owed from."""

    __slots__ = ("_at", "_level", "rate", "size")

    def __init__(self, rate: float, window: float, now: float) -> None:
        self.rate = rate
        self.size = rate * window
        self._level = self.size
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Use so much; for how many seconds more than there was."""
        self._fill(now)
        self._level -= amount
        return 0.0 if self._level >= 0 else -self._level / self.rate

    def connect(self, now: float) -> float:
        """A connection was made; for how many seconds it is left unread."""
        owed = self.owes(now)
        return owed if owed > _LONGEST_CONNECTION_DEBT else self.take(1, now)

    def owes(self, now: float) -> float:
        """For how many seconds more was used than there was."""
        self._fill(now)
        return 0.0 if self._level >= 0 else -self._level / self.rate

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self._level >= self.size

    def _fill(self, now: float) -> None:
        passed = now - self._at
        if passed > 0:
            self._level = min(self.size, self._level + passed * self.rate)
            self._at = now


class Quotas:
    """The quotas of a cluster, and what its clients have used of them here."""

    def __init__(
        self,
        window: float,
        controller_window: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Windows are in seconds."""
        self._window = window
        self._controller_window = controller_window
        self._clock = clock
        self._set: dict[str, dict[str, float]] = {}
        self._buckets: dict[tuple[str, str, str], Bucket] = {}
        # Which bucket a client takes from, by kind, user and client id; None: there is no quota.
        self._known: dict[tuple[str, str, str], Bucket | None] = {}

    @staticmethod
    def are_set(image: ClusterImage) -> bool:
        return any(kind is ResourceType.QUOTA for kind, _ in image.configs)

    def load(self, image: ClusterImage) -> None:
        """Take the quotas of the metadata; what was used counts on where the rate stays."""
        self._set = {
            _counted_for(key): {name: float(value) for name, value in values.items()}
            for (kind, key), values in image.configs.items()
            if kind is ResourceType.QUOTA
        }
        self._known.clear()

    def has(self, kind: str) -> bool:
        """Whether anybody has a quota of this kind."""
        return any(kind in each for each in self._set.values())

    # What is used -------------------------------------------------------------------------------

    def produced(self, connection: Connection, size: int) -> int:
        """The client has sent so many bytes to be stored; for how many milliseconds it is muted."""
        return self._throttle(PRODUCER_BYTE_RATE, connection, size)

    def fetched(self, connection: Connection, size: int) -> int:
        """The client is sent so many bytes of records."""
        return self._throttle(CONSUMER_BYTE_RATE, connection, size)

    def kept_busy(self, connection: Connection, seconds: float) -> int:
        """A request has kept the broker's loop busy for so long."""
        return self._throttle(
            REQUEST_PERCENTAGE, connection, 100 * seconds, _LONGEST_REQUEST_THROTTLE
        )

    def _throttle(
        self,
        kind: str,
        connection: Connection,
        amount: float,
        longest: float = _LONGEST_THROTTLE,
    ) -> int:
        bucket = self._bucket(kind, connection, self._window)
        if bucket is None:
            return 0
        seconds = min(bucket.take(amount, self._clock()), longest)
        if seconds <= 0:
            return 0
        connection.mute(seconds)
        return max(1, int(seconds * 1000))

    def check_mutations(self, client: Client) -> None:
        """Whether a client may change the metadata now; raises THROTTLING_QUOTA_EXCEEDED."""
        bucket = self._bucket_of(CONTROLLER_MUTATION_RATE, *client, self._controller_window)
        if bucket is not None and bucket.owes(self._clock()) > 0:
            raise ProtocolError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "The throttling quota has been exceeded: too many changes of topics and partitions.",
            )

    def mutated(self, client: Client, partitions: int) -> int:
        """So many partitions were made or deleted; for how many milliseconds nothing more should be."""
        bucket = self._bucket_of(CONTROLLER_MUTATION_RATE, *client, self._controller_window)
        if bucket is None:
            return 0
        return int(min(bucket.take(partitions, self._clock()), _LONGEST_THROTTLE) * 1000)

    def connected(self, host: str) -> float:
        """An address has made a connection; for how many seconds nothing is read from it."""
        host = of_connection(host)
        key = (CONNECTION_CREATION_RATE, host, "")
        if key not in self._known:
            self._remember(key, self._of_address(host))
        bucket = self._known[key]
        return 0.0 if bucket is None else bucket.connect(self._clock())

    # Which quota counts -------------------------------------------------------------------------

    def _bucket(self, kind: str, connection: Connection, window: float) -> Bucket | None:
        return self._bucket_of(kind, *quota_client(connection), window)

    def _bucket_of(self, kind: str, user: str, client_id: str, window: float) -> Bucket | None:
        key = (kind, user, client_id)
        if key not in self._known:
            self._remember(key, self._of_client(kind, user, client_id, window))
        return self._known[key]

    def _remember(self, key: tuple[str, str, str], bucket: Bucket | None) -> None:
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[key] = bucket

    def _of_client(self, kind: str, user: str, client_id: str, window: float) -> Bucket | None:
        for entity, by_user, by_client in candidates(user, client_id):
            rate = self._set.get(entity_key(entity), {}).get(kind)
            if rate is not None:
                counted = (kind, user if by_user else "", client_id if by_client else "")
                return self._made(counted, rate, window)
        return None

    def _of_address(self, host: str) -> Bucket | None:
        for name in (host, None):
            rate = self._set.get(entity_key({IP: name}), {}).get(CONNECTION_CREATION_RATE)
            if rate is not None:
                return self._made((CONNECTION_CREATION_RATE, host, ""), rate, self._window)
        return None

    def _made(self, counted: tuple[str, str, str], rate: float, window: float) -> Bucket:
        now = self._clock()
        bucket = self._buckets.get(counted)
        if bucket is None or bucket.rate != rate:
            if len(self._buckets) >= _KEPT:
                self._forget_some(now)
            bucket = self._buckets[counted] = Bucket(rate, window, now)
        return bucket

    def _forget_some(self, now: float) -> None:
        """Forget buckets: the full ones, and of the others the older half. A client with a new id in
        each request would otherwise have all of them looked through each time, and more and more
        kept."""
        owing = [item for item in self._buckets.items() if not item[1].is_full(now)]
        self._buckets = dict(owing[-(_KEPT // 2) :])


def _counted_for(key: str) -> str:
    """The key of an entity; an address stands in it as that of a connection does, however the
    administrator wrote it."""
    if f'"{IP}"' not in key:
        return key
    address = entity_of(key).get(IP)
    return key if address is None else entity_key({IP: plain_address(address)})


def quota_client(connection: Connection) -> Client:
    """Who a connection's client is, as quotas count."""
    client_id = connection.client_id
    if len(client_id) > _LONGEST_CLIENT_ID:
        client_id = _shortened(client_id)
    return Client(connection.principal.partition(":")[2], client_id)


def _shortened(client_id: str) -> str:
    """Stands for a long client id."""
    import hashlib  # not at the start, for hardly anybody has one

    digest = hashlib.sha256(client_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{client_id[:_LONGEST_CLIENT_ID]}…{digest}"


def follow_quotas(broker: Broker) -> None:
    """The broker's quotas are those of the metadata. Without any it has none, and measures nothing."""
    config, image = broker.config, broker.image
    if not Quotas.are_set(image):
        broker.quotas = None
    else:
        if broker.quotas is None:
            broker.quotas = Quotas(
                (config.quota_window_num - 1) * config.quota_window_size_seconds or 1,
                (config.controller_quota_window_num - 1)
                * config.controller_quota_window_size_seconds
                or 1,
            )
        broker.quotas.load(image)
    quotas = broker.quotas
    is_timed = quotas is not None and quotas.has(REQUEST_PERCENTAGE)
    for api in broker.apis.values():
        api.measure(_kept_busy(broker, quotas) if quotas is not None and is_timed else None)
    broker.reactor.connection_delay = _connection_delay(broker, quotas)


def _kept_busy(broker: Broker, quotas: Quotas) -> Callable[[Connection, float], object]:
    def kept_busy(connection: Connection, seconds: float) -> None:
        if not is_broker(broker, connection):
            quotas.kept_busy(connection, seconds)

    return kept_busy


def is_broker(broker: Broker, connection: Connection) -> bool:
    """Whether the peer is another broker, for which there are no quotas. Anybody may call itself so:
    it must have come by the way of brokers, and be allowed to be one."""
    if (
        not connection.client_id.startswith("broker-")
        or connection.listener.name != broker.config.inter_broker_listener
    ):
        return False
    if broker.authorizer is None:
        return True
    # Not at the start of a broker that has none.
    from ottla.protocol.acls import AclOperation
    from ottla.server.security.access import Access

    access = Access(broker.authorizer, connection)
    return access.cluster(AclOperation.CLUSTER_ACTION, logged=False)


def _connection_delay(broker: Broker, quotas: Quotas | None) -> Callable[[str, str], float] | None:
    limits = {
        each.name: rate
        for each in broker.config.listeners
        if (rate := _connection_rate(broker.config, each.name)) < INT_MAX
    }
    if not limits and (quotas is None or not quotas.has(CONNECTION_CREATION_RATE)):
        return None
    now = time.monotonic()
    buckets = {name: Bucket(max(rate, 0.001), 1, now) for name, rate in limits.items()}

    def delay(host: str, listener: str) -> float:
        bucket = buckets.get(listener)
        own = 0.0 if bucket is None else bucket.connect(time.monotonic())
        return own if quotas is None else max(own, quotas.connected(host))

    return delay


def _connection_rate(config: BrokerConfig, listener: str) -> int:
    """How many connections a second a listener takes. A limit for all is none for brokers, which would
    fall behind while clients flood the others, unless it is theirs."""
    name = "max.connection.creation.rate"
    rate: int | None
    if listener == config.protected_listener:
        rate = config.of_listener_alone(listener, name)
    else:
        rate = config.of_listener(listener, name)
    return INT_MAX if rate is None else rate


def quotas_of(image: ClusterImage) -> Mapping[str, Mapping[str, str]]:
    """What is set, by entity keys."""
    return {
        key: values for (kind, key), values in image.configs.items() if kind is ResourceType.QUOTA
    }
