"""The broker settings of the coordinators: consumer groups, share groups, transactions."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.settings import (
    INT_MAX,
    Allowed,
    Scope,
    Setting,
    SettingType,
    at_least,
    between,
    list_of,
    one_of_ignoring_case,
)

SHARE_GROUPS = "share groups"

_BOOLEAN, _STRING, _LIST = SettingType.BOOLEAN, SettingType.STRING, SettingType.LIST
_SHORT, _INT, _LONG = SettingType.SHORT, SettingType.INT, SettingType.LONG
_CLUSTER_WIDE = Scope.CLUSTER_WIDE

_ASSIGNORS = Allowed(
    "one or both of uniform, range",
    lambda value: (
        isinstance(value, tuple) and len(value) > 0 and set(value) <= {"uniform", "range"}
    ),
)
# What may change while the broker runs.
_DYNAMIC = frozenset({"group.consumer.assignment.interval.ms"})

_CODEC = between(0, 4)
_CODECS = "0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"


def group_settings() -> Iterator[Setting]:
    for name, kind, default, allowed, doc in (
        (
            "group.coordinator.rebalance.protocols",
            _LIST,
            ("classic", "consumer", "streams"),
            list_of("consumer", "classic", "share", "streams"),
            "The group protocols that are spoken.",
        ),
        (
            "group.initial.rebalance.delay.ms",
            _INT,
            3000,
            None,
            "How long the first rebalance of a new group waits for more members.",
        ),
        (
            "group.max.session.timeout.ms",
            _INT,
            1_800_000,
            None,
            "The longest session timeout that a member of a classic group may ask for.",
        ),
        ("group.max.size", _INT, INT_MAX, at_least(1), "The most members of a classic group."),
        (
            "group.min.session.timeout.ms",
            _INT,
            6000,
            None,
            "The shortest session timeout that a member of a classic group may ask for.",
        ),
        (
            "group.consumer.assignment.interval.ms",
            _INT,
            1000,
            at_least(0),
            "The shortest time from one assignment of a consumer group to the next.",
        ),
        (
            "group.consumer.assignors",
            _LIST,
            ("uniform", "range"),
            _ASSIGNORS,
            "The assignors on the broker's side, the default first.",
        ),
        (
            "group.consumer.heartbeat.interval.ms",
            _INT,
            5000,
            at_least(1),
            "The heartbeat interval that members of a consumer group are told.",
        ),
        (
            "group.consumer.max.assignment.interval.ms",
            _INT,
            15_000,
            at_least(0),
            "The longest assignment interval that a consumer group may be configured with.",
        ),
        (
            "group.consumer.max.heartbeat.interval.ms",
            _INT,
            15_000,
            at_least(1),
            "The longest heartbeat interval that a consumer group may be configured with.",
        ),
        (
            "group.consumer.max.session.timeout.ms",
            _INT,
            60_000,
            at_least(1),
            "The longest session timeout that a consumer group may be configured with.",
        ),
        (
            "group.consumer.max.size",
            _INT,
            INT_MAX,
            at_least(1),
            "The most members of a consumer group.",
        ),
        (
            "group.consumer.migration.policy",
            _STRING,
            "bidirectional",
            one_of_ignoring_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
            (
                "Whether a group may change from the classic to the consumer protocol and back "
                "while it has members."
            ),
        ),
        (
            "group.consumer.min.assignment.interval.ms",
            _INT,
            0,
            at_least(0),
            "The shortest assignment interval that a consumer group may be configured with.",
        ),
        (
            "group.consumer.min.heartbeat.interval.ms",
            _INT,
            5000,
            at_least(1),
            "The shortest heartbeat interval that a consumer group may be configured with.",
        ),
        (
            "group.consumer.min.session.timeout.ms",
            _INT,
            45_000,
            at_least(1),
            "The shortest session timeout that a consumer group may be configured with.",
        ),
        (
            "group.consumer.session.timeout.ms",
            _INT,
            45_000,
            at_least(1),
            "How long a member of a consumer group may be silent before it is counted as gone.",
        ),
        (
            "offset.metadata.max.bytes",
            _INT,
            4096,
            None,
            "The longest note that may be committed along with an offset.",
        ),
        (
            "offsets.commit.timeout.ms",
            _INT,
            5000,
            at_least(1),
            "How long a commit waits for the replicas of the offsets topic.",
        ),
        (
            "offsets.retention.check.interval.ms",
            _LONG,
            600_000,
            at_least(1),
            "How often old offsets are looked for.",
        ),
        (
            "offsets.retention.minutes",
            _INT,
            10_080,
            at_least(1),
            "How long the offsets of an empty group are kept.",
        ),
        (
            "offsets.topic.num.partitions",
            _INT,
            50,
            at_least(1),
            "The number of partitions of the offsets topic. It must not change once it exists.",
        ),
        (
            "offsets.topic.replication.factor",
            _SHORT,
            3,
            at_least(1),
            "The number of replicas of the offsets topic.",
        ),
        (
            "offsets.topic.segment.bytes",
            _INT,
            104_857_600,
            at_least(1),
            "The segment size of the offsets topic.",
        ),
    ):
        scope = _CLUSTER_WIDE if name in _DYNAMIC else Scope.READ_ONLY
        yield Setting(name, kind, default, allowed, doc, (), scope)


def share_group_settings() -> Iterator[Setting]:
    for name, kind, default, allowed, doc in (
        (
            "group.share.delivery.count.limit",
            _INT,
            5,
            between(2, 10),
            "How often a record is handed out before it is given up.",
        ),
        (
            "group.share.heartbeat.interval.ms",
            _INT,
            5000,
            at_least(1),
            "The heartbeat interval that members of a share group are told.",
        ),
        (
            "group.share.max.heartbeat.interval.ms",
            _INT,
            15_000,
            at_least(1),
            "The longest heartbeat interval that a share group may be configured with.",
        ),
        (
            "group.share.max.record.lock.duration.ms",
            _INT,
            60_000,
            between(30_000, 3_600_000),
            "The longest lock that a share group may be configured with.",
        ),
        (
            "group.share.max.session.timeout.ms",
            _INT,
            60_000,
            at_least(1),
            "The longest session timeout that a share group may be configured with.",
        ),
        (
            "group.share.max.share.sessions",
            _INT,
            2000,
            at_least(1),
            "How many share sessions are remembered.",
        ),
        ("group.share.max.size", _INT, 200, between(1, 1000), "The most members of a share group."),
        (
            "group.share.min.heartbeat.interval.ms",
            _INT,
            5000,
            at_least(1),
            "The shortest heartbeat interval that a share group may be configured with.",
        ),
        (
            "group.share.min.record.lock.duration.ms",
            _INT,
            15_000,
            between(1000, 30_000),
            "The shortest lock that a share group may be configured with.",
        ),
        (
            "group.share.min.session.timeout.ms",
            _INT,
            45_000,
            at_least(1),
            "The shortest session timeout that a share group may be configured with.",
        ),
        (
            "group.share.partition.max.record.locks",
            _INT,
            2000,
            between(100, 10_000),
            "How many records of one partition may be handed out and not yet acknowledged.",
        ),
        (
            "group.share.record.lock.duration.ms",
            _INT,
            30_000,
            between(1000, 3_600_000),
            "How long a record that was handed out is kept from other members.",
        ),
        (
            "group.share.session.timeout.ms",
            _INT,
            45_000,
            at_least(1),
            "How long a member of a share group may be silent before it is counted as gone.",
        ),
        (
            "share.coordinator.snapshot.update.records.per.snapshot",
            _INT,
            500,
            between(0, 500),
            "How many changes of a share group's state are written between two snapshots of it.",
        ),
        (
            "share.coordinator.state.topic.compression.codec",
            _INT,
            0,
            _CODEC,
            f"The codec of the share-group state topic: {_CODECS}.",
        ),
        (
            "share.coordinator.state.topic.min.isr",
            _SHORT,
            2,
            at_least(1),
            "The min.insync.replicas of the share-group state topic.",
        ),
        (
            "share.coordinator.state.topic.num.partitions",
            _INT,
            50,
            at_least(1),
            "The number of partitions of the share-group state topic.",
        ),
        (
            "share.coordinator.state.topic.replication.factor",
            _SHORT,
            3,
            at_least(1),
            "The number of replicas of the share-group state topic.",
        ),
        (
            "share.coordinator.state.topic.segment.bytes",
            _INT,
            104_857_600,
            at_least(1),
            "The segment size of the share-group state topic.",
        ),
        (
            "share.coordinator.write.timeout.ms",
            _INT,
            5000,
            at_least(1),
            "How long a write of share-group state waits for the replicas of its topic.",
        ),
    ):
        yield Setting(name, kind, default, allowed, doc, awaits=SHARE_GROUPS)


def transaction_settings() -> Iterator[Setting]:
    for name, kind, default, allowed, doc, scope in (
        (
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            _INT,
            10_000,
            at_least(1),
            "How often transactions past their timeout are looked for.",
            Scope.READ_ONLY,
        ),
        (
            "transaction.max.timeout.ms",
            _INT,
            900_000,
            at_least(1),
            "The longest timeout that a producer may ask for.",
            Scope.READ_ONLY,
        ),
        (
            "transaction.partition.verification.enable",
            _BOOLEAN,
            True,
            None,
            "Whether a partition asks the coordinator before it takes a transaction's first write.",
            _CLUSTER_WIDE,
        ),
        (
            "transaction.remove.expired.transaction.cleanup.interval.ms",
            _INT,
            3_600_000,
            at_least(1),
            "How often expired transactional ids are looked for.",
            Scope.READ_ONLY,
        ),
        (
            "transaction.state.log.min.isr",
            _INT,
            2,
            at_least(1),
            "The min.insync.replicas of the transaction topic.",
            Scope.READ_ONLY,
        ),
        (
            "transaction.state.log.num.partitions",
            _INT,
            50,
            at_least(1),
            "The number of partitions of the transaction topic. It must not change once it exists.",
            Scope.READ_ONLY,
        ),
        (
            "transaction.state.log.replication.factor",
            _SHORT,
            3,
            at_least(1),
            "The number of replicas of the transaction topic.",
            Scope.READ_ONLY,
        ),
        (
            "transaction.state.log.segment.bytes",
            _INT,
            104_857_600,
            at_least(1),
            "The segment size of the transaction topic.",
            Scope.READ_ONLY,
        ),
        (
            "transaction.two.phase.commit.enable",
            _BOOLEAN,
            True,
            None,
            "Whether producers may prepare a transaction and leave its end to another coordinator.",
            Scope.READ_ONLY,
        ),
        (
            "transactional.id.expiration.ms",
            _INT,
            604_800_000,
            at_least(1),
            "How long a transactional id that is not used is remembered.",
            Scope.READ_ONLY,
        ),
    ):
        yield Setting(name, kind, default, allowed, doc, (), scope)
