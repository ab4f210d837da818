"""A broker's configuration: loading it, checking it, and the typed view that the server reads.

    load(...)        file, environment and command line → BrokerConfig, or ConfigurationError
    BrokerConfig     one attribute for each setting (dots as underscores); never changes. A dynamic
                     change gives a new one (`with_dynamic`) that takes the place of the old.

What goes before what: `--set`, then the options (--listen, --data, --advertise), then OTTLA_* and
KAFKA_* of the environment, then the file, then the defaults. A name that means nothing is a
warning, never an error: a configuration written for Kafka starts Ottla. A bad value is an error of
one sentence that names the setting, the value, what is allowed and where it was set.

Cheap to import: it is on the way of every start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn

from ottla.server.configuration.broker_settings import BROKER_SETTINGS, FAMILIES
from ottla.server.configuration.listeners import (
    ListenerAddress,
    check_advertised,
    check_ports,
    parse_address,
    parse_connection_overrides,
    parse_listeners,
    parse_protocol_map,
    with_default_name,
)
from ottla.server.configuration.security_settings import (
    JAAS,
    LISTENER_PREFIX,
    base_name,
    jaas_name,
    name_for_listener,
)
from ottla.server.configuration.sources import (
    Assignment,
    ConfigurationError,
    merge,
    read_command_line,
    read_environment,
    read_file,
)
from ottla.settings import (
    HIDDEN,
    BrokerLayers,
    Described,
    InvalidSetting,
    Scope,
    Setting,
    Source,
    SynonymValue,
    Value,
    as_kafka_shows,
    synonym_chain,
)
from ottla.storage.config import (
    LOG_BROKER_SETTINGS,
    TOPIC_SETTINGS,
    LogConfig,
    broker_defaults,
)

NOTHING_SET = BrokerLayers()


class BrokerConfig:
    """The settings of one broker, checked and typed. Raises InvalidSetting when it is made.

    The attributes are BROKER_SETTINGS with `.` as `_`, apart from those that are put into a better
    form (first below) and the defaults of topic settings, which are in `log_defaults`.
    Invariant: every value is allowed and they fit together.
    """

    layers: BrokerLayers  # what was set, as text
    warnings: tuple[str, ...]  # what to tell the user at the start
    log_defaults: LogConfig  # of a topic that overrides nothing
    listeners: tuple[ListenerAddress, ...]  # at least one; KRaft's are left out
    advertised_listeners: tuple[ListenerAddress, ...]  # see advertised()
    log_dirs: tuple[str, ...]  # at least one, each once
    max_connections_per_ip_overrides: Mapping[str, int]  # by address

    # Identity and listeners
    node_id: int
    broker_rack: str | None
    inter_broker_listener_name: str | None
    security_inter_broker_protocol: str
    # Connections and requests
    connections_max_idle_ms: int
    max_connections: int
    max_connections_per_ip: int
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    queued_max_request_bytes: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    # Topics
    auto_create_topics_enable: bool
    default_replication_factor: int
    delete_topic_enable: bool
    num_partitions: int
    # Data folders and logs
    log_retention_check_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    producer_id_expiration_ms: int
    # Defaults of topic settings
    # Compaction
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_threads: int
    # Consumer groups
    group_coordinator_rebalance_protocols: tuple[str, ...]
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    group_consumer_assignment_interval_ms: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_assignment_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_min_assignment_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_session_timeout_ms: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    # Share groups
    group_share_delivery_count_limit: int
    group_share_heartbeat_interval_ms: int
    group_share_max_heartbeat_interval_ms: int
    group_share_max_record_lock_duration_ms: int
    group_share_max_session_timeout_ms: int
    group_share_max_share_sessions: int
    group_share_max_size: int
    group_share_min_heartbeat_interval_ms: int
    group_share_min_record_lock_duration_ms: int
    group_share_min_session_timeout_ms: int
    group_share_partition_max_record_locks: int
    group_share_record_lock_duration_ms: int
    group_share_session_timeout_ms: int
    share_coordinator_snapshot_update_records_per_snapshot: int
    share_coordinator_state_topic_compression_codec: int
    share_coordinator_state_topic_min_isr: int
    share_coordinator_state_topic_num_partitions: int
    share_coordinator_state_topic_replication_factor: int
    share_coordinator_state_topic_segment_bytes: int
    share_coordinator_write_timeout_ms: int
    # Transactions
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transaction_two_phase_commit_enable: bool
    transactional_id_expiration_ms: int
    # Replication
    auto_leader_rebalance_enable: bool
    controlled_shutdown_enable: bool
    follower_replication_throttled_rate: int
    leader_imbalance_check_interval_seconds: int
    leader_replication_throttled_rate: int
    replica_alter_log_dirs_io_max_bytes_per_second: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    replica_lag_max_messages: int
    replica_selector_class: str | None
    replica_socket_receive_buffer_bytes: int
    replica_socket_timeout_ms: int
    # Coordination
    zookeeper_connect: str | None
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int
    zookeeper_auth_file: str | None
    zookeeper_auth_scheme: str
    zookeeper_set_acl: bool
    zookeeper_ssl_client_enable: bool
    zookeeper_ssl_truststore_location: str | None
    zookeeper_ssl_truststore_type: str | None
    zookeeper_ssl_keystore_location: str | None
    zookeeper_ssl_keystore_password: str | None
    zookeeper_ssl_keystore_type: str | None
    zookeeper_ssl_endpoint_identification_algorithm: str
    # TLS
    ssl_keystore_location: str | None
    ssl_truststore_location: str | None
    ssl_keystore_type: str
    ssl_truststore_type: str
    ssl_keystore_password: str | None
    ssl_truststore_password: str | None
    ssl_key_password: str | None
    ssl_keystore_key: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_truststore_certificates: str | None
    ssl_client_auth: str
    ssl_enabled_protocols: tuple[str, ...]
    ssl_cipher_suites: tuple[str, ...]
    ssl_endpoint_identification_algorithm: str
    ssl_principal_mapping_rules: str
    # SASL
    sasl_enabled_mechanisms: tuple[str, ...]
    sasl_mechanism_inter_broker_protocol: str
    sasl_server_max_receive_size: int
    connections_max_reauth_ms: int
    connection_failed_authentication_delay_ms: int
    sasl_oauthbearer_jwks_endpoint_url: str | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int
    sasl_oauthbearer_expected_audience: tuple[str, ...] | None
    sasl_oauthbearer_expected_issuer: str | None
    sasl_oauthbearer_sub_claim_name: str
    sasl_oauthbearer_clock_skew_seconds: int
    # Access control
    authorizer_class_name: str
    super_users: str
    allow_everyone_if_no_acl_found: bool
    # Quotas
    max_connection_creation_rate: int
    quota_window_num: int
    quota_window_size_seconds: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    # Ottla's own
    worker_processes: int
    produce_record_validation_enable: bool
    replica_replacement_after_ms: int
    log_scrub_interval_ms: int
    log_scrub_bytes_per_second: int
    log_stray_retention_ms: int
    metrics_listener: tuple[str, int] | None

    def __init__(self, layers: BrokerLayers = NOTHING_SET, *, warnings: Iterable[str] = ()) -> None:
        layers = layers._replace(static=_with_both_ids(layers.static))
        values: dict[str, Any] = {
            setting.attribute: _value(setting, layers)
            for setting in BROKER_SETTINGS
            if setting.name not in LOG_BROKER_SETTINGS
        }
        _resolve_listeners(values, layers)
        _check_listener_settings(layers)
        del values["broker_id"]  # the same as node_id, see _with_both_ids
        _resolve_folders(values)
        values["max_connections_per_ip_overrides"] = parse_connection_overrides(
            values["max_connections_per_ip_overrides"]
        )
        values["layers"] = layers
        values["warnings"] = tuple(warnings)
        values["log_defaults"] = broker_defaults(layers)
        self.__dict__.update(values)
        _check_together(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a BrokerConfig does not change; {name} comes with a new one")

    def with_dynamic(
        self,
        *,
        default: Mapping[str, str] | None = None,
        broker: Mapping[str, str] | None = None,
        on_invalid: Callable[[InvalidSetting], object] | None = None,
    ) -> BrokerConfig:
        """This configuration with other dynamic settings; what is None stays as it is.

        `default` are the cluster's, `broker` this broker's own. Unknown names are kept and have no
        effect, as in Kafka. Raises InvalidSetting; with `on_invalid`, for values that were stored
        earlier, calls it instead and leaves out the bad ones.
        """
        layers = self.layers
        if default is not None:
            layers = layers._replace(dynamic_default=_usable(default, True, on_invalid))
        if broker is not None:
            layers = layers._replace(dynamic_broker=_usable(broker, False, on_invalid))
        try:
            return BrokerConfig(layers, warnings=self.warnings)
        except InvalidSetting as error:
            if on_invalid is None:
                raise
            # Each value is allowed and yet they do not fit together: none of them counts.
            on_invalid(error)
            return BrokerConfig(BrokerLayers(static=self.layers.static), warnings=self.warnings)

    def is_set(self, name: str) -> bool:
        """Whether somebody has set this, or the default holds."""
        return any(name in layer for _, layer in self.layers.with_sources())

    @property
    def selects_by_rack(self) -> bool:
        """Whether consumers are sent to a replica in their rack."""
        return self.replica_selector_class is not None

    def of_listener(self, listener: str, name: str) -> Any:
        """The value of a setting on a listener: its own, or the one that holds for all."""
        own = self.of_listener_alone(listener, name)
        return getattr(self, name.replace(".", "_")) if own is None else own

    def of_listener_alone(self, listener: str, name: str) -> Any:
        """The value of a setting that is set for this listener; None if none is."""
        text = self._text(name_for_listener(listener, name))
        return None if text is None else BROKER_SETTINGS[name].parse(text)

    def credentials(self, listener: str, mechanism: str) -> str | None:
        """The text of the login module (JAAS) for a mechanism on a listener."""
        return self._text(jaas_name(listener, mechanism))

    def _text(self, name: str) -> str | None:
        for _source, layer in self.layers.with_sources():
            if name in layer:
                return layer[name]
        return None

    @property
    def protected_listener(self) -> str | None:
        """The listener that the limits on the broker's connections do not keep anybody from: that of
        the brokers, unless clients come by it too."""
        return self.inter_broker_listener if len(self.listeners) > 1 else None

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener by which brokers talk to each other."""
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name.upper()
        protocol = self.security_inter_broker_protocol
        for listener in self.listeners:
            if listener.protocol == protocol:
                return listener.name
        return self.listeners[0].name

    def advertised(
        self, bound_ports: Mapping[str, int] | None = None
    ) -> tuple[ListenerAddress, ...]:
        """The addresses to tell clients, once it is known what ports were bound (by name).

        An empty host becomes the machine's name, port 0 the port that the listener got.
        """
        advertised = []
        for listener in self.advertised_listeners:
            host, port = listener.host, listener.port
            if not host:
                import socket

                host = socket.gethostname()
            if not port:
                port = (bound_ports or {}).get(listener.name, 0)
            advertised.append(listener._replace(host=host, port=port))
        return tuple(advertised)

    def describe(self, names: Iterable[str] | None = None) -> list[Described]:
        """What DescribeConfigs answers for this broker; `names` None asks for all."""
        wanted = None if names is None else frozenset(names)
        return [
            self._describe(setting)
            for setting in BROKER_SETTINGS
            if wanted is None or setting.name in wanted
        ]

    def _describe(self, setting: Setting) -> Described:
        family = [one.name for one in setting.synonyms] or [setting.name]
        synonyms, source = as_kafka_shows(
            setting.name, synonym_chain(family, self.layers, BROKER_SETTINGS)
        )
        value = None if setting.sensitive else setting.render(_value(setting, self.layers))
        return _described(setting, value, source, synonyms)

    def describe_cluster_default(self, names: Iterable[str] | None = None) -> list[Described]:
        """What DescribeConfigs answers for the brokers' common dynamic settings (an empty name)."""
        wanted = None if names is None else frozenset(names)
        source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
        answer = []
        for name, text in self.layers.dynamic_default.items():
            setting = BROKER_SETTINGS.get(name)
            if setting is not None and (wanted is None or name in wanted):
                value = None if setting.sensitive else text
                synonyms = (SynonymValue(name, value, source),)
                answer.append(_described(setting, value, source, synonyms))
        return answer


