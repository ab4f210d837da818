"""Pools of threads for system calls that may block, with all their threads running from the start."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def started_threads(count: int, name: str) -> ThreadPoolExecutor:
    """A pool that never has to start a thread again.

    `ThreadPoolExecutor` starts threads as work comes. Where memory is short that fails, and its
    `submit` then raises with the work already in its queue: a write that was reported as failed would
    be made later, by another thread.
    """
    pool = ThreadPoolExecutor(count, name)
    all_started = threading.Barrier(count)
    try:
        for _ in range(count):
            # Each waits for the last one, so that none of them takes two of these.
            pool.submit(all_started.wait)
    except RuntimeError:
        all_started.abort()
        pool.shutdown(wait=False)
        raise
    return pool
