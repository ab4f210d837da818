"""How a handler declares itself, and what it is given.

A handler module in `ottla.server.handlers` marks its function with `@handles(key, versions=…)`; that
is the only place where key and version range stand. Most handlers take a decoded request message and
return a response message (or a coroutine of one). The two of the hot path, Produce and Fetch, take
the raw frame (`@handles_raw`) and write to the connection themselves.

A handler whose request names any number of things is a generator that pauses after each of them and
returns the response (see `turns`). Such a response is encoded in steps as well, and every large
request is decoded in steps, so that one request does not stop the others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ProtocolError
from ottla.protocol.frame import (
    encode_response_parts,
    frame_response,
    has_flexible_response_header,
)
from ottla.protocol.message import MalformedMessage, Message
from ottla.server.network.connection import Connection, MalformedRequest, is_out_of_memory
from ottla.server.network.file_range import FileRange
from ottla.server.network.slots import HeldBytes, Slot
from ottla.server.network.slots import Part as FramePart
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.observability.timings import Timings
from ottla.server.turns import Steps, advance, emptied_message, run_in_turns

if TYPE_CHECKING:
    from ottla.server.broker import Broker

log = LimitedLog(logging.getLogger("ottla.api"))

# Requests of more bytes are decoded in steps.
LARGE_REQUEST = 16 << 10
# Entries in all arrays of one request: more than a cluster has partitions.
MOST_ENTRIES = 2_000_000
# A response that grows beyond this is given up, and its connection with it.
LARGEST_RESPONSE = 256 << 20
# APIs that make and delete partitions, for which there is a quota.
CHANGING = (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS)
# Pieces of a response that are put together at once.
_PIECES_IN_A_STEP = 512

R = TypeVar("R", bound=Message)


class Later:
    """A response that comes within this turn of the loop or the next, and has no more than a thousand
    entries. Lighter than a future: whoever waits is called at once, the requests after this one need not
    wait for it, and it is encoded in one go."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        # What to call with the response; set before it can be there.
        self.done: Callable[[Message], None] | None = None


# What a handler returns: the response, or something that will give it.
Outcome = Message | Coroutine[Any, Any, Message] | asyncio.Future[Message]
# What it may return besides: steps towards one of these.
Answer = Outcome | Later | Steps[Outcome | Later]


class ResponseTooLarge(Exception):
    """What was asked for does not fit into one response."""


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
        "_serve_unmeasured",
        "flexible_since",
        "highest",
        "kept_busy",
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
        # The handler itself, while its time is measured for quotas, and who is told of the time.
        self._serve_unmeasured: Serve | None = None
        self.kept_busy: Callable[[Connection, float], object] | None = None
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

    def measure(self, kept_busy: Callable[[Connection, float], object] | None) -> None:
        """Call `kept_busy` with the time for which each request keeps the loop busy; None: no longer."""
        self.kept_busy = kept_busy
        serve = self._serve_unmeasured or self.serve
        self.serve, self._serve_unmeasured = serve, None
        if kept_busy is None:
            return

        def measured(
            connection: Connection,
            view: memoryview,
            body: int,
            stop: int,
            version: int,
            correlation_id: int,
        ) -> None:
            begun = perf_counter()
            serve(connection, view, body, stop, version, correlation_id)
            kept_busy(connection, perf_counter() - begun)

        self.serve, self._serve_unmeasured = measured, serve

    def on_slice(self, connection: Connection) -> Callable[[float], object] | None:
        """The callback for the seconds of each slice of a long request; None if nothing is measured."""
        kept_busy = self.kept_busy
        return None if kept_busy is None else partial(kept_busy, connection)

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
    request: type[R], *, versions: tuple[int, int], by_controller: bool = False
) -> Callable[
    [Callable[[Request[R]], Answer]],
    Callable[[Request[R]], Answer],
]:
    """Declare a handler of decoded requests. `by_controller`: those that reach another broker are
    passed on to the controller."""

    def decorate(
        function: Callable[[Request[R]], Answer],
    ) -> Callable[[Request[R]], Answer]:
        if by_controller:
            function = _passed_on(function)

        def bind(broker: Broker, api: Api) -> Serve:
            return serve_decoded(broker, api, request, function)

        _declare(Declaration(ApiKey(request.api_key), versions, request, bind))
        return function

    return decorate


def _guarded(
    broker: Broker, key: ApiKey, function: Callable[[Request[R]], Answer]
) -> Callable[[Request[R]], Answer]:
    """The handler with the checks of the authorizer, if there is one, and with the audit log."""
    if key in CHANGING:
        function = _limited(key, function)
    authorizer = broker.authorizer
    if authorizer is None and not broker.security.knows_clients:
        return function
    from ottla.server.security.audit import ADMINISTRATIVE, audited

    if key in ADMINISTRATIVE:
        function = audited(key, function, always=authorizer is not None)
    if authorizer is None:
        return function
    from ottla.server.security.access import Access
    from ottla.server.security.guards.table import GUARDS, UNLISTED

    guard = GUARDS.get(key, UNLISTED)

    def handle(request: Request[R]) -> Answer:
        return guard(Access(authorizer, request.connection), request, function)

    return handle


