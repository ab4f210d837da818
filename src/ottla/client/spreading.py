"""Requests about many things that different brokers answer for, with a fate for each thing.

Partitions belong to leaders, groups to coordinators. `spread` finds out who answers for what, asks
all of them at once, and asks again for those things whose trouble is one that passes. In the end
every thing has a result or an exception of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ottla.client.cluster import PASSING, Cluster, CoordinatorKind
from ottla.client.deadline import Deadline
from ottla.client.errors import (
    BrokerError,
    Failures,
    OttlaError,
    TimedOut,
    broker_error,
    client_error,
)
from ottla.client.metadata import Node
from ottla.client.positions import TopicPartition
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.message import Message
from ottla.wire.connection import Connection
from ottla.wire.errors import WireError

Item = TypeVar("Item", bound=Hashable)
Value = TypeVar("Value")
_Answer = TypeVar("_Answer", bound=Message)


@dataclass(slots=True)
class Outcomes(Generic[Item, Value]):
    """What became of each item: it stands in `results` or in `errors`."""

    results: dict[Item, Value] = field(default_factory=dict)
    errors: dict[Item, OttlaError] = field(default_factory=dict)

    def all(self) -> dict[Item, Value]:
        """The results. If only one item was asked for its error is raised, else Failures."""
        if not self.errors:
            return self.results
        if len(self.errors) + len(self.results) == 1:
            raise next(iter(self.errors.values()))
        raise Failures.of(self.errors, self.results)


@dataclass(frozen=True, slots=True)
class Verdict(Generic[Item, Value]):
    """What an answer says about one item: an error code, or (code 0) a value."""

    item: Item
    code: int
    value: Value
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Located(Generic[Item]):
    """Who answers for which items; items about which nobody can be asked at all, or now, and why."""

    by_node: Mapping[Node, list[Item]]
    errors: Mapping[Item, OttlaError] = field(default_factory=dict)
    waiting: Mapping[Item, OttlaError] = field(default_factory=dict)


class Locator(Generic[Item]):
    """Finds the brokers that answer for items; the two kinds there are follow below."""

    async def locate(self, items: list[Item], deadline: Deadline) -> Located[Item]:
        raise NotImplementedError

    def forget(self, item: Item) -> None:
        """What was found for the item proved to be wrong."""
        raise NotImplementedError

    def describe(self, item: Item) -> str:
        """The item as errors name it."""
        raise NotImplementedError


class Leaders(Locator[TopicPartition]):
    """Partitions, at their leaders."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def locate(
        self, items: list[TopicPartition], deadline: Deadline
    ) -> Located[TopicPartition]:
        cluster = self._cluster
        by_node: dict[Node, list[TopicPartition]] = {}
        errors: dict[TopicPartition, OttlaError] = {}
        waiting: dict[TopicPartition, OttlaError] = {}
        missing: dict[str, OttlaError] = {}
        for topic in dict.fromkeys(item.topic for item in items):
            try:
                await cluster.topic(topic, timeout=deadline.remaining)
            except BrokerError as error:
                missing[topic] = error
        for item in items:
            info = cluster.metadata.partition(item.topic, item.partition)
            if item.topic in missing:
                errors[item] = missing[item.topic]
            elif info is None:
                errors[item] = broker_error(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=self.describe(item)
                )
            elif info.leader in cluster.metadata.nodes:
                by_node.setdefault(cluster.metadata.nodes[info.leader], []).append(item)
            else:
                self.forget(item)  # asked again after a refresh
                waiting[item] = broker_error(
                    ErrorCode.LEADER_NOT_AVAILABLE, about=self.describe(item)
                )
        return Located(by_node, errors, waiting)

    def forget(self, item: TopicPartition) -> None:
        self._cluster.request_refresh(item.topic)

    def describe(self, item: TopicPartition) -> str:
        return f"partition {item.partition} of topic '{item.topic}'"


