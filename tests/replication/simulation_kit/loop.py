"""asyncio's loop and the clocks over a simulated world: what awaits there takes the world's time."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.cluster.store import StoreError
from ottla.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from simulation_kit.broker import Life
    from simulation_kit.world import World

T = TypeVar("T")


class _Call:
    """A call that is due at some time, and may be taken back."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimulatedLoop(asyncio.AbstractEventLoop):
    """As much of a loop as futures, tasks and the coordinators need. An exception in a call ends the
    simulation: nothing is logged and forgotten."""

    def __init__(self, world: World, is_over: Callable[[], bool] = lambda: False) -> None:
        """`is_over`: the process has ended, and nothing of it runs any more."""
        self._world = world
        self._is_over = is_over

    def time(self) -> float:
        return self._world.now / 1000

    def get_debug(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Call:
        return self.call_later(0, callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Call:
        call = _Call()

        def run() -> None:
            if not call.cancelled and not self._is_over():
                if context is None:
                    callback(*args)
                else:
                    context.run(callback, *args)

        self._world.after(round(delay * 1000), run)
        return call

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, work: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(work, loop=self, name=name)
        # A process that is killed, or the end of the world, leaves some behind.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.add_done_callback(_raise)
        return task

    def call_exception_handler(self, _context: dict[str, Any]) -> None:
        """Asked only about futures that nobody looks at any more, those of a killed process say."""

    async def sleep(self, milliseconds: int) -> None:
        woken: asyncio.Future[None] = self.create_future()
        self.call_later(milliseconds / 1000, woken.set_result, None)
        await woken


class ProcessLoop(SimulatedLoop):
    """The loop of a whole process: what is ready runs in one turn. It stands still with the process, and
    ends with it. Code that asks asyncio for the running loop gets this one."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.world, lambda: life.ended)
        self._life = life
        self._ready: deque[Callable[[], object]] = deque()
        self._is_due = False
        self._work: list[Coroutine[Any, Any, Any]] = []

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Call:
        call = _Call()
        self._add(call, callback, args, context)
        return call

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Call:
        call = _Call()
        if not self._life.ended:
            # Never too early: who looks at the clock again would wait for the same moment for ever.
            milliseconds = max(0, math.ceil(delay * 1000))
            self._life.after(milliseconds, lambda: self._add(call, callback, args, context))
        return call

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Call:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _add(
        self,
        call: _Call,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        def run() -> None:
            if call.cancelled:
                return
            if context is None:
                callback(*args)
            else:
                context.run(callback, *args)

        if self._life.ended:
            return
        self._ready.append(run)
        if not self._is_due:
            self._is_due = True
            self._life.after(0, self._turn)

    def _turn(self) -> None:
        self._is_due = False
        asyncio._set_running_loop(self)
        try:
            while self._ready and not self._life.ended:
                self._ready.popleft()()
        finally:
            asyncio._set_running_loop(None)

    def create_task(  # type: ignore[override]
        self,
        work: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(work, loop=self, name=name)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.add_done_callback(self._look_at)
        self._work.append(work)
        return task

    def close(self) -> None:
        """Ends what the process was about when it ended."""
        for work in self._work:
            work.close()
        self._work.clear()

    def _look_at(self, task: asyncio.Task[Any]) -> None:
        """The store may fail; nothing else may."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreError | ProtocolError):
            raise error


def _raise(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        raise error


class SimulatedTime:
    """Takes the place of the module `time`. The wall's clock may jump, the other never does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.jump_ms = 0

    def time_ns(self) -> int:
        return (self._world.now + self.jump_ms) * 1_000_000

    def monotonic_ns(self) -> int:
        return self._world.now * 1_000_000

    def monotonic(self) -> float:
        return self._world.now / 1000
