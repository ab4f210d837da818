"""Records of producers that nobody closes: sent when the interpreter ends, or counted in the log.

A program that ends with records in a producer's buffer means them to be written. So producers are
known here until they are closed. At the end of the interpreter those that are still open are flushed;
that takes delivery.timeout.ms at most. What cannot be sent is told in the log (standard error, if the
program has set up nothing else), with its number and the reason.

An AsyncProducer can be flushed by its own event loop alone; once that is closed, its records are counted
and told. Records of a transaction that was not committed are to be dropped, and nobody is told.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from ottla.client.errors import OttlaError
from ottla.client.loop import BackgroundLoop  # whose end must come after the one here

if TYPE_CHECKING:
    from ottla.client.producer.core import ProducerCore

logger = logging.getLogger(__name__)

_open: Final[dict[ProducerCore, BackgroundLoop | None]] = {}
_lock = threading.Lock()


def opened(core: ProducerCore, loop: BackgroundLoop | None) -> None:
    """Remember a producer; `loop` is the one that can be told to flush it when the program ends."""
    with _lock:
        orphans = [each for each in _open if each.loop.is_closed()]
        for each in orphans:
            del _open[each]
        _open[core] = loop
    for each in orphans:
        _tell(each, None)


def closed(core: ProducerCore) -> None:
    with _lock:
        _open.pop(core, None)


def _open_producers() -> list[tuple[ProducerCore, BackgroundLoop | None]]:
    with _lock:
        return list(_open.items())


def _flush_early() -> None:
    # While threads can still be started, which names of hosts are looked up in.
    for core, loop in _open_producers():
        if loop is not None and core.transactional_id is None and core.accumulator.used:
            with contextlib.suppress(OttlaError, KeyboardInterrupt):
                loop.run(core.accumulator.flush())


@atexit.register
def _close_all() -> None:
    for core, loop in _open_producers():
        problem: BaseException | None = None
        if loop is not None:
            try:
                loop.run(core.close(core.settings.delivery_timeout))
            except (OttlaError, KeyboardInterrupt) as error:
                problem = error
        _tell(core, problem)
    _open.clear()


def _tell(core: ProducerCore, problem: BaseException | None) -> None:
    lost = core.lost + core.accumulator.records()
    if not lost or core.transactional_id is not None:
        return
    why = core.first_error or problem
    logger.error(
        "%s of a producer that was not closed %s not acknowledged by any broker%s",
        "1 record" if lost == 1 else f"{lost} records",
        "was" if lost == 1 else "were",
        f": {why}" if isinstance(why, OttlaError) else "; close producers, best by `with`",
    )


def _forget_in_child() -> None:
    # What is in the buffers, the parent sends.
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_forget_in_child)
with contextlib.suppress(AttributeError, RuntimeError):
    # Before the standard library ends its pools of threads, whose module must have registered itself
    # first. There is no public way to be so early.
    assert concurrent.futures.thread is not None
    threading._register_atexit(_flush_early)  # type: ignore[attr-defined]
