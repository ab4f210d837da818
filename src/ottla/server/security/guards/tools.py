"""What guards are made of."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, TypeVar

from ottla.protocol.acls import AclOperation, AclResource
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.server.api import Answer, Later, Outcome, Request
from ottla.server.security.access import Access
from ottla.server.turns import Steps

T = TypeVar("T")

Proceed = Callable[[Request[Any]], Answer]
# Called in place of the handler, which it is given.
Guard = Callable[[Access, Request[Any], Proceed], Answer]
Finish = Callable[[Any], Message]

REFUSAL = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def anybody(_: Access, request: Request[Any], proceed: Proceed) -> Answer:
    """No check at all."""
    return proceed(request)


def divided(items: Iterable[T], may: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Those that may, and those that may not, each asked for once."""
    allowed: list[T] = []
    refused: list[T] = []
    for item in items:
        (allowed if may(item) else refused).append(item)
    return allowed, refused


def then(answer: Answer, finish: Finish) -> Answer:
    """The answer, once there is one, as `finish` leaves it."""
    if isinstance(answer, Message):
        return finish(answer)
    if isinstance(answer, Later):
        return _then_later(answer, finish)
    if isinstance(answer, Generator):
        return _then_steps(answer, finish)
    return _then_awaited(answer, finish)


def _then_later(answer: Later, finish: Finish) -> Later:
    finished = Later()

    def done(message: Message) -> None:
        assert finished.done is not None
        finished.done(finish(message))

    answer.done = done
    return finished


def _then_steps(steps: Steps[Outcome], finish: Finish) -> Steps[Outcome]:
    outcome = yield from steps
    if isinstance(outcome, Message):
        return finish(outcome)
    return _then_awaited(outcome, finish)


async def _then_awaited(
    answer: Coroutine[Any, Any, Message] | asyncio.Future[Message], finish: Finish
) -> Message:
    return finish(await answer)


def failure(request: Request[Any], code: ErrorCode, **more: Any) -> Message:
    """The API's answer with an error for the whole of it."""
    name = type(request.message).__name__.removesuffix("Request") + "Response"
    kind = getattr(sys.modules[type(request.message).__module__], name)
    if "error_message" in kind.declared:
        more["error_message"] = code.message
    response: Message = kind(error_code=code, **more)
    return response


def on_cluster(operation: AclOperation) -> Guard:
    """The whole request needs an operation on the cluster; a refusal is one error for all of it."""

    def guard(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
        if access.cluster(operation):
            return proceed(request)
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
    refuse: Callable[[Any, ErrorCode], Any],
    name_of: Callable[[Any], str] = lambda each: str(each.name),
) -> Guard:
    """Each entry of a list needs an operation on what it names. Those that are refused do not reach the
    handler; `refuse` makes their entries of the list `answers` in the response."""

    def guard(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
        allowed, refused = [], []
        for each in getattr(request.message, field) or ():
            if access.may(operation, resource, name_of(each)):
                allowed.append(each)
            else:
                refused.append(refuse(each, REFUSAL[resource]))
        if not refused:
            return proceed(request)
        setattr(request.message, field, allowed)
        return then(proceed(request), adding(answers, refused))

    return guard


def adding(answers: str, refused: list[Any]) -> Finish:
    """Adds refusals to a list of the response."""

    def finish(response: Any) -> Message:
        setattr(response, answers, [*getattr(response, answers), *refused])
        message: Message = response
        return message

    return finish
