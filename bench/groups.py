"""Consumer groups: a thousand of them on one broker, heartbeats of thousands of members, commits.

Members have a connection each, as in life. All members of all groups join at once; the clock stops
when the last one has its assignment in a generation with all the others. What the groups cost while
nothing happens is the memory that came with them, and the broker's processor time for a heartbeat of
each member every three seconds (the clients' default).
"""

from __future__ import annotations

import resource
import time
from typing import NamedTuple

from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker
from bench.harness.errors import BenchError
from bench.harness.load.groups import Exchange, Fleet, await_coordinator
from bench.harness.results import Measurement

MEMBERS = 10  # of a group
HEARTBEAT_INTERVAL = 3.0
COMMITTING = 64  # members that commit at the same time
HEARTBEATS_AT_ONCE = 64
SPARE_FILES = 500


class _Size(NamedTuple):
    groups: int
    heartbeating: int  # members, in the row of heartbeats

    @property
    def members(self) -> int:
        return self.groups * MEMBERS


class _Figures(NamedTuple):
    formed: float
    memory_before: float
    memory_after: float
    at_rest: float
    paced: list[Exchange]
    fastest: list[Exchange]
    one_commit: list[Exchange]
    commits: list[Exchange]


def _measure(bench: Bench, broker: ManagedBroker, size: _Size) -> _Figures:
    seconds = bench.seconds(full=6.0, quick=2.0)
    cpu = broker.cpu_seconds
    broker.start()
    with broker.client() as client:
        client.create_topic("grouped", MEMBERS)
        await_coordinator(client, "warm-up")
    names = [f"group-{number}" for number in range(size.groups)]
    # A JVM compiles what it has seen often, and both have connections to make for the first time.
    with Fleet(broker.address, "grouped", [f"warm-{name}" for name in names[:50]], MEMBERS) as few:
        few.form()
        few.heartbeats_at_once(len(few.groups) * MEMBERS, HEARTBEATS_AT_ONCE, seconds / 2, cpu)
        few.commits(COMMITTING, COMMITTING, seconds / 2, cpu)
    before = broker.resident_bytes()
    with Fleet(broker.address, "grouped", names, MEMBERS) as fleet:
        formed = fleet.form()
        after = broker.resident_bytes()
        at_rest = fleet.heartbeats(
            size.members, max(seconds, HEARTBEAT_INTERVAL), cpu, HEARTBEAT_INTERVAL
        )
        paced, fastest, one_commit, commits = [], [], [], []
        for _ in range(bench.rounds):
            count = size.heartbeating
            paced.append(fleet.heartbeats(count, seconds, cpu, HEARTBEAT_INTERVAL))
            fastest.append(fleet.heartbeats_at_once(count, HEARTBEATS_AT_ONCE, seconds / 2, cpu))
            one_commit.append(fleet.commits(1, 1, seconds / 2, cpu))
            commits.append(fleet.commits(COMMITTING, COMMITTING, seconds / 2, cpu))
    return _Figures(
        formed,
        before / 1e6,
        after / 1e6,
        at_rest.broker_cpu,
        paced,
        fastest,
        one_commit,
        commits,
    )


def _run(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    size = _Size(100, 500) if bench.quick else _Size(1000, 5000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = size.members + SPARE_FILES
    if hard < needed:
        raise BenchError(f"{needed:,} open files are needed, the system allows {hard:,}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    figures: dict[str, list[_Figures]] = {}
    # Forming is measured once for each process, and Kafka takes long to start.
    for number in range(min(bench.rounds, 1 if bench.quick else 2)):
        for broker in bench.new_managed("tmpfs"):
            bench.say(f"{size.groups:,} groups, {broker.name}, round {number + 1}")
            began = time.monotonic()
            with broker.blamed():
                figures.setdefault(broker.name, []).append(_measure(bench, broker, size))
            bench.say(f"took {time.monotonic() - began:.0f} s")
            bench.discard(broker)

    def once(field: str, what: str, unit: str) -> Measurement:
        values = {
            name: [float(getattr(each, field)) for each in rounds]
            for name, rounds in figures.items()
        }
        return Measurement("groups", f"{size.groups:,} × {MEMBERS}", what, unit, False, values)

    def exchanges(
        field: str, setting: str, what: str, unit: str, higher: bool, pick: str
    ) -> Measurement:
        values: dict[str, list[float]] = {}
        for name, rounds in figures.items():
            for each in rounds:
                found: list[Exchange] = getattr(each, field)
                values.setdefault(name, []).extend(
                    one.per_second if pick == "rate" else float(getattr(one.latencies, pick))
                    for one in found
                )
        return Measurement("groups", setting, what, unit, higher, values)

    heartbeating = f"{size.heartbeating:,} members"
    committing = f"{COMMITTING} members"
    memory_added = once("memory_after", "resident, with all groups", "MB")
    memory_added.notes = [
        f"{name}: {each.memory_after - each.memory_before:.1f} MB came with {size.members:,} members"
        for name, rounds in figures.items()
        for each in rounds
    ]
    return [
        once("formed", "from the first JoinGroup until all groups are stable", "s"),
        memory_added,
        once("at_rest", "processor time at rest, a heartbeat of each in 3 s", "cores"),
        exchanges("paced", heartbeating, "heartbeat every 3 s, p50", "ms", False, "p50"),
        exchanges("paced", heartbeating, "heartbeat every 3 s, p99", "ms", False, "p99"),
        exchanges("fastest", heartbeating, "heartbeats, 64 at once", "requests/s", True, "rate"),
        exchanges("fastest", heartbeating, "heartbeats, 64 at once, p99", "ms", False, "p99"),
        exchanges("one_commit", "1 member", "commits, one at a time", "requests/s", True, "rate"),
        exchanges("commits", committing, "commits, 64 at once", "requests/s", True, "rate"),
        exchanges("commits", committing, "commits, 64 at once, p99", "ms", False, "p99"),
    ]


ROWS = (
    Row(
        "groups",
        "1,000 groups of 10 members, heartbeats of 5,000, commits (a tenth: --quick)",
        _run,
    ),
)
