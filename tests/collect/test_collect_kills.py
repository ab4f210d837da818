"""Lines written and rotated under load, while the collector and the broker are killed: each comes once.

COLLECT_ROUNDS sets the number of kills (2 by default, 5 in `make test-long`, 40 in `make soak`),
COLLECT_SEED the moments of the kills and of the rotations; a failure names its seed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
from collect_kit import PATIENCE, Collecting, wait_until

from ottla import Admin, Consumer
from ottla.testing import BrokerProcess
from ottla.testing.guardian import end_with_this_program

QUICK_ROUNDS = int(os.environ.get("COLLECT_ROUNDS", "2"))
LONG_ROUNDS = int(os.environ.get("COLLECT_ROUNDS", "5"))
SOAK_ROUNDS = int(os.environ.get("COLLECT_ROUNDS", "40"))
PAUSE = (0.3, 1.5)  # seconds between kills
MOST_LINES = 200  # that are written at once


class LogWriter(threading.Thread):
    """Writes numbered lines to a file, some in two halves, and rotates it by and by, or when told."""

    def __init__(
        self, path: Path, rotate: Callable[[Path, int], None], seed: int, likelihood: float = 0.02
    ) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.stopped = threading.Event()
        self.rotate_now = threading.Event()
        self.likelihood = likelihood
        self.lines = 0
        self.first = 0  # line of the file that is written now
        self.rotations = 0
        self._rotate = rotate
        self._chance = random.Random(seed)

    def run(self) -> None:
        file = self.path.open("ab", buffering=0)
        while not self.stopped.is_set():
            count = self._chance.randint(1, MOST_LINES)
            text = b"".join(
                b"%s %d %s\n" % (self.path.stem.encode(), number, b"x" * (number * 7919 % 90))
                for number in range(self.lines, self.lines + count)
            )
            cut = self._chance.randint(0, len(text))
            file.write(text[:cut])
            self.stopped.wait(self._chance.uniform(0, 0.04))
            file.write(text[cut:])
            self.lines += count
            if self.rotate_now.is_set() or self._chance.random() < self.likelihood:
                self.rotations += 1
                self._rotate(self.path, self.rotations)
                self.first = self.lines
                self.rotate_now.clear()
                file.close()
                file = self.path.open("ab", buffering=0)
        file.close()


def rename(path: Path, number: int) -> None:
    path.rename(path.with_name(f"{path.name}.{number}"))


def copy_and_empty(path: Path, number: int) -> None:
    shutil.copyfile(path, path.with_name(f"{path.name}.{number}"))
    os.truncate(path, 0)


def start_collector(collecting: Collecting, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ottla.cli.main", "collect", "--name", collecting.topic]
    command += ["--topic", collecting.topic, "--server", collecting.bootstrap, *more]
    # `named` is found by its name alone; rotated, no pattern finds it any more.
    command += [str(collecting.folder / "named.log"), str(collecting.folder / "glob*")]
    with (collecting.folder.parent / "collector.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    end_with_this_program(process.pid)
    return process


class Arrivals:
    """What came of the lines of one writer: reads the topic on from where it was.

    The end of the topic alone would not do: in a round of a collector that has much to catch up with,
    other files may have more lines after these than are looked at.
    """

    def __init__(self, collecting: Collecting, writer: LogWriter) -> None:
        self._collecting = collecting
        self._writer = writer
        self._next = {0: 0, 1: 0}
        self._newest = -1

    def await_current(self, collector: subprocess.Popen[bytes]) -> None:
        """Wait until a line of the file that is being written has come, whoever sent it."""
        wait_until(lambda: not self._writer.rotate_now.is_set())
        self._await_line(self._writer.first, collector)

    def await_new(self, collector: subprocess.Popen[bytes]) -> None:
        """Wait until a line has come that is not written yet: this collector has begun to send."""
        self._await_line(self._writer.lines + MOST_LINES, collector)

    def _await_line(self, number: int, collector: subprocess.Popen[bytes]) -> None:
        def came() -> bool:
            assert collector.poll() is None, f"the collector ended with {collector.returncode}"
            return self._look() >= number

        wait_until(came)

    def _look(self) -> int:
        """The number of the newest line that has come."""
        columns = ["partition", "offset", "value"]
        with Consumer(self._collecting.bootstrap) as consumer:
            new = consumer.read(self._collecting.topic, self._next, columns=columns)
        for row in new.group_by("partition").aggregate([("offset", "max")]).to_pylist():
            self._next[row["partition"]] = row["offset_max"] + 1
        name = self._writer.path.stem.encode() + b" "
        lines = new["value"].filter(pc.starts_with(new["value"], name))
        if len(lines):  # all in one partition, and in order
            self._newest = int(lines[-1].as_py().split()[1])
        return self._newest


def kill_again_and_again(folder: Path, rounds: int, seed: int) -> None:
    print(f"COLLECT_SEED={seed} COLLECT_ROUNDS={rounds}")
    chance = random.Random(seed)
    (folder / "log").mkdir()
    with BrokerProcess(folder / "data") as broker:
        topic = f"logs-{uuid.uuid4().hex[:8]}"
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=2)
        collecting = Collecting(broker.bootstrap, topic, folder / "log")
        writers = [
            LogWriter(collecting.folder / "named.log", rename, seed + 1, likelihood=0),
            LogWriter(collecting.folder / "globbed-1.log", rename, seed + 2),
            LogWriter(collecting.folder / "globbed-2.log", copy_and_empty, seed + 3),
        ]
        for writer in writers:
            writer.start()
        collector = start_collector(collecting)
        arrivals = Arrivals(collecting, writers[0])
        try:
            for number in range(rounds):
                # A file that comes and goes while nobody looks is found by no name.
                arrivals.await_current(collector)
                # Every third kill is the broker's; the collector then has to go on by itself. It must
                # have begun: one that finds no broker when it starts says so, and ends.
                is_brokers = number % 3 == 2
                if is_brokers:
                    arrivals.await_new(collector)
                writers[0].rotate_now.set()
                writers[0].stopped.wait(chance.uniform(*PAUSE))
                if is_brokers:
                    broker.kill()
                    broker.start()
                else:
                    collector.kill()
                    collector.wait()
                    collector = start_collector(collecting)
            arrivals.await_current(collector)
            writers[0].rotate_now.set()
            arrivals.await_current(collector)
        except BaseException:
            print((folder / "collector.log").read_text())
            raise
        finally:
            for writer in writers:
                writer.stopped.set()
            for writer in writers:
                writer.join(PATIENCE)
            collector.send_signal(signal.SIGTERM)
            status = collector.wait(PATIENCE)
        log = (folder / "collector.log").read_text()
        assert status == 0, log
        assert start_collector(collecting, "--once").wait(PATIENCE) == 0, log
        assert all(writer.rotations for writer in writers)
        check(collecting, writers)


def check(collecting: Collecting, writers: list[LogWriter]) -> None:
    line = re.compile(rb"([a-z0-9-]+) (\d+) (x*)")
    found: dict[bytes, list[int]] = {}
    for value in collecting.values():
        match = line.fullmatch(value)
        assert match is not None, value
        assert len(match[3]) == int(match[2]) * 7919 % 90
        found.setdefault(match[1], []).append(int(match[2]))
    for writer in writers:
        numbers = found[writer.path.stem.encode()]
        twice = [number for number, count in Counter(numbers).items() if count > 1]
        missing = sorted(set(range(writer.lines)) - set(numbers))
        assert (writer.path.name, twice, missing) == (writer.path.name, [], [])
    # By renaming, order is kept, too: all lines have one key.
    assert found[b"named"] == sorted(found[b"named"])


@pytest.mark.timeout(500)
@pytest.mark.long
def test_kills_of_the_collector_and_of_the_broker(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, QUICK_ROUNDS, int(os.environ.get("COLLECT_SEED", "1")))


@pytest.mark.long
@pytest.mark.timeout(500)
def test_more_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, LONG_ROUNDS, int(os.environ.get("COLLECT_SEED", "1")))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("COLLECT_SEED") or random.randrange(1 << 32))
    kill_again_and_again(tmp_path, SOAK_ROUNDS, seed)
