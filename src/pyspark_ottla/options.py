"""The options of the source: those of Spark's Kafka source, `path` and `groupId`.

Spark hands them over in lower case. `read_options` restores the spelling of those it knows and says
what is wrong in terms of it: every option is taken, passed over with a line in the log (`NO_EFFECT`),
or refused by name.

At load() Spark does not tell whether the query is a batch or a streaming one. What is wrong in any
case is told there; what is wrong in one of the two (startingOffsets=latest in a batch query, say)
when the query begins.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from ottla.client.configuration.clients import ConsumerSettings, read_settings
from ottla.client.errors import ConfigurationError
from ottla.client.positions import TopicPartition
from pyspark_ottla.errors import OptionError
from pyspark_ottla.option_names import (
    KAFKA,
    OptionNames,
    client_option_error,
    client_options,
)
from pyspark_ottla.values.options import VALUE_OPTIONS, ValueOptions, read_value_options

logger = logging.getLogger(__name__)

LATEST: Final = -1
EARLIEST: Final = -2

Mode = Literal["batch", "streaming"]

# Where to begin or end: the same for all partitions, or a number for each of them.
AnyOffsets = int | dict[TopicPartition, int]

_SELECTIONS: Final = ("assign", "subscribe", "subscribePattern")
_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
ACCEPTED: Final = (
    *_SELECTIONS,
    *_STARTS,
    *_ENDS,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "path",
    "groupId",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    *VALUE_OPTIONS,
)
# Options that change nothing in batch queries, and those that streaming queries cannot have.
_STREAMING_ONLY: Final = (
    "groupId",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
# Options of Spark's source that change nothing here, each with the reason.
NO_EFFECT: Final[Mapping[str, str]] = {
    "groupIdPrefix": "no consumer group is joined",
    "kafka.group.id": "no consumer group is joined; groupId commits progress to one",
    "fetchOffset.numRetries": "requests are tried again until kafka.default.api.timeout.ms",
    "fetchOffset.retryIntervalMs": "kafka.retry.backoff.ms says when to try again",
    "partition.metadata.cache.ttl.ms": "kafka.metadata.max.age.ms says how long metadata are kept",
}
_REFUSED: Final[Mapping[str, str]] = {
    "topic": "it is for writes; name the topics to read with subscribe",
    "kafka.auto.offset.reset": "use startingOffsets and endingOffsets to say what is read",
    "kafka.key.deserializer": "keys are binary; use DataFrame operations to decode them",
    "kafka.value.deserializer": "values are binary, unless valueFormat says what they are",
    "kafka.enable.auto.commit": "groupId commits the progress of a streaming query to a group",
    "kafka.interceptor.classes": "Java classes cannot be loaded",
}
_NAMES: Final = OptionNames(
    "source",
    "reads",
    accepted=ACCEPTED,
    no_effect=NO_EFFECT,
    refused=_REFUSED,
    near=(*ACCEPTED, *NO_EFFECT, *_REFUSED, "kafka.bootstrap.servers", "kafka.isolation.level"),
)
_POLL_TIMEOUT: Final = 120.0
_MAX_TRIGGER_DELAY: Final = 15 * 60.0
_SECONDS: Final[Mapping[str, float]] = {
    "us": 1e-6,
    "": 1e-3,
    "ms": 1e-3,
    "s": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86400,
}
_LARGEST: Final = 2**63 - 1

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Bound:
    """Where the reading begins or ends, and the option that said so."""

    option: str
    offsets: AnyOffsets | None = None
    times: AnyOffsets | None = None  # milliseconds since 1970, in place of offsets


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read, checked as far as they can be without a look at the topics."""

    selection: Literal["assign", "subscribe", "subscribePattern"] | None
    start: Bound
    end: Bound
    assigned: frozenset[TopicPartition] = frozenset()
    subscribed: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    path: str | None = None
    client: dict[str, str] = field(default_factory=dict)  # the Java client's names
    start_strategy: Literal["error", "latest"] = "error"
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    values: ValueOptions | None = None  # None: values stay bytes
    poll_timeout: float = _POLL_TIMEOUT  # seconds
    # Streaming queries
    group: str | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = _MAX_TRIGGER_DELAY  # seconds

    @property
    def settings(self) -> ConsumerSettings:
        return read_settings(ConsumerSettings, self.client)

    @property
    def committed_only(self) -> bool:
        return self.client.get("isolation.level", "read_committed") == "read_committed"

    def selects(self, topic: str, partition: int) -> bool:
        """Whether a partition of those there are is to be read (assign, subscribe, …)."""
        match self.selection:
            case "assign":
                return TopicPartition(topic, partition) in self.assigned
            case "subscribe":
                return topic in self.subscribed
            case "subscribePattern":
                return self.pattern is not None and self.pattern.fullmatch(topic) is not None
            case _:
                return not topic.startswith("__")


