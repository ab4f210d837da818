"""Fixtures of the durability tests: brokers that may be killed, and small file systems."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The kit is a package beside the tests; with pytest's importlib mode nothing else puts it on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

# What the kit asserts is told in full, as in a test.
pytest.register_assert_rewrite("durability_kit")

from durability_kit.wire import Wire  # noqa: E402

from ottla.testing import BrokerProcess  # noqa: E402


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Makes brokers that are not started yet; whatever still runs at the end is killed."""
    made: list[BrokerProcess] = []

    def make(data: Path | None = None, **settings: str) -> BrokerProcess:
        """`settings` with Kafka's names, underscores for dots."""
        broker = BrokerProcess(
            data or tmp_path / "data",
            settings={name.replace("_", "."): value for name, value in settings.items()},
            log_path=tmp_path / f"broker-{len(made)}.log",
        )
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.kill()


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that is not started yet, on `tmp_path / "data"`."""
    return make_broker()


@pytest.fixture
def connect() -> Iterator[Callable[[BrokerProcess], Wire]]:
    opened: list[Wire] = []

    def connect(broker: BrokerProcess) -> Wire:
        wire = Wire(broker.bootstrap)
        opened.append(wire)
        return wire

    yield connect
    for wire in opened:
        wire.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Mounts file systems in memory: small_disk(name, bytes) is its folder. Skips where that is not
    allowed. (`resize` a mounted one by asking for the same name again.)"""
    mounted: dict[str, Path] = {}

    def mount(name: str, size: int) -> Path:
        folder = tmp_path / name
        options = f"size={size}"
        if name in mounted:
            options = f"remount,{options}"
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted[name] = folder
        return folder

    yield mount
    for folder in mounted.values():
        # Lazily: a broker that a failed test left behind may still be in there.
        subprocess.run(["umount", "-l", str(folder)], check=True)
