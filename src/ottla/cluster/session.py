"""What the stores share that keep the state of their session themselves."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.cluster.store import SessionEvent, SessionLost, Store, Stream


class SessionStore(Store):
    """A store that knows the state of its session, and tells of every change of it."""

    def __init__(self) -> None:
        self._state = SessionEvent.SUSPENDED  # until started
        self._lost_because = "the session is not open"
        self._session_streams: list[Stream[SessionEvent]] = []

    @property
    def session_state(self) -> SessionEvent:
        return self._state

    def session_events(self) -> Stream[SessionEvent]:
        stream: Stream[SessionEvent] = Stream()
        self._session_streams.append(stream)
        if self._state is SessionEvent.LOST:
            stream.close()
        return stream

    def _become(self, event: SessionEvent) -> None:
        """The session's new state. LOST is the last."""
        self._state = event
        for stream in self._session_streams:
            stream.push(event)
            if event is SessionEvent.LOST:
                stream.close()

    def _require_session(self) -> None:
        """SessionLost unless the session can be used now."""
        if self._state is not SessionEvent.CONNECTED:
            raise SessionLost(self._lost_because)


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Gives a future its result or its error; without effect if nobody waits for it any more."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
