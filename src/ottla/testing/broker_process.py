"""A broker in a process of its own, for tests that need real sockets, signals and files.

    with BrokerProcess(tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

The process is the one that `ottla serve` starts, so what a test sees is what a user gets, with one
exception: a group's first rebalance does not wait for more members, as in Kafka's quick-start files.
The port stays the same over `stop`, `kill` and `start`: clients that were connected find the broker
again.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

# A test that waits longer than this for a broker on a busy machine has found a broker that hangs.
START_TIMEOUT = 30.0
STOP_TIMEOUT = 20.0
POLL_INTERVAL = 0.01

# What a test would only wait for.
QUICK_SETTINGS: Mapping[str, str] = {"group.initial.rebalance.delay.ms": "0"}

_API_VERSIONS_KEY = 18
_CORRELATION_ID = 7


class BrokerDied(RuntimeError):
    """The broker's process ended, or never answered; the message ends with what it logged last."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on now. Another process may take it before the broker does."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(host: str, port: int, timeout: float = 1.0) -> bool:
    """Whether a broker behind this address answers an ApiVersions request (version 0)."""
    client_id = b"ottla-testing"
    body = struct.pack(">hhih", _API_VERSIONS_KEY, 0, _CORRELATION_ID, len(client_id)) + client_id
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            received = b""
            while len(received) < 8:
                chunk = connection.recv(64)
                if not chunk:
                    return False
                received += chunk
    except OSError:
        return False
    correlation_id: int = struct.unpack_from(">i", received, 4)[0]
    return correlation_id == _CORRELATION_ID


class BrokerProcess:
    """One `ottla serve` as a child process.

    Its data folder outlives it, so that a test can kill it, look at the files, and start it anew.
    What it writes to stdout and stderr is appended to `log_path` (outside the data folder, which
    belongs to the broker).
    """

    def __init__(
        self,
        data: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log_path: Path | None = None,
    ) -> None:
        self.data = data
        self.host = host
        self._fixed_port = port is not None
        self.port = port if port is not None else free_port(host)
        self.settings = {**QUICK_SETTINGS, **(settings or {})}
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.log_path = log_path or data.parent / f"{data.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        if self.process is None:
            raise BrokerDied("the broker was never started")
        return self.process.pid

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "ottla.cli.main", "serve"]
        command += ["--listen", self.bootstrap, "--data", str(self.data)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command + self.arguments

    def start(self, timeout: float = START_TIMEOUT) -> BrokerProcess:
        """Start the process and return once it answers."""
        attempts = 1 if self._fixed_port else 5
        for attempt in range(attempts):
            self._spawn()
            try:
                self.wait_until_ready(timeout)
            except BrokerDied:
                # Somebody else may have been given the port between our look and the broker's bind.
                if attempt + 1 == attempts or "in use" not in self.log_text():
                    raise
                self.port = free_port(self.host)
            else:
                self._fixed_port = True
                return self
        raise AssertionError("unreachable")

    def _spawn(self) -> None:
        if self.running:
            raise RuntimeError(f"the broker on {self.bootstrap} runs already")
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            # In a session of its own: Ctrl-C at the terminal is meant for the test run.
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
                start_new_session=True,
            )

    def wait_until_ready(self, timeout: float = START_TIMEOUT) -> None:
        deadline = time.monotonic() + timeout
        while not answers(self.host, self.port):
            if not self.running:
                raise BrokerDied(self._story("ended before it answered"))
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerDied(self._story(f"did not answer within {timeout:.0f} s"))
            time.sleep(POLL_INTERVAL)
        if not self.running:
            raise BrokerDied(self._story("ended, and something else answers on its port"))

    def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """Ask it to stop (SIGTERM) and return its exit status; a broker that hangs is killed."""
        if self.process is None:
            return 0
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerDied(self._story(f"did not stop within {timeout:.0f} s")) from None

    def kill(self) -> None:
        """End it as a crash would (SIGKILL): no flush, no marker."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def restart(self, timeout: float = START_TIMEOUT) -> BrokerProcess:
        self.stop()
        return self.start(timeout)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def log_text(self) -> str:
        try:
            return self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _story(self, what: str) -> str:
        status = None if self.process is None else self.process.poll()
        tail = "\n".join(self.log_text().splitlines()[-40:])
        return f"the broker on {self.bootstrap} {what} (exit status {status}); it logged:\n{tail}"

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()
