"""The event loop of the classes that block: one thread for all of them.

It is started by the first call, ends when the interpreter does, and is forgotten by a forked child,
which gets one of its own on its first call. What the parent had opened stays the parent's: clients made
before the fork raise ClientForked in the child, and closing them there does nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from ottla.client.errors import ClientForked

_Result = TypeVar("_Result")
_STOP_PATIENCE: Final = 5.0  # seconds for what still runs when the interpreter ends


class BackgroundLoop:
    """An event loop in a daemon thread."""

    forked = False  # it is the parent's: its thread does not exist in this process

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # Nobody else may hold on to what was submitted, and asyncio itself does not.
        self._submitted: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="ottla-client", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, _Result], timeout: float | None = None) -> _Result:
        """The result of the coroutine, awaited in the loop while this thread waits.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.
        """
        if self.forked:
            coroutine.close()
            self.check_own()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "a blocking call from within the client's own loop (a callback?) would wait for "
                "itself; use the asynchronous class there"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, _Result]) -> concurrent.futures.Future[_Result]:
        """Start the coroutine in the loop without waiting for it."""
        if self.forked:
            coroutine.close()
            self.check_own()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._submitted.add(future)
        future.add_done_callback(self._submitted.discard)
        return future

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call the function in the loop, soon."""
        self.check_own()
        self._loop.call_soon_threadsafe(function, *arguments)

    def check_own(self) -> None:
        """ClientForked in a child of the process that it was made in."""
        if self.forked:
            raise ClientForked(
                "this client was made before the process forked, and its connections are the "
                "parent's: make another one in the child"
            )

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the loop's own."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Cancel what runs, and end the thread."""
        try:
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(_STOP_PATIENCE)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError, RuntimeError):
            pass
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_PATIENCE)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_current: BackgroundLoop | None = None
_lock = threading.Lock()


def background_loop() -> BackgroundLoop:
    """The process's one loop, started now if need be."""
    global _current
    with _lock:
        if _current is None:
            _current = BackgroundLoop()
        return _current


def run(coroutine: Coroutine[Any, Any, _Result], timeout: float | None = None) -> _Result:
    """`background_loop().run(coroutine)`."""
    return background_loop().run(coroutine, timeout)


@atexit.register
def _stop_at_exit() -> None:
    global _current
    loop, _current = _current, None
    if loop is not None:
        loop.stop()


def _forget_in_child() -> None:
    # The thread does not exist here, and its selector is shared with the parent: touch neither.
    global _current, _lock
    if _current is not None:
        _current.forked = True
    _current = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