def _limited(
    key: ApiKey, function: Callable[[Request[R]], Answer]
) -> Callable[[Request[R]], Answer]:
    """The handler of an API for which there is a quota of changes."""

    def handle(request: Request[R]) -> Answer:
        if request.broker.quotas is None:
            return function(request)
        from ottla.server.quotas.mutations import limited

        return limited(key, function)(request)

    return handle


def _passed_on(function: Callable[[Request[R]], Answer]) -> Callable[[Request[R]], Answer]:
    def handle(request: Request[R]) -> Answer:
        if request.broker.passes_on(request.connection):
            return _forwarded(request, function)
        return function(request)

    return handle


async def _forwarded(request: Request[R], function: Callable[[Request[R]], Answer]) -> Message:
    from ottla.server.quotas.usage import quota_client  # which imports this module

    try:
        return await request.broker.changes.forward(
            request.message, request.version, quota_client(request.connection)
        )
    except ProtocolError:
        # There is none: the handler finds that out again, and knows how to say it.
        result = function(request)
        assert not isinstance(result, Later | Generator)
        return result if isinstance(result, Message) else await result


def handles_raw(
    request: type[Message], *, versions: tuple[int, int]
) -> Callable[[Callable[[Broker, Api], Serve]], Callable[[Broker, Api], Serve]]:
    """Declare a handler that reads the frame and writes the response by itself."""

    def decorate(bind: Callable[[Broker, Api], Serve]) -> Callable[[Broker, Api], Serve]:
        _declare(Declaration(ApiKey(request.api_key), versions, request, bind))
        return bind

    return decorate


def decode_request(request: type[R], view: memoryview, at: int, stop: int, version: int) -> R:
    """Decode one request body. Bytes after it are ignored, as in Kafka: some clients send some."""
    try:
        message, _ = request.decode(view[:stop], at, version)
    except MalformedMessage as error:
        raise MalformedRequest(f"{request.__name__} v{version}: {error}") from None
    return message


def decode_large(request: type[R], held: HeldBytes, version: int) -> Steps[R]:
    """Decode a request body that was kept, in steps. The first of them does nothing and is to be done
    at once: from then on the bytes are released, also if the others are never done."""
    left = MOST_ENTRIES
    steps = request.decode_in_steps(held.data, 0, version)
    try:
        yield
        while True:
            next(steps)
            left -= 1
            if left < 0:
                raise MalformedRequest(f"{request.__name__} v{version} has too many entries")
            yield
    except StopIteration as stop:
        message: R = stop.value[0]
        return message
    except MalformedMessage as error:
        raise MalformedRequest(f"{request.__name__} v{version}: {error}") from None
    finally:
        # Nothing in the message refers to the bytes.
        held.release()


def encode_large(response: Message, version: int, correlation_id: int) -> Steps[list[FramePart]]:
    """Encode a response in steps."""
    pieces: list[Any] = []
    done: list[Any] = []
    size = 0
    for _ in response.encode_in_steps(version, pieces.append):
        if len(pieces) >= _PIECES_IN_A_STEP:
            joined = _joined(pieces)
            pieces.clear()
            done += joined
            size += sum([len(each) for each in joined if type(each) is bytes])
            if size > LARGEST_RESPONSE:
                raise ResponseTooLarge(f"the response has more than {LARGEST_RESPONSE} bytes")
        yield
    flexible = has_flexible_response_header(response.api_key, version)
    return encode_response_parts(correlation_id, flexible, done + _joined(pieces))


def _joined(pieces: list[Any]) -> list[Any]:
    """The pieces as few; ranges of files stay what they are."""
    joined: list[Any] = []
    for is_bytes, some in groupby(pieces, lambda piece: type(piece) is not FileRange):
        if is_bytes:
            joined.append(b"".join(some))
        else:
            joined += some
    return joined


