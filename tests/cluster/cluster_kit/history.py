"""What clients of a cluster saw: every write with its outcome, every record that was polled.

A value is written once, so that a record that is read tells by itself which write it is of.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """How a write, or the transaction it belongs to, ended for whoever made it."""

    ACKNOWLEDGED = "acknowledged"
    ABORTED = "aborted"  # its transaction was, and the producer was told so
    UNKNOWN = "unknown"  # an error, or no answer: it may be in the log or not


@dataclass(slots=True)
class Write:
    """One record that a producer was given. `number` counts the producer's writes to a partition."""

    producer: str
    partition: int
    number: int
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    # Whether an acknowledgement is a promise. With acks=1 it is none before a leader's death.
    durable: bool = True
    error: str | None = None

    @property
    def value(self) -> str:
        return f"{self.producer}/{self.partition}/{self.number}"


@dataclass(frozen=True, slots=True)
class Polled:
    """One record that a consumer was given, in the order of its polls."""

    partition: int
    offset: int
    value: str


@dataclass(slots=True)
class Reading:
    """What one consumer polled since its positions were set. They were set once."""

    consumer: str
    polled: list[Polled] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """Everything that happened. `final` is what a consumer read from the first offset to the last when
    the faults were over; `ends` are the offsets up to which it read."""

    writes: list[Write] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    final: Reading = field(default_factory=lambda: Reading("final"))
    ends: dict[int, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def began(self, write: Write) -> None:
        with self.lock:
            self.writes.append(write)

    def acknowledged(self, producers: Iterable[str] | None = None) -> int:
        """How many writes were acknowledged until now."""
        names = None if producers is None else set(producers)
        with self.lock:
            return sum(
                write.outcome is Outcome.ACKNOWLEDGED and (names is None or write.producer in names)
                for write in self.writes
            )
