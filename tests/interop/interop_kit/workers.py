"""Programs that work beside a test, to be killed and paused, and tell in JSON lines what they do.

A worker is given its settings as one JSON text, its only argument. Each line that it prints is an
object with a field `event`. What it logs goes to a file, whose end is shown when a test fails. Some of
them heed their standard input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from interop_kit import toolchain
from ottla.testing.guardian import end_with_this_program

PATIENCE = 60.0
JAVA_SOURCES = (
    "Lines.java",
    "ClientDriver.java",
    "Relay.java",
    "GroupMember.java",
    "Steady.java",
)

# Of all workers together: a test may wait for what two of them do.
CHANGED = threading.Condition()


class WorkerFailed(AssertionError):
    """What was waited for did not come; the message ends with what the worker logged."""


def python_worker(module: str) -> list[str]:
    """The command of a module of this kit."""
    return [sys.executable, "-m", f"interop_kit.{module}"]


def java_worker(main: str) -> list[str]:
    sources = [toolchain.INTEROP / "java" / name for name in JAVA_SOURCES]
    artifacts = [f"org.apache.kafka:kafka-clients:{toolchain.KAFKA_VERSION}", toolchain.GSON]
    return toolchain.java_program("java-client", sources, main, artifacts)


class Worker:
    """One process. `events` grows while it works; CHANGED tells."""

    def __init__(
        self, name: str, command: list[str], settings: Mapping[str, Any], folder: Path
    ) -> None:
        self.name = name
        self.events: list[dict[str, Any]] = []
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(toolchain.INTEROP)},
                start_new_session=True,
            )
        end_with_this_program(self.process.pid)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed while it wrote
            event = json.loads(line)
            with CHANGED:
                self.events.append(event)
                CHANGED.notify_all()
        with CHANGED:
            CHANGED.notify_all()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def count(self, event: str) -> int:
        return sum(each["event"] == event for each in self.events)

    def wait(
        self,
        condition: Callable[[], bool],
        what: str,
        timeout: float = PATIENCE,
        beside: Sequence[Worker] = (),
    ) -> None:
        """Until the condition holds; a worker that ends before is a failure, also one `beside` it."""
        workers = (self, *beside)

        def ended() -> list[Worker]:
            return [each for each in workers if not each._listener.is_alive()]

        with CHANGED:
            CHANGED.wait_for(lambda: condition() or ended(), timeout)
            if not condition():
                stories = [each.story(f"was to {what}") for each in ended() or workers]
                raise WorkerFailed("\n".join(stories))

    def say(self, line: str) -> None:
        """A line on its standard input."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self.story(f"was told {line!r}")) from None

    def end_input(self, timeout: float = PATIENCE) -> None:
        """The end of its standard input, by which it ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise WorkerFailed(self.story("was to end with its input")) from None
        finally:
            self.kill()
        if status:
            raise WorkerFailed(self.story("was to end well"))

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def leave(self, timeout: float = PATIENCE) -> None:
        """Ask it to end in good order."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise WorkerFailed(self.story("was asked to end")) from None
        finally:
            self.kill()
        if status not in (0, 143):  # a JVM that ended through its hooks says 143
            raise WorkerFailed(self.story("was to end well"))

    def kill(self) -> None:
        """End it as a crash would; what it printed before is all there afterwards."""
        if self.running:
            self.process.kill()
        self.process.wait()
        self._listener.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def story(self, what: str) -> str:
        tail = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-30:])
        status = self.process.poll()
        return (
            f"{self.name} {what} (exit status {status}); its last events {self.events[-5:]}; "
            f"it logged:\n{tail}"
        )