def serve_decoded(
    broker: Broker,
    api: Api,
    request_class: type[R],
    function: Callable[[Request[R]], Answer],
) -> Serve:
    """Serves requests by decoding them and answering with what the function returns; also for those
    whom a handler of raw frames leaves to it."""
    function = _guarded(broker, ApiKey(request_class.api_key), function)

    def serve(
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> None:
        if stop - at > LARGE_REQUEST:
            exchange = _Exchange(broker, connection, api, version, correlation_id)
            exchange.take_large(request_class, connection.keep(view[at:stop]), function)
            return
        message = decode_request(request_class, view, at, stop, version)
        request = Request(broker, connection, message, version, correlation_id)
        try:
            result = function(request)
            if isinstance(result, Message):
                connection.answer(frame_response(result, version, correlation_id))
                return
            exchange = _Exchange(broker, connection, api, version, correlation_id)
            exchange.take(result)
        except Exception:  # noqa: BLE001 - see failed
            failed(connection, api.name, version)

    return serve


class _Exchange:
    """A request whose response takes a while: it keeps its place in the order of responses."""

    __slots__ = (
        "_api",
        "_broker",
        "_connection",
        "_correlation_id",
        "_owns_response",
        "_slot",
        "_version",
        "_waste",
    )

    def __init__(
        self, broker: Broker, connection: Connection, api: Api, version: int, correlation_id: int
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._api = api
        self._version = version
        self._correlation_id = correlation_id
        self._slot: Slot | None = None
        # Whether the response is made for this request alone, unlike what a coordinator answers with.
        self._owns_response = False
        # Messages of long work, which are taken apart after it.
        self._waste: list[Message] = []

    def take_large(
        self,
        request_class: type[R],
        held: HeldBytes,
        function: Callable[[Request[R]], Answer],
    ) -> None:
        def steps() -> Steps[list[FramePart] | Outcome | Later]:
            message = yield from decode_large(request_class, held, self._version)
            request = Request(
                self._broker, self._connection, message, self._version, self._correlation_id
            )
            result = function(request)
            if isinstance(result, Message):
                return (yield from self._encoded(result))
            if isinstance(result, Generator):
                self._waste.append(message)
                return (yield from self._worked_out(result))
            if isinstance(result, Coroutine):
                self._waste.append(message)
            return result

        work = steps()
        next(work)
        self._slot = self._connection.reserve(exclusive=True)
        self._go_on(work)

    def take(self, result: Answer) -> None:
        """What a handler returned, unless it was the response itself."""
        if not isinstance(result, Generator):
            self._finish(result)
            return
        steps = self._worked_out(result)
        done = advance(steps)
        if done is not None:
            self._finish(done.result)
            return
        self._slot = self._connection.reserve(exclusive=True)
        self._go_on(steps)

    def _worked_out(
        self, steps: Steps[Outcome | Later]
    ) -> Steps[list[FramePart] | Outcome | Later]:
        result = yield from steps
        if not isinstance(result, Message):
            return result
        self._waste.append(result)
        return (yield from self._encoded(result))

    def _encoded(self, response: Message) -> Steps[list[FramePart]]:
        return encode_large(response, self._version, self._correlation_id)

    def _go_on(self, steps: Steps[list[FramePart] | Outcome | Later]) -> None:
        run_in_turns(
            self._broker.loop,
            steps,
            self._finish,
            self._failed,
            lambda: not self._connection.closed,
            self._api.on_slice(self._connection),
        )

    def _finish(self, result: list[FramePart] | Outcome | Later) -> None:
        connection = self._connection
        if isinstance(result, list):
            if self._slot is None:
                connection.answer_parts(result)
            else:
                self._slot.fill(result)
                self._clear_away()
        elif isinstance(result, Later):
            if self._slot is None:
                self._slot = connection.reserve()
            result.done = self._respond_at_once
        elif isinstance(result, Message):
            self._respond(result)
        else:
            if self._slot is None:
                self._slot = connection.reserve(exclusive=True)
            if isinstance(result, asyncio.Future):
                later = result
            else:
                later = self._broker.spawn(result, f"{self._api.name} of {connection.address}")
                self._owns_response = True
            later.add_done_callback(self._awaited)

    def _awaited(self, finished: asyncio.Future[Message]) -> None:
        if finished.cancelled():
            self._connection.close("the broker stops")
            return
        error = finished.exception()
        if error is None:
            self._respond(finished.result())
        elif isinstance(error, Exception):
            self._failed(error)

    def _respond(self, response: Message) -> None:
        """The response has come. It is encoded at once if that does not take long."""
        steps = self._encoded(response)
        try:
            done = advance(steps)
        except Exception as error:  # noqa: BLE001 - see failed
            self._failed(error)
            return
        if done is not None:
            assert self._slot is not None
            self._slot.fill(done.result)
            self._clear_away()
        else:
            if self._owns_response:
                self._waste.append(response)
            self._go_on(steps)

    def _respond_at_once(self, response: Message) -> None:
        try:
            frame = frame_response(response, self._version, self._correlation_id)
        except Exception as error:  # noqa: BLE001 - see failed
            self._failed(error)
            return
        assert self._slot is not None
        self._slot.fill([frame])
        self._clear_away()

    def _failed(self, error: Exception) -> None:
        connection = self._connection
        if isinstance(error, ResponseTooLarge):
            log.warning(
                "response given up: api=%s version=%d peer=%s client=%r %s",
                self._api.name, self._version, connection.address, connection.client_id, error,
            )  # fmt: skip
            connection.close("the response is too large")
        else:
            failed(connection, self._api.name, self._version, error)

    def _clear_away(self) -> None:
        waste, self._waste = self._waste, []
        for message in waste:
            run_in_turns(
                self._broker.loop,
                emptied_message(message),
                lambda _: None,
                self._failed,
                lambda: True,
            )


def failed(
    connection: Connection, api: str, version: int, error: BaseException | None = None
) -> None:
    """A handler raised something: the request is malformed, memory is short, or it is our mistake. The
    connection is closed, the broker goes on. `error` is the exception that is being handled unless
    another is given."""
    error = error or sys.exception()
    if isinstance(error, MalformedRequest):
        connection.give_up(error)
        return
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
