"""What guards are made of.

A request may name a million topics, so a guard that looks at each of them does it in steps (`turns`),
as handlers do: it is a generator that pauses after each and returns the answer. What it leaves of a
response (`Finish`) is made in steps, too.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, TypeVar

from ottla.protocol.acls import AclOperation, AclResource
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.server.api import Answer, Later, Outcome, Request
from ottla.server.security.access import Access
from ottla.server.turns import Steps, advance, in_turns, run_in_turns

T = TypeVar("T")
R = TypeVar("R")

Proceed = Callable[[Request[Any]], Answer]
# Called in place of the handler, which it is given.
Guard = Callable[[Access, Request[Any], Proceed], Answer]
# What a guard returns that works in steps.
Guarded = Steps[Outcome | Later]
# Takes a response as the handler made it, and returns it as it leaves.
Finish = Callable[[Any], Steps[Message]]
# Makes the refusal of one entry.
Refuse = Callable[[Any, ErrorCode], Steps[Any]]

REFUSAL = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


# Lists in steps -----------------------------------------------------------------------------------


def listed(items: Iterable[T], make: Callable[[T], R]) -> Steps[list[R]]:
    """What `make` returns for each item."""
    made: list[R] = []
    for item in items:
        made.append(make(item))
        yield
    return made


def refused_partitions(
    topics: Iterable[Any],
    code: ErrorCode,
    partition_of: Callable[..., T],
    topic_of: Callable[[Any, list[T]], R],
) -> Steps[list[R]]:
    """The refusals of topics whose partitions are answered one by one: `partition_of` is the class of
    such an answer, `topic_of` makes that of a topic from what was asked for and its partitions."""
    refusals: list[R] = []
    for each in topics:
        partitions = yield from listed(
            each.partitions,
            lambda one: partition_of(partition_index=one.partition_index, error_code=code),
        )
        refusals.append(topic_of(each, partitions))
        yield
    return refusals


def divided(items: Iterable[T], may: Callable[[T], bool]) -> Steps[tuple[list[T], list[T]]]:
    """The items that `may` allows, and the others. It is called once for each item."""
    allowed: list[T] = []
    refused: list[T] = []
    for item in items:
        (allowed if may(item) else refused).append(item)
        yield
    return allowed, refused


# Answers ------------------------------------------------------------------------------------------


def passed_on(answer: Answer) -> Guarded:
    """The handler's answer as it is."""
    if isinstance(answer, Generator):
        return (yield from answer)
    return answer


def then(answer: Answer, finish: Finish) -> Guarded:
    """The answer, once there is one, as `finish` leaves it."""
    if isinstance(answer, Generator):
        answer = yield from answer
    if isinstance(answer, Message):
        return (yield from finish(answer))
    if isinstance(answer, Later):
        return _then_later(answer, finish)
    return _then_awaited(answer, finish)


def _then_later(answer: Later, finish: Finish) -> Later:
    finished = Later()

    def done(message: Message) -> None:
        assert finished.done is not None
        steps = finish(message)
        over = advance(steps)
        if over is not None:
            finished.done(over.result)
        else:
            loop = asyncio.get_running_loop()
            run_in_turns(loop, steps, finished.done, _raise, lambda: True)

    answer.done = done
    return finished


def _raise(error: Exception) -> None:
    raise error


async def _then_awaited(
    answer: Coroutine[Any, Any, Message] | asyncio.Future[Message], finish: Finish
) -> Message:
    return await in_turns(finish(await answer))


def adding(answers: str, more: list[Any]) -> Finish:
    """Adds entries to a list of the response."""

    def finish(response: Any) -> Steps[Message]:
        setattr(response, answers, [*getattr(response, answers), *more])
        yield
        message: Message = response
        return message

    return finish


def without_refused_topics(
    request: Request[Any],
    proceed: Proceed,
    refused: Sequence[Any],
    refuse: Callable[[Sequence[Any]], Steps[list[Any]]],
    response: Callable[..., Message],
) -> Guarded:
    """Answers for the topics that are left in the request, and for those that were refused. The handler
    is not called if none is left."""
    if not refused:
        return (yield from passed_on(proceed(request)))
    refusals = yield from refuse(refused)
    if not request.message.topics:
        return response(topics=refusals)
    return (yield from then(proceed(request), adding("topics", refusals)))


def keeping(answers: str, may: Callable[[Any], bool]) -> Finish:
    """Leaves in a list of the response what the client may see."""

    def finish(response: Any) -> Steps[Message]:
        kept, _ = yield from divided(getattr(response, answers), may)
        setattr(response, answers, kept)
        message: Message = response
        return message

    return finish


def failure(request: Request[Any], code: ErrorCode, **more: Any) -> Message:
    """The API's answer with an error for the whole of it."""
    name = type(request.message).__name__.removesuffix("Request") + "Response"
    kind = getattr(sys.modules[type(request.message).__module__], name)
    if "error_message" in kind.declared:
        more["error_message"] = code.message
    response: Message = kind(error_code=code, **more)
    return response


# Guards -------------------------------------------------------------------------------------------


def anybody(_: Access, request: Request[Any], proceed: Proceed) -> Answer:
    """The guard of requests that everybody may send."""
    return proceed(request)


def on_cluster(
    operation: AclOperation, refuse: Callable[[Request[Any]], Answer] | None = None
) -> Guard:
    """The whole request needs an operation on the cluster; a refusal is one error for all of it, unless
    `refuse` makes another."""

    def guard(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
        if access.cluster(operation):
            return proceed(request)
        if refuse is not None:
            return refuse(request)
        return failure(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    return guard


def on_one(operation: AclOperation, resource: AclResource, field: str) -> Guard:
    """The whole request needs an operation on what one of its fields names."""

    def guard(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
        if access.may(operation, resource, getattr(request.message, field) or ""):
            return proceed(request)
        return failure(request, REFUSAL[resource])

    return guard


def on_each(
    operation: AclOperation,
    resource: AclResource,
    field: str,
    answers: str,
    refuse: Refuse,
    name_of: Callable[[Any], str] = lambda each: str(each.name),
) -> Guard:
    """Each entry of a list needs an operation on what it names. Those that are refused do not reach the
    handler; `refuse` makes their entries of the list `answers` in the response."""

    def guard(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
        allowed, refused = [], []
        for each in getattr(request.message, field) or ():
            if access.may(operation, resource, name_of(each)):
                allowed.append(each)
            else:
                refused.append((yield from refuse(each, REFUSAL[resource])))
            yield
        if not refused:
            return (yield from passed_on(proceed(request)))
        setattr(request.message, field, allowed)
        return (yield from then(proceed(request), adding(answers, refused)))

    return guard
