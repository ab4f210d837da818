"""Exactly once: what is read is turned around and written, while clients and broker are killed.

At random moments (each run prints its seed; SEED repeats it) a relay, the broker or both are
killed with -9 and started again, or a relay is paused until another has taken its name and its work,
and then goes on as if nothing had happened. See interop_kit/course.py.

A few rounds are part of `make test` (with the Java client: of `make test-long`); thirty of each client
and protocol of `make soak`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop_kit.clients.wire_client import WireClient
from interop_kit.course import COMMANDS, INPUT, KINDS, OUTPUT, PARTITIONS, SETTINGS, Course, Fault
from interop_kit.relay import FENCED

from ottla.testing import BrokerProcess


class BrokerCourse(Course):
    """With one broker."""

    def __init__(
        self, broker: BrokerProcess, command: list[str], protocol: str, folder: Path, seed: int
    ) -> None:
        self.broker = broker
        reference = WireClient(broker.bootstrap)
        for topic in (INPUT, OUTPUT):
            reference.create_topic(topic, PARTITIONS)
        super().__init__(broker.bootstrap, command, protocol, folder, seed)

    def faults(self) -> list[Fault]:
        return [
            self.kill_a_relay,
            self.kill_the_broker,
            self.kill_both,
            self.replace_a_living_relay,
        ]

    def kill_the_broker(self, number: int) -> None:
        self.broker.kill()
        self.broker.start()

    def kill_both(self, number: int) -> None:
        self.broker.kill()
        self.bury(self.relays[number])
        self.broker.start()
        self.relays[number] = self.start_relay(number)


@pytest.fixture(params=KINDS, ids="-".join)
def course(
    request: pytest.FixtureRequest, fresh_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> Iterator[BrokerCourse]:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"SEED={seed}")
    client, protocol = request.param
    command = COMMANDS[client]()
    course = BrokerCourse(fresh_broker(settings=SETTINGS), command, protocol, tmp_path, seed)
    yield course
    course.close()
    print(course.figures())


def test_a_few_rounds(course: BrokerCourse) -> None:
    course.round()
    course.round()
    course.finish()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_thirty_rounds(course: BrokerCourse) -> None:
    for number in range(30):
        course.round()
        print(f"round {number + 1}: {course.figures()}", flush=True)
    course.finish()


def test_a_zombie_is_fenced(course: BrokerCourse) -> None:
    course.feeder.start()
    course.await_transactions(3)
    course.replace_a_living_relay(0)
    course.end_zombies()
    course.feeder.stop()
    ends = [name for name in course.done if name.startswith("zombie")]
    assert ends == [f"zombie ended with status {FENCED}"]
