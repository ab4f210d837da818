"""A broker as a process: its log lines, its signals, its greeting."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.cluster.store import StoreError
from ottla.server.broker import METADATA_FILE, Broker, CannotStart
from ottla.server.machine.folders import BrokersMissing, check_folders
from ottla.server.network.loop import new_loop
from ottla.server.resources import (
    FEW,
    descriptor_limit,
    divide_descriptors,
    raise_descriptor_limit,
    shortage_of_descriptors,
)
from ottla.version import __version__

if TYPE_CHECKING:
    from ottla.server.configuration.broker_config import BrokerConfig
    from ottla.server.machine.place import Place

log = logging.getLogger("ottla")

__all__ = ["METADATA_FILE", "print_hints", "run", "start_logging"]

HINTS = """
Try it, in another terminal:

  echo hello | {ottla} produce greetings -s {address}
  {ottla} consume greetings -s {address}
  {ottla} topic list -s {address}

Any Kafka client works:

  kcat -b {address} -L

  from ottla import Producer
  with Producer("{address}") as producer: producer.send("greetings", "hi")

Ctrl-C stops the broker; the records stay in {data}.
"""


def start_logging(who: str = "") -> None:
    """Log lines go to stderr, with `who` in each if several processes write there."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s.%(msecs)03d %(levelname)s {who}%(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )


def run(
    config: BrokerConfig,
    *,
    hints: bool = False,
    place: Place | None = None,
    on_ready: Callable[[Broker], None] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit status of the process.

    `place` is given to one of several brokers of this machine; `on_ready` is called when it serves.
    """
    start_logging("" if place is None else f"broker={config.node_id} ")
    for warning in config.warnings:
        log.warning(warning)
    raise_descriptor_limit()
    limit = descriptor_limit()
    shortage = shortage_of_descriptors(limit)
    if shortage is None and limit < FEW:
        most = divide_descriptors(limit).connections
        log.warning("ulimit -n is %d: no more than %d connections are taken at a time", limit, most)
    try:
        if shortage is not None:
            raise CannotStart(shortage)
        if place is None:
            check_folders(config, 1)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(_serve(config, hints, place, on_ready))
    except (CannotStart, BrokersMissing) as error:
        sys.stderr.write(f"ottla: {error}\n")
        return 1


async def _serve(
    config: BrokerConfig,
    hints: bool,
    place: Place | None,
    on_ready: Callable[[Broker], None] | None,
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        broker = Broker(config, place)
    except StoreError as error:
        raise CannotStart(str(error)) from error
    await broker.start()
    # What lives now lives until the end: the collector need not look at it again, not even now, while
    # the first client may be waiting. Requests make no cycles to speak of, so it may come by rarely.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    addresses = ", ".join(str(each) for each in broker.bound)
    folders = ", ".join(config.log_dirs)
    log.info(
        "Ottla %s is ready: node=%d listens=%s data=%s", __version__, broker.id, addresses, folders
    )
    if on_ready is not None:
        on_ready(broker)
    if hints:
        first = broker.bound[0]
        print_hints(f"{first.host or '127.0.0.1'}:{first.port}", folders)
    ends = [asyncio.ensure_future(event.wait()) for event in (stop, broker.lost)]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for waiting in ends:
        waiting.cancel()
    # A second signal ends the process at once; the next start then recovers.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    log.info("stopping")
    await broker.stop()
    log.info("stopped")
    status = 1 if broker.lost.is_set() else 0
    if broker.is_stuck:
        # The interpreter would wait for what the broker no longer waits for.
        logging.shutdown()
        os._exit(status)
    return status


def print_hints(address: str, folders: str) -> None:
    """Say what to try next."""
    sys.stdout.write(HINTS.format(ottla=_own_command(), address=address, data=folders))
    sys.stdout.flush()


def _own_command() -> str:
    """How the user can call this program: by its name, or by its path where that is not found."""
    import shutil

    program = sys.argv[0]
    if os.path.basename(program) != "ottla" or shutil.which("ottla"):
        return "ottla"
    return os.path.relpath(program)
