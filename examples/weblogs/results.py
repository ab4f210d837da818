"""The results of the sample pipeline, as they stand in its topics.

The reader needs no Spark: to others, results are records like any.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client.admin.client import Admin
from ottla.client.consumer.blocking import Consumer
from ottla.client.errors import OttlaError

KEPT: Final = 60  # minutes, and alerts
_RECENT: Final = -200  # records before the end, of each partition
_LOOK_EVERY: Final = 0.5  # seconds


@dataclass
class Results:
    """What the pipeline has found; what is newest stands last."""

    minutes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0  # that were read

    def take(self, topic: str, key: bytes | None, value: bytes) -> None:
        found = json.loads(value)
        self.records += 1
        if topic.endswith("-minutes") and key is not None:
            self.minutes[key.decode()] = found
        elif topic.endswith("-pages") and key is not None:
            self.pages[key.decode()] = found["pages"]
        elif topic.endswith("-alerts"):
            self.alerts.append(found)
            self.alerts.sort(key=lambda alert: str(alert["since"]))
            del self.alerts[:-KEPT]
        for by_minute in (self.minutes, self.pages):
            for minute in sorted(by_minute)[:-KEPT]:
                by_minute.pop(minute, None)

    @property
    def newest(self) -> str | None:
        """The newest minute there is."""
        return max(self.minutes, default=None)


class ResultsReader:
    """Keeps `results` up to date."""

    def __init__(self, servers: str, topics: list[str]) -> None:
        self.results = Results()
        self.changed = threading.Event()
        self._servers = servers
        self._topics = topics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ottla-demo-results")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def read_once(self) -> Results:
        """What is there now."""
        with Consumer(self._servers) as consumer:
            for topic in self._topics:
                self._take(consumer.read(topic, _RECENT, columns=["topic", "key", "value"]))
        return self.results

    def _run(self) -> None:
        with Admin(self._servers) as admin:
            described = admin.describe_topics(self._topics)
        places = {
            (topic, each.partition): _RECENT
            for topic, description in described.items()
            for each in description.partitions
        }
        with Consumer(self._servers, columns=["topic", "key", "value"]) as consumer:
            consumer.assign(places)
            while not self._stop.is_set():
                try:
                    rows = consumer.next_batch(timeout=_LOOK_EVERY)
                except OttlaError:
                    self._stop.wait(_LOOK_EVERY)  # the broker is away; it says so itself
                    continue
                if rows is not None:
                    self._take(rows)
                    self.changed.set()

    def _take(self, rows: Any) -> None:
        for row in rows.to_pylist():
            self.results.take(row["topic"], row["key"], row["value"])