def _described(
    setting: Setting, value: str | None, source: Source, synonyms: tuple[SynonymValue, ...]
) -> Described:
    return Described(
        setting.name,
        value,
        source,
        setting.type,
        setting.scope is Scope.READ_ONLY,
        setting.sensitive,
        synonyms,
        setting.doc,
    )


def _value(setting: Setting, layers: BrokerLayers) -> Value:
    for _source, layer in layers.with_sources():
        text = layer.get(setting.name)
        if text is not None:
            return setting.parse(text)
    return setting.default


# Putting it together ----------------------------------------------------------------------------


def _with_both_ids(static: Mapping[str, str]) -> Mapping[str, str]:
    """node.id and broker.id are one thing under two names; whoever asks is told of both."""
    node, broker = static.get("node.id"), static.get("broker.id")
    if broker is not None and broker.strip() == "-1":
        broker = None
    if node is None and broker is None:
        return {name: text for name, text in static.items() if name != "broker.id"}
    if node is not None and broker is not None and node.strip() != broker.strip():
        raise InvalidSetting("broker.id", broker, f"must be the same as node.id ({node})")
    one = broker if node is None else node
    assert one is not None
    return {**static, "node.id": one, "broker.id": one}


def _resolve_folders(values: dict[str, Any]) -> None:
    either = values.pop("log_dir")
    folders: tuple[str, ...] = values["log_dirs"] or either
    for folder in folders:
        if folders.count(folder) > 1:
            raise InvalidSetting("log.dirs", ",".join(folders), f"must not name {folder} twice")
    values["log_dirs"] = folders


