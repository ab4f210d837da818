"""What is to be closed when a command ends, however it ends."""

from __future__ import annotations

from collections.abc import Callable

_open: list[Callable[[], None]] = []


def close_at_end(close: Callable[[], None]) -> None:
    """Call `close` when the command that runs now is over."""
    _open.append(close)


def close_all() -> None:
    """Closes everything, beginning with what was added last."""
    while _open:
        _open.pop()()
