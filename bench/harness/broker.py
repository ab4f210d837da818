"""The brokers that are measured: processes that a benchmark starts, or one that runs already."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.harness import process, wire
from bench.harness.client import Client
from bench.harness.errors import BenchError
from ottla.testing.ports import free_port

HOST = "127.0.0.1"
# Lines of a broker's log that a reader of its figures should know of.
_COMPLAINT = re.compile(r"\b(WARN|WARNING|ERROR|CRITICAL|FATAL|Traceback|slow disk)\b")
_TIME = re.compile(r"^\S*\d\d:\d\d:\d\d\S*\s*")
_VARYING = re.compile(r"\d+(\.\d+)?|/\S+")
START_TIMEOUT = 180.0
STOP_TIMEOUT = 180.0


class Broker:
    """Somewhere to connect to. One that we did not start has no process and no folder for us."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.address = (host, port)

    def client(self) -> Client:
        return Client(self.address)

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong in this block is told with the broker's name."""
        try:
            yield
        except (BenchError, OSError) as problem:
            raise BenchError(f"{self.name}: {problem}") from problem

    def cpu_seconds(self) -> float:
        return 0.0

    def answers(self, timeout: float = START_TIMEOUT) -> bool:
        try:
            with Client(self.address, timeout) as client:
                return len(client.ask(wire.api_versions_request())) > 8
        except (OSError, BenchError):
            return False

    def forget(self, topic: str, *, wait: bool = True) -> None:  # noqa: ARG002
        """Delete a topic. Where its files are ours to see, wait until they are gone."""
        with self.client() as client:
            client.delete_topic(topic)


class ManagedBroker(Broker, ABC):
    """A broker in a process of its own. Its data folder lives until `discard`."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, HOST, free_port())
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What to run; the data folder is ready for it."""

    def environment(self) -> Mapping[str, str]:
        """Ours without what a broker would take for its settings."""
        return {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KAFKA_", "OTTLA_"))
        }

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BenchError(f"{self.name} was never started")
        return self._process.pid

    def launch(self) -> None:
        """Start the process and do not wait for it."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,
                preexec_fn=_lift_file_limit,
            )

    def start(self) -> float:
        """Start the process; the seconds until it answered its first request."""
        began = time.perf_counter()
        self.launch()
        while not self.answers():
            if not self.running:
                raise BenchError(f"{self.name} ended before it answered; {self.last_words()}")
            if time.perf_counter() - began > START_TIMEOUT:
                self.kill()
                raise BenchError(f"{self.name} did not answer; {self.last_words()}")
            time.sleep(0.002)
        return time.perf_counter() - began

    def stop(self) -> float:
        """Ask it to stop; the seconds it took."""
        if self._process is None or not self.running:
            return 0.0
        began = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BenchError(f"{self.name} did not stop in {STOP_TIMEOUT:.0f} s") from None
        return time.perf_counter() - began

    def kill(self) -> None:
        if self._process is not None and self.running:
            for pid in process.family(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def discard(self) -> None:
        """End it at once and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
        except FileNotFoundError:
            lines = []
        return "it wrote:\n    " + "\n    ".join(lines or ["nothing"])

    def complaints(self) -> dict[str, int]:
        """What it logged besides its start and stop, without times and numbers, and how often."""
        found: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self.log.read_text(errors="replace").splitlines():
                if _COMPLAINT.search(line):
                    gist = _VARYING.sub("…", _TIME.sub("", line)).strip()[:160]
                    found[gist] = found.get(gist, 0) + 1
        return dict(sorted(found.items(), key=lambda each: -each[1])[:3])

    def cpu_seconds(self) -> float:
        return process.cpu_seconds(self.pid) if self.running else 0.0

    def resident_bytes(self) -> int:
        return process.resident_bytes(self.pid)

    def segments(self, topic: str) -> list[Path]:
        """The log files of all partitions of a topic."""
        return sorted(self.data.glob(f"{topic}-*/*.log"))

    def forget(self, topic: str, *, wait: bool = True) -> None:
        super().forget(topic)
        deadline = time.monotonic() + (20 if wait else 0)
        while time.monotonic() < deadline and any(self.data.glob(f"{topic}-*")):
            time.sleep(0.05)


def _lift_file_limit() -> None:
    """Thousands of partitions need thousands of files; both brokers get all that the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


HOUSEKEEPING = {
    # Data of a row that is over must go soon, or the rounds after it find the disk or the memory full.
    "log.segment.delete.delay.ms": "500",
    # A wait that is the same for all would only hide how long the rest takes.
    "group.initial.rebalance.delay.ms": "0",
}


class OttlaBroker(ManagedBroker):
    """`ottla serve`, started as a user starts it."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__("Ottla", folder)
        # With metrics, as production runs it.
        self._settings = {**HOUSEKEEPING, "metrics.listener": "127.0.0.1:0", **settings}

    def command(self) -> Sequence[str]:
        host, port = self.address
        words = [sys.executable, "-m", "ottla.cli.main", "serve"]
        words += ["--listen", f"{host}:{port}", "--data", str(self.data)]
        for name, value in self._settings.items():
            words += ["--set", f"{name}={value}"]
        return words
