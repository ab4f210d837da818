"""The configuration of a topic's logs: what can be set, and the typed result of it.

`TOPIC_SETTINGS` is the table of what a topic may override, with Kafka's names, defaults and
limits. `LOG_BROKER_SETTINGS` are the broker settings that give topics their defaults.
`LogConfig` is what the log code reads. A value is looked for in this order:

    the topic's own override
    the broker's dynamic settings (DYNAMIC_BROKER_CONFIG)
    the cluster's dynamic defaults (DYNAMIC_DEFAULT_BROKER_CONFIG)
    the broker's file, environment and command line (STATIC_BROKER_CONFIG)
    the default (DEFAULT_CONFIG)

Everything here is a function of texts; nothing reads a file, a clock or the environment.
"""

# Annotations are not postponed here: as strings they would be compiled one by one at import.

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ottla.settings import (
    INT_MAX,
    LONG_MAX,
    Allowed,
    BrokerLayers,
    Described,
    InvalidSetting,
    Scope,
    Setting,
    SettingTable,
    SettingType,
    Source,
    Synonym,
    SynonymValue,
    Value,
    as_kafka_shows,
    at_least,
    between,
    list_of,
    one_of,
    synonym_chain,
)

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
WEEK_MS = 604_800_000

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one topic, resolved: each attribute is a topic setting with `.` as `_`.

    Immutable; a change while running puts a new LogConfig in the place of the old one. Values are
    taken as they are: the limits are enforced where text is parsed, so that tests may use tiny
    segments.
    """

    cleanup_policy: tuple[str, ...] = ("delete",)  # of "delete" and "compact"; empty: keep all
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"  # one of COMPRESSION_TYPES
    compression_zstd_level: int = 3
    delete_record_erase_ms: int = HOUR_MS
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = MINUTE_MS
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    index_interval_bytes: int = 4096
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    max_compaction_lag_ms: int = LONG_MAX  # invariant: ≥ min_compaction_lag_ms
    max_message_bytes: int = 1_048_588  # of one batch as stored
    message_timestamp_after_max_ms: int = HOUR_MS
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"  # or "LogAppendTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1  # negative: no limit
    retention_ms: int = WEEK_MS  # -1: no limit
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = WEEK_MS
    unclean_leader_election_enable: bool = False
    visible_when_flushed: bool = False

    @property
    def flushed_after(self) -> int:
        """A flush is asked for after so many records."""
        return 1 if self.visible_when_flushed else self.flush_messages

    @property
    def deletes(self) -> bool:
        """Old segments are dropped by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Of each key, only the last record is kept for good."""
        return "compact" in self.cleanup_policy

    @property
    def longest_segment_ms(self) -> int:
        """When a segment is rolled at the latest: only sealed ones are compacted."""
        if self.compacts and self.max_compaction_lag_ms > 0:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def stamps_append_time(self) -> bool:
        """Records carry the time of the append, not the one their producer gave."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def compression_level(self) -> int | None:
        """The level for `compression_type`; None where that codec has none."""
        if self.compression_type == "gzip":
            return self.compression_gzip_level
        if self.compression_type == "lz4":
            return self.compression_lz4_level
        if self.compression_type == "zstd":
            return self.compression_zstd_level
        return None


def _are_throttled_replicas(value: Value) -> bool:
    if not isinstance(value, tuple):
        return False
    return value == ("*",) or all(
        partition.isascii() and partition.isdigit() and broker.isascii() and broker.isdigit()
        for partition, _, broker in (element.partition(":") for element in value)
    )


_THROTTLED_REPLICAS = Allowed(
    "a list of partition:broker pairs, or * for all replicas", _are_throttled_replicas
)

_BOOLEAN, _STRING, _INT, _LONG = (
    SettingType.BOOLEAN,
    SettingType.STRING,
    SettingType.INT,
    SettingType.LONG,
)
_DOUBLE, _LIST = SettingType.DOUBLE, SettingType.LIST

# What Kafka's topics have and Ottla's have not.
_TIERED = "there is no tiered storage"
UNSUPPORTED_TOPIC_SETTINGS: Mapping[str, str] = {
    "local.retention.bytes": _TIERED,
    "local.retention.ms": _TIERED,
    "remote.log.copy.disable": _TIERED,
    "remote.log.delete.on.disable": _TIERED,
    "remote.storage.enable": _TIERED,
}


