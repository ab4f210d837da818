"""Short ways to collect and to see what came."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla import Consumer
from ottla.pipeline.collect import Collector

PATIENCE = 90.0  # seconds; who waits longer has found something that hangs


@dataclass
class Collecting:
    """A topic, a folder of logs, and collectors between them."""

    bootstrap: str
    topic: str
    folder: Path
    notes: list[str] = field(default_factory=list)

    def collector(self, *patterns: str, **options: Any) -> Collector:
        paths = [str(self.folder / pattern) for pattern in patterns]
        name = options.pop("name", self.topic)
        return Collector(
            self.bootstrap, self.topic, paths, name=name, note=self.notes.append, **options
        )

    def once(self, *patterns: str, **options: Any) -> None:
        self.collector(*patterns, **options).run(threading.Event(), once=True, patience=PATIENCE)

    @contextmanager
    def following(self, *patterns: str, **options: Any) -> Iterator[threading.Thread]:
        """A collector that runs meanwhile. What ends it early fails the test."""
        stop = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                self.collector(*patterns, **options).run(stop)
            except BaseException as error:
                failed.append(error)
                raise

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield thread
        finally:
            stop.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert not failed, failed

    def rows(self, *columns: str) -> list[Any]:
        with Consumer(self.bootstrap) as consumer:
            table = consumer.read(self.topic, columns=["partition", "offset", *columns])
        order = [("partition", "ascending"), ("offset", "ascending")]
        rows: list[Any] = table.sort_by(order).select(columns).to_pylist()
        return rows

    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows("value")]

    def await_values(self, wanted: list[bytes]) -> None:
        """Wait until so many came, and compare them."""
        wait_until(lambda: len(self.values()) >= len(wanted))
        assert self.values() == wanted

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        with path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        return path


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
