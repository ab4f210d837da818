"""Topic settings against what Apache Kafka answers, and the rules by which they are read."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.settings import (
    HIDDEN,
    LONG_MAX,
    BrokerLayers,
    InvalidSetting,
    Scope,
    Setting,
    SettingTable,
    SettingType,
    Source,
    UnknownSetting,
    render_double,
)
from ottla.storage.config import (
    LOG_BROKER_SETTINGS,
    TOPIC_SETTINGS,
    UNSUPPORTED_TOPIC_SETTINGS,
    LogConfig,
    broker_defaults,
    describe_topic,
    parse,
)

KAFKA: dict[str, Any] = json.loads(
    Path(__file__).with_name("kafka_topic_settings.json").read_text(encoding="utf-8")
)
# What no Kafka has.
OWN = {"delete.record.erase.ms", "visible.when.flushed"}
OURS = [setting.name for setting in TOPIC_SETTINGS]


def kafka_limits(text: str) -> str:
    """Kafka's way of writing limits, in our words."""
    if text.startswith("[partitionId]"):
        return "a list of partition:broker pairs, or * for all replicas"
    inside, _, extra = text.strip("[").partition("]")
    if "..." in inside:
        low, high = inside.split(",...")[0], inside.partition("...,")[2]
        words = f"from {low} to {high}" if high else f"at least {low}"
        return words + extra.replace(" or ", ", or ")
    return f"one of {inside}"


# Against Kafka ----------------------------------------------------------------------------------


def test_every_setting_of_kafka_is_either_ours_or_named_as_missing() -> None:
    assert set(OURS) | set(UNSUPPORTED_TOPIC_SETTINGS) == set(KAFKA["defaults"]) | OWN
    assert not set(OURS) & set(UNSUPPORTED_TOPIC_SETTINGS)


@pytest.mark.parametrize("name", [each for each in OURS if each not in OWN])
def test_setting_is_as_in_kafka(name: str) -> None:
    kafka = KAFKA["defaults"][name]
    ours = TOPIC_SETTINGS[name]
    assert ours.type == kafka["type"]
    assert ours.render(ours.default) == kafka["default"]
    if kafka["allowed"]:
        assert ours.allowed is not None
        expected = kafka_limits(kafka["allowed"])
        if name == "cleanup.policy":
            expected = expected.replace("one of", "a list made of")
        assert ours.allowed.words == expected
    else:
        assert ours.allowed is None
    [described] = describe_topic({}, BrokerLayers(), [name])
    assert described.value == kafka["default"]
    assert described.source is Source.DEFAULT_CONFIG
    assert described.read_only is kafka["read_only"]
    assert [list(link) for link in described.synonyms] == kafka["synonyms"]
    assert described.documentation


@pytest.mark.parametrize("topic", ["t", "u"])
def test_values_sources_and_synonyms_are_as_in_kafka(topic: str) -> None:
    scenario = KAFKA["scenario"]
    layers = BrokerLayers(
        scenario["dynamic_broker"], scenario["dynamic_default"], scenario["static"]
    )
    case = scenario["topics"][topic]
    expected = {
        name: row
        for name, row in case["described"].items()
        if name not in UNSUPPORTED_TOPIC_SETTINGS
    }
    assert {
        described.name: {
            "value": described.value,
            "source": int(described.source),
            "synonyms": [list(link) for link in described.synonyms],
        }
        for described in describe_topic(case["overrides"], layers)
        if described.name not in OWN
    } == expected


