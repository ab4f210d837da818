"""End to end: from a producer's send to the moment a consumer whose fetch was waiting has the record.

1,000 records of 100 B a second, each in a request of its own, sent on time whatever the broker does.
acks=1: one partition, no producer id, a plain fetch. acks=all: an idempotent producer, 100 partitions,
one fetch session over all of them.
"""

from __future__ import annotations

from bench.harness.batch import Shape
from bench.harness.bench import Bench, Row, alternate
from bench.harness.broker import Broker
from bench.harness.load.paced import (
    Follower,
    Latencies,
    PlainFollower,
    SessionFollower,
    paced_load,
)
from bench.harness.load.produce import SETTINGS, Setting, requests_for
from bench.harness.results import Measurement, Target

RATE = 1000.0
SHAPE = Shape(1, 100)


class Course:
    """A topic of one broker, and how far it has been filled: the rounds go on where the last ended."""

    def __init__(self, bench: Bench, broker: Broker, setting: Setting) -> None:
        self.topic = bench.new_topic(broker, setting.partitions)
        self._broker = broker
        self._setting = setting
        with broker.client() as client:
            self._topic_id = client.topic(self.topic).topic_id
        self._offset = 0  # the end of every partition

    def run(self, seconds: float) -> tuple[Latencies, Latencies]:
        """End to end, and until the producer's acknowledgement."""
        setting = self._setting
        address = self._broker.address
        (requests,) = requests_for(address, self.topic, SHAPE, setting, 1)
        follower: Follower
        if setting.partitions == 1:
            follower = PlainFollower(self.topic, self._offset)
        else:
            starts = dict.fromkeys(range(setting.partitions), self._offset)
            follower = SessionFollower(self._topic_id, starts)
        paced = paced_load(
            address,
            requests,
            rate=RATE,
            seconds=seconds,
            follower=follower,
            partitions=setting.partitions,
            start_offset=self._offset,
        )
        self._offset += len(paced.delivered) // setting.partitions
        return Latencies.of(paced.delivered), Latencies.of(paced.acknowledged)


def _one_setting(bench: Bench, setting: Setting) -> list[Measurement]:
    seconds = bench.seconds(full=5.0, quick=1.0)
    brokers = bench.pair("tmpfs")
    courses = {broker.name: Course(bench, broker, setting) for broker in brokers}
    measured = alternate(brokers, bench.rounds, lambda broker: courses[broker.name].run(seconds))
    for broker in brokers:
        broker.forget(courses[broker.name].topic, wait=False)
    label = "acks=1" if setting.acks == 1 else "acks=all"
    target = Target(1.0, 0.5)
    worst = [
        f"{name}: the slowest record took {max(end.worst for end, _ in rounds):.1f} ms"
        for name, rounds in measured.items()
    ]

    def of(which: str, at: int, what: str, target: Target | None) -> Measurement:
        values = {
            name: [float(getattr(pair[at], which)) for pair in rounds]
            for name, rounds in measured.items()
        }
        return Measurement("latency", setting.name, what, "ms", False, values, target)

    found = [
        of("p50", 0, f"end to end, {label}, p50", target),
        of("p99", 0, f"end to end, {label}, p99", target),
        of("p999", 0, f"end to end, {label}, p99.9", None),
        of("p50", 1, f"acknowledgement, {label}, p50", None),
        of("p99", 1, f"acknowledgement, {label}, p99", None),
    ]
    found[2].notes = worst
    return found


def _run(bench: Bench) -> list[Measurement]:
    return [figure for setting in SETTINGS for figure in _one_setting(bench, setting)]


ROWS = (Row("latency", "end to end at 1,000 records/s, p50, p99 and p99.9", _run),)
