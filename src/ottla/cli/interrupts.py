"""Ctrl-C where it does no harm: a command that has taken something finishes with it first.

with Interrupts() as interrupts:
    while True:
        with interrupts.allowed():
            wait for input          # Ctrl-C ends this with KeyboardInterrupt
        deal with it                # here it is put off until the next wait; a second one is not
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class Interrupts:
    """Puts off Ctrl-C while something is being dealt with.

    Where Ctrl-C is ignored, or means something else, it stays so.
    """

    def __init__(self) -> None:
        self._count = 0
        self._allowed = False
        self._ours = False

    @property
    def repeated(self) -> bool:
        """Whether Ctrl-C was pressed more than once."""
        return self._count > 1

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let Ctrl-C raise KeyboardInterrupt in this block; one that was put off raises it at once."""
        self._allowed = True
        try:
            if self._count:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def __enter__(self) -> Interrupts:
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._interrupted)
            self._ours = True
        return self

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._count += 1
        if self._allowed or self.repeated:
            raise KeyboardInterrupt

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None and self._count:
            raise KeyboardInterrupt
