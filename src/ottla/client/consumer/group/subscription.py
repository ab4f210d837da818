"""The topics that a consumer subscribes to, and which of their partitions it does not read yet."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import TypeAlias

from ottla.client.metadata import Metadata
from ottla.client.naming import Names, names_of
from ottla.client.positions import TopicPartition

Topics: TypeAlias = Names | re.Pattern[str]


class Subscription:
    """Topics by their names, or all that match a pattern; false if nothing is subscribed to."""

    def __init__(
        self,
        topics: frozenset[str] = frozenset(),
        *,
        pattern: re.Pattern[str] | None = None,
        exclude_internal: bool = True,
    ) -> None:
        self.topics = topics  # with a pattern: those that matched last
        self._pattern = pattern
        self._exclude_internal = exclude_internal

    def __bool__(self) -> bool:
        return bool(self.topics) or self.by_pattern

    @property
    def by_pattern(self) -> bool:
        """Whether a pattern chooses the topics: then they may come and go without an error."""
        return self._pattern is not None

    def match(self, metadata: Metadata) -> None:
        """Set `topics` to those in the metadata that match the pattern."""
        assert self._pattern is not None
        self.topics = frozenset(
            info.name
            for info in metadata
            if self._pattern.fullmatch(info.name) and not (info.internal and self._exclude_internal)
        )

    def unread(
        self, metadata: Metadata, reading: Container[TopicPartition]
    ) -> list[TopicPartition]:
        """Partitions of the topics that are not read yet."""
        known = metadata.topics
        every = (
            TopicPartition(name, index)
            for name in sorted(self.topics)
            if name in known
            for index in known[name].partitions
        )
        return [each for each in every if each not in reading]


def names_to_subscribe(topics: Names) -> frozenset[str]:
    """The names of topics as a user gives them; ValueError if there is none, or one is a pattern."""
    names = frozenset(names_of(topics, "topics"))
    if not names:
        raise ValueError("no topic is given")
    for name in names:
        if name.startswith("^"):  # what librdkafka takes for a pattern
            raise ValueError(
                f"'{name}' is no topic's name; for a pattern give re.compile({name!r})"
            )
    return names