def read_options(given: Mapping[str, str], mode: Mode | None = None) -> SourceOptions:
    """The options that Spark hands over; OptionError at the first that is wrong.

    Without a mode only what both modes have in common is checked, and the start is that of batch
    queries where none is given.
    """
    named = _NAMES.spelled(given)
    client = client_options(named, NO_EFFECT)
    path = named.get("path")
    _check_client(client, path)
    selections = [name for name in _SELECTIONS if name in named]
    if len(selections) > 1:
        raise OptionError(f"{' and '.join(selections)} exclude each other; give one of them")
    if not selections and path is None:
        raise OptionError(f"one of the options {', '.join(_SELECTIONS)} is needed to name topics")
    selection: Any = selections[0] if selections else None
    start = _bound(named, _STARTS, LATEST if mode == "streaming" else EARLIEST)
    end = _bound(named, _ENDS, LATEST)
    if path is not None and (start.times is not None or end.times is not None):
        timed = start.option if start.times is not None else end.option
        raise OptionError(f"{timed} is not offered together with path; use offsets")
    _check_ends(end, EARLIEST, "earliest", "end")
    if mode == "batch":
        _check_ends(start, LATEST, "latest", "begin")
        for name in _STREAMING_ONLY:
            if name in named:
                logger.warning("option %s has no effect here: it is for streaming queries", name)
    if mode == "streaming":
        _check_streaming(named)
    strategy: Any = _read(
        named, "startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error"
    )
    poll = _read(named, "kafkaConsumer.pollTimeoutMs", _positive, int(_POLL_TIMEOUT * 1000))
    most = _read(named, "maxOffsetsPerTrigger", _positive, None)
    least = _read(named, "minOffsetsPerTrigger", _positive, None)
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger ({least}) cannot be more than maxOffsetsPerTrigger ({most})"
        )
    subscribed: frozenset[str] = _read(named, "subscribe", _names, frozenset())
    return SourceOptions(
        selection=selection,
        assigned=_read(named, "assign", _assignment, frozenset()),
        subscribed=subscribed,
        pattern=_read(named, "subscribePattern", _pattern, None),
        start=start,
        end=end,
        path=path,
        client=client,
        start_strategy=strategy,
        fail_on_data_loss=_read(named, "failOnDataLoss", _boolean, True),
        min_partitions=_read(named, "minPartitions", _positive, None),
        max_records_per_partition=_read(named, "maxRecordsPerPartition", _positive, None),
        include_headers=_read(named, "includeHeaders", _boolean, False),
        values=read_value_options(named, subscribed),
        poll_timeout=poll / 1000,
        group=_read(named, "groupId", _group, None),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay=_read(named, "maxTriggerDelay", _duration, _MAX_TRIGGER_DELAY),
    )


def _check_client(client: Mapping[str, str], path: str | None) -> None:
    if path is not None:
        others = sorted(set(client) - {"isolation.level"})
        if others:
            raise OptionError(
                f"{KAFKA}{others[0]} makes no sense together with path, which reads files; "
                "leave out one of the two"
            )
        client = {**client, "bootstrap.servers": "none"}
    elif "bootstrap.servers" not in client:
        raise OptionError("the option kafka.bootstrap.servers is needed (or path, to read files)")
    try:
        read_settings(ConsumerSettings, client)
    except ConfigurationError as error:
        raise client_option_error(error) from None


