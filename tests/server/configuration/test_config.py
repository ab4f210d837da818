"""A broker's configuration: the table against Kafka's, the sources, the listeners, the errors."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.server.configuration.broker_config import (
    BrokerConfig,
    ConfigurationError,
    check_dynamic,
    load,
)
from ottla.server.configuration.broker_settings import (
    BROKER_SETTINGS,
    DIFFERENT_DEFAULTS,
    FAMILIES,
    SECTIONS,
)
from ottla.server.configuration.ignored_settings import IGNORED_SETTINGS
from ottla.server.configuration.listeners import ListenerAddress
from ottla.server.configuration.sources import (
    Assignment,
    merge,
    read_environment,
    read_file,
    read_properties,
    read_toml,
    setting_name,
)
from ottla.settings import BrokerLayers, InvalidSetting, Scope, SettingType, Source
from ottla.storage.config import LOG_BROKER_SETTINGS, LogConfig

HERE = Path(__file__).parents[1]
KAFKA: dict[str, Any] = json.loads((HERE / "kafka_broker_settings.json").read_text("utf-8"))
TOPICS: dict[str, Any] = json.loads(
    (HERE.parent / "storage" / "kafka_topic_settings.json").read_text("utf-8")
)
OWN = {
    *(setting.name for setting in SECTIONS["Ottla's own"]),
    # Kafka 3 had these; Kafka 4, which the table is compared with, has not.
    *(setting.name for setting in SECTIONS["Coordination"]),
    "replica.lag.max.messages",
    # Kafka's table of broker settings leaves these out; they are in tables of their own.
    *(
        setting.name
        for section in ("TLS", "SASL")
        for setting in SECTIONS[section]
        if setting.name.startswith(("ssl.", "sasl."))
    ),
    "super.users",
    "allow.everyone.if.no.acl.found",
    # Kafka's brokers take these only while they run, and do not list them.
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
OURS = [setting.name for setting in BROKER_SETTINGS if setting.name not in OWN]


def broker(**given: Any) -> BrokerConfig:
    given.setdefault("environment", {})
    return load(**given)


def complaint(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        broker(**given)
    return str(caught.value)


def static(**settings: str) -> BrokerConfig:
    """A configuration from keyword arguments with `_` for `.`."""
    return BrokerConfig(
        BrokerLayers(static={name.replace("_", "."): text for name, text in settings.items()})
    )


# The table against Kafka's ----------------------------------------------------------------------

# Where Ottla refuses values that Kafka takes and then cannot use.
STRICTER = {
    "authorizer.class.name",
    "group.consumer.assignors",
    "broker.id",
    "default.replication.factor",
    "log.flush.interval.ms",
    "log.flush.scheduler.interval.ms",
    "log.retention.hours",
    "log.retention.minutes",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "offsets.topic.compression.codec",
    "replica.selector.class",
    "share.coordinator.state.topic.compression.codec",
    "listeners",
    "advertised.listeners",
    "log.dir",
    "log.dirs",
}
# Kafka can change these while it runs, Ottla cannot.
FIXED = {"listeners", "listener.security.protocol.map"}


def kafka_limits(text: str) -> str:
    if text.startswith("(case insensitive) "):
        return kafka_limits(text.removeprefix("(case insensitive) ")) + " (in any case)"
    inside, _, extra = text.strip("[").partition("]")
    if "..." in inside:
        low, high = inside.split(",...")[0], inside.partition("...,")[2]
        words = f"from {low} to {high}" if high else f"at least {low}"
        return words + extra.replace(" or ", ", or ")
    return f"one of {inside}"


def test_every_setting_of_kafka_is_ours_or_known_to_have_no_meaning() -> None:
    strangers = [
        name
        for name in KAFKA["settings"]
        if name not in BROKER_SETTINGS and not any(one.covers(name) for one in IGNORED_SETTINGS)
    ]
    assert strangers == []
    assert set(OURS) <= set(KAFKA["settings"])
    assert not [name for name in OWN if name in KAFKA["settings"]]


@pytest.mark.parametrize("name", OURS)
def test_setting_is_as_in_kafka(name: str) -> None:
    kafka = KAFKA["settings"][name]
    ours = BROKER_SETTINGS[name]
    assert ours.type.name == kafka["type"]
    if name in DIFFERENT_DEFAULTS:
        assert ours.render(ours.default) != kafka["default"]
        assert kafka["default"] in (DIFFERENT_DEFAULTS[name][0], "<required>")
    else:
        assert ours.render(ours.default) == kafka["default"]
    if name not in STRICTER:
        words = ours.allowed.words.replace("a list made of", "one of") if ours.allowed else ""
        assert words == (kafka_limits(kafka["allowed"]) if kafka["allowed"] else "")
    assert ours.scope.value == ("read-only" if name in FIXED else kafka["scope"])
    assert ours.doc.endswith(".")


def test_values_sources_and_synonyms_are_as_in_kafka() -> None:
    scenario = TOPICS["scenario"]
    config = BrokerConfig(
        BrokerLayers(scenario["dynamic_broker"], scenario["dynamic_default"], scenario["static"])
    )
    expected = {name: row for name, row in KAFKA["scenario"].items() if name in BROKER_SETTINGS}
    # Kafka forgets a static value once a synonym of it is set dynamically, but only in `value`.
    expected["log.roll.hours"]["value"] = "5"
    expected["log.flush.scheduler.interval.ms"]["value"] = "1000"
    assert len(expected) > 25
    assert {
        one.name: {
            "value": one.value,
            "source": int(one.source),
            "synonyms": [list(link) for link in one.synonyms],
        }
        for one in config.describe(expected)
    } == expected


def test_attributes_are_the_settings() -> None:
    reshaped = {
        "advertised_listeners",
        "listeners",
        "log_dirs",
        "max_connections_per_ip_overrides",
        "metrics_listener",
    }
    folded = {
        "broker.id",
        "controller.listener.names",
        "listener.security.protocol.map",
        "log.dir",
    }
    declared = typing.get_type_hints(BrokerConfig)
    config = BrokerConfig()
    python_types: dict[SettingType, object] = {
        SettingType.BOOLEAN: bool,
        SettingType.STRING: str,
        SettingType.PASSWORD: str,
        SettingType.SHORT: int,
        SettingType.INT: int,
        SettingType.LONG: int,
        SettingType.DOUBLE: float,
        SettingType.LIST: tuple[str, ...],
        SettingType.PASSWORD: str,
    }
    expected = {"layers", "warnings", "log_defaults"}
    for setting in BROKER_SETTINGS:
        if setting.name in LOG_BROKER_SETTINGS or setting.name in folded:
            assert setting.attribute not in declared
            continue
        expected.add(setting.attribute)
        if setting.attribute in reshaped:
            continue
        assert getattr(config, setting.attribute) == setting.default
        base = python_types[setting.type]
        if setting.default is None:
            assert typing.get_args(declared[setting.attribute]) == (base, type(None))
        else:
            assert declared[setting.attribute] == base
    assert set(declared) == expected
    assert set(vars(config)) == expected


def test_a_configuration_does_not_change() -> None:
    config = BrokerConfig()
    with pytest.raises(AttributeError, match="num_partitions"):
        config.num_partitions = 2
    assert config.num_partitions == 1


# Sources ----------------------------------------------------------------------------------------


def test_nothing_given_gives_the_defaults() -> None:
    config = broker()
    assert config.warnings == ()
    assert config.node_id == 1
    assert config.log_dirs == ("./data",)
    assert config.auto_create_topics_enable is True
    assert config.log_defaults == LogConfig()
    assert config.listeners == (ListenerAddress("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),)


def test_properties_are_read_as_java_reads_them() -> None:
    text = (
        "# c\n! c2\na=1\nb : 2\nc 3\n  d = x \\\n   y\\\n  # not comment\ne\n"
        "f=\\u0041\\n\\q\\=z\\\\\ng\\=h=i\nk\\:l\\ m  =  v  \n = emptykey\nz=1\\\n\nw=tail\\"
    )
    # What java.util.Properties made of it.
    assert {name: value for name, value, _ in read_properties(text, "f")} == {
        "": "emptykey",
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "x y# not comment",
        "e": "",
        "f": "A\nq=z\\",
        "g=h": "i",
        "k:l m": "v  ",
        "w": "tail",
        "z": "1",
    }


def test_properties_know_their_lines() -> None:
    read = read_properties("# one\r\na=\\\r\n 1\r\rb=2", "server.properties")
    assert read == [
        Assignment("a", "1", "server.properties, line 2"),
        Assignment("b", "2", "server.properties, line 5"),
    ]


@given(st.text(max_size=200))
def test_any_text_is_some_properties(text: str) -> None:
    for name, value, where in read_properties(text, "f"):
        assert isinstance(name, str)
        assert isinstance(value, str)
        assert where.startswith("f, line ")


def test_properties_that_are_not_utf8_are_latin1(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes("broker.rack=Zürich".encode("latin-1"))
    assert broker(config_file=file).broker_rack == "Zürich"
    file.write_text("broker.rack=Zürich", encoding="utf-8-sig")
    assert broker(config_file=file).broker_rack == "Zürich"


TOML = """
"num.partitions" = 3
"log.dirs" = ["one", "two"]
log.cleaner.io.max.bytes.per.second = 1.5e6
[log.retention]
hours = 2
[auto.create.topics]
enable = false
"""


def test_toml_has_quoted_names_or_tables(tmp_path: Path) -> None:
    file = tmp_path / "ottla.toml"
    file.write_text(TOML, encoding="utf-8")
    config = broker(config_file=file)
    assert config.num_partitions == 3
    assert config.log_dirs == ("one", "two")
    assert config.log_cleaner_io_max_bytes_per_second == 1.5e6
    assert config.log_defaults.retention_ms == 7_200_000
    assert config.auto_create_topics_enable is False
    assert config.warnings == ()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "no.properties"
    assert complaint(config_file=missing) == (
        f"The configuration file {missing} cannot be read: No such file or directory."
    )
    bad = tmp_path / "bad.toml"
    bad.write_text("a = = 1", encoding="utf-8")
    assert complaint(config_file=bad).startswith(f"The configuration file {bad} is not valid TOML")
    bad.write_bytes(b"a = '\xff'")
    assert complaint(config_file=bad) == f"The configuration file {bad} is not UTF-8."
    with pytest.raises(ConfigurationError, match=r"^num\.partitions in f must be a text"):
        read_toml("num.partitions = 2020-01-01", "f")


def test_environment_is_read_as_in_kafkas_image() -> None:
    # As Kafka 4.3.1's image maps them.
    assert setting_name("LOG_RETENTION_MS") == "log.retention.ms"
    assert setting_name("A__B") == "a_b"
    assert setting_name("A___B") == "a-b"
    assert setting_name("A____B") == "a-.b"
    environment = {
        "KAFKA_NUM_PARTITIONS": "3",
        "KAFKA_HEAP_OPTS": "-Xmx1G",
        "OTTLA_NUM_PARTITIONS": "4",
        "OTTLA_OTHER": "x",
        "PATH": "/bin",
        "KAFKA_": "nothing",
    }
    assert read_environment(environment, "KAFKA_") == [
        Assignment("num.partitions", "3", "environment variable KAFKA_NUM_PARTITIONS")
    ]
    config = broker(environment=environment, not_settings={"OTTLA_OTHER"})
    assert config.num_partitions == 4
    assert config.warnings == ()


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "7")
    assert load().num_partitions == 7


def test_what_goes_before_what(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.dirs=file\nnum.partitions=1\nlisteners=PLAINTEXT://:1\n")
    given: dict[str, Any] = {"config_file": file}
    assert broker(**given).log_dirs == ("file",)
    given["environment"] = {"KAFKA_LOG_DIRS": "kafka"}
    assert broker(**given).log_dirs == ("kafka",)
    given["environment"]["OTTLA_LOG_DIRS"] = "ottla"
    assert broker(**given).log_dirs == ("ottla",)
    given["data"] = "option"
    assert broker(**given).log_dirs == ("option",)
    given["assignments"] = ["log.dirs=set"]
    assert broker(**given).log_dirs == ("set",)
    assert broker(**given).listeners[0].port == 1


def test_a_nearer_source_takes_the_whole_family(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.retention.ms=5\nlog.dirs=file\nnode.id=3\n")
    config = broker(
        config_file=file,
        environment={"KAFKA_LOG_DIR": "near"},
        assignments=["log.retention.hours=1", "broker.id=4"],
    )
    assert config.log_defaults.retention_ms == 3_600_000
    assert config.log_dirs == ("near",)
    assert config.node_id == 4
    together = [Assignment("log.retention.ms", "5", ""), Assignment("log.retention.hours", "1", "")]
    assert set(merge([together], FAMILIES)) == {"log.retention.ms", "log.retention.hours"}


def test_families_are_the_synonyms() -> None:
    families = {family[0]: family for family in FAMILIES}
    for setting in LOG_BROKER_SETTINGS:
        if len(setting.synonyms) > 1:
            assert families[setting.name] == tuple(one.name for one in setting.synonyms)


@pytest.mark.parametrize(
    ("assignment", "value"),
    [("broker.rack=a=b", "a=b"), (" broker.rack =x", "x"), ("broker.rack=", "")],
)
def test_set_takes_name_and_value(assignment: str, value: str) -> None:
    assert broker(assignments=[assignment]).broker_rack == value


@pytest.mark.parametrize("assignment", ["broker.rack", "=x", ""])
def test_set_without_a_name_is_refused(assignment: str) -> None:
    expected = f"--set {assignment} must be written as --set name=value."
    assert complaint(assignments=[assignment]) == expected


# Complaints and warnings ------------------------------------------------------------------------


def test_a_bad_value_is_one_sentence_that_says_all(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("\nnum.partitions=0\n")
    assert complaint(config_file=file) == (
        f"num.partitions=0 (from {file}, line 2) is not valid: must be at least 1."
    )
    assert complaint(environment={"KAFKA_LOG_RETENTION_HOURS": "week"}) == (
        "log.retention.hours=week (from environment variable KAFKA_LOG_RETENTION_HOURS) is not "
        "valid: must be a whole number, at least 1, or -1 for no limit."
    )
    assert complaint(assignments=["auto.create.topics.enable=maybe"]) == (
        "auto.create.topics.enable=maybe (from --set) is not valid: must be true or false."
    )
    assert complaint(listen="nowhere") == (
        "listeners=PLAINTEXT://nowhere (from --listen) is not valid: "
        "must be written as NAME://host:port."
    )


def test_a_check_of_topic_settings_names_the_broker_setting() -> None:
    assert complaint(
        assignments=["log.cleaner.min.compaction.lag.ms=5", "log.cleaner.max.compaction.lag.ms=4"]
    ) == (
        "log.cleaner.min.compaction.lag.ms=5 (from --set) is not valid: "
        "must not be greater than max.compaction.lag.ms (4)."
    )


def test_unknown_names_are_warnings() -> None:
    config = broker(
        environment={"KAFKA_NO_SUCH": "1"},
        assignments=["num.partition=3", "retention.ms=5"],
    )
    assert config.warnings == (
        (
            "no.such (from environment variable KAFKA_NO_SUCH) is not a setting of Ottla and is "
            "ignored."
        ),
        (
            "num.partition (from --set) is not a setting of Ottla and is ignored; did you mean "
            "num.partitions?"
        ),
        (
            "retention.ms (from --set) is not a setting of Ottla and is ignored; it is one of topics, "
            "whose default is set here by log.retention.ms."
        ),
    )
    assert config.num_partitions == 1


KRAFT = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
log.dirs=/var/lib/logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_kafkas_own_file_starts_ottla(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KRAFT)
    config = broker(config_file=file)
    assert config.listeners == (ListenerAddress("PLAINTEXT", "", 9092, "PLAINTEXT"),)
    assert config.advertised() == (ListenerAddress("PLAINTEXT", "localhost", 9092, "PLAINTEXT"),)
    assert config.log_dirs == ("/var/lib/logs",)
    assert config.warnings == (
        (
            "process.roles, controller.quorum.bootstrap.servers: without effect here, Ottla has no "
            "KRaft quorum."
        ),
        (
            "num.network.threads, num.io.threads, num.recovery.threads.per.data.dir: without effect "
            "here, Ottla runs and measures itself in its own way."
        ),
    )


def test_an_image_with_two_listeners_starts_ottla() -> None:
    config = broker(
        environment={
            "KAFKA_NODE_ID": "1",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_LISTENERS": "PLAINTEXT_HOST://:9092,CONTROLLER://:9093,PLAINTEXT://:19092",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            "PLAINTEXT_HOST:PLAINTEXT",
            "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT_HOST://localhost:9092,"
            "PLAINTEXT://broker:19092",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
        }
    )
    assert [str(one) for one in config.listeners] == [
        "PLAINTEXT_HOST://:9092",
        "PLAINTEXT://:19092",
    ]
    assert [str(one) for one in config.advertised()] == [
        "PLAINTEXT_HOST://localhost:9092",
        "PLAINTEXT://broker:19092",
    ]
    assert len(config.warnings) == 1


# Listeners --------------------------------------------------------------------------------------

TWO = "PLAINTEXT:PLAINTEXT,A:PLAINTEXT"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("PLAINTEXT://:9092", "", 9092),
        ("plaintext://localhost:9092", "localhost", 9092),
        ("PLAINTEXT://[::1]:9092", "::1", 9092),
        ("PLAINTEXT://::1:9092", "::1", 9092),
        ("PLAINTEXT://[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("PLAINTEXT://0.0.0.0:0", "0.0.0.0", 0),
        ("PLAINTEXT://my-host.example_1:65535", "my-host.example_1", 65535),
    ],
)
def test_listeners_are_taken_apart(text: str, host: str, port: int) -> None:
    assert static(listeners=text).listeners == (
        ListenerAddress("PLAINTEXT", host, port, "PLAINTEXT"),
    )


@pytest.mark.parametrize(
    ("text", "listeners"),
    [
        ("127.0.0.1:9092", ["PLAINTEXT://127.0.0.1:9092"]),
        ("9092", ["PLAINTEXT://:9092"]),
        (":9092", ["PLAINTEXT://:9092"]),
        ("[::1]:9092", ["PLAINTEXT://[::1]:9092"]),
        ("localhost:1, A://h:2", ["PLAINTEXT://localhost:1", "A://h:2"]),
    ],
)
def test_the_option_needs_no_name(text: str, listeners: list[str]) -> None:
    config = broker(listen=text, assignments=[f"listener.security.protocol.map={TWO}"])
    assert [str(one) for one in config.listeners] == listeners


@pytest.mark.parametrize(
    ("settings", "name", "why"),
    [
        ({"listeners": "PLAINTEXT://h"}, "listeners", "must be written as NAME://host:port"),
        ({"listeners": "h:9092"}, "listeners", "must be written as NAME://host:port"),
        ({"listeners": "://h:9092"}, "listeners", "must be written as NAME://host:port"),
        ({"listeners": "PLAINTEXT://a b:1"}, "listeners", "must be written as NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:99999"}, "listeners", "port must be from 0 to 65535"),
        ({"listeners": "PLAINTEXT://h:-1"}, "listeners", "port must be from 0 to 65535"),
        ({"listeners": ""}, "listeners", "at least one element"),
        (
            {"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"},
            "listeners",
            "must not name PLAINTEXT twice",
        ),
        (
            {"listeners": "A://h:1"},
            "listeners",
            r"A must have a security protocol in listener\.security\.protocol\.map",
        ),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:1,A://127.0.0.2:1",
                "listener_security_protocol_map": TWO,
            },
            "listeners",
            "PLAINTEXT and A must have different ports",
        ),
        (
            {"listeners": "C://h:1", "controller_listener_names": "C"},
            "listeners",
            r"beside those of controller\.listener\.names",
        ),
        (
            {"listener_security_protocol_map": "A"},
            "listener.security.protocol.map",
            "NAME:PROTOCOL pairs",
        ),
        (
            {"listener_security_protocol_map": "A:FOO"},
            "listener.security.protocol.map",
            "FOO must be one of PLAINTEXT, SSL",
        ),
        (
            {"listener_security_protocol_map": "A:SSL,a:SSL"},
            "listener.security.protocol.map",
            "must not name A twice",
        ),
        (
            {"advertised_listeners": "PLAINTEXT://0.0.0.0:1"},
            "advertised.listeners",
            r"0\.0\.0\.0 must not be told to clients",
        ),
        (
            {"advertised_listeners": "A://h:1", "listener_security_protocol_map": TWO},
            "advertised.listeners",
            r"A must be one of the listeners \(PLAINTEXT\)",
        ),
        (
            {"inter_broker_listener_name": "FOO"},
            "inter.broker.listener.name",
            r"must be one of the listeners \(PLAINTEXT\)",
        ),
        (
            {"listener_name_plaintext_ssl_client_auth": "maybe"},
            "listener.name.plaintext.ssl.client.auth",
            "must be one of required, requested, none",
        ),
    ],
)
def test_bad_listeners_are_refused(settings: dict[str, str], name: str, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why) as caught:
        static(**settings)
    assert caught.value.name == name


def test_ports_may_be_shared_by_ipv4_and_ipv6_and_when_free() -> None:
    for text in ("PLAINTEXT://127.0.0.1:1,A://[::1]:1", "PLAINTEXT://h:0,A://h:0"):
        assert len(static(listeners=text, listener_security_protocol_map=TWO).listeners) == 2


def test_names_are_upper_case_and_map_to_protocols() -> None:
    config = static(
        listeners="my-l_1.x://:9092", listener_security_protocol_map="MY-L_1.x:plaintext"
    )
    assert config.listeners == (ListenerAddress("MY-L_1.X", "", 9092, "PLAINTEXT"),)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_every_interface_is_advertised_by_the_machines_name(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "machine")
    config = static(listeners=f"PLAINTEXT://{host}:9092")
    assert config.advertised() == (ListenerAddress("PLAINTEXT", "machine", 9092, "PLAINTEXT"),)


def test_bound_ports_are_advertised() -> None:
    config = static(
        listeners="PLAINTEXT://127.0.0.1:0,A://127.0.0.1:0",
        listener_security_protocol_map=TWO,
        advertised_listeners="A://outside:0,PLAINTEXT://inside:7",
    )
    assert [str(one) for one in config.advertised({"A": 5, "PLAINTEXT": 6})] == [
        "A://outside:5",
        "PLAINTEXT://inside:7",
    ]


# Values that must fit together ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"max_connections_per_ip": "0"}, "at least 1 unless"),
        ({"queued_max_request_bytes": "5"}, r"at least socket\.request\.max\.bytes \(104857600\)"),
        ({"replica_fetch_wait_max_ms": "30001"}, r"replica\.socket\.timeout\.ms"),
        ({"replica_lag_time_max_ms": "499"}, r"greater than replica\.lag\.time\.max\.ms \(499\)"),
        ({"log_cleaner_dedupe_buffer_size": "5"}, "at least 1048576 for each"),
        ({"group_consumer_min_session_timeout_ms": "50000"}, "not be less than"),
        ({"group_consumer_heartbeat_interval_ms": "60000"}, "not be greater than"),
        (
            {
                "group_share_max_heartbeat_interval_ms": "70000",
                "group_share_heartbeat_interval_ms": "60000",
            },
            r"less than group\.share\.session\.timeout\.ms",
        ),
        ({"log_dirs": "a,b,a"}, "must not name a twice"),
        ({"log_dirs": ""}, "at least one element"),
        ({"log_dirs": "a,,b"}, "empty elements"),
        ({"node_id": "1", "broker_id": "2"}, r"same as node\.id \(1\)"),
        ({"node_id": "-1"}, "at least 0"),
        ({"max_connections_per_ip_overrides": "a:1,foo"}, "address:number pairs"),
        ({"max_connections_per_ip_overrides": "a:many"}, "address:number pairs"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        static(**settings)


def test_connection_limits_of_some_addresses() -> None:
    config = static(
        max_connections_per_ip="0",
        max_connections_per_ip_overrides="10.0.0.1:5, [::1]:6,[0:0::2]:7,h:0",
    )
    assert config.max_connections_per_ip_overrides == {"10.0.0.1": 5, "::1": 6, "::2": 7, "h": 0}


def test_the_two_names_of_the_number_are_one() -> None:
    for settings in ({"broker_id": "7"}, {"node_id": "7"}, {"node_id": "7", "broker_id": "7"}):
        config = static(**settings)
        assert config.node_id == 7
        assert [(one.value, one.source) for one in config.describe(["broker.id", "node.id"])] == [
            ("7", Source.STATIC_BROKER_CONFIG)
        ] * 2
    assert static(broker_id="-1").node_id == 1
    assert static(broker_id="-1", node_id="3").node_id == 3


# While running ----------------------------------------------------------------------------------


def test_dynamic_settings_go_over_the_others() -> None:
    config = static(message_max_bytes="100", max_connections="5")
    changed = config.with_dynamic(default={"message.max.bytes": "200", "max.connections": "6"})
    assert changed.log_defaults.max_message_bytes == 200
    assert changed.max_connections == 6
    changed = changed.with_dynamic(broker={"message.max.bytes": "300"})
    assert (changed.log_defaults.max_message_bytes, changed.max_connections) == (300, 6)
    assert changed.with_dynamic(broker={}, default={}).log_defaults.max_message_bytes == 100
    assert config.log_defaults.max_message_bytes == 100


def test_what_may_be_set_while_running() -> None:
    assert check_dynamic("message.max.bytes", "5", cluster_wide=True)
    assert not check_dynamic("no.such", "5", cluster_wide=True)
    with pytest.raises(InvalidSetting, match="cannot be changed while the broker runs"):
        check_dynamic("num.partitions", "5", cluster_wide=True)
    with pytest.raises(InvalidSetting, match="must be a whole number"):
        check_dynamic("message.max.bytes", "x", cluster_wide=False)
    with pytest.raises(InvalidSetting):
        BrokerConfig().with_dynamic(default={"num.partitions": "5"})
    with pytest.raises(InvalidSetting, match="at least 1 unless"):
        BrokerConfig().with_dynamic(broker={"max.connections.per.ip": "0"})


def test_settings_of_one_broker_are_not_set_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = BROKER_SETTINGS["num.partitions"]._replace(scope=Scope.PER_BROKER)
    monkeypatch.setitem(BROKER_SETTINGS._by_name, "num.partitions", setting)
    assert check_dynamic("num.partitions", "5", cluster_wide=False)
    with pytest.raises(InvalidSetting, match="only be changed for one broker"):
        check_dynamic("num.partitions", "5", cluster_wide=True)


def test_stored_dynamic_settings_that_went_bad_do_not_stop_a_start() -> None:
    reported: list[InvalidSetting] = []
    config = static(max_connections="5").with_dynamic(
        default={"message.max.bytes": "x", "num.partitions": "4", "no.such": "1"},
        broker={"message.max.bytes": "200"},
        on_invalid=reported.append,
    )
    assert [error.name for error in reported] == ["message.max.bytes", "num.partitions"]
    assert config.log_defaults.max_message_bytes == 200
    reported.clear()
    config = config.with_dynamic(broker={"max.connections.per.ip": "0"}, on_invalid=reported.append)
    assert [error.name for error in reported] == ["max.connections.per.ip"]
    assert config.max_connections == 5
    assert config.log_defaults.max_message_bytes == LogConfig().max_message_bytes


def test_the_common_dynamic_settings_are_described_alone() -> None:
    config = BrokerConfig().with_dynamic(
        default={"message.max.bytes": "200", "no.such": "1", "log.retention.ms": "5"}
    )
    [described] = config.describe_cluster_default(["message.max.bytes", "no.such"])
    assert described.value == "200"
    assert described.source is Source.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert [tuple(link) for link in described.synonyms] == [("message.max.bytes", "200", 3)]
    assert not described.read_only
    assert len(config.describe_cluster_default()) == 2
    assert len(config.describe()) == len(BROKER_SETTINGS)


# Start-up ---------------------------------------------------------------------------------------


def test_loading_imports_nothing_heavy(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\n")
    program = (
        "import sys, ottla.server.configuration.broker_config as c; c.load(sys.argv[1], environment={});"
        "print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "ottla.server.configuration.broker_settings" in loaded
    heavy = {"asyncio", "tomllib", "socket", "pathlib", "difflib", "confluent_kafka", "numpy"}
    assert not heavy & set(loaded)
    assert "ottla.server.configuration.ignored_settings" not in loaded


def test_the_documentation_is_up_to_date() -> None:
    root = HERE.parent.parent
    checked = subprocess.run(
        [sys.executable, str(root / "tools" / "configuration_table.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_file_without_a_known_end_is_properties(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text("a=1\n")
    assert read_file(str(file)) == [Assignment("a", "1", f"{file}, line 1")]


def test_settings_of_one_listener_go_before_those_of_all(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "listeners=OUTSIDE://h:1,INSIDE://h:2\n"
        "listener.security.protocol.map=OUTSIDE:SSL,INSIDE:SSL\n"
        "ssl.client.auth=none\nlistener.name.outside.ssl.client.auth=required\n"
        "listener.name.outside.plain.sasl.jaas.config=secret\n"
        # Kafka's own has settings of its controllers' listener.
        "listener.name.controller.ssl.client.auth=required\n"
    )
    config = broker(config_file=file)
    assert config.of_listener("OUTSIDE", "ssl.client.auth") == "required"
    assert config.of_listener("INSIDE", "ssl.client.auth") == "none"
    assert config.credentials("OUTSIDE", "PLAIN") == "secret"
    assert config.credentials("INSIDE", "PLAIN") is None
    assert [line.split(" ")[0] for line in config.warnings] == [
        "listener.name.controller.ssl.client.auth"
    ]


def test_a_secret_is_not_in_a_complaint(tmp_path: Path) -> None:
    config = static(ssl_key_password="hush", listeners="SSL://h:1")
    assert "hush" not in str(config.describe())
    assert not [each for each in config.describe(["ssl.key.password"]) if each.value is not None]
