"""The options of clients: librdkafka's names, with the Java client's names as synonyms.

    read_settings(ConsumerSettings, "localhost:9092", {"group.id": "g", "isolation_level": …})

Each settings class is the table of its options: a field's declaration gives the option's name, its
other names, how its value is read, and its default. Times are seconds here, whatever unit the
option's name has. In names given as keyword arguments, dots are underscores. What an option means is
what librdkafka's and Kafka's documentation say of it; where the two differ, the comment says which.

Unknown options are refused, with the nearest name that is known. Options of another kind of client
(`acks` for a consumer) and those that have no meaning here (`IGNORED_OPTIONS`) are accepted, with a line
in the log, so that one dictionary can serve several clients.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

from ottla.client.configuration.options import (
    Option,
    boolean,
    choice,
    integer,
    kibibytes,
    milliseconds,
    option,
    options_of,
    some_text,
    text,
    words,
)
from ottla.client.configuration.security import SECURITY_OPTIONS, read_security
from ottla.client.errors import ConfigurationError
from ottla.wire.backoff import Backoff
from ottla.wire.connection import ConnectionOptions
from ottla.wire.security import PLAINTEXT, Security

logger = logging.getLogger(__name__)

Partitioner: TypeAlias = str | Callable[..., Any]  # the name of one, or a function

DEFAULT_PORT: Final = 9092
FOREVER: Final = float("inf")
_MIB: Final = 1024 * 1024
_INT32: Final = 2**31 - 1
# What librdkafka takes for "no limit" in retries, and Java in timeouts.
_LARGEST_INT: Final = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What every client needs to know about its cluster."""

    servers: tuple[tuple[str, int], ...]  # bootstrap.servers, as host and port
    security: Security = PLAINTEXT  # all ssl.* and sasl.* options, and security.protocol

    client_id: str = option("client.id", text, "ottla")
    client_rack: str = option("client.rack", text, "")
    request_timeout: float = option(
        "request.timeout.ms", milliseconds(1), 30.0, also=("socket.timeout.ms",)
    )
    # How long calls that need several requests and retries (admin, metadata) may take as a whole.
    api_timeout: float = option("default.api.timeout.ms", milliseconds(1), 60.0)
    # How long to try if none of the bootstrap servers has ever answered: a wrong address, mostly.
    bootstrap_timeout: float = option("bootstrap.timeout.ms", milliseconds(0), 5.0)
    metadata_max_age: float = option(
        "metadata.max.age.ms",
        milliseconds(1, forever=-1),
        300.0,
        also=("topic.metadata.refresh.interval.ms",),
    )
    metadata_recovery: Literal["none", "rebootstrap"] = option(
        "metadata.recovery.strategy", choice("none", "rebootstrap"), "rebootstrap"
    )
    retry_backoff: float = option("retry.backoff.ms", milliseconds(0), 0.1)
    retry_backoff_max: float = option("retry.backoff.max.ms", milliseconds(0), 1.0)
    reconnect_backoff: float = option("reconnect.backoff.ms", milliseconds(0), 0.05)
    reconnect_backoff_max: float = option("reconnect.backoff.max.ms", milliseconds(0), 1.0)
    setup_timeout: float = option("socket.connection.setup.timeout.ms", milliseconds(1), 10.0)
    setup_timeout_max: float = option(
        "socket.connection.setup.timeout.max.ms", milliseconds(1), 30.0
    )
    idle_timeout: float = option("connections.max.idle.ms", milliseconds(0, forever=-1), 540.0)
    send_buffer: int = option(
        "socket.send.buffer.bytes", integer(-1), 0, also=("send.buffer.bytes",)
    )
    receive_buffer: int = option(
        "socket.receive.buffer.bytes", integer(-1), 0, also=("receive.buffer.bytes",)
    )
    receive_limit: int = option("receive.message.max.bytes", integer(1000, _INT32), 1_000_000_000)
    auto_create_topics: bool = option("allow.auto.create.topics", boolean, False)

    role: ClassVar[str] = "client"

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers as one text."""
        return ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )

    @property
    def retries_backoff(self) -> Backoff:
        """Between tries of a request."""
        return Backoff(self.retry_backoff, max(self.retry_backoff, self.retry_backoff_max))

    @property
    def reconnects_backoff(self) -> Backoff:
        """Between tries to connect to one broker."""
        return Backoff(
            self.reconnect_backoff, max(self.reconnect_backoff, self.reconnect_backoff_max)
        )

    def connection_options(self, failures: int = 0) -> ConnectionOptions:
        """Those of a new connection; after failures in a row setting it up may take longer."""
        setup = min(
            self.setup_timeout * 2.0 ** min(failures, 16),
            max(self.setup_timeout, self.setup_timeout_max),
        )
        return ConnectionOptions(
            client_id=self.client_id,
            request_timeout=self.request_timeout,
            setup_timeout=setup,
            send_buffer=max(self.send_buffer, 0),
            receive_buffer=max(self.receive_buffer, 0),
            receive_limit=self.receive_limit,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(ClientSettings):
    """Those of Admin: nothing beyond what every client has."""

    role: ClassVar[str] = "admin"


def _read_acks(value: object) -> int:
    return int(choice("-1", "0", "1", all="-1")(value))


def _read_partitioner(value: object) -> Partitioner:
    return value if callable(value) else some_text(value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """The settings of a Producer."""

    role: ClassVar[str] = "producer"

    acks: int = option("acks", _read_acks, -1, also=("request.required.acks",))
    # None: on where acks and the requests in flight allow it, as in Java.
    idempotence: bool | None = option("enable.idempotence", boolean, None)
    transactional_id: str | None = option("transactional.id", some_text, None)
    transaction_timeout: float = option("transaction.timeout.ms", milliseconds(1000), 60.0)
    two_phase_commit: bool = option("transaction.two.phase.commit.enable", boolean, False)
    linger: float = option("linger.ms", milliseconds(0), 0.005, also=("queue.buffering.max.ms",))
    batch_size: int = option("batch.size", integer(1, _INT32), 1_000_000)
    batch_records: int = option("batch.num.messages", integer(1, _INT32), 1_000_000)
    # The largest request: librdkafka's message.max.bytes and Java's max.request.size.
    request_size: int = option(
        "message.max.bytes", integer(1000, _INT32), 1_048_576, also=("max.request.size",)
    )
    buffer_size: int = option("queue.buffering.max.kbytes", kibibytes(), 64 * _MIB)
    buffer_memory: int | None = option("buffer.memory", integer(1), None)  # Java's, in bytes
    max_block: float = option("max.block.ms", milliseconds(0), 60.0)
    # How long a topic that is not there may take to appear: one that was made a moment ago.
    topic_wait: float = option("topic.metadata.propagation.max.ms", milliseconds(0), 5.0)
    in_flight: int = option(
        "max.in.flight.requests.per.connection",
        integer(1, 1_000_000),
        5,
        also=("max.in.flight",),
    )
    retries: int = option(
        "retries", integer(0, _LARGEST_INT), _LARGEST_INT, also=("message.send.max.retries",)
    )
    delivery_timeout: float = option(
        "delivery.timeout.ms",
        milliseconds(0, forever=0),
        120.0,
        also=("message.timeout.ms",),
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = option(
        "compression.type",
        choice("none", "gzip", "snappy", "lz4", "zstd"),
        "none",
        also=("compression.codec",),
    )
    compression_level: int | None = option("compression.level", integer(-131072, 22), None)
    partitioner: Partitioner = option(  # noqa: RUF009 - a field, as all the others
        "partitioner", _read_partitioner, "murmur2_random"
    )
    # The other clients do not ask brokers to create topics; producers do, as Java's and librdkafka's.
    auto_create_topics: bool = option("allow.auto.create.topics", boolean, True)

    @property
    def buffer_limit(self) -> int:
        """Bytes of records that may wait: buffer.memory if it was given, else librdkafka's."""
        return self.buffer_size if self.buffer_memory is None else self.buffer_memory