def _check_streaming(named: Mapping[str, str]) -> None:
    if "path" in named:
        raise OptionError(
            "path is for batch queries: a folder of logs is read as it is, and cannot be followed; "
            "use spark.read, or stream from a broker with kafka.bootstrap.servers"
        )
    for name in _ENDS:
        if name in named:
            raise OptionError(f"{name} is for batch queries: a streaming query has no end")


def _read(
    named: Mapping[str, str], name: str, read: Callable[[str], _Value], default: _Value
) -> _Value:
    if name not in named:
        return default
    try:
        return read(named[name])
    except ValueError as error:
        raise OptionError(f"{name} takes {error}, not {named[name]!r}") from None


def _bound(named: Mapping[str, str], names: tuple[str, str, str], default: int) -> Bound:
    """The bound that the first of the three options sets which is given, as in Spark's source."""
    same_time, times, offsets = names
    if same_time in named:
        return Bound(same_time, times=_read(named, same_time, _time, 0))
    if times in named:
        nothing: AnyOffsets = {}
        return Bound(times, times=_read(named, times, _by_partition(0), nothing))
    otherwise: AnyOffsets = default
    return Bound(offsets, offsets=_read(named, offsets, _offsets, otherwise))


def _check_ends(bound: Bound, wrong: int, word: str, verb: str) -> None:
    offsets = bound.offsets
    if offsets == wrong or (isinstance(offsets, dict) and wrong in offsets.values()):
        raise OptionError(
            f"{bound.option} cannot be {word} ({wrong}): a batch query that would {verb} there "
            "has nothing to read"
        )


def _offsets(text: str) -> AnyOffsets:
    match text.strip().lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
    return _by_partition(EARLIEST)(text)


def _by_partition(smallest: int) -> Callable[[str], dict[TopicPartition, int]]:
    """Reads `{"topic": {"0": 23, "1": -1}}`."""
    least = "earliest, latest or " if smallest < 0 else ""
    wanted = f'{least}JSON such as {{"topic": {{"0": 23}}}}'

    def read(text: str) -> dict[TopicPartition, int]:
        found = {}
        for topic, partitions in _json_object(text, wanted).items():
            if not isinstance(partitions, dict):
                raise ValueError(wanted)
            for partition, number in partitions.items():
                if (
                    not _is_number(partition)
                    or type(number) is not int
                    or not smallest <= number <= _LARGEST
                ):
                    raise ValueError(wanted)
                found[TopicPartition(topic, int(partition))] = number
        if not found:
            raise ValueError(wanted)
        return found

    return read


def _assignment(text: str) -> frozenset[TopicPartition]:
    wanted = 'JSON such as {"topic": [0, 1]}'
    found = set()
    for topic, partitions in _json_object(text, wanted).items():
        if not isinstance(partitions, list):
            raise ValueError(wanted)
        for partition in partitions:
            if type(partition) is not int or partition < 0:
                raise ValueError(wanted)
            found.add(TopicPartition(topic, partition))
    if not found:
        raise ValueError(wanted)
    return frozenset(found)


def _json_object(text: str, wanted: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(wanted) from None
    if not isinstance(found, dict):
        raise ValueError(wanted)
    return found


def _names(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",")) - {""}
    if not names:
        raise ValueError("names of topics, separated by commas")
    return names


def _pattern(text: str) -> re.Pattern[str]:
    try:
        if text.strip():
            return re.compile(text.strip())
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    raise ValueError("a regular expression")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def _time(text: str) -> int:
    if not _is_number(text.strip()):
        raise ValueError("milliseconds since 1970")
    return int(text)


def _positive(text: str) -> int:
    if not _is_number(text.strip()) or int(text) == 0:
        raise ValueError("a positive whole number")
    return int(text)


def _duration(text: str) -> float:
    """Seconds, of a time as Spark writes it: 15m, 500ms, 20s; milliseconds without a unit."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _SECONDS:
        raise ValueError("a time such as 15m, 20s or 500ms")
    return int(found[1]) * _SECONDS[found[2]]


def _group(text: str) -> str:
    if not text.strip():
        raise ValueError("the name of a consumer group")
    return text.strip()


def _boolean(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(" or ".join(words))
        return text.strip().lower()

    return read
