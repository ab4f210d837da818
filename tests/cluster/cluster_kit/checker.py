"""Finds in a history what a cluster must never do: the anomalies that Jepsen's Kafka test looks for.

`check` is a pure function: the same history has the same anomalies.

lost write            acknowledged, but not there although later offsets were read
unseen                acknowledged, but the last reading did not get as far
duplicate             a value at two offsets
inconsistent offset   an offset with two values, or acknowledged with another offset than it has
aborted read          a record of an aborted transaction (G1a)
taken back            a consumer was given a record that is not there in the end
phantom               a value that nobody wrote
non-monotonic poll    a consumer's offsets go back or stand still
skipped poll          a consumer passed over a record that is there
reordered             a producer's writes to one partition are there in another order
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from cluster_kit.history import History, Outcome, Reading, Write


class Kind(Enum):
    LOST_WRITE = "lost write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSET = "inconsistent offset"
    ABORTED_READ = "aborted read"
    TAKEN_BACK = "taken back"
    PHANTOM = "phantom"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    SKIPPED_POLL = "skipped poll"
    REORDERED = "reordered"


@dataclass(frozen=True, slots=True, order=True)
class Anomaly:
    kind: Kind
    partition: int
    what: str

    def __str__(self) -> str:
        return f"{self.kind.value} in partition {self.partition}: {self.what}"


def check(history: History) -> list[Anomaly]:
    """All anomalies of a history."""
    found: list[Anomaly] = []
    writes = {write.value: write for write in history.writes}
    if len(writes) != len(history.writes):
        raise ValueError("two writes have one value: the checker can tell nothing")
    readings = [*history.readings, history.final]
    found += _offsets(writes, readings)
    found += _acknowledged(history)
    found += _read(writes, readings)
    found += _taken_back(history)
    for reading in readings:
        found += _polls(reading, history.final)
    found += _order(writes, history.final)
    return found


def report(anomalies: list[Anomaly], most: int = 20) -> str:
    """What to print of them: how many of each kind, and the first ones."""
    counts: dict[Kind, int] = defaultdict(int)
    for anomaly in anomalies:
        counts[anomaly.kind] += 1
    summary = ", ".join(f"{count} × {kind.value}" for kind, count in counts.items())
    return "\n".join([summary, *map(str, anomalies[:most])])


def _offsets(writes: dict[str, Write], readings: list[Reading]) -> Iterator[Anomaly]:
    """One value at one offset, one offset with one value; from acknowledgements and polls."""
    values: dict[tuple[int, int], set[str]] = defaultdict(set)
    places: dict[tuple[int, str], set[int]] = defaultdict(set)
    for write in writes.values():
        if write.durable and write.outcome is Outcome.ACKNOWLEDGED and write.offset is not None:
            values[write.partition, write.offset].add(write.value)
    for reading in readings:
        for polled in reading.polled:
            values[polled.partition, polled.offset].add(polled.value)
            places[polled.partition, polled.value].add(polled.offset)
    for (partition, offset), at in values.items():
        if len(at) > 1:
            what = f"offset {offset} has {', '.join(sorted(at))}"
            yield Anomaly(Kind.INCONSISTENT_OFFSET, partition, what)
    for (partition, value), where in places.items():
        if len(where) > 1:
            what = f"{value} is at offsets {', '.join(map(str, sorted(where)))}"
            yield Anomaly(Kind.DUPLICATE, partition, what)
        write = writes.get(value)
        if (
            write is not None
            and write.outcome is Outcome.ACKNOWLEDGED
            and write.offset is not None
            and write.offset not in where
            and write.durable
        ):
            what = f"{value} was acknowledged at {write.offset} and is at {min(where)}"
            yield Anomaly(Kind.INCONSISTENT_OFFSET, partition, what)


def _acknowledged(history: History) -> Iterator[Anomaly]:
    there = {(polled.partition, polled.value) for polled in history.final.polled}
    for write in history.writes:
        if write.outcome is not Outcome.ACKNOWLEDGED or not write.durable:
            continue
        if (write.partition, write.value) in there:
            continue
        end = history.ends.get(write.partition)
        if end is None or (write.offset is not None and write.offset >= end):
            what = f"{write.value} at {write.offset}; the last reading ended at {end}"
            yield Anomaly(Kind.UNSEEN, write.partition, what)
        else:
            what = f"{write.value}, acknowledged at {write.offset}"
            yield Anomaly(Kind.LOST_WRITE, write.partition, what)


def _read(writes: dict[str, Write], readings: list[Reading]) -> Iterator[Anomaly]:
    for reading in readings:
        for polled in reading.polled:
            write = writes.get(polled.value)
            if write is None or write.partition != polled.partition:
                what = f"{reading.consumer} was given {polled.value} at {polled.offset}"
                yield Anomaly(Kind.PHANTOM, polled.partition, what)
            elif write.outcome is Outcome.ABORTED:
                what = f"{reading.consumer} was given {polled.value} at {polled.offset}"
                yield Anomaly(Kind.ABORTED_READ, polled.partition, what)


def _taken_back(history: History) -> Iterator[Anomaly]:
    there = set(history.final.polled)
    told = set()
    for reading in history.readings:
        for polled in reading.polled:
            if polled not in there and polled not in told:
                told.add(polled)
                what = f"{reading.consumer} was given {polled.value} at {polled.offset}"
                yield Anomaly(Kind.TAKEN_BACK, polled.partition, what)


def _polls(reading: Reading, final: Reading) -> Iterator[Anomaly]:
    records: dict[int, list[int]] = defaultdict(list)
    for polled in final.polled:
        records[polled.partition].append(polled.offset)
    places = {
        partition: {offset: place for place, offset in enumerate(sorted(set(offsets)))}
        for partition, offsets in records.items()
    }
    last: dict[int, int] = {}
    for polled in reading.polled:
        partition, offset = polled.partition, polled.offset
        before = last.get(partition)
        last[partition] = offset
        if before is None:
            continue
        if offset <= before:
            what = f"{reading.consumer} was given offset {offset} after {before}"
            yield Anomaly(Kind.NON_MONOTONIC_POLL, partition, what)
            continue
        known = places.get(partition, {})
        if before in known and offset in known and known[offset] - known[before] > 1:
            missed = known[offset] - known[before] - 1
            what = f"{reading.consumer} went from {before} to {offset}, past {missed} records"
            yield Anomaly(Kind.SKIPPED_POLL, partition, what)


def _order(writes: dict[str, Write], final: Reading) -> Iterator[Anomaly]:
    last: dict[tuple[str, int], Write] = {}
    seen: set[str] = set()
    for polled in sorted(final.polled, key=lambda polled: (polled.partition, polled.offset)):
        write = writes.get(polled.value)
        if write is None or polled.value in seen:  # a phantom or a duplicate, told elsewhere
            continue
        seen.add(polled.value)
        before = last.get((write.producer, polled.partition))
        last[write.producer, polled.partition] = write
        if before is not None and write.number < before.number:
            what = f"{write.value} is after {before.value}"
            yield Anomaly(Kind.REORDERED, polled.partition, what)
