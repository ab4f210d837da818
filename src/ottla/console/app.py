"""The HTTP API of the console.

    GET  /api/health                                        whether the cluster answers
    GET  /api/topics                                        topics; ?internal=true with those of brokers
    GET  /api/topics/{topic}                                its partitions with their offsets
    GET  /api/topics/{topic}/partitions/{n}/records         some records; ?from= and ?limit=
    POST /api/topics/{topic}/deletions                      delete single records: by offsets, or by key
    GET  /api/clients                                       who is connected; ?topic= and others choose
    GET  /api/openapi.json                                  all of this, for machines

Whatever fails is told as `ottla.console.refusals` has it, with nothing of the program's inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ottla.client.errors import OttlaError
from ottla.client.positions import Position, position_of
from ottla.console.cluster import MOST_RECORDS, ClusterCalls
from ottla.console.guard import Guard
from ottla.console.messages import (
    ClientList,
    Deletion,
    DeletionAnswer,
    ErrorAnswer,
    Health,
    RecordPage,
    TopicList,
    TopicPage,
)
from ottla.console.refusals import Refusal, refusal_of
from ottla.version import __version__

_Result = TypeVar("_Result")
_LARGEST_PARTITION: Final = 2**31 - 1
_LARGEST_OFFSET: Final = 2**63 - 1
_CLIENT_LEFT: Final = 400  # of an answer that nobody gets

_FAILURES: Final[dict[int | str, dict[str, Any]]] = {
    int(status): {"model": ErrorAnswer, "description": described}
    for status, described in (
        (HTTPStatus.BAD_REQUEST, "What was sent makes no sense."),
        (HTTPStatus.UNAUTHORIZED, "The token is missing, or wrong."),
        (
            HTTPStatus.FORBIDDEN,
            "The console's user may not do this, or the page that asked may not.",
        ),
        (HTTPStatus.NOT_FOUND, "There is no such topic, partition or offset."),
        (HTTPStatus.SERVICE_UNAVAILABLE, "No broker answers, or not now."),
    )
}


def make_app(servers: str, *, hosts: Iterable[str] = (), token: str | None = None) -> FastAPI:
    """The console of the cluster that `servers` names; `hosts` are names that it answers to, beside
    localhost and addresses."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        async with ClusterCalls(servers) as calls:
            app.state.calls = calls
            yield

    app = FastAPI(
        title="Ottla console",
        version=__version__,
        lifespan=running,
        openapi_url="/api/openapi.json",
        # The usual pages for them load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=_FAILURES,
    )
    app.add_middleware(Guard, hosts=tuple(hosts), token=token)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(OttlaError, _failed)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _no_such_call)
    app.add_exception_handler(Exception, _broken)
    _add_calls(app)
    described = app.openapi

    def openapi() -> dict[str, Any]:
        page = described()
        for path in page["paths"].values():
            for call in path.values():
                call["responses"].pop("422", None)  # FastAPI's own status for what is 400 here
        return page

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _calls(request: Request) -> ClusterCalls:
    calls: ClusterCalls = request.app.state.calls
    return calls


Calls = Annotated[ClusterCalls, Depends(_calls)]
PartitionPath = Annotated[int, Path(ge=0, le=_LARGEST_PARTITION)]


