"""Clients of several kinds that write and read while a test changes what they are connected to.

    with SteadyLoad(bootstrap, ["java", "ottla"], folder) as load:
        ...                     # a change
        load.wait_for_progress()
    load.check(bootstrap)       # everything is there, once, in order, and no client was told of an error

Each kind is a worker (steady.py) with a topic of its own to write to; all of them read all topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from interop_kit import toolchain
from interop_kit.workers import CHANGED, Worker, java_worker, python_worker
from ottla import Consumer

KINDS = ("java", "confluent-kafka", "franz-go", "ottla")
PARTITIONS = 3
PATIENCE = 150.0  # longer than the clients' own


def command_of(kind: str) -> list[str]:
    if kind == "java":
        return java_worker("Steady")
    if kind == "franz-go":
        return toolchain.go_program("steady")
    return python_worker("steady")


@dataclass(frozen=True)
class Result:
    """What became of one kind of client."""

    kind: str
    written: int
    acknowledged: int
    read: int  # of all topics
    again: int
    send_errors: list[str]
    poll_errors: list[str]
    refused: int  # connections of which it told while there was no broker at all
    wrong: list[str]


class SteadyLoad:
    """Topics must be there before it is entered; `topics` are their names."""

    def __init__(
        self,
        bootstrap: str,
        kinds: Sequence[str],
        folder: Path,
        *,
        rate: float = 60.0,
        size: int = 500,
    ) -> None:
        self.topics = self.topics_of(kinds)
        self.results: list[Result] = []
        # Before any of them runs: the first time they are compiled.
        commands = {kind: command_of(kind) for kind in kinds}
        self._begin = {
            kind: (
                command,
                {
                    "client": kind,
                    "bootstrap": bootstrap,
                    "topic": f"written-by-{kind}",
                    "topics": self.topics,
                    "group": f"read-by-{kind}",
                    "partitions": PARTITIONS,
                    "rate": rate,
                    "bytes": size,
                },
            )
            for kind, command in commands.items()
        }
        self._folder = folder
        self._workers: dict[str, Worker] = {}
        self._nobody_is_there = False

    @staticmethod
    def topics_of(kinds: Sequence[str]) -> list[str]:
        return [f"written-by-{kind}" for kind in kinds]

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for kind, (command, settings) in self._begin.items():
                self._workers[kind] = Worker(kind, command, settings, self._folder)
            self.wait_for_progress()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._kill()

    def _kill(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    # While it runs

    def wait_for_progress(self, seconds: float = 0.0, writes: int = 20) -> None:
        """For so long, and until every partition of every topic has taken this many more records and
        every client has read them. Fails as soon as something is wrong."""
        began = {kind: self._state(kind) for kind in self._workers}
        goals = {
            f"written-by-{kind}": [
                count + writes for count in (state["acknowledged"] if state else [0] * PARTITIONS)
            ]
            for kind, state in began.items()
        }
        self._wait(lambda: True, seconds, PATIENCE + seconds)
        self._wait(lambda: self._reached(goals), 0.0, PATIENCE)

    @contextmanager
    def without_any_broker(self) -> Iterator[None]:
        """The only broker is stopped and comes back: clients may tell that connections were refused
        (franz-go does, in the place of records), and have to go on by themselves."""
        self._nobody_is_there = True
        yield
        self.wait_for_progress()
        self._excuse_refusals()
        self._nobody_is_there = False

    def _excuse_refusals(self) -> None:
        for worker in self._workers.values():
            for event in worker.events:
                if event["event"] == "error" and "connection refused" in event["reason"].lower():
                    event["event"] = "refused"

    def _wait(self, condition: Callable[[], bool], at_least: float, at_most: float) -> None:
        until, deadline = time.monotonic() + at_least, time.monotonic() + at_most

        def over() -> bool:
            return time.monotonic() >= until and condition()

        with CHANGED:
            while not over():
                self._require_well()
                # States come twice a second.
                CHANGED.wait(1.0)
                if time.monotonic() > deadline and not over():
                    stories = [each.story("stands still") for each in self._workers.values()]
                    raise AssertionError("\n".join(stories))
            self._require_well()

    def _require_well(self) -> None:
        if self._nobody_is_there:
            self._excuse_refusals()
        for kind, worker in self._workers.items():
            bad = [each for each in worker.events if each["event"] in ("error", "wrong")]
            if bad or not worker.running:
                raise AssertionError(
                    worker.story(f"({kind}) was to notice nothing, and said {bad}")
                )

    def _state(self, kind: str) -> dict[str, Any] | None:
        events = self._workers[kind].events
        return next((each for each in reversed(events) if each["event"] == "state"), None)

    def _reached(self, goals: dict[str, list[int]]) -> bool:
        """Whether all clients have read all topics up to these offsets."""
        for kind in self._workers:
            state = self._state(kind)
            if state is None:
                return False
            for topic, wanted in goals.items():
                if any(
                    have < want for have, want in zip(state["read"][topic], wanted, strict=True)
                ):
                    return False
        return True

    # At the end

    def _finish(self) -> None:
        """They stop writing, read what there is, and leave."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.say("enough")
        for worker in workers:
            worker.wait(
                lambda worker=worker: worker.count("flushed") > 0,  # type: ignore[misc]
                "write what it has begun",
                PATIENCE,
            )
        ends: dict[str, list[int]] = {}
        for kind in self._workers:
            state = self._state(kind)
            assert state is not None
            ends[f"written-by-{kind}"] = state["written"]
        self._wait(lambda: self._reached(ends), 0.0, PATIENCE)
        for worker in workers:
            worker.end_input()
        for kind, worker in self._workers.items():
            state = self._state(kind)
            assert state is not None
            self.results.append(
                Result(
                    kind,
                    sum(state["written"]),
                    sum(state["acknowledged"]),
                    sum(sum(each) for each in state["read"].values()),
                    state["again"],
                    self._told(worker, "error", "send"),
                    self._told(worker, "error", "poll"),
                    worker.count("refused"),
                    [each["what"] for each in worker.events if each["event"] == "wrong"],
                )
            )

    @staticmethod
    def _told(worker: Worker, event: str, call: str) -> list[str]:
        return [
            each["reason"]
            for each in worker.events
            if each["event"] == event and each["call"] == call
        ]

    def check(self, bootstrap: str) -> int:
        """Everything was acknowledged and is there now, once and in order. How many records that is."""
        total = 0
        for result in self.results:
            assert not [*result.send_errors, *result.poll_errors, *result.wrong], result
            assert result.acknowledged == result.written, result
            found = self._numbers(bootstrap, f"written-by-{result.kind}")
            for partition, numbers in found.items():
                assert numbers == list(range(len(numbers))), f"{result.kind}-{partition}"
            assert sum(map(len, found.values())) == result.written, result
            total += result.written
        assert all(result.read == total for result in self.results), self.results
        return total

    @staticmethod
    def _numbers(bootstrap: str, topic: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        with (
            Consumer(bootstrap) as consumer,
            consumer.scan(topic, columns=["partition", "value"]) as batches,
        ):
            for batch in batches:
                for partition, value in zip(
                    batch.column("partition").to_pylist(),
                    batch.column("value").to_pylist(),
                    strict=True,
                ):
                    found[partition].append(int(value.split(b" ", 1)[0]))
        return found

    def table(self) -> list[str]:
        """In Markdown, as the documents have it."""
        columns = ("client", "records written", "acknowledged", "read", "read again")
        errors = ("errors from send()", "errors from poll()", "told while no broker was there")
        head = " | ".join((*columns, *errors))
        rows = [
            f"| {each.kind} | {each.written:,} | {each.acknowledged:,} | {each.read:,} "
            f"| {each.again:,} | {len(each.send_errors)} | {len(each.poll_errors)} "
            f"| {each.refused} |"
            for each in self.results
        ]
        return [f"| {head} |", "|---|---:|---:|---:|---:|---:|---:|---:|", *rows]
