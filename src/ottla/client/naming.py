"""Names and partitions as users give them: one, or several.

A str is itself a sequence of strs, and a pair can be read as two things; whoever simply iterated over
"orders" would deal with six topics of one letter each. So all public calls read their names here:

    "orders"                          one name, wherever several may be given
    ["orders", "returns"]             several
    ("orders", 3)                     one partition, wherever several may be given
    [("orders", 3), ("orders", 4)]    several
    b"orders", 7, None, …             a TypeError that says what is expected
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

from ottla.client.positions import TopicPartition

AnyPartition: TypeAlias = TopicPartition | tuple[str, int]
Names: TypeAlias = str | Iterable[str]
Partitions: TypeAlias = AnyPartition | Iterable[AnyPartition]

_Item = TypeVar("_Item")
_Partition = TypeVar("_Partition", bound=tuple[str, int])
_Value = TypeVar("_Value")
_PAIR = 2  # topic and number


def several_of(
    given: object, kinds: type[_Item] | tuple[type[_Item], ...], what: str
) -> list[_Item]:
    """One thing of these kinds, or several, in order.

    `what` says what is expected, for the TypeError: "topics: names (str)".
    """
    if isinstance(given, kinds):
        return [given]
    if isinstance(given, (str, bytes, bytearray, memoryview)) or not isinstance(given, Iterable):
        raise TypeError(f"{what}: one or several are expected, not {_shown(given)}")
    items = list(given)
    for item in items:
        if not isinstance(item, kinds):
            raise TypeError(f"{what}: among them is {_shown(item)}")
    return items


def name_of(given: str, parameter: str) -> str:
    """One name, where there can be only one."""
    if not isinstance(given, str):
        raise TypeError(f"{parameter}: one name (str) is expected, not {_shown(given)}")
    return given


def names_of(given: Names, parameter: str) -> list[str]:
    """A name, or several; each once, in order."""
    return list(dict.fromkeys(several_of(given, str, f"{parameter}: names (str)")))


def partition_of(given: AnyPartition) -> TopicPartition:
    """One partition; TypeError if it is not a pair of topic and number."""
    if isinstance(given, (tuple, list)) and len(given) == _PAIR:
        topic, index = given
        if isinstance(topic, str) and _is_number(index):
            return TopicPartition(topic, int(index))
    raise TypeError(f"a partition is a pair of topic and number, not {_shown(given)}")


def partitions_of(given: Partitions) -> list[TopicPartition]:
    """A partition, or several; each once, in order."""
    if isinstance(given, tuple) and len(given) == _PAIR and isinstance(given[0], str):
        return [partition_of(given)]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"a partition (topic, number) or several are expected, not {_shown(given)}")
    return list(dict.fromkeys(partition_of(each) for each in given))  # type: ignore[arg-type]


def by_partition(given: Mapping[_Partition, _Value]) -> dict[TopicPartition, _Value]:
    """What is given for each partition."""
    if not isinstance(given, Mapping):
        raise TypeError(f"a dictionary by (topic, number) is expected, not {_shown(given)}")
    return {partition_of(each): value for each, value in given.items()}


def _is_number(index: object) -> bool:
    # numpy's integers are none of int's, but stand in columns of partitions.
    return hasattr(index, "__index__") and not isinstance(index, bool)


def _shown(given: object) -> str:
    return f"{given!r:.80} ({type(given).__name__})"
