"""Ottla's client against another one, on the same broker, in alternating rounds."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol, Self, TypeVar

from bench.harness.bench import Bench, Row
from bench.harness.broker import Broker
from bench.harness.results import KAFKA, OTTLA, Measurement, Target
from ottla.record.columns import compile_kernels


class Case(Protocol):
    """What two clients are to do; the rest of it is for those who run the rounds."""

    @property
    def name(self) -> str: ...
    @property
    def claim(self) -> str: ...
    @property
    def target(self) -> Target | None: ...


AnyCase = TypeVar("AnyCase", bound=Case)


class Apart:
    """A process for each client: neither works beside what the other one has left behind, threads
    that free the memory of what was fetched too much, and objects that the collector goes through."""

    def __init__(self) -> None:
        fresh = multiprocessing.get_context("spawn")
        self._processes = {
            client: ProcessPoolExecutor(1, mp_context=fresh) for client in (OTTLA, KAFKA)
        }

    def run(self, client: str, work: Callable[..., float], *arguments: Any) -> float:
        return self._processes[client].submit(work, *arguments).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.shutdown()


def duel(bench: Bench, case: Case, broker: Broker, round_of: Callable[[str], float]) -> Measurement:
    """`round_of` gives the records/s of one client, which is named; the first round of each does not
    count."""
    figures: dict[str, list[float]] = {OTTLA: [], KAFKA: []}
    round_of(OTTLA)
    round_of(KAFKA)
    for number in range(bench.rounds):
        for client in (OTTLA, KAFKA) if number % 2 == 0 else (KAFKA, OTTLA):
            figures[client].append(round_of(client))
    return Measurement(
        row=case.name,
        setting=f"broker {broker.name}",
        what=case.claim,
        unit="records/s",
        higher_is_better=True,
        values=figures,
        target=case.target,
    )


def rows(
    cases: Iterable[AnyCase], one_broker: Callable[[Bench, AnyCase, Broker], Measurement]
) -> tuple[Row, ...]:
    def run(case: AnyCase, bench: Bench) -> list[Measurement]:
        compile_kernels()
        return [one_broker(bench, case, broker) for broker in bench.pair("tmpfs")]

    return tuple(Row(case.name, case.claim, functools.partial(run, case)) for case in cases)
