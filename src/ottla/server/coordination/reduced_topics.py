"""Long requests about the offsets of partitions, without what is in them several times or in vain.

A group's shard does what a request asks for in one go. So only partitions that there are go to it, each
once (the last mention counts); of those that there are not, one goes along for all of them. The
answer is then made as long as the request was. Both are done in steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from ottla.protocol.message import Message
from ottla.server.api import Outcome
from ottla.server.turns import Steps, in_turns

# A request with more entries is reduced before a shard sees it.
MANY_ENTRIES: Final = 1000
# Topics and partitions that a shard sees at a time, where they need not be seen together.
ENTRIES_AT_ONCE: Final = 100
# Stands for all partitions that a topic has not.
_NOT_THERE: Final = -1


class _Partition(Protocol):
    partition_index: int


class _PartitionAnswer(Protocol):
    partition_index: int
    error_code: int


P = TypeVar("P", bound=_Partition)


class _Topic(Protocol[P]):
    partitions: list[P]


class _TopicAnswer(Protocol):
    # Of a kind of its own in every API, with a partition index and an error code.
    partitions: list[Any]


T = TypeVar("T", bound=_Topic[Any])
A = TypeVar("A", bound=_TopicAnswer)


def completed(
    answer: Message | asyncio.Future[Message], whole: Callable[[Message], Steps[Message]]
) -> Steps[Outcome]:
    """The answer for a whole request, made of that for the reduced one, be it there or yet to come."""
    if isinstance(answer, Message):
        return (yield from whole(answer))

    async def later() -> Message:
        return await in_turns(whole(await answer))

    return later()


def is_long(topics: Sequence[_Topic[Any]]) -> bool:
    return sum([len(topic.partitions) for topic in topics], len(topics)) > MANY_ENTRIES


class _Reduced(Generic[T]):
    """What goes to the shard of one topic, and the codes with which it came back."""

    __slots__ = ("codes", "count", "partitions", "topic")

    def __init__(self, topic: T, count: int) -> None:
        self.topic = topic
        self.count = count
        self.partitions: dict[int, Any] = {}
        self.codes: dict[int, int] = {}

    def key(self, index: int) -> int:
        return index if 0 <= index < self.count else _NOT_THERE


class ReducedTopics(Generic[T]):
    """The topics of a long request. First `reduce`, then `topics`, then `whole` with the answer."""

    def __init__(self, asked: Sequence[T], count_of: Callable[[T], tuple[Hashable, int]]) -> None:
        """`count_of` tells what a topic is known by and how many partitions it has; 0: no such topic."""
        self._asked = asked
        self._count_of = count_of
        # The topics that there are not have one entry together.
        self._reduced: dict[Hashable, _Reduced[T]] = {}
        # For each topic of the request, in its order.
        self._placed: list[_Reduced[T]] = []

    def reduce(self) -> Steps[None]:
        for topic in self._asked:
            key, count = self._count_of(topic)
            if count == 0:
                key = None
            reduced = self._reduced.get(key)
            if reduced is None:
                reduced = self._reduced[key] = _Reduced(topic, count)
            self._placed.append(reduced)
            for each in topic.partitions:
                reduced.partitions[reduced.key(each.partition_index)] = each
                yield
            yield

    def topics(self, make: Callable[[T, list[Any]], T]) -> list[T]:
        """What the shard is to see: `make` copies a topic with other partitions."""
        return [make(each.topic, list(each.partitions.values())) for each in self._reduced.values()]

    def portions(self, make: Callable[[T, list[Any]], T]) -> Steps[list[list[T]]]:
        """What `topics` gives, in portions of which the shard sees one at a time. A topic may be in
        several."""
        found: list[list[T]] = [[]]
        left = ENTRIES_AT_ONCE
        for each in self._reduced.values():
            partitions = list(each.partitions.values())
            for first in range(0, len(partitions) or 1, ENTRIES_AT_ONCE):
                some = partitions[first : first + ENTRIES_AT_ONCE]
                if found[-1] and len(some) >= left:
                    found.append([])
                    left = ENTRIES_AT_ONCE
                found[-1].append(make(each.topic, some))
                left -= len(some) + 1
                yield
        return found

    def whole(
        self,
        answered: Sequence[_TopicAnswer],
        make: Callable[[T], A],
        make_partition: Callable[..., _PartitionAnswer],
    ) -> Steps[list[A]]:
        """The shard's answer, or those to the portions in their order, as one for the whole request."""
        parts = (part for answer in answered for part in answer.partitions)
        for reduced in self._reduced.values():
            for index in reduced.partitions:
                reduced.codes[index] = next(parts).error_code
                yield
        found: list[A] = []
        for asked, reduced in zip(self._asked, self._placed, strict=True):
            topic = make(asked)
            found.append(topic)
            for each in asked.partitions:
                index = each.partition_index
                code = reduced.codes[reduced.key(index)]
                topic.partitions.append(make_partition(partition_index=index, error_code=code))
                yield
            yield
        return found