def _resolve_listeners(values: dict[str, Any], layers: BrokerLayers) -> None:
    kraft = {name.upper() for name in values.pop("controller_listener_names") or ()}
    protocols = parse_protocol_map(values.pop("listener_security_protocol_map"))
    texts = values["listeners"]
    listeners = parse_listeners("listeners", texts, protocols, kraft)
    check_ports(listeners, ",".join(texts))
    values["listeners"] = listeners
    if values["advertised_listeners"] is None:
        # What takes every interface is reached by the machine's name, which an empty host is.
        values["advertised_listeners"] = tuple(
            one._replace(host="") if one.takes_every_interface else one for one in listeners
        )
    else:
        advertised = parse_listeners(
            "advertised.listeners", values["advertised_listeners"], protocols, kraft
        )
        check_advertised(advertised, listeners, layers.static.get("advertised.listeners"))
        values["advertised_listeners"] = advertised
    between = values["inter_broker_listener_name"]
    if between is not None and between.upper() not in [one.name for one in listeners]:
        raise InvalidSetting(
            "inter.broker.listener.name",
            between,
            f"must be one of the listeners ({', '.join(one.name for one in listeners)})",
        )
    if values["metrics_listener"] is not None:
        values["metrics_listener"] = parse_address("metrics.listener", values["metrics_listener"])