# What Kafka 4.3.1 said to each of these when it was asked.
REFUSED = [
    ("cleanup.policy", "none"),
    ("cleanup.policy", "Delete"),
    ("cleanup.policy", ","),
    ("cleanup.policy", "delete,"),
    ("segment.bytes", "1"),
    ("segment.bytes", "1_048_576"),
    ("segment.bytes", "2147483648"),
    ("segment.bytes", "abc"),
    ("segment.bytes", ""),
    ("segment.bytes", "1e7"),
    ("compression.gzip.level", "0"),
    ("compression.gzip.level", "10"),
    ("compression.lz4.level", "18"),
    ("compression.zstd.level", "23"),
    ("compression.type", "GZIP"),
    ("compression.type", "none"),
    ("preallocate", "yes"),
    ("min.cleanable.dirty.ratio", "1.1"),
    ("leader.replication.throttled.replicas", "none"),
    ("leader.replication.throttled.replicas", "0:1,*"),
    ("leader.replication.throttled.replicas", "a:b"),
    ("retention.ms", "-2"),
    ("retention.ms", "9223372036854775808"),
    ("flush.messages", "0"),
    ("flush.ms", "-1"),
    ("message.timestamp.type", "logappendtime"),
    ("message.timestamp.before.max.ms", "-1"),
    ("min.insync.replicas", "0"),
    ("segment.ms", "0"),
    ("segment.index.bytes", "3"),
    ("max.message.bytes", "-1"),
    ("delete.retention.ms", "-1"),
]
ACCEPTED: list[tuple[str, str, object]] = [
    ("cleanup.policy", "", ()),
    ("cleanup.policy", "compact, delete ", ("compact", "delete")),
    ("segment.bytes", " 1048576 ", 1048576),
    ("segment.bytes", "+1048576", 1048576),
    ("segment.bytes", "0001048576", 1048576),
    ("compression.gzip.level", "-1", -1),
    ("compression.zstd.level", "-131072", -131072),
    ("compression.type", "zstd", "zstd"),
    ("preallocate", "TRUE", True),
    ("preallocate", " false ", False),
    ("min.cleanable.dirty.ratio", ".5", 0.5),
    ("min.cleanable.dirty.ratio", "5e-1", 0.5),
    ("leader.replication.throttled.replicas", "*", ("*",)),
    ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
    ("leader.replication.throttled.replicas", "", ()),
    ("retention.ms", "-1", -1),
    ("retention.ms", "9223372036854775807", LONG_MAX),
    ("retention.bytes", "-5", -5),
    ("segment.jitter.ms", "604800001", 604800001),
]


