"""A server as a child process: what a broker and a ZooKeeper have in common."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from ottla.testing.guardian import end_with_this_program

# A test that waits longer than this for a server on a busy machine has found one that hangs.
START_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 20.0
_LOOK_INTERVAL: Final = 0.01  # between two looks at a server that comes up
_SHOWN_LINES: Final = 40  # of a log, when a server has died


class ServerDied(RuntimeError):
    """The server's process ended, or never answered; the message ends with what it logged last."""


class ServerProcess(ABC):
    """One server with an address of its own, which stays over `stop`, `kill` and `start`.

    Its files outlive it, so that a test can kill it, look at them, and start it anew. The process itself
    ends with the program that started it, even if that is killed, unless `outlives` is set.
    """

    kind: ClassVar[str]  # in words, for messages
    died: ClassVar[type[ServerDied]]

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.outlives = False
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        if self.process is None:
            raise self.died(f"the {self.kind} was never started")
        return self.process.pid

    @abstractmethod
    def spawn(self) -> None:
        """Starts the process and does not wait for it."""

    @abstractmethod
    def serves(self) -> bool:
        """Whether something answers on its port as this kind of server does."""

    @abstractmethod
    def log_text(self) -> str:
        """What it has logged, and written to stdout and stderr."""

    def start(self, timeout: float = START_TIMEOUT) -> Self:
        """Starts the process and returns once it serves."""
        self.spawn()
        self.wait_until_ready(timeout)
        return self

    def _launch(self, command: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
        if self.running:
            raise RuntimeError(f"the {self.kind} on {self.address} runs already")
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as log:
            # In a session of its own: Ctrl-C at the terminal is meant for the test run.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        if not self.outlives:
            end_with_this_program(self.process.pid)

    def wait_until_ready(self, timeout: float = START_TIMEOUT, *, kills: bool = True) -> None:
        """Returns once it serves. If it does not in time, it is killed, or goes on without `kills`."""
        deadline = time.monotonic() + timeout
        while not self.serves():
            process = self.process
            if process is None or process.poll() is not None:
                raise self.died(self._with_log("ended before it answered"))
            if time.monotonic() > deadline:
                if kills:
                    self.kill()
                raise self.died(self._with_log(f"did not answer within {timeout:.0f} s"))
            # Until the next look, or its end.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_INTERVAL)
        if not self.running:
            raise self.died(self._with_log("ended, and something else answers on its port"))

    def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """Asks it to stop (SIGTERM) and returns its exit status; a server that hangs is killed."""
        if self.process is None:
            return 0
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self.died(self._with_log(f"did not stop within {timeout:.0f} s")) from None

    def kill(self) -> None:
        """Ends it as a crash would (SIGKILL): no flush, no marker."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def restart(self, timeout: float = START_TIMEOUT) -> Self:
        self.stop()
        return self.start(timeout)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def _with_log(self, what: str) -> str:
        status = None if self.process is None else self.process.poll()
        tail = "\n".join(self.log_text().splitlines()[-_SHOWN_LINES:])
        return (
            f"the {self.kind} on {self.address} {what} (exit status {status}); it logged:\n{tail}"
        )

    def __enter__(self) -> Self:
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


def text_of(path: Path) -> str:
    """What is in a log file; nothing if there is none yet."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