def _check_listener_settings(layers: BrokerLayers) -> None:
    """Values of settings of single listeners."""
    for _source, layer in layers.with_sources():
        for name, text in layer.items():
            base = base_name(name) if name.startswith(LISTENER_PREFIX) else None
            if base is None or base == JAAS:
                continue
            setting = BROKER_SETTINGS[base]
            try:
                setting.parse(text)
            except InvalidSetting as error:
                shown = HIDDEN if setting.sensitive else text
                raise InvalidSetting(name, shown, error.why) from None


_MIB = 1024 * 1024


def _check_together(config: BrokerConfig) -> None:
    """Checks settings that depend on each other. The limits are Kafka's."""

    def require(holds: bool, name: str, why: str) -> None:
        if not holds:
            value = getattr(config, name.replace(".", "_"))
            raise InvalidSetting(name, BROKER_SETTINGS.render(name, value), why)

    require(
        config.zookeeper_connect is None
        or config.zookeeper_auth_file is not None
        or not (config.zookeeper_set_acl and config.is_set("zookeeper.set.acl")),
        "zookeeper.set.acl",
        "must be false unless zookeeper.auth.file names a user for whom nodes can be kept",
    )
    require(
        config.max_connections_per_ip > 0 or bool(config.max_connections_per_ip_overrides),
        "max.connections.per.ip",
        "must be at least 1 unless max.connections.per.ip.overrides lets some addresses in",
    )
    require(
        config.queued_max_request_bytes <= 0
        or config.queued_max_request_bytes >= config.socket_request_max_bytes,
        "queued.max.request.bytes",
        f"must be at least socket.request.max.bytes ({config.socket_request_max_bytes}), or -1",
    )
    for limit in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        most: int = getattr(config, limit.replace(".", "_"))
        require(
            config.replica_fetch_wait_max_ms <= most,
            "replica.fetch.wait.max.ms",
            f"must not be greater than {limit} ({most})",
        )
    require(
        config.log_cleaner_dedupe_buffer_size >= _MIB * config.log_cleaner_threads,
        "log.cleaner.dedupe.buffer.size",
        f"must be at least {_MIB} for each of log.cleaner.threads ({config.log_cleaner_threads})",
    )
    for low, name, high in _RANGES:
        least, value, most = (getattr(config, one.replace(".", "_")) for one in (low, name, high))
        require(least <= value, name, f"must not be less than {low} ({least})")
        require(value <= most, name, f"must not be greater than {high} ({most})")
    for kind in ("consumer", "share"):
        beat: int = getattr(config, f"group_{kind}_heartbeat_interval_ms")
        timeout: int = getattr(config, f"group_{kind}_session_timeout_ms")
        require(
            beat < timeout,
            f"group.{kind}.heartbeat.interval.ms",
            f"must be less than group.{kind}.session.timeout.ms ({timeout})",
        )


