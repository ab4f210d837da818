"""Runs several brokers on one machine: starts them, starts anew what dies, stops them in good order.

The supervisor's process has the metadata store, unless there is a ZooKeeper, and no partitions: nothing
that could keep it busy. If the store fails, or the supervisor is killed, all brokers end; what they had
acknowledged is in their logs as after the end of any broker.

A broker that dies is started again, at once at first and then after growing pauses. One that cannot
even start for the first time ends the whole: its sentence says what is in the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.shared import StoreServer
from ottla.cluster.store import StoreError
from ottla.logfiles.names import FOLDER_IDENTITY
from ottla.server.configuration.sources import ConfigurationError
from ottla.server.machine.folders import BrokersMissing, check_folders, make_folders
from ottla.server.machine.plan import Planned, machine_name, plan, socket_path
from ottla.server.run import METADATA_FILE, print_hints, start_logging
from ottla.settings import InvalidSetting
from ottla.storage.checkpoints import read_folder_identity
from ottla.storage.errors import CorruptCheckpoint
from ottla.version import __version__

if TYPE_CHECKING:
    from ottla.server.configuration.broker_config import BrokerConfig

log = logging.getLogger("ottla.machine")

# Pauses before a broker that died is started again: the first, and the longest.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
# A broker that has served for so long has done well: its next death is its first.
_SERVED_WELL_SECONDS: Final = 60.0
# How long one broker may take to stop before it is killed.
_STOP_SECONDS: Final = 30.0


class _CannotStart(Exception):
    """In one sentence for the operator."""


def supervise(config: BrokerConfig, count: int, *, hints: bool = False) -> int:
    """Serve with so many brokers until SIGTERM or SIGINT; the exit status of the process.

    Raises ConfigurationError if the settings do not do for all of them.
    """
    try:
        planned = plan(config, count)
    except InvalidSetting as error:
        raise ConfigurationError(f"{error}".rstrip(".")) from error
    start_logging()
    for warning in config.warnings:
        log.warning(warning)
    try:
        check_folders(config, count)
        make_folders(config)
        return asyncio.run(_Supervisor(config, planned).run(hints))
    except (BrokersMissing, _CannotStart) as error:
        sys.stderr.write(f"ottla: {error}\n")
        return 1


class _Supervisor:
    """The brokers of this machine, and their store."""

    def __init__(self, config: BrokerConfig, planned: list[Planned]) -> None:
        self._config = config
        self._store: EmbeddedStore | None = None
        self._server: StoreServer | None = None
        self._members = [_Member(self, each) for each in planned]
        self.stopping = asyncio.Event()
        # Something ended that should not have.
        self.failed = False

    @property
    def socket(self) -> str | None:
        """Where the store is served."""
        return None if self._server is None else str(self._server.path)

    async def run(self, hints: bool) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        await self._serve_store()
        keepers = [asyncio.create_task(self._keep(each)) for each in self._members]
        ready = asyncio.create_task(self._until_ready())
        stopping = asyncio.create_task(self.stopping.wait())
        first: set[asyncio.Task[Any]] = {ready, stopping}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not self.stopping.is_set():
            addresses = ",".join(each.address for each in self._members)
            log.info("Ottla %s is ready: brokers=%d at=%s", __version__, len(keepers), addresses)
            if hints:
                print_hints(self._members[0].address, ", ".join(self._config.log_dirs))
        await stopping
        ready.cancel()
        await asyncio.gather(ready, return_exceptions=True)
        # A second signal ends everything at once; the next start then recovers.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        log.info("stopping")
        # The last first, so that leaders move towards the first where they have replicas there.
        for member in reversed(self._members):
            await member.stop()
        await asyncio.gather(*keepers)
        await self._close_store()
        log.info("stopped")
        return 1 if self.failed else 0

    async def _keep(self, member: _Member) -> None:
        try:
            await member.keep()
        except Exception:
            # Nobody would start this broker again, nor know of it.
            log.exception("broker %d is not looked after any more; all stop", member.id)
            self.fail()

    async def _until_ready(self) -> None:
        for member in self._members:
            await member.ready.wait()

    def fail(self) -> None:
        """Stop all brokers: there is no sense in going on."""
        self.failed = True
        self.stopping.set()

    async def _serve_store(self) -> None:
        if self._config.zookeeper_connect is not None:
            return
        folder = self._config.log_dirs[0]
        self._require_own_folders(os.path.join(folder, METADATA_FILE))
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            self._store = EmbeddedStore(os.path.join(folder, METADATA_FILE))
            await self._store.start()
            self._server = StoreServer(self._store, socket_path(folder))
            await self._server.start()
        except (StoreError, OSError) as error:
            if self._store is not None:
                await self._store.close()
            raise _CannotStart(str(error)) from error
        self._watching = asyncio.create_task(self._watch_store(self._store))

    def _require_own_folders(self, store: str) -> None:
        """Where the store is missing none is made beside folders that belong to a cluster: it would be
        that of another one, and nobody could start with it."""
        if os.path.exists(store):
            return
        for member in self._members:
            for folder in member.folders:
                try:
                    identity = read_folder_identity(os.path.join(folder, FOLDER_IDENTITY))
                except (OSError, CorruptCheckpoint):
                    continue  # the broker says what is the matter
                owner = None if identity is None else identity.get("cluster.id")
                if owner is not None:
                    raise _CannotStart(
                        f"data folder {folder} belongs to cluster {owner}, and {store}, "
                        "which knows it, is not there: put that back, or start its brokers as they "
                        "were started before"
                    )

    async def _watch_store(self, store: EmbeddedStore) -> None:
        async for _ in store.session_events():
            pass
        if not self.stopping.is_set():
            log.error("the metadata store is lost; all brokers stop")
            self.fail()

    async def _close_store(self) -> None:
        if self._server is not None:
            await self._server.stop()
            folder = self._server.path.parent
            if folder.parent == Path(tempfile.gettempdir()):
                shutil.rmtree(folder, ignore_errors=True)
        if self._store is not None:
            await self._store.close()
            await self._watching


class _Member:
    """One broker: its process, whichever it is at the time."""

    def __init__(self, supervisor: _Supervisor, planned: Planned) -> None:
        self._supervisor = supervisor
        self._planned = planned
        self.id = planned.id
        self.folders = planned.static["log.dirs"].split(",")
        self.address = ""
        self.ready = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Sees to it that the broker runs, until all stop."""
        stopping = self._supervisor.stopping
        pause = _FIRST_PAUSE
        while not stopping.is_set():
            began = time.monotonic()
            try:
                end = _end(await self._live())
            except OSError as error:
                end = f"no process could be made for it: {error}"
            if stopping.is_set():
                return
            if not self.ready.is_set():
                log.error("broker %d could not start (%s); all stop", self.id, end)
                self._supervisor.fail()
                return
            if time.monotonic() - began > _SERVED_WELL_SECONDS:
                pause = _FIRST_PAUSE
            log.error(
                "broker %d has ended (%s) and is started again in %.1f s",
                self.id, end, pause,
            )  # fmt: skip
            try:
                await asyncio.wait_for(stopping.wait(), pause)
            except TimeoutError:
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _live(self) -> int:
        """Runs a process of the broker until it ends; its exit status. OSError if none can be made."""
        ours, theirs = socket.socketpair()
        try:
            # In a session of its own: Ctrl-C at the terminal is the supervisor's to handle.
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ottla.server.machine.member", f"broker-{self.id}",
                stdin=theirs.fileno(), start_new_session=True,
            )  # fmt: skip
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        if self._supervisor.stopping.is_set():
            process.terminate()  # whoever stops all has found no process here
        reader, writer = await asyncio.open_connection(sock=ours)
        order = {
            "supervisor": os.getpid(),
            "machine": machine_name(),
            "store": self._supervisor.socket,
            "static": self._planned.static,
        }
        writer.write(json.dumps(order).encode() + b"\n")
        try:
            said = b""
            with contextlib.suppress(ConnectionError):  # it ended before it had read its order
                said = await reader.readline()
            if said:
                host, port = json.loads(said)[0]
                host = host or "127.0.0.1"
                self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                if self.ready.is_set():
                    log.info("broker %d serves again at %s", self.id, self.address)
                self.ready.set()
            return await process.wait()
        finally:
            writer.close()

    async def stop(self) -> None:
        """Asks it to stop, and waits; one that hangs is killed."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            log.error("broker %d did not stop within %.0f s and is killed", self.id, _STOP_SECONDS)
            process.kill()
            await process.wait()
        # One that was still starting has no handler for the signal yet, and nothing to put in order.
        if process.returncode != 0 and (
            self.ready.is_set() or process.returncode != -signal.SIGTERM
        ):
            log.error("broker %d has ended (%s)", self.id, _end(process.returncode))
            self._supervisor.failed = True


def _end(status: int | None) -> str:
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
