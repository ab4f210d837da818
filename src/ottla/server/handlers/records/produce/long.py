"""Produce requests that name very many partitions: the loop has its turn while they are worked on.

They are read, checked against access control, and appended in steps; everything else is as with the
others. Meanwhile no further request of the connection is handled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.protocol.apis import ApiKey
from ottla.server.api import failed
from ottla.server.handlers.records.produce.answer import new_topic_piece
from ottla.server.handlers.records.produce.appending import Appending
from ottla.server.handlers.records.produce.request import FIRST_TOPIC_IDS, read_on
from ottla.server.handlers.records.produce.transactions import Verification, beginning
from ottla.server.turns import run_in_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.errors import ErrorCode
    from ottla.server.broker import Broker
    from ottla.server.handlers.records.produce.handler import Produce
    from ottla.server.handlers.records.produce.request import Parts, Unread
    from ottla.server.handlers.records.produce.transactions import Begins, Markers
    from ottla.server.network.connection import Connection
    from ottla.server.turns import Steps

# Topics that are checked against access control in a step, and partitions that are appended to.
_TOPICS_IN_A_STEP: Final = 5
_PARTITIONS_IN_A_STEP: Final = 5


class LongProduce:
    """One Produce request that is worked on in steps."""

    def __init__(
        self,
        broker: Broker,
        produce: Produce,
        connection: Connection,
        body: memoryview,
        version: int,
        correlation_id: int,
        unread: Unread,
    ) -> None:
        """`unread`: how far the request has been read."""
        self._broker = broker
        self._produce = produce
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._slot = connection.reserve(exclusive=True)
        self._kept = connection.keep(body)
        self._view = memoryview(self._kept.data)
        self._unread = unread
        self._request: Parts = unread.found
        self._refused: dict[bytes, ErrorCode] = {}
        self._begins: Begins = {}
        self._markers: Markers = {}
        self._appending: Appending | None = None

    def begin(self) -> None:
        self._run(self._read_and_authorize(), self._verify)

    def _run(self, steps: Steps[None], then: Callable[[Any], None]) -> None:
        # Also if the client has left: what it sent is to be stored, for it may not wait for answers.
        on_slice = self._broker.apis[ApiKey.PRODUCE].on_slice(self._connection)
        run_in_turns(self._broker.loop, steps, then, self._failed, lambda: True, on_slice)

    def _release(self) -> None:
        self._view = memoryview(b"")
        self._kept.release()

    def _failed(self, error: Exception) -> None:
        self._release()
        failed(self._connection, "PRODUCE", self._version, error)

    # What it asks for ---------------------------------------------------------------------------

    def _read_and_authorize(self) -> Steps[None]:
        broker, connection = self._broker, self._connection
        self._request = yield from read_on(self._view, self._version, self._unread)
        if broker.quotas is not None:
            connection.throttle_ms = broker.quotas.produced(connection, len(self._view))
        if broker.authorizer is not None:
            yield from self._authorize()
        transactional_id, _, _, topics = self._request
        if transactional_id:
            known = self._produce.known(self._version)
            for each in topics:
                if each[0] not in self._refused:
                    begins = beginning(known, [each], self._view, self._markers)
                    for producer, found in begins.items():
                        self._begins.setdefault(producer, []).extend(found)
                yield

    def _authorize(self) -> Steps[None]:
        transactional_id, _, _, topics = self._request
        by_id = self._version >= FIRST_TOPIC_IDS
        for first in range(0, len(topics), _TOPICS_IN_A_STEP):
            some = topics[first : first + _TOPICS_IN_A_STEP]
            self._refused |= self._broker.security.refused_topics(
                self._connection, transactional_id, some, by_id
            )
            yield

    def _verify(self, _: object) -> None:
        transactional_id = self._request[0]
        if transactional_id:
            Verification(
                self._broker, self._version, transactional_id, self._begins, self._markers
            ).when_complete(self._append)
        else:
            self._append(None)

    def _append(self, verification: Verification | None) -> None:
        self._run(self._appended(verification), self._conclude)

    # What becomes of it -------------------------------------------------------------------------

    def _appended(self, verification: Verification | None) -> Steps[None]:
        transactional_id, acks, timeout_ms, topics = self._request
        self._appending = appending = Appending(
            self._broker, self._connection, self._version, self._correlation_id, acks, timeout_ms
        )
        pieces = appending.pieces
        for key, parts in topics:
            # A topic's partitions come in portions, of which the first has what stands before them.
            before = new_topic_piece(self._version, key, len(parts), 0 if pieces else len(topics))
            for first in range(0, len(parts) or 1, _PARTITIONS_IN_A_STEP):
                place = len(pieces)
                some = parts[first : first + _PARTITIONS_IN_A_STEP]
                self._produce.append(
                    self._connection, self._view, self._version, self._correlation_id,
                    (transactional_id, acks, timeout_ms, [(key, some)]),
                    self._refused, verification, self._slot, appending,
                )  # fmt: skip
                pieces[place] = before
                before = b""
                yield

    def _conclude(self, _: object) -> None:
        self._release()
        assert self._appending is not None
        self._appending.finish(self._slot)