_RANGES = tuple(
    (f"group.{kind}.min.{what}", f"group.{kind}.{what}", f"group.{kind}.max.{what}")
    for kind, what in (
        ("consumer", "assignment.interval.ms"),
        ("consumer", "heartbeat.interval.ms"),
        ("consumer", "session.timeout.ms"),
        ("share", "heartbeat.interval.ms"),
        ("share", "session.timeout.ms"),
        ("share", "record.lock.duration.ms"),
    )
)


# Dynamic changes --------------------------------------------------------------------------------


def check_dynamic(name: str, text: str, *, cluster_wide: bool) -> bool:
    """Whether a broker setting of this name exists; raises InvalidSetting if this cannot be set.

    `cluster_wide`: for all brokers (an empty resource name), not for one by its number.
    """
    base = base_name(name)
    if base == JAAS:
        raise InvalidSetting(name, HIDDEN, "cannot be changed while the broker runs")
    setting = BROKER_SETTINGS.get(base or name)
    if setting is None:
        return False
    if setting.scope is Scope.READ_ONLY:
        raise setting.invalid(text, "cannot be changed while the broker runs")
    if setting.scope is Scope.PER_BROKER and cluster_wide:
        raise setting.invalid(text, "can only be changed for one broker, by its number")
    setting.parse(text)
    return True


def _usable(
    settings: Mapping[str, str],
    cluster_wide: bool,
    on_invalid: Callable[[InvalidSetting], object] | None,
) -> dict[str, str]:
    usable = {}
    for name, text in settings.items():
        try:
            check_dynamic(name, text, cluster_wide=cluster_wide)
            usable[name] = text
        except InvalidSetting as error:
            if on_invalid is None:
                raise
            on_invalid(error)
    return usable


