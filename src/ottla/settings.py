"""Settings: named, typed, validated values that users write as text, and tables of them.

Topics (`storage/config.py`) and brokers (`server/configuration/broker_settings.py`) describe what can be
configured with the same words: a `Setting` is one row, a `SettingTable` all rows of one kind.
Names, types, defaults and the text form of values are Kafka's, because its tools read them back
through DescribeConfigs. No I/O here, and nothing that is slow to import.
"""

# Annotations are not postponed here: as strings they would be compiled one by one at import.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from math import isfinite
from typing import NamedTuple

Value = bool | int | float | str | tuple[str, ...] | None
"""A parsed value. None only where a setting has no value at all, which is not an empty text."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

HIDDEN = "[hidden]"


class SettingType(IntEnum):
    """The type of a setting; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Scope(Enum):
    """Whether a broker setting may change while the broker runs, and for whom."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Source(IntEnum):
    """Where a value comes from; the numbers are those of DescribeConfigs."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class InvalidSetting(ValueError):
    """A setting was given a value it cannot have. `why` follows "is not valid: "."""

    def __init__(self, name: str, value: str | None, why: str) -> None:
        super().__init__(name, value, why)
        self.name = name
        self.value = value
        self.why = why

    def __str__(self) -> str:
        return f"{self.name}={'' if self.value is None else self.value} is not valid: {self.why}"


class UnknownSetting(InvalidSetting):
    """No setting has this name."""

    def __str__(self) -> str:
        return f"{self.name} {self.why}"


# What a value may be. ---------------------------------------------------------------------------


class Allowed:
    """A condition on a parsed value, with the words that complete "must be …"."""

    __slots__ = ("_accepts", "words")

    def __init__(self, words: str, accepts: Callable[[Value], bool]) -> None:
        self.words = words
        self._accepts = accepts

    def accepts(self, value: Value) -> bool:
        return self._accepts(value)


def at_least(low: int) -> Allowed:
    return Allowed(f"at least {low}", lambda value: isinstance(value, int | float) and value >= low)


def between(low: float, high: float, *, also: tuple[int, ...] = ()) -> Allowed:
    """From low to high, both included, or one of `also`."""
    words = f"from {low} to {high}" + "".join(f", or {extra}" for extra in also)
    return Allowed(
        words,
        lambda value: isinstance(value, int | float) and (low <= value <= high or value in also),
    )


def one_of(*choices: str) -> Allowed:
    return Allowed(f"one of {', '.join(choices)}", lambda value: value in choices)


def one_of_ignoring_case(*choices: str) -> Allowed:
    lowered = frozenset(choice.lower() for choice in choices)
    return Allowed(
        f"one of {', '.join(choices)} (in any case)",
        lambda value: isinstance(value, str) and value.lower() in lowered,
    )


def list_of(*choices: str) -> Allowed:
    """A list with no other elements than these; empty is allowed."""
    return Allowed(
        f"a list made of {', '.join(choices)}",
        lambda value: isinstance(value, tuple) and all(element in choices for element in value),
    )


def some() -> Allowed:
    return Allowed("a list of at least one element", lambda value: bool(value))


# One row. ---------------------------------------------------------------------------------------


class Synonym(NamedTuple):
    """A broker setting that gives a topic setting its default."""

    name: str
    factor: int = 1  # the topic's value is the broker's times this (hours to milliseconds)