class Coordinators(Locator[str]):
    """Groups or transactional ids, at their coordinators."""

    def __init__(self, cluster: Cluster, kind: CoordinatorKind) -> None:
        self._cluster = cluster
        self._kind = kind

    async def locate(self, items: list[str], deadline: Deadline) -> Located[str]:  # noqa: ARG002
        by_node: dict[Node, list[str]] = {}
        for key, node in (await self._cluster.coordinators(self._kind, items)).items():
            by_node.setdefault(node, []).append(key)
        return Located(by_node)

    def forget(self, item: str) -> None:
        self._cluster.forget_coordinator(self._kind, item)

    def describe(self, item: str) -> str:
        kind = "group" if self._kind is CoordinatorKind.GROUP else "transactional id"
        return f"{kind} '{item}'"


async def spread(
    cluster: Cluster,
    items: Iterable[Item],
    locator: Locator[Item],
    *,
    build: Callable[[Connection, list[Item]], Message],
    answer: type[_Answer],
    read: Callable[[_Answer, list[Item]], Iterable[Verdict[Item, Value]]],
    timeout: float | None = None,
    final: frozenset[ErrorCode] = frozenset(),
) -> Outcomes[Item, Value]:
    """Ask the right brokers about all items until each has an outcome, or the time is up.

    `build` makes the request for the items of one broker, `read` the verdicts from its answer.
    Codes in `final` are not tried again, even if the table calls them retriable.
    """
    deadline = Deadline.after(cluster.settings.api_timeout if timeout is None else timeout)
    what = answer.__name__.removesuffix("Response")
    outcomes: Outcomes[Item, Value] = Outcomes()
    pending = list(dict.fromkeys(items))
    problems: dict[Item, OttlaError] = {}
    failures = 0

    async def ask(node: Node, asked: list[Item]) -> None:
        try:
            connection = await cluster.connection_to(node)
            message = build(connection, asked)
            decoded = await connection.request(
                message,
                answer,
                timeout=min(cluster.settings.request_timeout, max(deadline.remaining, 0.001)),
            )
        except WireError as error:
            note(client_error(error), asked)
            return
        for verdict in read(decoded, asked):
            judge(verdict)

    def note(problem: OttlaError, asked: list[Item]) -> None:
        for item in asked:
            problems[item] = problem
            locator.forget(item)
        if not _passes(problem):
            outcomes.errors.update(dict.fromkeys(asked, problem))

    def judge(verdict: Verdict[Item, Value]) -> None:
        item, code = verdict.item, error_code(verdict.code)
        if not verdict.code:
            outcomes.results[item] = verdict.value
            return
        problem = broker_error(verdict.code, verdict.message, locator.describe(item))
        if code.retriable and code not in final:
            problems[item] = problem
            locator.forget(item)
        else:
            outcomes.errors[item] = problem

    while pending:
        try:
            async with asyncio.timeout(max(deadline.remaining, 0.001)):
                located = await locator.locate(pending, deadline)
                outcomes.errors.update(located.errors)
                problems.update(located.waiting)
                await asyncio.gather(*(ask(*each) for each in located.by_node.items()))
        except BrokerError as error:
            note(error, pending)
        except WireError as error:
            note(client_error(error), pending)
        except TimedOut as error:
            problems.update(dict.fromkeys(pending, error))
        except TimeoutError:
            pass
        done = outcomes.results.keys() | outcomes.errors.keys()
        pending = [item for item in pending if item not in done]
        if not pending:
            break
        failures += 1
        wait = cluster.settings.retries_backoff.after(failures)
        if wait >= deadline.remaining:
            for item in pending:
                missed = deadline.missed(what, problems.get(item))
                missed.__cause__ = problems.get(item)
                outcomes.errors[item] = missed
            break
        await asyncio.sleep(wait)
    return outcomes


def _passes(problem: OttlaError) -> bool:
    return problem.retriable if isinstance(problem, BrokerError) else isinstance(problem, PASSING)


def by_topic(items: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions by the name of their topic."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in items:
        grouped.setdefault(topic, []).append(partition)
    return grouped