# Loading ----------------------------------------------------------------------------------------


def load(
    config_file: str | os.PathLike[str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    listen: str | None = None,
    data: str | None = None,
    advertise: str | None = None,
    assignments: Iterable[str] = (),
    not_settings: Collection[str] = (),
) -> BrokerConfig:
    """Read a broker's configuration from all its sources. Raises ConfigurationError.

    `environment` None is the process's own; `assignments` are those of `--set`; `not_settings` are
    environment variables with another use.
    """
    if environment is None:
        environment = os.environ
    options = []
    if listen is not None:
        options.append(Assignment("listeners", with_default_name(listen), "--listen"))
    if data is not None:
        options.append(Assignment("log.dirs", data, "--data"))
    if advertise is not None:
        options.append(
            Assignment("advertised.listeners", with_default_name(advertise), "--advertise")
        )
    merged = merge(
        (
            read_file(config_file) if config_file is not None else (),
            read_environment(environment, "KAFKA_", not_settings),
            read_environment(environment, "OTTLA_", not_settings),
            options,
            read_command_line(assignments),
        ),
        FAMILIES,
    )
    known = {name: one for name, one in merged.items() if _is_known(name)}
    strange = [one for name, one in merged.items() if name not in known]
    layers = BrokerLayers(static={name: one.text for name, one in known.items()})
    try:
        config = BrokerConfig(layers)
    except InvalidSetting as error:
        raise ConfigurationError(_complaint(error, known)) from error
    strange += [one for one in known.values() if _is_of_no_listener(one.name, config)]
    return BrokerConfig(layers, warnings=_warnings(strange)) if strange else config


def _is_of_no_listener(name: str, config: BrokerConfig) -> bool:
    """Whether a setting is that of a listener that is not there, or of one that only Kafka has."""
    if base_name(name) is None:
        return False
    listener = name.removeprefix(LISTENER_PREFIX).partition(".")[0]
    return all(listener != each.name.lower() for each in config.listeners)


def _is_known(name: str) -> bool:
    return name in BROKER_SETTINGS or base_name(name) is not None


def _complaint(error: InvalidSetting, known: Mapping[str, Assignment]) -> str:
    assignment = known.get(error.name)
    if assignment is None:
        # A check of topic settings speaks of the topic's name.
        topic = TOPIC_SETTINGS.get(error.name)
        for synonym in topic.synonyms if topic is not None else ():
            assignment = assignment or known.get(synonym.name)
    where = "" if assignment is None else f" (from {assignment.where})"
    name = error.name if assignment is None else assignment.name
    value = "" if error.value is None else error.value
    return f"{name}={value}{where} is not valid: {error.why}."


def _warnings(strange: Iterable[Assignment]) -> list[str]:
    """One line for each reason why names have no meaning, and one for each unknown name."""
    from ottla.server.configuration.ignored_settings import IGNORED_SETTINGS

    unknown = []
    by_reason: dict[str, list[str]] = {}
    for assignment in strange:
        for group in IGNORED_SETTINGS:
            if group.covers(assignment.name):
                by_reason.setdefault(group.reason, []).append(assignment.name)
                break
        else:
            unknown.append(assignment)
    lines = [
        f"{', '.join(names)}: without effect here, {reason}." for reason, names in by_reason.items()
    ]
    for name, _text, where in unknown:
        lines.append(f"{name} (from {where}) is not a setting of Ottla and is ignored{_hint(name)}")
    return lines


def _hint(name: str) -> str:
    topic = TOPIC_SETTINGS.get(name)
    if topic is not None and topic.synonyms:
        return f"; it is one of topics, whose default is set here by {topic.synonyms[0].name}."
    import difflib

    close = difflib.get_close_matches(name, [setting.name for setting in BROKER_SETTINGS], 1, 0.85)
    return f"; did you mean {close[0]}?" if close else "."


__all__ = [
    "BROKER_SETTINGS",
    "NOTHING_SET",
    "BrokerConfig",
    "ConfigurationError",
    "ListenerAddress",
    "check_dynamic",
    "load",
]