@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_refuses_what_kafka_refuses(name: str, text: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse({name: text})
    assert caught.value.name == name
    assert caught.value.value == text
    assert caught.value.why.startswith("must ")


@pytest.mark.parametrize(("name", "text", "value"), ACCEPTED)
def test_accepts_what_kafka_accepts(name: str, text: str, value: object) -> None:
    assert getattr(parse({name: text}), name.replace(".", "_")) == value


# Reading ----------------------------------------------------------------------------------------


def test_error_says_what_is_allowed() -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse({"segment.bytes": "1"})
    assert str(caught.value) == "segment.bytes=1 is not valid: must be at least 1048576"
    with pytest.raises(InvalidSetting, match="a whole number, at least 1048576"):
        parse({"segment.bytes": "many"})
    with pytest.raises(InvalidSetting, match="whole number from -2147483648 to 2147483647"):
        parse({"segment.bytes": "9" * 5000})
    with pytest.raises(InvalidSetting, match="one of uncompressed, zstd, lz4"):
        parse({"compression.type": "brotli"})


@pytest.mark.parametrize("text", ["١٢٣", "1 0", "--1", "+", "0x10", "1.0"])
def test_whole_numbers_are_plain_digits(text: str) -> None:
    with pytest.raises(InvalidSetting):
        parse({"retention.ms": text})


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", "", "half"])
def test_numbers_are_finite(text: str) -> None:
    with pytest.raises(InvalidSetting, match="must be a number, from 0 to 1"):
        parse({"min.cleanable.dirty.ratio": text})


def test_unknown_names_are_refused_and_say_so() -> None:
    with pytest.raises(UnknownSetting, match=r"^no\.such is not a topic setting$"):
        parse({"no.such": "1"})
    with pytest.raises(UnknownSetting, match=r"^remote\.storage\.enable .* no tiered storage$"):
        parse({"remote.storage.enable": "false"})


def test_compaction_lags_must_agree_also_with_the_defaults() -> None:
    assert parse({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"})
    with pytest.raises(InvalidSetting, match=r"not be greater than max\.compaction\.lag\.ms \(9\)"):
        parse({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})
    with pytest.raises(InvalidSetting):
        parse({"max.compaction.lag.ms": "9"}, LogConfig(min_compaction_lag_ms=10))
    with pytest.raises(InvalidSetting):
        broker_defaults(
            BrokerLayers(
                static={
                    "log.cleaner.min.compaction.lag.ms": "10",
                    "log.cleaner.max.compaction.lag.ms": "9",
                }
            )
        )


def test_stored_overrides_that_went_bad_are_left_out_and_reported() -> None:
    reported: list[InvalidSetting] = []
    config = parse(
        {"segment.bytes": "1", "no.such": "1", "retention.ms": "5"}, on_invalid=reported.append
    )
    assert config == LogConfig(retention_ms=5)
    assert [error.name for error in reported] == ["segment.bytes", "no.such"]
    reported.clear()
    lags = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9", "retention.ms": "5"}
    assert parse(lags, on_invalid=reported.append) == LogConfig(retention_ms=5)
    assert [error.name for error in reported] == ["min.compaction.lag.ms"]


def test_overrides_go_over_the_brokers_defaults() -> None:
    defaults = LogConfig(segment_bytes=7, retention_ms=8)
    assert parse({"retention.ms": "9"}, defaults) == LogConfig(segment_bytes=7, retention_ms=9)
    assert parse({}, defaults) is defaults


# LogConfig --------------------------------------------------------------------------------------


def test_log_config_has_one_attribute_for_each_setting_and_its_default() -> None:
    config = LogConfig()
    assert [field.name for field in fields(LogConfig)] == [
        setting.attribute for setting in TOPIC_SETTINGS
    ]
    for setting in TOPIC_SETTINGS:
        value = getattr(config, setting.attribute)
        assert value == setting.default
        rendered = setting.render(value)
        assert rendered is not None
        assert setting.parse(rendered) == value


def test_log_config_does_not_change() -> None:
    config = LogConfig()
    with pytest.raises(FrozenInstanceError):
        config.segment_bytes = 1  # type: ignore[misc]
    assert not hasattr(config, "__dict__")


def test_log_config_answers_in_the_words_of_the_log() -> None:
    config = LogConfig()
    assert (config.deletes, config.compacts, config.stamps_append_time) == (True, False, False)
    assert config.compression_level is None
    config = LogConfig(
        cleanup_policy=("compact",), message_timestamp_type="LogAppendTime", compression_type="zstd"
    )
    assert (config.deletes, config.compacts, config.stamps_append_time) == (False, True, True)
    assert config.compression_level == 3
    assert LogConfig(compression_type="gzip", compression_gzip_level=7).compression_level == 7
    assert LogConfig(compression_type="lz4", compression_lz4_level=5).compression_level == 5


# Broker defaults --------------------------------------------------------------------------------


def test_a_broker_with_nothing_set_has_the_defaults() -> None:
    assert broker_defaults(BrokerLayers()) == LogConfig()


@pytest.mark.parametrize(
    ("static", "attribute", "value"),
    [
        ({"log.retention.hours": "2"}, "retention_ms", 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "retention_ms", 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, "retention_ms", 4),
        ({"log.retention.ms": "-1"}, "retention_ms", -1),
        ({"log.retention.hours": "-7"}, "retention_ms", -1),
        ({"log.roll.hours": "2"}, "segment_ms", 7_200_000),
        ({"log.roll.ms": "5", "log.roll.hours": "2"}, "segment_ms", 5),
        ({"log.roll.jitter.hours": "1"}, "segment_jitter_ms", 3_600_000),
        ({"log.flush.scheduler.interval.ms": "9"}, "flush_ms", 9),
        ({"log.flush.interval.ms": "8", "log.flush.scheduler.interval.ms": "9"}, "flush_ms", 8),
        ({"message.max.bytes": "77"}, "max_message_bytes", 77),
        ({"log.index.size.max.bytes": "4096"}, "segment_index_bytes", 4096),
    ],
)
def test_broker_settings_become_topic_defaults(
    static: dict[str, str], attribute: str, value: int
) -> None:
    assert getattr(broker_defaults(BrokerLayers(static=static)), attribute) == value


@pytest.mark.parametrize(
    "static",
    [
        {"log.retention.ms": "0"},
        {"log.retention.hours": "0"},
        {"log.roll.hours": "0"},
        {"log.roll.ms": "0"},
        {"log.roll.jitter.ms": "-1"},
        {"log.segment.bytes": "1"},
        {"log.flush.interval.ms": "-1"},
    ],
)
def test_bad_broker_defaults_are_refused(static: dict[str, str]) -> None:
    [name] = static
    with pytest.raises(InvalidSetting) as caught:
        broker_defaults(BrokerLayers(static=static))
    assert caught.value.name == name


def test_a_layer_goes_before_a_name() -> None:
    layers = BrokerLayers(
        dynamic_default={"log.retention.ms": "30"}, static={"log.retention.ms": "40"}
    )
    assert broker_defaults(layers).retention_ms == 30
    assert broker_defaults(layers._replace(dynamic_broker={"log.retention.ms": "20"})) == LogConfig(
        retention_ms=20
    )


def test_only_some_names_may_change_while_running() -> None:
    assert LOG_BROKER_SETTINGS["log.retention.ms"].scope is Scope.CLUSTER_WIDE
    assert LOG_BROKER_SETTINGS["log.retention.hours"].scope is Scope.READ_ONLY


def test_describing_asks_for_names_and_leaves_out_unknown_ones() -> None:
    described = describe_topic({}, BrokerLayers(), ["retention.ms", "no.such"])
    assert [one.name for one in described] == ["retention.ms"]


# The machinery ----------------------------------------------------------------------------------


def test_lists_are_appended_to_and_subtracted_from() -> None:
    table = TOPIC_SETTINGS
    assert table.append("cleanup.policy", None, "compact") == "delete,compact"
    assert table.append("cleanup.policy", "compact", "compact,delete") == "compact,delete"
    assert table.subtract("cleanup.policy", None, "delete") == ""
    assert table.subtract("cleanup.policy", "compact,delete", "compact") == "delete"
    with pytest.raises(InvalidSetting, match="only a list"):
        table.append("retention.ms", None, "1")
    with pytest.raises(InvalidSetting):
        table.append("cleanup.policy", None, "shred")
    with pytest.raises(UnknownSetting):
        table.append("no.such", None, "1")


def test_passwords_are_kept_whole_and_never_shown() -> None:
    password = Setting("key", SettingType.PASSWORD, None, None, "", sensitive=True)
    assert password.parse(" secret ") == " secret "
    assert password.render("secret") == HIDDEN
    assert password.render(None) is None
    assert password.invalid("secret", "must be longer").value == HIDDEN


def test_a_table_has_each_name_once() -> None:
    one = TOPIC_SETTINGS["retention.ms"]
    with pytest.raises(ValueError, match=r"retention\.ms"):
        SettingTable("topic", [one, one])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1e-5, "1.0E-5"),
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (sys.float_info.max, "1.7976931348623157E308"),
        (123456.789, "123456.789"),
        (1.5e300, "1.5E300"),
        (0.0, "0.0"),
        (-0.25, "-0.25"),
        (100.0, "100.0"),
        (5e-324, "4.9E-324"),
    ],
)
def test_numbers_are_printed_as_java_does(value: float, text: str) -> None:
    assert render_double(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_printed_numbers_read_back_the_same(value: float) -> None:
    assert float(render_double(value)) == value


@given(st.sampled_from(OURS), st.text(max_size=30))
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    setting = TOPIC_SETTINGS[name]
    try:
        value = setting.parse(text)
    except InvalidSetting:
        return
    rendered = setting.render(value)
    assert rendered is not None
    assert setting.parse(rendered) == value


def test_importing_it_loads_nothing_heavy() -> None:
    program = "import sys, ottla.storage.config; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"asyncio", "re2", "numpy", "tomllib", "decimal", "socket"} & set(loaded)
