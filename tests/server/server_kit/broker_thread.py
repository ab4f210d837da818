"""A broker on an event loop in a thread of the test's own process: quick to start, open to be looked at.

Whatever goes wrong inside of it is written to the log; `complaints` keeps that, and a test that did
not expect any fails at its end (see conftest).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from ottla.server.broker import Broker
from ottla.server.configuration.broker_config import load
from server_kit.wire import Wire

T = TypeVar("T")

PATIENCE = 30.0


class Complaints(logging.Handler):
    """Keeps what the broker logs as an error, and what asyncio says of callbacks that raised."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def __enter__(self) -> Complaints:
        for name in ("ottla", "asyncio"):
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("ottla", "asyncio"):
            logging.getLogger(name).removeHandler(self)


class BrokerThread:
    def __init__(
        self, data: Path, *, settings: Mapping[str, str] | None = None, listen: str | None = None
    ) -> None:
        self.data = data
        self.settings = dict(settings or {})
        self._listen = listen or "127.0.0.1:0"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self.broker: Broker
        # Where its first listener is.
        self.host = "127.0.0.1"
        self.port = 0

    def folders(self) -> str:
        """Where its data are, as `--data` takes it."""
        return str(self.data)

    def start(self) -> Self:
        self._ready.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the broker did not start"
        if self._failure is not None:
            raise self._failure
        return self

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        config = load(
            environment={},
            listen=None if "listeners" in self.settings else self._listen,
            data=self.folders(),
            assignments=[f"{name}={value}" for name, value in self.settings.items()],
        )
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.broker = Broker(config)
        await self.broker.start()
        self.port = self.broker.bound[0].port
        self._ready.set()
        await self._stop.wait()
        await self.broker.stop()

    def stop(self) -> None:
        """Stop as on SIGTERM."""
        if self._thread is None:
            return
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the broker did not stop"
        self._thread = None
        if self._failure is not None:
            raise self._failure

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def wire(self, timeout: float = 20.0) -> Wire:
        return Wire(self.host, self.port, timeout)

    def trust_producers(self, topic: str) -> None:
        """Store what is sent to a topic without a look at its records."""

        def trust(broker: Broker) -> None:
            for partition in broker.partitions.by_name[topic]:
                partition.record_rules = None

        self.run(trust)

    def run(self, work: Callable[[Broker], T]) -> T:
        """Call a function on the broker's loop, with the broker; its result."""

        async def call() -> T:
            return work(self.broker)

        return self.run_async(call())

    def run_async(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def until(self, condition: Callable[[Broker], bool]) -> None:
        """Wait until something holds on the broker's loop; looked at between its callbacks."""

        async def watch() -> None:
            while not condition(self.broker):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)

        self.run_async(asyncio.wait_for(watch(), PATIENCE))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class BrokerElsewhere:
    """A broker that runs already, a Kafka say: only what can be seen over the wire."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._served: Mapping[int, tuple[int, int]] | None = None

    def wire(self, timeout: float = 20.0) -> Wire:
        if self._served is None:
            from ottla.protocol.messages.api_versions import (
                ApiVersionsRequest,
                ApiVersionsResponse,
            )

            with Wire(self.host, self.port, timeout) as wire:
                answer = wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
            self._served = {
                each.api_key: (each.min_version, each.max_version) for each in answer.api_keys
            }
        return Wire(self.host, self.port, timeout, self._served)


@contextlib.contextmanager
def broker_or_elsewhere(data: Path, **settings: Any) -> Iterator[BrokerThread | BrokerElsewhere]:
    """The broker that TEST_BOOTSTRAP names; without it, one that is started with these settings."""
    elsewhere = os.environ.get("TEST_BOOTSTRAP")
    if elsewhere:
        host, _, port = elsewhere.rpartition(":")
        yield BrokerElsewhere(host, int(port))
        return
    with BrokerThread(data, **settings) as running:
        yield running


def skip_elsewhere() -> None:
    """Skip a test that starts brokers of its own, if TEST_BOOTSTRAP names the one to be tested."""
    if "TEST_BOOTSTRAP" in os.environ:
        pytest.skip("this test starts brokers of its own")


@contextlib.contextmanager
def broker_threads(folder: Path) -> Iterator[Callable[..., BrokerThread]]:
    """A function that starts brokers with these settings of BrokerThread; they end with the block."""
    skip_elsewhere()
    started: list[BrokerThread] = []

    def start(**settings: Any) -> BrokerThread:
        thread = BrokerThread(folder / f"broker-{len(started)}", **settings)
        started.append(thread)
        return thread.start()

    yield start
    for thread in started:
        thread.stop()
