"""Settings of Kafka that have no meaning in Ottla.

They are accepted, so that Kafka's own server.properties and the environment of its images can be
used as they are; a broker that is given some says so, in one line for each reason.
"""

from __future__ import annotations

from typing import NamedTuple


class IgnoredSettings(NamedTuple):
    """Names that Kafka knows (or knew) and for which there is nothing here to set."""

    reason: str
    prefixes: tuple[str, ...]
    names: frozenset[str] = frozenset()

    def covers(self, name: str) -> bool:
        return name in self.names or name.startswith(self.prefixes)


IGNORED_SETTINGS: tuple[IgnoredSettings, ...] = (
    IgnoredSettings(
        "Ottla has no KRaft quorum",
        ("controller.", "metadata.", "broker.heartbeat.", "broker.session.", "process.roles"),
        frozenset({"early.start.listeners", "initial.broker.registration.timeout.ms"}),
    ),
    IgnoredSettings(
        "they were of Kafka's own way with ZooKeeper",
        (
            "zookeeper.clientCnxnSocket",
            "zookeeper.max.in.flight.requests",
            "zookeeper.metadata.migration",
            "zookeeper.ssl.cipher.suites",
            "zookeeper.ssl.crl.enable",
            "zookeeper.ssl.enabled.protocols",
            "zookeeper.ssl.ocsp.enable",
            "zookeeper.ssl.protocol",
            "zookeeper.ssl.truststore.password",
            "zookeeper.sync.time.ms",
            "broker.id.generation.",
            "reserved.broker.max.id",
            "control.plane.",
        ),
    ),
    IgnoredSettings(
        "Kafka has dropped them too",
        ("inter.broker.protocol.version", "log.message.format.version"),
        frozenset({"log.message.downconversion.enable", "offsets.commit.required.acks"}),
    ),
    IgnoredSettings(
        "Ottla has no tiered storage",
        ("remote.", "rlmm.", "rsm.", "log.local.", "follower.fetch.last.tiered."),
    ),
    IgnoredSettings(
        "they are of Java, of Kerberos, or of delegation tokens",
        ("sasl.", "ssl.", "security.", "principal.", "delegation.", "password."),
    ),
    IgnoredSettings(
        "they are of how Kafka measures replication, or name Java classes",
        ("client.quota.", "replication.quota.", "alter.log.dirs.replication.quota."),
    ),
    IgnoredSettings(
        "Ottla runs and measures itself in its own way",
        (
            "metric.",
            "metrics.",
            "kafka.metrics.",
            "auto.include.jmx.",
            "telemetry.",
            "group.streams.",
            "group.coordinator.",
            "share.coordinator.",
            "num.recovery.threads.",
            "config.providers",
        ),
        frozenset(
            {
                "add.partitions.to.txn.retry.backoff.max.ms",
                "add.partitions.to.txn.retry.backoff.ms",
                "alter.config.policy.class.name",
                "background.threads",
                "cordoned.log.dirs",
                "create.topic.policy.class.name",
                "delete.records.purgatory.purge.interval.requests",
                "fetch.purgatory.purge.interval.requests",
                "group.share.assignment.interval.ms",
                "group.share.assignors",
                "group.share.max.assignment.interval.ms",
                "group.share.max.delivery.count.limit",
                "group.share.max.partition.max.record.locks",
                "group.share.min.assignment.interval.ms",
                "group.share.min.delivery.count.limit",
                "group.share.min.partition.max.record.locks",
                "log.cleaner.io.buffer.size",
                "log.dir.failure.timeout.ms",
                "num.io.threads",
                "num.network.threads",
                "num.replica.alter.log.dirs.threads",
                "num.replica.fetchers",
                "offsets.load.buffer.size",
                "offsets.topic.compression.codec",
                "producer.purgatory.purge.interval.requests",
                "queued.max.requests",
                "request.timeout.ms",
                "share.fetch.purgatory.purge.interval.requests",
                "socket.connection.setup.timeout.max.ms",
                "socket.connection.setup.timeout.ms",
                "transaction.state.log.load.buffer.size",
            }
        ),
    ),
)