def _topic_settings() -> Iterator[Setting]:
    def setting(
        name: str,
        kind: SettingType,
        allowed: Allowed | None,
        doc: str,
        *synonyms: str | Synonym,
    ) -> Setting:
        return Setting(
            name,
            kind,
            defaults[name.replace(".", "_")],
            allowed,
            doc,
            tuple(Synonym(one) if isinstance(one, str) else one for one in synonyms),
            Scope.CLUSTER_WIDE,
        )

    config = LogConfig()
    defaults: dict[str, Value] = {name: getattr(config, name) for name in LogConfig.__slots__}

    yield setting(
        "cleanup.policy",
        _LIST,
        list_of("compact", "delete"),
        "What happens to old data: delete drops whole segments by age and size, compact keeps the "
        "last record of each key, both together do both, an empty list keeps everything.",
        "log.cleanup.policy",
    )
    yield setting(
        "compression.gzip.level",
        _INT,
        between(1, 9, also=(-1,)),
        "The level of compression when compression.type is gzip; -1 is the codec's own choice.",
        "compression.gzip.level",
    )
    yield setting(
        "compression.lz4.level",
        _INT,
        between(1, 17),
        "The level of compression when compression.type is lz4.",
        "compression.lz4.level",
    )
    yield setting(
        "compression.type",
        _STRING,
        one_of(*COMPRESSION_TYPES),
        "The codec in which batches are stored. producer keeps each batch as it was sent; with any "
        "other value a batch that comes in another codec is compressed anew.",
        "compression.type",
    )
    yield setting(
        "compression.zstd.level",
        _INT,
        between(-131072, 22),
        "The level of compression when compression.type is zstd.",
        "compression.zstd.level",
    )
    yield setting(
        "delete.record.erase.ms",
        _LONG,
        at_least(0),
        "Within what time a record that was deleted by itself is gone from disk, too. (It is hidden at "
        "once.) The segment that holds it is rewritten, the active one is rolled for that. Ottla's own.",
    )
    yield setting(
        "delete.retention.ms",
        _LONG,
        at_least(0),
        "How long a tombstone (a record with a key and no value) outlives compaction, so that a "
        "consumer reading from the start still learns of the deletion.",
        "log.cleaner.delete.retention.ms",
    )
    yield setting(
        "file.delete.delay.ms",
        _LONG,
        at_least(0),
        "How long a dropped segment's files stay on disk under another name before they go.",
        "log.segment.delete.delay.ms",
    )
    yield setting(
        "flush.messages",
        _LONG,
        at_least(1),
        "Force a log to disk each time this many records were appended. The default leaves it to "
        "the background flush.",
        "log.flush.interval.messages",
    )
    yield setting(
        "flush.ms",
        _LONG,
        at_least(0),
        "Force a log to disk once a record has waited this long. The default leaves it to the "
        "background flush.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    )
    yield setting(
        "follower.replication.throttled.replicas",
        _LIST,
        _THROTTLED_REPLICAS,
        "The replicas whose fetching is held to follower.replication.throttled.rate, as "
        "partition:broker pairs, or * for all.",
    )
    yield setting(
        "index.interval.bytes",
        _INT,
        at_least(0),
        "How many bytes of records lie between two entries of the offset index.",
        "log.index.interval.bytes",
    )
    yield setting(
        "leader.replication.throttled.replicas",
        _LIST,
        _THROTTLED_REPLICAS,
        "The replicas that a leader serves at no more than leader.replication.throttled.rate, as "
        "partition:broker pairs, or * for all.",
    )
    yield setting(
        "max.compaction.lag.ms",
        _LONG,
        at_least(1),
        "The longest time a record may stay out of compaction's reach; at least "
        "min.compaction.lag.ms.",
        "log.cleaner.max.compaction.lag.ms",
    )
    yield setting(
        "max.message.bytes",
        _INT,
        at_least(0),
        "The largest batch that is accepted, in bytes, compressed if it comes compressed.",
        "message.max.bytes",
    )
    yield setting(
        "message.timestamp.after.max.ms",
        _LONG,
        at_least(0),
        "How far a record's timestamp may be ahead of the broker's clock. Not looked at with "
        "LogAppendTime.",
        "log.message.timestamp.after.max.ms",
    )
    yield setting(
        "message.timestamp.before.max.ms",
        _LONG,
        at_least(0),
        "How far a record's timestamp may be behind the broker's clock. Not looked at with "
        "LogAppendTime.",
        "log.message.timestamp.before.max.ms",
    )
    yield setting(
        "message.timestamp.type",
        _STRING,
        one_of("CreateTime", "LogAppendTime"),
        "Whose clock a record's timestamp is from: the producer's (CreateTime) or the broker's at "
        "the append (LogAppendTime).",
        "log.message.timestamp.type",
    )
    yield setting(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        between(0, 1),
        "The share of a log that has to be uncompacted before it is compacted again.",
        "log.cleaner.min.cleanable.ratio",
    )
    yield setting(
        "min.compaction.lag.ms",
        _LONG,
        at_least(0),
        "The shortest time a record stays as it was written before compaction may touch it.",
        "log.cleaner.min.compaction.lag.ms",
    )
    yield setting(
        "min.insync.replicas",
        _INT,
        at_least(1),
        "How many replicas must be in sync for a produce request with acks=all to be taken.",
        "min.insync.replicas",
    )
    yield setting(
        "preallocate",
        _BOOLEAN,
        None,
        "Whether a new segment's file is given its full size on disk at once.",
        "log.preallocate",
    )
    yield setting(
        "retention.bytes",
        _LONG,
        None,
        "How large a partition may grow before its oldest segments are dropped; -1 is no limit.",
        "log.retention.bytes",
    )
    yield setting(
        "retention.ms",
        _LONG,
        at_least(-1),
        "How old a segment's newest record may grow before the segment is dropped; -1 is no limit.",
        "log.retention.ms",
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
    )
    yield setting(
        "segment.bytes",
        _INT,
        at_least(1024 * 1024),
        "The size at which a segment is closed and the next begun.",
        "log.segment.bytes",
    )
    yield setting(
        "segment.index.bytes",
        _INT,
        at_least(4),
        "The largest size of a segment's index files; a full one closes its segment.",
        "log.index.size.max.bytes",
    )
    yield setting(
        "segment.jitter.ms",
        _LONG,
        at_least(0),
        "By how much at most, at random, segment.ms is shortened, so that not all logs begin a new "
        "segment together.",
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", HOUR_MS),
    )
    yield setting(
        "segment.ms",
        _LONG,
        at_least(1),
        "The age at which a segment is closed and the next begun, even if it is not full.",
        "log.roll.ms",
        Synonym("log.roll.hours", HOUR_MS),
    )
    yield setting(
        "unclean.leader.election.enable",
        _BOOLEAN,
        None,
        "Whether a replica that is not in sync may become leader when no other is left. Records "
        "can be lost by it.",
        "unclean.leader.election.enable",
    )
    yield setting(
        "visible.when.flushed",
        _BOOLEAN,
        None,
        "Whether consumers see a record, and producers with acks=all get their answer, only once it is "
        "synced to the disks of all in-sync replicas. With acks=1 the leader's disk counts. Syncs are "
        "shared by all records that came during the one before. Ottla's own.",
    )


TOPIC_SETTINGS = SettingTable("topic", _topic_settings(), UNSUPPORTED_TOPIC_SETTINGS)


def _unlimited_or_at_least_one(value: Value) -> bool:
    return isinstance(value, int) and value != 0


_RETENTION = Allowed("at least 1, or -1 for no limit", _unlimited_or_at_least_one)

# Broker settings that differ from the topic setting they stand behind: type, default, limits and
# whether they may change while running. The others are the topic's own row under another name.
_SPECIAL: Mapping[str, tuple[SettingType, Value, Allowed | None, Scope]] = {
    "log.flush.interval.ms": (_LONG, None, at_least(0), Scope.CLUSTER_WIDE),
    "log.flush.scheduler.interval.ms": (_LONG, LONG_MAX, at_least(0), Scope.READ_ONLY),
    "log.retention.ms": (_LONG, None, _RETENTION, Scope.CLUSTER_WIDE),
    "log.retention.minutes": (_INT, None, _RETENTION, Scope.READ_ONLY),
    "log.retention.hours": (_INT, 168, _RETENTION, Scope.READ_ONLY),
    "log.roll.ms": (_LONG, None, at_least(1), Scope.CLUSTER_WIDE),
    "log.roll.hours": (_INT, 168, at_least(1), Scope.READ_ONLY),
    "log.roll.jitter.ms": (_LONG, None, at_least(0), Scope.CLUSTER_WIDE),
    "log.roll.jitter.hours": (_INT, 0, at_least(0), Scope.READ_ONLY),
}


def _log_broker_settings() -> Iterator[Setting]:
    for topic in TOPIC_SETTINGS:
        for synonym in topic.synonyms:
            kind, default, allowed, scope = _SPECIAL.get(
                synonym.name, (topic.type, topic.default, topic.allowed, Scope.CLUSTER_WIDE)
            )
            doc = f"The default of the topic setting {topic.name}."
            if synonym.factor != 1:
                unit = "hours" if synonym.factor == HOUR_MS else "minutes"
                doc = f"The default of the topic setting {topic.name}, in {unit}."
            if synonym != topic.synonyms[0]:
                doc += f" {topic.synonyms[0].name} goes before it."
            yield Setting(
                synonym.name,
                kind,
                default,
                allowed,
                doc,
                # Only the first of a family shows the others behind it, as in Kafka. (Its
                # DescribeConfigs drops what stands before the name that was asked for.)
                topic.synonyms if synonym == topic.synonyms[0] else (synonym,),
                scope,
            )


LOG_BROKER_SETTINGS = SettingTable("broker", _log_broker_settings())


def _checked_together(config: LogConfig) -> LogConfig:
    """Check what no single setting can: that the values fit together."""
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidSetting(
            "min.compaction.lag.ms",
            str(config.min_compaction_lag_ms),
            f"must not be greater than max.compaction.lag.ms ({config.max_compaction_lag_ms})",
        )
    return config


def parse(
    overrides: Mapping[str, str],
    defaults: LogConfig = LogConfig(),  # noqa: B008  (immutable)
    *,
    on_invalid: Callable[[InvalidSetting], object] | None = None,
) -> LogConfig:
    """The configuration of a topic with these overrides; `defaults` are the broker's.

    Raises InvalidSetting. With `on_invalid`, for overrides that were stored earlier and must not
    keep a broker from starting, calls it instead and goes on without the bad ones.
    """
    if not overrides:
        return defaults
    changes: dict[str, Any] = {}
    for name, text in overrides.items():
        try:
            setting = TOPIC_SETTINGS[name]
            changes[setting.attribute] = setting.parse(text)
        except InvalidSetting as error:
            if on_invalid is None:
                raise
            on_invalid(error)
    try:
        return _checked_together(replace(defaults, **changes))
    except InvalidSetting as error:
        if on_invalid is None:
            raise
        on_invalid(error)
        for attribute in ("min_compaction_lag_ms", "max_compaction_lag_ms"):
            changes.pop(attribute, None)
        return replace(defaults, **changes)


def broker_defaults(layers: BrokerLayers) -> LogConfig:
    """The configuration of a topic without overrides on a broker set up like this.

    Raises InvalidSetting.
    """
    values: dict[str, Any] = {}
    for topic in TOPIC_SETTINGS:
        for link in synonym_chain(
            [one.name for one in topic.synonyms], layers, LOG_BROKER_SETTINGS
        ):
            if link.value is not None:
                values[topic.attribute] = _as_topic_value(topic, link)
                break
    return _checked_together(LogConfig(**values))


def _as_topic_value(topic: Setting, link: SynonymValue) -> Value:
    assert link.value is not None
    value = LOG_BROKER_SETTINGS.parse(link.name, link.value)
    factor = next(one.factor for one in topic.synonyms if one.name == link.name)
    if isinstance(value, int) and factor != 1:
        value *= factor
    if topic.name == "retention.ms" and isinstance(value, int) and value < 0:
        return -1  # a broker may write "no limit" as any negative number
    return value


def describe_topic(
    overrides: Mapping[str, str],
    layers: BrokerLayers,
    names: Iterable[str] | None = None,
) -> list[Described]:
    """What DescribeConfigs answers for a topic: values, where each comes from, and its synonyms.

    `names` None asks for all; unknown ones are left out, as Kafka does.
    """
    config = parse(overrides, broker_defaults(layers), on_invalid=lambda _error: None)
    wanted = None if names is None else frozenset(names)
    answer = []
    for setting in TOPIC_SETTINGS:
        if wanted is not None and setting.name not in wanted:
            continue
        value = setting.render(getattr(config, setting.attribute))
        synonyms: tuple[SynonymValue, ...] = ()
        source = Source.DEFAULT_CONFIG
        if setting.synonyms:
            behind = [one.name for one in setting.synonyms]
            synonyms, source = as_kafka_shows(
                behind[0], synonym_chain(behind, layers, LOG_BROKER_SETTINGS)
            )
        if setting.name in overrides:
            source = Source.DYNAMIC_TOPIC_CONFIG
            synonyms = (SynonymValue(setting.name, value, source), *synonyms)
        answer.append(
            Described(
                setting.name, value, source, setting.type, False, False, synonyms, setting.doc
            )
        )
    return answer


__all__ = [
    "COMPRESSION_TYPES",
    "INT_MAX",
    "LOG_BROKER_SETTINGS",
    "LONG_MAX",
    "TOPIC_SETTINGS",
    "UNSUPPORTED_TOPIC_SETTINGS",
    "BrokerLayers",
    "Described",
    "InvalidSetting",
    "LogConfig",
    "Source",
    "broker_defaults",
    "describe_topic",
    "parse",
]
