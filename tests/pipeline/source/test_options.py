"""Options: every one of Spark's source is taken, passed over or refused, and errors name it."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from ottla.client.configuration.clients import ConsumerSettings, read_settings
from ottla.client.positions import TopicPartition
from ottla.wire.sasl import Plain
from pyspark_ottla.errors import OptionError
from pyspark_ottla.options import EARLIEST, LATEST, NO_EFFECT, read_options
from pyspark_ottla.writing.options import read_sink_options

GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}

GIVEN_TO_WRITE = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}

# The options of Spark's own source, each with a value that it takes.
OF_SPARK = {
    "assign": '{"orders": [0, 1]}',
    "subscribePattern": "orders-.*",
    "startingOffsets": '{"orders": {"0": -2}}',
    "startingOffsetsByTimestamp": '{"orders": {"0": 1000}}',
    "startingTimestamp": "1000",
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": '{"orders": {"0": -1}}',
    "endingOffsetsByTimestamp": '{"orders": {"0": 1000}}',
    "endingTimestamp": "1000",
    "failOnDataLoss": "false",
    "minPartitions": "10",
    "maxRecordsPerPartition": "100",
    "includeHeaders": "TRUE",
    "maxOffsetsPerTrigger": "10",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "15m",
    "groupIdPrefix": "mine",
    "kafka.group.id": "mine",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
    "kafkaConsumer.pollTimeoutMs": "1000",
    "partition.metadata.cache.ttl.ms": "1000",
}


@pytest.mark.parametrize("name", OF_SPARK)
def test_every_option_of_sparks_source_is_known_in_lower_case(name: str) -> None:
    given = dict(GIVEN)
    if name in ("assign", "subscribePattern"):
        del given["subscribe"]
    read_options({**given, name.lower(): OF_SPARK[name]})


def test_values() -> None:
    options = read_options(
        {
            "kafka.bootstrap.servers": "localhost:9092",
            "assign": '{"orders": [0, 2]}',
            "startingoffsets": '{"orders": {"0": 5, "2": -2}}',
            "endingoffsets": "LATEST",
            "failondataloss": "false",
            "minpartitions": "7",
            "maxrecordsperpartition": "100",
            "includeheaders": "true",
            "kafkaconsumer.polltimeoutms": "1500",
            "kafka.fetch.max.wait.ms": "100",
        }
    )
    both = {TopicPartition("orders", 0), TopicPartition("orders", 2)}
    assert options.assigned == both
    assert options.start.offsets == dict(zip(sorted(both), (5, -2), strict=True))
    assert options.end.offsets == -1
    assert not options.fail_on_data_loss
    assert (options.min_partitions, options.max_records_per_partition) == (7, 100)
    assert options.include_headers
    assert options.poll_timeout == 1.5
    assert options.settings.fetch_wait == 0.1
    assert options.committed_only


def test_the_first_of_three_ways_to_say_it_wins() -> None:
    options = read_options(
        {
            **GIVEN,
            "startingtimestamp": "1",
            "startingoffsetsbytimestamp": '{"orders": {"0": 2}}',
            "startingoffsets": "earliest",
            "endingoffsetsbytimestamp": '{"orders": {"0": 2}}',
            "endingoffsets": "latest",
        }
    )
    assert (options.start.option, options.start.times) == ("startingTimestamp", 1)
    assert options.end.times == {TopicPartition("orders", 0): 2}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribepatern": "x"}, "did you mean subscribePattern"),
        ({"startingoffset": "x"}, "did you mean startingOffsets"),
        ({"bootstrap.servers": "x"}, "did you mean kafka.bootstrap.servers"),
        ({"kafka.fetch.max.wait": "x"}, "did you mean kafka.fetch.max.wait.ms?"),
        ({"zzz": "x"}, "zzz (Spark has handed it over in lower case) is no option"),
        ({"startingoffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"startingoffsets": '{"orders": {"0": -1}}'}, "startingOffsets cannot be latest"),
        ({"endingoffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"endingoffsets": '{"orders": {"0": -2}}'}, "endingOffsets cannot be earliest"),
        ({"startingoffsets": '{"orders": {"0": -3}}'}, "startingOffsets takes"),
        ({"startingoffsets": '{"orders": {"a": 3}}'}, "startingOffsets takes"),
        ({"startingoffsets": '{"orders": {"0": true}}'}, "startingOffsets takes"),
        ({"startingoffsets": '{"orders": 3}'}, "startingOffsets takes"),
        ({"startingoffsets": "{}"}, "startingOffsets takes"),
        ({"endingoffsets": "[1"}, "endingOffsets takes"),
        ({"startingtimestamp": "noon"}, "startingTimestamp takes"),
        ({"startingoffsetsbytimestamp": '{"o": {"0": -1}}'}, "startingOffsetsByTimestamp takes"),
        ({"startingoffsetsbytimestampstrategy": "x"}, "startingOffsetsByTimestampStrategy takes"),
        ({"failondataloss": "perhaps"}, "failOnDataLoss takes true or false"),
        ({"minpartitions": "0"}, "minPartitions takes"),
        ({"maxrecordsperpartition": "-1"}, "maxRecordsPerPartition takes"),
        ({"includeheaders": "1"}, "includeHeaders takes"),
        ({"assign": '{"orders": [0]}'}, "assign and subscribe exclude each other"),
        ({"topic": "orders"}, "topic is no option of reads here"),
        ({"kafka.auto.offset.reset": "x"}, "kafka.auto.offset.reset is no option"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit is no option"),
        ({"kafka.isolation.levl": "x"}, "kafka.isolation.levl is no option"),
        ({"kafka.isolation.level": "x"}, "kafka.isolation.level takes"),
        ({"path": "/logs"}, "kafka.bootstrap.servers makes no sense together with path"),
    ],
)
def test_errors_name_the_option(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options({**GIVEN, **given}, "batch")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "orders"}, "kafka.bootstrap.servers is needed"),
        ({"kafka.bootstrap.servers": "a:1"}, "one of the options assign, subscribe"),
        ({"kafka.bootstrap.servers": "a:1", "subscribe": " , "}, "subscribe takes"),
        ({"kafka.bootstrap.servers": "a:1", "subscribepattern": "["}, "subscribePattern takes"),
        ({"kafka.bootstrap.servers": "a:1", "assign": '{"a": ["0"]}'}, "assign takes"),
        ({"path": "/logs", "startingtimestamp": "1"}, "startingTimestamp is not offered"),
    ],
)
def test_what_is_needed(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options(given)
    assert said in str(raised.value)


def test_what_has_no_effect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_options({**GIVEN, **{name.lower(): "1" for name in NO_EFFECT}})
    for name in NO_EFFECT:
        assert name in caplog.text


def test_streaming_queries_begin_at_the_end() -> None:
    assert read_options(GIVEN, "batch").start.offsets == EARLIEST
    assert read_options(GIVEN, "streaming").start.offsets == LATEST
    assert read_options({**GIVEN, "startingoffsets": "latest"}).start.offsets == LATEST


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"endingoffsets": "latest"}, "endingOffsets is for batch queries"),
        ({"endingtimestamp": "1"}, "endingTimestamp is for batch queries"),
        ({"maxoffsetspertrigger": "0"}, "maxOffsetsPerTrigger takes a positive whole number"),
        ({"minoffsetspertrigger": "x"}, "minOffsetsPerTrigger takes a positive whole number"),
        ({"maxtriggerdelay": "5 fortnights"}, "maxTriggerDelay takes a time such as 15m"),
        ({"maxtriggerdelay": "-1s"}, "maxTriggerDelay takes a time such as 15m"),
        ({"groupid": ""}, "groupId takes the name of a consumer group"),
        (
            {"maxoffsetspertrigger": "5", "minoffsetspertrigger": "6"},
            "minOffsetsPerTrigger (6) cannot be more than maxOffsetsPerTrigger (5)",
        ),
        ({"maxoffsetpertrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
    ],
)
def test_errors_of_streaming_queries_name_the_option(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options({**GIVEN, **given}, "streaming")
    assert said in str(raised.value)


def test_a_folder_is_not_streamed() -> None:
    with pytest.raises(OptionError, match=r"path is for batch queries.* use spark\.read"):
        read_options({"path": "/logs"}, "streaming")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("20s", 20), ("500ms", 0.5), ("500", 0.5), ("2h", 7200), ("1D", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    options = read_options({**GIVEN, "maxtriggerdelay": text}, "streaming")
    assert options.max_trigger_delay == pytest.approx(seconds)


def test_what_is_for_streaming_queries_is_logged_in_batch_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {**GIVEN, "maxoffsetspertrigger": "5", "groupid": "mine"}
    with caplog.at_level(logging.WARNING):
        read_options(given, "streaming")
        assert not caplog.text
        read_options(given, "batch")
    assert "maxOffsetsPerTrigger has no effect" in caplog.text
    assert "groupId has no effect" in caplog.text


def test_the_file_of_the_environment_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks run elsewhere, where the environment does not name it."""
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u\n"
        "sasl.password=not-to-be-seen\n"
    )
    other = tmp_path / "other.properties"
    other.write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTTLA_CLIENT_CONFIG", "client.properties")
    reading = read_options(GIVEN)
    writing = read_sink_options({**GIVEN_TO_WRITE}, "batch")
    monkeypatch.delenv("OTTLA_CLIENT_CONFIG")
    monkeypatch.chdir("/")
    for options in (reading, writing):
        assert options.settings.security.sasl == Plain("u", "not-to-be-seen")
        assert b"not-to-be-seen" not in pickle.dumps(options)
    # What an option names comes first, and files of a log are read without any client.
    monkeypatch.setenv("OTTLA_CLIENT_CONFIG", str(file))
    named = read_options({**GIVEN, "kafka.config.file": str(other)})
    assert named.settings.security.sasl is None
    assert read_options({"path": str(tmp_path)}).client == {}


def test_secrets_stay_in_their_file(tmp_path: Path) -> None:
    """What is planned, pickled for the executors and shown has the path alone."""
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u\n"
        "sasl.password=not-to-be-seen\n"
    )
    options = read_options({**GIVEN, "kafka.config.file": str(file)})
    assert options.client["config.file"] == str(file)
    assert b"not-to-be-seen" not in pickle.dumps(options)
    assert "not-to-be-seen" not in repr(options)
    # As an executor reads them.
    settings = read_settings(ConsumerSettings, options.client)
    assert settings.security.sasl == Plain("u", "not-to-be-seen")
    with pytest.raises(OptionError, match=r"kafka\.config\.file=.*none cannot be read"):
        read_options({**GIVEN, "kafka.config.file": str(tmp_path / "none")})
