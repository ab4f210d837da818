"""How an option is declared, and how the values that users give are read.

An option is a field of a settings class (see `configuration`): its name as librdkafka has it, other
names for the same thing (the Java client's, mostly), the reader of its values, and its default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

Reader = Callable[[object], Any]
_TRUE: Final = frozenset(("true", "t", "1", "yes", "on"))
_FALSE: Final = frozenset(("false", "f", "0", "no", "off"))
_LARGEST: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """What a field of a settings class says about itself."""

    name: str
    read: Reader  # raises ValueError with what it takes: "a whole number from 1 to 10"
    also: tuple[str, ...] = ()  # further names


def option(name: str, read: Reader, default: Any, *, also: tuple[str, ...] = ()) -> Any:
    """A field of a settings class that the option `name` fills.

    `default` is what the field holds when nobody gives the option: it is not read.
    """
    return dataclasses.field(default=default, metadata={"option": Option(name, read, also)})


def options_of(settings: type[Any]) -> dict[str, Option]:
    """Field name -> its option, for those fields that have one."""
    return {
        field.name: field.metadata["option"]
        for field in dataclasses.fields(settings)
        if "option" in field.metadata
    }


def text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("a text")


def some_text(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("a text that is not empty")


def words(value: object) -> tuple[str, ...]:
    """A list of texts, or one text with commas."""
    if isinstance(value, str):
        return tuple(filter(None, (part.strip() for part in value.split(","))))
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError("texts, separated by commas or in a list")


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, (str, int)):
        word = str(value).strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    raise ValueError("true or false")


def integer(lowest: int = 0, highest: int = _LARGEST) -> Reader:
    """A whole number between the two, as a number or as text."""

    def read(value: object) -> int:
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, float) and value.is_integer():
            number = int(value)
        elif isinstance(value, str):
            try:
                number = int(value.strip())
            except ValueError:
                number = None
        if number is None or not lowest <= number <= highest:
            upper = "" if highest == _LARGEST else f" to {highest}"
            raise ValueError(f"a whole number from {lowest}{upper}")
        return number

    return read


def milliseconds(lowest: float = 0, *, forever: int | None = None) -> Reader:
    """A number of milliseconds; what the field holds is seconds.

    `forever` is the number that librdkafka or Java take for "no limit": it is read as infinity.
    """

    def read(value: object) -> float:
        number: float | None = None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = float(value)
        elif isinstance(value, str):
            try:
                number = float(value.strip())
            except ValueError:
                number = None
        if number is not None and forever is not None and number == forever:
            return float("inf")
        if number is None or not lowest <= number <= _LARGEST:
            raise ValueError(f"a number of milliseconds from {lowest:g}")
        return number / 1000

    return read


def kibibytes() -> Reader:
    """A number of KiB; what the field holds is bytes."""
    read_number = integer(1)

    def read(value: object) -> int:
        return int(read_number(value)) * 1024

    return read


def choice(*names: str, **synonyms: str) -> Reader:
    """One of the names, in any case; a synonym is read as the name it stands for."""
    known: Mapping[str, str] = {name.lower(): name for name in names} | {
        synonym.lower(): name for synonym, name in synonyms.items()
    }

    def read(value: object) -> str:
        if isinstance(value, bool):
            value = str(value)
        if isinstance(value, (str, int)) and str(value).strip().lower() in known:
            return known[str(value).strip().lower()]
        raise ValueError(f"one of {', '.join(names)}")

    return read


def function(value: object) -> Callable[..., Any]:
    if callable(value):
        return value
    raise ValueError("something that can be called")