_BY_DURATION: Final = re.compile(
    r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


def _read_offset_reset(value: object) -> str | float:
    matched = _BY_DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if matched is not None and any(matched.groups()):
        days, hours, minutes, seconds = (float(part or 0) for part in matched.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    try:
        named: str = choice(
            "earliest",
            "latest",
            "error",
            smallest="earliest",
            beginning="earliest",
            largest="latest",
            end="latest",
            none="error",
        )(value)
    except ValueError as error:
        raise ValueError(f"{error}, or by_duration:PnDTnHnMnS") from None
    return named


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """The settings of a Consumer."""

    role: ClassVar[str] = "consumer"

    group_id: str | None = option("group.id", some_text, None)
    group_instance_id: str | None = option("group.instance.id", some_text, None)
    # None: the consumer protocol (KIP-848) where the broker has it, else the classic one.
    group_protocol: Literal["classic", "consumer"] | None = option(
        "group.protocol", choice("classic", "consumer"), None
    )
    remote_assignor: str | None = option("group.remote.assignor", some_text, None)
    assignment_strategies: tuple[str, ...] = option(
        "partition.assignment.strategy", words, ("range", "cooperative-sticky")
    )
    session_timeout: float = option("session.timeout.ms", milliseconds(1), 45.0)
    heartbeat_interval: float = option("heartbeat.interval.ms", milliseconds(1), 3.0)
    max_poll_interval: float = option("max.poll.interval.ms", milliseconds(1), 300.0)
    auto_commit: bool = option("enable.auto.commit", boolean, True)
    auto_commit_interval: float = option("auto.commit.interval.ms", milliseconds(1), 5.0)
    # As a number: so many seconds before the present (by_duration, KIP-1106).
    offset_reset: Literal["earliest", "latest", "error"] | float = option(
        "auto.offset.reset", _read_offset_reset, "latest"
    )
    isolation: Literal["read_committed", "read_uncommitted"] = option(
        "isolation.level", choice("read_committed", "read_uncommitted"), "read_committed"
    )
    check_crcs: bool = option("check.crcs", boolean, True)
    fetch_min_bytes: int = option("fetch.min.bytes", integer(0, _INT32), 1)
    fetch_wait: float = option(
        "fetch.wait.max.ms", milliseconds(0), 0.5, also=("fetch.max.wait.ms",)
    )
    fetch_max_bytes: int = option("fetch.max.bytes", integer(0, _INT32), 50 * _MIB)
    partition_max_bytes: int = option(
        "max.partition.fetch.bytes",
        integer(1, _INT32),
        8 * _MIB,
        also=("fetch.message.max.bytes",),
    )
    # Bytes of answers that may wait for the user, over all partitions.
    queued_max_bytes: int = option("queued.max.messages.kbytes", kibibytes(), 64 * _MIB)
    exclude_internal_topics: bool = option("exclude.internal.topics", boolean, True)

    @property
    def reads_committed(self) -> bool:
        """Whether records of transactions that were not committed are left out."""
        return self.isolation == "read_committed"


# Options of librdkafka and the Java client that mean nothing here, each with the reason.
IGNORED_OPTIONS: Final[Mapping[str, str]] = {
    "api.version.request": "versions are always negotiated",
    "api.version.fallback.ms": "versions are always negotiated",
    "broker.version.fallback": "versions are always negotiated",
    "builtin.features": "what is built in is built in",
    "client.dns.lookup": "all addresses of a name are tried",
    "debug": "the logger ottla.client is Python's own",
    "enable.auto.offset.store": "offsets are those of what was handed out",
    "enable.metrics.push": "no telemetry is sent",
    "enable.partition.eof": "only records are handed out; a timeout of batches() ends a loop",
    "interceptor.classes": "Java classes cannot be loaded",
    "key.deserializer": "Java classes cannot be loaded; see the formats of batches()",
    "key.serializer": "Java classes cannot be loaded; see the formats of write()",
    "log.connection.close": "the logger ottla.client is Python's own",
    "log.queue": "the logger ottla.client is Python's own",
    "log_level": "the logger ottla.client is Python's own",
    "max.poll.records": "batches() hands out what was fetched; fetch.max.bytes bounds it",
    "metadata.recovery.rebootstrap.trigger.ms": (
        "the bootstrap servers are asked as soon as no other broker can be reached"
    ),
    "metric.reporters": "Java classes cannot be loaded",
    "metrics.num.samples": "there are no such metrics",
    "metrics.recording.level": "there are no such metrics",
    "metrics.sample.window.ms": "there are no such metrics",
    "queue.buffering.max.messages": "the buffer is bounded in bytes",
    "queued.min.messages": "fetching ahead is bounded in bytes",
    "socket.keepalive.enable": "keepalive is always on",
    "socket.nagle.disable": "Nagle's algorithm is always off",
    "statistics.interval.ms": "there are no such statistics",
    "topic.blacklist": "every topic that is asked for is used",
    "value.deserializer": "Java classes cannot be loaded; see the formats of batches()",
    "value.serializer": "Java classes cannot be loaded; see the formats of write()",
}

_Settings = TypeVar("_Settings", bound=ClientSettings)
_SERVER_NAMES: Final = ("bootstrap.servers", "metadata.broker.list")
_CLASSES: Final = (ClientSettings, AdminSettings, ProducerSettings, ConsumerSettings)


# A file with further options, in Java's syntax for properties: secrets need not be anywhere else.
CONFIG_FILE: Final = "config.file"
# Names such a file for clients that are not told one.
CONFIG_VARIABLE: Final = "OTTLA_CLIENT_CONFIG"


def read_settings(
    kind: type[_Settings],
    servers: str | Mapping[str, object] | None,
    options: Mapping[str, object] | None = None,
) -> _Settings:
    """The settings of a client from what its user gave: addresses, a dictionary, or both.

    `servers` is "host:port,…" or a dictionary that has bootstrap.servers; `options` win over it.
    Options whose value is None count as not given. Raises ConfigurationError.
    """
    given: dict[str, object] = {}
    addresses: object = None
    if isinstance(servers, Mapping):
        given.update((_canonical(name), value) for name, value in servers.items())
    elif servers is not None:
        addresses = servers
    given.update((_canonical(name), value) for name, value in (options or {}).items())
    given = {name: value for name, value in given.items() if value is not None}
    given = {**_from_file(given.pop(CONFIG_FILE, None)), **given}
    for name in _SERVER_NAMES:
        named = given.pop(name, None)
        addresses = addresses if addresses is not None else named
    if addresses is None:
        raise ConfigurationError(
            'no servers were given; pass "host:port" first, or the option bootstrap.servers'
        )
    security = {name: given.pop(name) for name in list(given) if name in SECURITY_OPTIONS}
    values: dict[str, Any] = {}
    known = _names_of(kind)
    for name, value in given.items():
        if name in known:
            field, declared = known[name]
            if field in values and declared.name != name:
                continue  # the option's own name wins over its synonyms
            values[field] = _read(declared, name, value)
        else:
            _pass_over(kind, name)
    return kind(servers=parse_servers(addresses), security=read_security(security), **values)


def _from_file(path: object) -> dict[str, object]:
    """The options of a file: of the one that is named, or that the environment names."""
    import os

    path = path or os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    from ottla.properties import parse_properties

    try:
        with open(os.path.expanduser(str(path)), encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{CONFIG_FILE}={path} cannot be read: {why}") from None
    # Which servers are meant is said where the client is made.
    return {
        _canonical(name): value
        for _, name, value in parse_properties(text)
        if _canonical(name) not in _SERVER_NAMES
    }


def _canonical(name: str) -> str:
    dotted = name.replace("_", ".")
    return name if name in IGNORED_OPTIONS else dotted


def _names_of(kind: type[ClientSettings]) -> dict[str, tuple[str, Option]]:
    return {
        name: (field, declared)
        for field, declared in options_of(kind).items()
        for name in (declared.name, *declared.also)
    }


def _read(declared: Option, name: str, value: object) -> Any:
    try:
        return declared.read(value)
    except ValueError as error:
        raise ConfigurationError(f"{name} takes {error}, not {value!r}") from None


def _pass_over(kind: type[ClientSettings], name: str) -> None:
    if name in IGNORED_OPTIONS:
        logger.info("option %s has no meaning here: %s", name, IGNORED_OPTIONS[name])
        return
    elsewhere = {each for other in _CLASSES for each in _names_of(other)}
    if name in elsewhere:
        logger.warning("option %s has no meaning for a %s and is ignored", name, kind.role)
        return
    known = {
        *_names_of(kind),
        *SECURITY_OPTIONS,
        *_SERVER_NAMES,
        CONFIG_FILE,
        *elsewhere,
        *IGNORED_OPTIONS,
    }
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigurationError(f"{name} is no option of a {kind.role}{hint}")


def parse_servers(value: object) -> tuple[tuple[str, int], ...]:
    """`host[:port],…` (an IPv6 address in brackets, a protocol in front is dropped), or a list."""
    try:
        parts = words(value)
    except ValueError:
        raise ConfigurationError(f"bootstrap.servers takes host:port,…, not {value!r}") from None
    servers = []
    for part in parts:
        address = part.rpartition("://")[2]
        host, port = address, str(DEFAULT_PORT)
        if not address.endswith("]") and ":" in address:
            host, _, port = address.rpartition(":")
        plain = host.strip("[]")
        if (
            not plain
            or (":" in plain) != host.startswith("[")
            or not (port.isascii() and port.isdigit())
            or not 0 < int(port) < 65536
        ):
            raise ConfigurationError(f"bootstrap.servers takes host:port, not '{part}'")
        servers.append((plain, int(port)))
    if not servers:
        raise ConfigurationError("bootstrap.servers takes host:port,…, and it is empty")
    return tuple(servers)
