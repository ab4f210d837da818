"""What can be configured on a broker: the table of settings, in sections.

Names, types, limits and defaults are Kafka's, apart from `DIFFERENT_DEFAULTS` and from the section
of Ottla's own. `awaits` marks settings whose feature comes with a later version; they are checked
and shown, and have no effect until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.server.configuration.coordinator_settings import (
    group_settings,
    share_group_settings,
    transaction_settings,
)
from ottla.server.configuration.security_settings import (
    access_settings,
    sasl_settings,
    tls_settings,
)
from ottla.settings import (
    INT_MAX,
    LONG_MAX,
    Scope,
    Setting,
    SettingTable,
    SettingType,
    at_least,
    one_of,
    some,
)
from ottla.storage.config import LOG_BROKER_SETTINGS

DEFAULT_NODE_ID = 1
DEFAULT_LOG_DIR = "./data"
DEFAULT_LISTENER = "PLAINTEXT://127.0.0.1:9092"
DEFAULT_SECURITY_PROTOCOL_MAP = (
    "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
)
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_BOOLEAN, _STRING, _LIST = SettingType.BOOLEAN, SettingType.STRING, SettingType.LIST
_INT, _LONG, _DOUBLE = SettingType.INT, SettingType.LONG, SettingType.DOUBLE
_CLUSTER_WIDE = Scope.CLUSTER_WIDE


def _identity() -> Iterator[Setting]:
    yield Setting(
        "node.id",
        _INT,
        DEFAULT_NODE_ID,
        at_least(0),
        "The broker's number, unique in its cluster and the same for the life of its data.",
    )
    yield Setting(
        "broker.id",
        _INT,
        DEFAULT_NODE_ID,
        at_least(-1),
        "The older name of node.id; -1 stands for not set. If both are set they must agree.",
    )
    yield Setting(
        "broker.rack",
        _STRING,
        None,
        None,
        "Where the broker stands (a rack, a zone); clients are told, and replicas are spread.",
    )
    yield Setting(
        "listeners",
        _LIST,
        (DEFAULT_LISTENER,),
        some(),
        "The addresses to listen on, as NAME://host:port. An empty host is every interface, port 0 "
        "a free one. IPv6 addresses stand in brackets.",
    )
    yield Setting(
        "advertised.listeners",
        _LIST,
        None,
        some(),
        "The addresses that clients are told to connect to. Unset: those of listeners, with the "
        "machine's host name where a listener takes every interface.",
    )
    yield Setting(
        "listener.security.protocol.map",
        _STRING,
        DEFAULT_SECURITY_PROTOCOL_MAP,
        None,
        "Which security protocol a listener of each name speaks, as NAME:PROTOCOL pairs.",
    )
    yield Setting(
        "controller.listener.names",
        _LIST,
        None,
        None,
        "Listeners of these names are KRaft's in Kafka's own configuration files; they are not "
        "opened.",
    )
    yield Setting(
        "inter.broker.listener.name",
        _STRING,
        None,
        None,
        "The listener by which brokers talk to each other. Unset: the first one with "
        "security.inter.broker.protocol.",
    )
    yield Setting(
        "security.inter.broker.protocol",
        _STRING,
        "PLAINTEXT",
        one_of(*SECURITY_PROTOCOLS),
        "The security protocol between brokers, where inter.broker.listener.name names no listener.",
    )


def _connections() -> Iterator[Setting]:
    yield Setting(
        "connections.max.idle.ms",
        _LONG,
        600_000,
        None,
        "A connection on which nothing happened for this long is closed; negative is never.",
    )
    yield Setting(
        "max.connections",
        _INT,
        INT_MAX,
        at_least(0),
        "How many connections the broker holds at once, at most as many as it has descriptors for; "
        "further ones are closed at once. Where brokers have a listener of their own, theirs are taken "
        "all the same, and the one of a client that was idle longest is closed.",
        scope=_CLUSTER_WIDE,
    )
    yield Setting(
        "max.connections.per.ip",
        _INT,
        INT_MAX,
        at_least(0),
        "How many connections one address may have; further ones are closed at once.",
        scope=_CLUSTER_WIDE,
    )
    yield Setting(
        "max.connections.per.ip.overrides",
        _STRING,
        "",
        None,
        "Other limits for some addresses, as address:number pairs.",
        scope=_CLUSTER_WIDE,
    )
    yield Setting(
        "socket.listen.backlog.size",
        _INT,
        50,
        at_least(1),
        "How many connections the kernel holds until they are accepted.",
    )
    yield Setting(
        "socket.receive.buffer.bytes",
        _INT,
        -1,
        None,
        "The kernel's receive buffer of a connection; -1 leaves it to the system.",
    )
    yield Setting(
        "socket.request.max.bytes",
        _INT,
        104_857_600,
        at_least(1),
        "The largest request; a connection that announces a larger one is closed.",
    )
    yield Setting(
        "socket.send.buffer.bytes",
        _INT,
        262_144,
        None,
        "The kernel's send buffer of a connection; -1 leaves it to the system.",
    )
    yield Setting(
        "queued.max.request.bytes",
        _LONG,
        -1,
        None,
        "How many bytes of requests may be read and not yet answered, before the broker stops "
        "reading; at least socket.request.max.bytes; -1 is half of the memory that the limits of the "
        "process and its container leave at the start, 1 GiB at most.",
    )
    yield Setting(
        "fetch.max.bytes",
        _INT,
        57_671_680,
        at_least(1024),
        "The most that one fetch response holds, whatever the client asks for. A first batch that "
        "is larger is still sent whole.",
    )
    yield Setting(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        at_least(0),
        "How many fetch sessions are remembered.",
    )
    yield Setting(
        "max.request.partition.size.limit",
        _INT,
        2000,
        at_least(1),
        "How many partitions one DescribeTopicPartitions response holds.",
    )


def _quotas() -> Iterator[Setting]:
    yield Setting(
        "max.connection.creation.rate",
        _INT,
        INT_MAX,
        at_least(0),
        "How many connections a second a listener takes; those beyond it wait to be served. Not for a "
        "listener that only brokers use, unless it is set for that one (listener.name.…).",
        scope=_CLUSTER_WIDE,
    )
    for name, default, doc in (
        (
            "quota.window.num",
            11,
            "A client may use what its quota gives it in one window less than this, at once.",
        ),
        ("quota.window.size.seconds", 1, "How long such a window is."),
        (
            "controller.quota.window.num",
            11,
            "The same for the quota of changes (controller_mutation_rate).",
        ),
        ("controller.quota.window.size.seconds", 1, "How long such a window is."),
    ):
        yield Setting(name, _INT, default, at_least(1), doc)


def _topics() -> Iterator[Setting]:
    yield Setting(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        None,
        "Whether a topic comes into being when a client first asks for it.",
    )
    yield Setting(
        "default.replication.factor",
        _INT,
        1,
        at_least(1),
        "The number of replicas of a topic that is created without saying so. Unset: three, or as "
        "many as there are brokers.",
    )
    yield Setting("delete.topic.enable", _BOOLEAN, True, None, "Whether topics can be deleted.")
    yield Setting(
        "num.partitions",
        _INT,
        1,
        at_least(1),
        "The number of partitions of a topic that is created without saying so.",
    )


def _logs() -> Iterator[Setting]:
    yield Setting(
        "log.dir", _LIST, (DEFAULT_LOG_DIR,), some(), "The data folder, where log.dirs is not set."
    )
    yield Setting(
        "log.dirs",
        _LIST,
        None,
        some(),
        "The data folders; new partitions go to the one that has the fewest.",
    )
    yield Setting(
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        at_least(1),
        "How often logs are looked over for segments to drop.",
    )
    yield Setting(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        at_least(0),
        "How often it is written down up to where each log is safely on disk; the checkpoints of a "
        "folder are written together, as often as one of the three intervals asks for it.",
    )
    yield Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        at_least(0),
        "How often each log's start offset is written down.",
    )
    yield Setting(
        "producer.id.expiration.ms",
        _INT,
        86_400_000,
        at_least(1),
        "How long a partition remembers a producer that writes no more.",
        scope=_CLUSTER_WIDE,
    )


def _compaction() -> Iterator[Setting]:
    for name, kind, default, allowed, doc, scope in (
        (
            "log.cleaner.backoff.ms",
            _LONG,
            15_000,
            at_least(0),
            "How long the cleaner rests when no log needs it.",
            _CLUSTER_WIDE,
        ),
        (
            "log.cleaner.dedupe.buffer.size",
            _LONG,
            134_217_728,
            None,
            (
                "The memory for the keys of one pass, all cleaner workers together; at least 1 MiB "
                "for each."
            ),
            _CLUSTER_WIDE,
        ),
        (
            "log.cleaner.enable",
            _BOOLEAN,
            True,
            None,
            "Whether logs are compacted at all. The internal topics need it.",
            Scope.READ_ONLY,
        ),
        (
            "log.cleaner.io.buffer.load.factor",
            _DOUBLE,
            0.9,
            None,
            "How full the memory for keys may get before a pass ends.",
            _CLUSTER_WIDE,
        ),
        (
            "log.cleaner.io.max.bytes.per.second",
            _DOUBLE,
            1.7976931348623157e308,
            None,
            "How fast the cleaner may read and write.",
            _CLUSTER_WIDE,
        ),
        (
            "log.cleaner.threads",
            _INT,
            1,
            at_least(0),
            "The number of cleaner workers.",
            _CLUSTER_WIDE,
        ),
    ):
        yield Setting(name, kind, default, allowed, doc, (), scope)


def _replication() -> Iterator[Setting]:
    for name, kind, default, allowed, doc in (
        (
            "auto.leader.rebalance.enable",
            _BOOLEAN,
            True,
            None,
            "Whether leadership goes back to each partition's first replica by itself.",
        ),
        (
            "controlled.shutdown.enable",
            _BOOLEAN,
            True,
            None,
            "Whether a broker hands over its partitions before it stops.",
        ),
        (
            "leader.imbalance.check.interval.seconds",
            _LONG,
            300,
            at_least(1),
            "How often it is looked whether leadership should go back.",
        ),
        (
            "replica.fetch.backoff.ms",
            _INT,
            1000,
            at_least(0),
            "How long a follower rests after a fetch failed.",
        ),
        (
            "replica.fetch.max.bytes",
            _INT,
            1_048_576,
            at_least(0),
            "What a follower asks for of one partition.",
        ),
        ("replica.fetch.min.bytes", _INT, 1, None, "What a follower's fetch waits for."),
        (
            "replica.fetch.response.max.bytes",
            _INT,
            10_485_760,
            at_least(0),
            "What a follower asks for in one fetch.",
        ),
        (
            "replica.fetch.wait.max.ms",
            _INT,
            500,
            None,
            (
                "The longest wait of a follower's fetch; at most replica.lag.time.max.ms and "
                "replica.socket.timeout.ms."
            ),
        ),
        (
            "replica.high.watermark.checkpoint.interval.ms",
            _LONG,
            5000,
            None,
            "How often high watermarks are written down.",
        ),
        (
            "replica.lag.time.max.ms",
            _LONG,
            10_000,
            None,
            "How long a follower may be behind before it leaves the in-sync replicas.",
        ),
        (
            "replica.lag.max.messages",
            _LONG,
            0,
            at_least(0),
            "How many records a follower may be behind before it leaves the in-sync replicas; 0: any.",
        ),
        (
            "replica.selector.class",
            _STRING,
            None,
            one_of(RACK_AWARE_SELECTOR),
            (
                "Which replica consumers read from; unset, the leader. With this one a consumer "
                "that names its rack (client.rack) reads from an in-sync replica there."
            ),
        ),
        (
            "replica.socket.receive.buffer.bytes",
            _INT,
            1 << 20,
            None,
            "The kernel's receive buffer of a follower's connection; -1 leaves it to the system.",
        ),
        (
            "replica.socket.timeout.ms",
            _INT,
            30_000,
            None,
            (
                "How long a follower waits for an answer, beyond the time for which its fetch may "
                "wait at the leader."
            ),
        ),
    ):
        yield Setting(name, kind, default, allowed, doc)
    for side, what in (
        ("follower", "What a broker fetches of replicas that it is told to hold back"),
        ("leader", "What a broker sends to replicas that it is told to hold back"),
    ):
        yield Setting(
            f"{side}.replication.throttled.rate",
            _LONG,
            LONG_MAX,
            at_least(0),
            f"{what}, in bytes a second; see the topic setting "
            f"{side}.replication.throttled.replicas. Replicas in sync are never held back.",
            scope=_CLUSTER_WIDE,
        )
    yield Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        _LONG,
        LONG_MAX,
        at_least(0),
        "What a broker copies, in bytes a second, where it moves replicas between its data folders.",
        scope=_CLUSTER_WIDE,
    )


def _coordination() -> Iterator[Setting]:
    yield Setting(
        "zookeeper.connect",
        _STRING,
        None,
        None,
        "The ZooKeeper servers of the cluster, as HOST:PORT,…/PATH. Unset: a single broker, with a "
        "metadata store of its own in its first data folder.",
    )
    yield Setting(
        "zookeeper.session.timeout.ms",
        _INT,
        6000,
        at_least(1),
        "How long a broker may be out of touch with ZooKeeper before the cluster goes on without it.",
    )
    yield Setting(
        "zookeeper.connection.timeout.ms",
        _INT,
        15_000,
        at_least(1),
        "How long the start of a broker waits for ZooKeeper.",
    )
    yield Setting(
        "zookeeper.auth.file",
        _STRING,
        None,
        None,
        "A file with one line, USER:PASSWORD, which the broker shows to ZooKeeper. Only the broker's "
        "user should be able to read it.",
    )
    yield Setting(
        "zookeeper.auth.scheme",
        _STRING,
        "digest",
        one_of("digest", "sasl"),
        "How it is shown: sasl (DIGEST-MD5) lets ZooKeeper refuse who it does not know; with digest "
        "it takes everybody, and nodes tell whom they are open to.",
    )
    yield Setting(
        "zookeeper.set.acl",
        _BOOLEAN,
        True,
        None,
        "Whether nodes that the broker makes are open to the user of zookeeper.auth.file only. "
        "Without such a user all nodes are open to everybody.",
    )
    yield Setting(
        "zookeeper.ssl.client.enable",
        _BOOLEAN,
        False,
        None,
        "Whether connections to ZooKeeper are encrypted (TLS); zookeeper.connect then names its "
        "secure ports.",
    )
    yield Setting(
        "zookeeper.ssl.truststore.location",
        _STRING,
        None,
        None,
        "A PEM file of the authorities that may have signed ZooKeeper's certificate. Unset: those "
        "that the system trusts.",
    )
    yield Setting(
        "zookeeper.ssl.truststore.type", _STRING, None, one_of("PEM"), "What such a file is."
    )
    yield Setting(
        "zookeeper.ssl.keystore.location",
        _STRING,
        None,
        None,
        "A PEM file with the broker's certificate, those that lead to its authority, and its key.",
    )
    yield Setting(
        "zookeeper.ssl.keystore.password",
        SettingType.PASSWORD,
        None,
        None,
        "The password of the key in zookeeper.ssl.keystore.location, if it is encrypted.",
        sensitive=True,
    )
    yield Setting(
        "zookeeper.ssl.keystore.type", _STRING, None, one_of("PEM"), "What such a file is."
    )
    yield Setting(
        "zookeeper.ssl.endpoint.identification.algorithm",
        _STRING,
        "HTTPS",
        one_of("HTTPS", ""),
        "HTTPS: ZooKeeper's certificate must name the host in zookeeper.connect. Empty: any host.",
    )


def _own() -> Iterator[Setting]:
    yield Setting(
        "worker.processes",
        _INT,
        2,
        at_least(1),
        "How many processes work on records beside the broker (compressing anew, old message "
        "formats). They are started when they are first needed.",
    )
    yield Setting(
        "produce.record.validation.enable",
        _BOOLEAN,
        True,
        None,
        "Whether every record of a produced batch is looked at before it is stored, as Kafka does. "
        "Without it only the header and the checksum of a batch are, except on topics that need more "
        "(compacted ones, those that recompress, those with message.timestamp.before.max.ms): for "
        "producers that are trusted to write batches that consumers can read.",
    )
    yield Setting(
        "replica.replacement.after.ms",
        _LONG,
        -1,
        at_least(-1),
        "How long a broker may be away before its replicas are made anew on others, as far as there are "
        "brokers without one. All brokers of a cluster should have the same. -1: never.",
    )
    yield Setting(
        "log.scrub.interval.ms",
        _LONG,
        -1,
        at_least(-1),
        "How long after one round of the background scrub the next one begins: it reads every closed "
        "segment, compares the checksums, and names and counts what is damaged. -1 or 0: never.",
    )
    yield Setting(
        "log.scrub.bytes.per.second",
        _LONG,
        10_485_760,
        at_least(1),
        "How much the background scrub reads in a second.",
    )
    yield Setting(
        "log.stray.retention.ms",
        _LONG,
        -1,
        at_least(-1),
        "How long logs are kept that were set aside (`…-stray`): those of topics that the metadata "
        "store does not know, and damaged ones that were fetched again. They hold records that were "
        "deleted elsewhere. -1: until somebody removes them, as in Kafka.",
    )
    yield Setting(
        "metrics.listener",
        _STRING,
        None,
        None,
        "Where to serve metrics for Prometheus, as HOST:PORT (http://HOST:PORT/metrics). An empty "
        "host is every interface, port 0 a free one. Unset: nowhere.",
    )


SECTIONS: Mapping[str, tuple[Setting, ...]] = {
    "Identity and listeners": tuple(_identity()),
    "Connections and requests": tuple(_connections()),
    "Topics": tuple(_topics()),
    "Data folders and logs": tuple(_logs()),
    "Defaults of topic settings": tuple(LOG_BROKER_SETTINGS),
    "Compaction": tuple(_compaction()),
    "Consumer groups": tuple(group_settings()),
    "Share groups": tuple(share_group_settings()),
    "Transactions": tuple(transaction_settings()),
    "Replication": tuple(_replication()),
    "Coordination": tuple(_coordination()),
    "TLS": tuple(tls_settings()),
    "SASL": tuple(sasl_settings()),
    "Access control": tuple(access_settings()),
    "Quotas": tuple(_quotas()),
    "Ottla's own": tuple(_own()),
}

BROKER_SETTINGS = SettingTable(
    "broker", (setting for section in SECTIONS.values() for setting in section)
)

# Where a default is not Kafka's: Kafka's default and why.
DIFFERENT_DEFAULTS: Mapping[str, tuple[str, str]] = {
    "node.id": ("none, it has to be set", "one broker needs no number from its user"),
    "broker.id": ("-1", "the older name of node.id, with the same default"),
    "controller.listener.names": ("none, it has to be set", "there is no KRaft quorum"),
    "listeners": (
        "PLAINTEXT://:9092",
        "without security, a broker is not open to the network unless it is asked to be",
    ),
    "log.dir": ("/tmp/kafka-logs", "data does not belong under /tmp"),
    "socket.receive.buffer.bytes": (
        "102400",
        "the system fits the buffer to the load, which is faster for large batches",
    ),
    "socket.send.buffer.bytes": (
        "102400",
        "large fetches leave a third faster; with much more, one reader would hold up the others",
    ),
    "transaction.two.phase.commit.enable": (
        "false",
        "what a Spark query has prepared outlives every timeout, so that it is written exactly once",
    ),
    "zookeeper.set.acl": (
        "false (Kafka 3)",
        "who gives the broker a user and a password wants its nodes closed to others",
    ),
    "zookeeper.session.timeout.ms": ("18000 (Kafka 3)", "a dead broker is noticed sooner"),
    "sasl.enabled.mechanisms": ("GSSAPI", "there is no Kerberos here"),
    "sasl.mechanism.inter.broker.protocol": ("GSSAPI", "there is no Kerberos here"),
    "ssl.keystore.type": ("JKS", "only Java reads such stores"),
    "ssl.truststore.type": ("JKS", "only Java reads such stores"),
    "replica.lag.time.max.ms": ("30000", "a follower that stands still is noticed sooner"),
    "replica.socket.receive.buffer.bytes": (
        "65536",
        "room for what one fetch brings of a partition (replica.fetch.max.bytes)",
    ),
}

# Settings of the same meaning. Of several in one source the first here counts; a source that goes
# before another takes all of a family with it (--set log.retention.hours beats log.retention.ms
# of the file).
FAMILIES: tuple[tuple[str, ...], ...] = (
    ("node.id", "broker.id"),
    ("log.dirs", "log.dir"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
)