def _add_calls(app: FastAPI) -> None:
    @app.get("/api/health")
    async def health(calls: Calls) -> Health:
        """Whether the cluster answers."""
        return await calls.health()

    @app.get("/api/topics")
    async def topics(calls: Calls, internal: bool = False) -> TopicList:
        """All topics; those that brokers keep for themselves only if asked for."""
        return await calls.topics(internal)

    @app.get("/api/topics/{topic}")
    async def topic(topic: str, calls: Calls) -> TopicPage:
        """A topic's partitions, who holds them, and from where to where they go."""
        return await calls.topic(topic)

    @app.get("/api/topics/{topic}/partitions/{partition}/records")
    async def records(
        topic: str,
        partition: PartitionPath,
        calls: Calls,
        start: Annotated[
            str,
            Query(
                alias="from",
                description="An offset, -N for N before the end, earliest, latest, or a time as "
                "ISO 8601 writes it.",
            ),
        ] = "earliest",
        limit: Annotated[int, Query(ge=1, le=MOST_RECORDS)] = 100,
    ) -> RecordPage:
        """Some committed records of a partition, to find the offset of the one to delete."""
        return await calls.records(topic, partition, _position(start), limit)

    @app.get("/api/clients")
    async def clients(
        calls: Calls,
        client_id: str | None = None,
        principal: Annotated[str | None, Query(description="User:alice")] = None,
        address: Annotated[str | None, Query(description="Without a port.")] = None,
        group: Annotated[str | None, Query(description="Members of this group.")] = None,
        topic: Annotated[
            str | None, Query(description="Who produces to this topic, or reads it.")
        ] = None,
    ) -> ClientList:
        """The connections of all brokers: who they are, and what they do."""
        return await calls.clients(
            client_id=client_id, principal=principal, address=address, group=group, topic=topic
        )

    @app.post(
        "/api/topics/{topic}/deletions",
        responses={
            207: {
                "model": DeletionAnswer,
                "description": "Of some partitions records were deleted, of others not.",
            },
            409: {
                "model": DeletionAnswer,
                "description": "Nothing was deleted: an offset is out of range, not committed, in an "
                "aborted transaction, no record, or deleted already.",
            },
        },
    )
    async def delete(
        topic: str, deletion: Deletion, request: Request, calls: Calls
    ) -> DeletionAnswer:
        """Delete single records, for good. All others keep their offsets.

        If one of a partition's offsets cannot be deleted, nothing of that partition is.
        """
        answer, status = await _while_connected(request, calls.delete(topic, deletion))
        # (A response by itself, since the status is not known before.)
        return JSONResponse(answer.model_dump(exclude_none=True), status)  # type: ignore[return-value]


def _position(text: str) -> Position:
    """What `from` means, as positions are written everywhere else."""
    plain = text.removeprefix("-")
    try:
        if not (plain.isascii() and plain.isdigit()):
            return position_of(text)
        number = int(text) if len(plain) <= 19 else _LARGEST_OFFSET + 1
    except (ValueError, OverflowError) as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"from: {error}") from None
    if abs(number) > _LARGEST_OFFSET:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"from: {text[:30]} is beyond every offset")
    return Position.before_end(-number) if text.startswith("-") else Position.offset(number)


async def _while_connected(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result, unless whoever asked goes away: a search through a large topic ends with them, and
    what was not deleted yet stays."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refusal(_CLIENT_LEFT, "whoever asked has closed the connection")
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Failures


def _answer(refusal: Refusal, **headers: str) -> JSONResponse:
    return JSONResponse({"error": refusal.error}, refusal.status, headers)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)
    return _answer(error)


async def _failed(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OttlaError)
    return _answer(refusal_of(error))


async def _invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    kind, *place = first["loc"]
    where = ".".join(map(str, place)) if kind == "body" and place else " ".join(map(str, place))
    words = str(first["msg"]).removeprefix("Value error, ")
    return _answer(Refusal(HTTPStatus.BAD_REQUEST, f"{where}: {words}" if where else words))


async def _no_such_call(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    words = {
        404: "there is no such call; /api/openapi.json lists those there are",
        405: "this call has another method; /api/openapi.json says which",
    }
    headers = dict(error.headers or {})
    return _answer(
        Refusal(error.status_code, words.get(error.status_code, str(error.detail))), **headers
    )


async def _broken(_: Request, error: Exception) -> JSONResponse:
    """The answer to a fault of the console itself, whose log has the whole of it."""
    del error
    message = "something went wrong in the console; its log says what"
    return _answer(Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, message))
