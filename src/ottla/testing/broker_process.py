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
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from ottla.testing.ports import free_port
from ottla.testing.server_process import START_TIMEOUT, ServerDied, ServerProcess, text_of

# What a test would only wait for.
QUICK_SETTINGS: Mapping[str, str] = {"group.initial.rebalance.delay.ms": "0"}

_API_VERSIONS_KEY = 18
_CORRELATION_ID = 7


class BrokerDied(ServerDied):
    """The broker's process ended, or never answered; the message ends with what it logged last."""


def answers(host: str, port: int, timeout: float = 1.0) -> bool:
    """Whether a broker at this address answers an ApiVersions request (version 0)."""
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


class BrokerProcess(ServerProcess):
    """One `ottla serve` as a child process.

    What it writes to stdout and stderr is appended to `log_path` (outside the data folder, which
    belongs to the broker).
    """

    kind = "broker"
    died = BrokerDied

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
        super().__init__(host, port if port is not None else free_port(host))
        self.data = data
        self._fixed_port = port is not None
        self.settings = {**QUICK_SETTINGS, **(settings or {})}
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.log_path = log_path or data.parent / f"{data.name}.log"

    @property
    def bootstrap(self) -> str:
        return self.address

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "ottla.cli.main", "serve"]
        command += ["--listen", self.bootstrap, "--data", str(self.data)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command + self.arguments

    def start(self, timeout: float = START_TIMEOUT) -> Self:
        """Starts the process and returns once it answers."""
        attempts = 1 if self._fixed_port else 5
        for attempt in range(attempts):
            try:
                super().start(timeout)
            except BrokerDied:
                # Somebody else may have been given the port between our look and the broker's bind.
                if attempt + 1 == attempts or "in use" not in self.log_text():
                    raise
                self.port = free_port(self.host)
            else:
                self._fixed_port = True
                return self
        raise AssertionError("unreachable")

    def spawn(self) -> None:
        self.data.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment}
        self._launch(self.command(), self.log_path, environment)

    def serves(self) -> bool:
        return answers(self.host, self.port)

    def log_text(self) -> str:
        return text_of(self.log_path)