class Setting(NamedTuple):
    """One thing that can be configured."""

    name: str
    type: SettingType
    default: Value
    allowed: Allowed | None
    doc: str
    # For a topic setting: the broker settings behind it; the first one that has a value counts.
    # For a broker setting: the other settings of the same meaning, itself included.
    synonyms: tuple[Synonym, ...] = ()
    scope: Scope = Scope.READ_ONLY
    sensitive: bool = False
    # The feature that will read this setting, where it is not there yet.
    awaits: str = ""

    @property
    def attribute(self) -> str:
        """The name of the attribute that holds the value in LogConfig and BrokerConfig."""
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Value:
        """Read a value from its text form. Raises InvalidSetting."""
        value = self._read(text)
        if self.allowed is not None and not self.allowed.accepts(value):
            raise self.invalid(text, f"must be {self.allowed.words}")
        return value

    def render(self, value: Value) -> str | None:
        """The text form of a value, as Kafka prints it."""
        if value is None:
            return None
        if self.sensitive:
            return HIDDEN
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return render_double(value)
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def invalid(self, text: str | None, why: str) -> InvalidSetting:
        return InvalidSetting(self.name, HIDDEN if self.sensitive else text, why)

    def _read(self, text: str) -> Value:
        kind = self.type
        if kind is SettingType.PASSWORD:
            return text  # blanks may belong to a password
        text = text.strip()
        if kind is SettingType.STRING or kind is SettingType.CLASS:
            return text
        if kind is SettingType.BOOLEAN:
            word = text.lower()
            if word not in ("true", "false"):
                raise self.invalid(text, "must be true or false")
            return word == "true"
        if kind is SettingType.LIST:
            if not text:
                return ()
            elements = tuple(element.strip() for element in text.split(","))
            if "" in elements:
                raise self.invalid(text, "must not have empty elements between its commas")
            return elements
        if kind is SettingType.DOUBLE:
            return self._read_double(text)
        return self._read_integer(text)

    def _read_integer(self, text: str) -> int:
        digits = text[1:] if text[:1] in ("+", "-") else text
        # int() would also take "1_000" and digits of other scripts.
        if not (digits.isascii() and digits.isdigit()):
            raise self.invalid(text, f"must be a whole number{self._bounds()}")
        low, high = _RANGES[self.type]
        digits = digits.lstrip("0") or "0"
        # The length is checked first: int() of a million digits takes its time.
        value = int(digits) if len(digits) <= 19 else LONG_MAX + 1
        if text.startswith("-"):
            value = -value
        if not low <= value <= high:
            raise self.invalid(text, f"must be a whole number from {low} to {high}")
        return value

    def _read_double(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not isfinite(value) or "_" in text:
            raise self.invalid(text, f"must be a number{self._bounds()}")
        return value

    def _bounds(self) -> str:
        return f", {self.allowed.words}" if self.allowed is not None else ""


_RANGES = {
    SettingType.SHORT: (-(2**15), 2**15 - 1),
    SettingType.INT: (-(2**31), INT_MAX),
    SettingType.LONG: (-(2**63), LONG_MAX),
}


def render_double(value: float) -> str:
    """A number as Java prints it: 0.5, 1.0E-5, 1.0E7. The digits are the fewest that tell it."""
    if not isfinite(value) or value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    for precision in range(1, 17):
        mantissa, _, exponent = f"{value:.{precision}e}".partition("e")
        if float(f"{mantissa}e{exponent}") == value:
            break
    return f"{mantissa}E{int(exponent)}"


# All rows. --------------------------------------------------------------------------------------


class SettingTable:
    """The settings of one kind, by name."""

    __slots__ = ("_by_name", "kind", "missing")

    def __init__(
        self, kind: str, settings: Iterable[Setting], missing: Mapping[str, str] | None = None
    ) -> None:
        """`missing`: names that Kafka has and Ottla has not, each with the reason."""
        self.kind = kind
        self.missing: Mapping[str, str] = missing or {}
        self._by_name: dict[str, Setting] = {}
        for setting in settings:
            if setting.name in self._by_name:
                raise ValueError(f"two {kind} settings are called {setting.name}")
            self._by_name[setting.name] = setting

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Setting:
        """The setting of this name. Raises UnknownSetting."""
        setting = self._by_name.get(name)
        if setting is None:
            why = f"is not a {self.kind} setting"
            if name in self.missing:
                why = f"is not a {self.kind} setting of Ottla: {self.missing[name]}"
            raise UnknownSetting(name, None, why)
        return setting

    def get(self, name: str) -> Setting | None:
        return self._by_name.get(name)

    def parse(self, name: str, text: str) -> Value:
        """Read the value of one setting. Raises InvalidSetting (UnknownSetting is one)."""
        return self[name].parse(text)

    def render(self, name: str, value: Value) -> str | None:
        return self[name].render(value)

    def append(self, name: str, current: str | None, text: str) -> str:
        """IncrementalAlterConfigs' APPEND: a list with the elements that it lacks added.

        `current` None stands for a setting that was never set: its default is added to.
        """
        elements = list(self._elements(name, current))
        elements += [added for added in self._elements(name, text) if added not in elements]
        return ",".join(elements)

    def subtract(self, name: str, current: str | None, text: str) -> str:
        """IncrementalAlterConfigs' SUBTRACT: a list with these elements taken out."""
        gone = self._elements(name, text)
        return ",".join(element for element in self._elements(name, current) if element not in gone)

    def _elements(self, name: str, text: str | None) -> tuple[str, ...]:
        setting = self[name]
        if setting.type is not SettingType.LIST:
            raise setting.invalid(text, "only a list can be appended to or subtracted from")
        elements = setting.default if text is None else setting.parse(text)
        return elements if isinstance(elements, tuple) else ()


# Where a value comes from. ----------------------------------------------------------------------

_NOTHING: Mapping[str, str] = {}


class BrokerLayers(NamedTuple):
    """What was set on a broker, as text by name; a layer wins over those after it."""

    dynamic_broker: Mapping[str, str] = _NOTHING  # this broker's, changed while running
    dynamic_default: Mapping[str, str] = _NOTHING  # every broker's, changed while running
    static: Mapping[str, str] = _NOTHING  # file, environment, command line

    def with_sources(self) -> Iterator[tuple[Source, Mapping[str, str]]]:
        yield Source.DYNAMIC_BROKER_CONFIG, self.dynamic_broker
        yield Source.DYNAMIC_DEFAULT_BROKER_CONFIG, self.dynamic_default
        yield Source.STATIC_BROKER_CONFIG, self.static


class SynonymValue(NamedTuple):
    """One link of the chain that DescribeConfigs shows: a name, its value there, and where."""

    name: str
    value: str | None
    source: Source


class Described(NamedTuple):
    """A setting with its value, as DescribeConfigs answers it."""

    name: str
    value: str | None  # None also for a sensitive one
    source: Source
    type: SettingType
    read_only: bool
    sensitive: bool
    synonyms: tuple[SynonymValue, ...]  # the value in force first, the default last
    documentation: str


def synonym_chain(
    names: Sequence[str], layers: BrokerLayers, table: SettingTable
) -> tuple[SynonymValue, ...]:
    """All values that broker settings of one meaning have, the one in force first.

    A layer goes before a name: log.retention.ms in the file loses to what was set while running.
    Values are the text as it was given, defaults as they are rendered.
    """
    known = [table[name] for name in names]
    chain = [
        SynonymValue(setting.name, None if setting.sensitive else layer[setting.name], source)
        for source, layer in layers.with_sources()
        for setting in known
        if setting.name in layer
    ]
    chain += [
        SynonymValue(setting.name, setting.render(setting.default), Source.DEFAULT_CONFIG)
        for setting in known
        if setting.default is not None
    ]
    return tuple(chain)


def as_kafka_shows(
    name: str, chain: Sequence[SynonymValue]
) -> tuple[tuple[SynonymValue, ...], Source]:
    """The part of a chain that Kafka lets clients see, and the source it names.

    Kafka leaves out what comes before the first mention of the asked name itself. So a value that
    comes from log.retention.hours alone is shown with no synonyms, as a default.
    """
    for at, link in enumerate(chain):
        if link.name == name:
            return tuple(chain[at:]), link.source
    return (), Source.DEFAULT_CONFIG
