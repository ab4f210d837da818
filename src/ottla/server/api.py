"""How a handler declares itself, and what it is given.

A handler module in `ottla.server.handlers` marks its function with `@handles(key, versions=…)`; that
is the only place where key and version range stand. Most handlers take a decoded request message and
return a response message (or a coroutine of one). The two of the hot path, Produce and Fetch, take
the raw frame (`@handles_raw`) and write to the connection themselves.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ottla.protocol.apis import ApiKey
from ottla.protocol.frame import frame_response
from ottla.protocol.message import MalformedMessage, Message
from ottla.server.network.connection import Connection, MalformedRequest, is_out_of_memory
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.observability.timings import Timings

if TYPE_CHECKING:
    from ottla.server.broker import Broker

log = LimitedLog(logging.getLogger("ottla.api"))

R = TypeVar("R", bound=Message)


class Later:
    """A response that comes within this turn of the loop or the next. Lighter than a future: whoever
    waits is called at once, and the requests behind this one need not wait for it."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        # What to call with the response; set before it can be there.
        self.done: Callable[[Message], None] | None = None


# What a handler returns: the response, or something that will give it.
Outcome = Message | Coroutine[Any, Any, Message] | asyncio.Future[Message]

# (connection, frame, where the body begins, where it ends, api version, correlation id)
Serve = Callable[[Connection, memoryview, int, int, int, int], None]


class Request(Generic[R]):
    """One decoded request and whom it came from."""

    __slots__ = ("broker", "connection", "correlation_id", "message", "version")

    def __init__(
        self, broker: Broker, connection: Connection, message: R, version: int, correlation_id: int
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.message = message
        self.version = version
        self.correlation_id = correlation_id


class Api:
    """One API as this broker serves it."""

    __slots__ = (
        "flexible_since",
        "highest",
        "key",
        "lowest",
        "name",
        "requests",
        "serve",
        "timings",
    )

    def __init__(self, key: ApiKey, lowest: int, highest: int, flexible_since: int) -> None:
        self.key = key
        self.name = key.name
        self.lowest = lowest
        self.highest = highest
        self.flexible_since = flexible_since
        self.serve: Serve = _not_bound
        self.requests = 0
        self.timings = Timings()

    def serve_timed(
        self,
        connection: Connection,
        view: memoryview,
        body: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> None:
        begun = perf_counter()
        self.serve(connection, view, body, stop, version, correlation_id)
        self.timings.add(perf_counter() - begun)

    def __repr__(self) -> str:
        return f"Api({self.name}, {self.lowest}–{self.highest})"


def _not_bound(*_: object) -> None:
    raise AssertionError("a handler was called before the broker was assembled")


class Declaration:
    """What a handler module declares; bound to a broker at its start."""

    __slots__ = ("bind", "key", "request", "versions")

    def __init__(
        self,
        key: ApiKey,
        versions: tuple[int, int],
        request: type[Message],
        bind: Callable[[Broker, Api], Serve],
    ) -> None:
        self.key = key
        self.versions = versions
        self.request = request
        self.bind = bind

    def api(self, broker: Broker) -> Api:
        api = Api(self.key, *self.versions, self.request.flexible_since)
        api.serve = self.bind(broker, api)
        return api


DECLARED: dict[ApiKey, Declaration] = {}


def _declare(declaration: Declaration) -> None:
    assert declaration.key not in DECLARED, declaration.key
    lowest, highest = declaration.versions
    known_lowest, known_highest = declaration.request.versions
    assert known_lowest <= lowest <= highest <= known_highest, declaration.key
    DECLARED[declaration.key] = declaration


def handles(
    request: type[R], *, versions: tuple[int, int]
) -> Callable[
    [Callable[[Request[R]], Outcome | Later]],
    Callable[[Request[R]], Outcome | Later],
]:
    """Declare a handler of decoded requests."""

    def decorate(
        function: Callable[[Request[R]], Outcome | Later],
    ) -> Callable[[Request[R]], Outcome | Later]:
        key = ApiKey(request.api_key)

        def bind(broker: Broker, api: Api) -> Serve:
            return _serve_decoded(broker, api, request, function)

        _declare(Declaration(key, versions, request, bind))
        return function

    return decorate


def handles_raw(
    request: type[Message], *, versions: tuple[int, int]
) -> Callable[[Callable[[Broker, Api], Serve]], Callable[[Broker, Api], Serve]]:
    """Declare a handler that reads the frame and writes the response by itself."""

    def decorate(bind: Callable[[Broker, Api], Serve]) -> Callable[[Broker, Api], Serve]:
        _declare(Declaration(ApiKey(request.api_key), versions, request, bind))
        return bind

    return decorate


def decode_request(request: type[R], view: memoryview, at: int, stop: int, version: int) -> R:
    """Decode one request body. Bytes behind it are ignored, as in Kafka: some clients send some."""
    try:
        message, _ = request.decode(view[:stop], at, version)
    except MalformedMessage as error:
        raise MalformedRequest(f"{request.__name__} v{version}: {error}") from None
    return message


def _serve_decoded(
    broker: Broker,
    api: Api,
    request_class: type[R],
    function: Callable[[Request[R]], Outcome | Later],
) -> Serve:
    def serve(
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> None:
        message = decode_request(request_class, view, at, stop, version)
        request = Request(broker, connection, message, version, correlation_id)
        try:
            result = function(request)
            if isinstance(result, Message):
                connection.answer(frame_response(result, version, correlation_id))
                return
        except Exception:  # noqa: BLE001 - see failed
            failed(connection, api.name, version)
            return
        if isinstance(result, Later):
            _answer_later(result, connection, api, version, correlation_id)
            return
        slot = connection.reserve(exclusive=True)
        if isinstance(result, asyncio.Future):
            later = result
        else:
            later = broker.spawn(result, f"{api.name} of {connection.address}")

        def done(finished: asyncio.Future[Message]) -> None:
            if finished.cancelled():
                connection.close("the broker stops")
                return
            try:
                slot.fill([frame_response(finished.result(), version, correlation_id)])
            except Exception:  # noqa: BLE001 - see failed
                failed(connection, api.name, version)

        later.add_done_callback(done)

    return serve


def _answer_later(
    later: Later, connection: Connection, api: Api, version: int, correlation_id: int
) -> None:
    """Keep the response's place in the order of responses."""
    slot = connection.reserve()

    def done(response: Message) -> None:
        try:
            slot.fill([frame_response(response, version, correlation_id)])
        except Exception:  # noqa: BLE001 - see failed
            failed(connection, api.name, version)

    later.done = done


def failed(
    connection: Connection, api: str, version: int, error: BaseException | None = None
) -> None:
    """A handler raised what it should not: our mistake, or memory is short. The connection is closed,
    the broker goes on. `error` is the exception that is being handled unless another is given."""
    error = error or sys.exception()
    if error is not None and is_out_of_memory(error):
        log.warning(
            "no memory for a request: api=%s version=%d peer=%s client=%r",
            api, version, connection.address, connection.client_id,
        )  # fmt: skip
        connection.reactor.refused_requests += 1
        connection.close("no memory for its request")
        return
    log.error(
        "handler failed: api=%s version=%d peer=%s client=%r",
        api, version, connection.address, connection.client_id, exc_info=error,
    )  # fmt: skip
    connection.close("internal error")
