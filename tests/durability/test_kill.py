"""kill -9 in the middle of heavy produce, again and again: every acknowledged record is there, once,
in order, and the indexes are sound.

KILL_ROUNDS sets the number of kills (2 by default, 8 in `make test-long`, 50 in `make soak`), KILL_SEED
the moments of the kills and what is written; a failure names its seed. (What reaches the broker in what
order still depends on the machine: a seed repeats the plan, not every race.)
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from durability_kit.disk import assert_sound
from durability_kit.kafka_dump import dump, kafka_jars
from durability_kit.verdict import check_end, check_promises
from durability_kit.wire import Wire
from durability_kit.writers import (
    ConfluentWriter,
    RawWriter,
    Tail,
    Target,
    Writer,
    await_progress,
)

from ottla.testing import BrokerDied, BrokerProcess

QUICK_ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
LONG_ROUNDS = int(os.environ.get("KILL_ROUNDS", "8"))
SOAK_ROUNDS = int(os.environ.get("KILL_ROUNDS", "50"))

# A topic as it comes; one whose segments roll and are preallocated while the kills fall; one that is
# flushed often, so that recovery points move, stamped and recompressed by the broker.
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (3, {}),
    "rolling": (
        2,
        {
            "segment.bytes": str(1 << 20),
            "max.message.bytes": "500000",
            "index.interval.bytes": "512",
        },
    ),
    "flushed": (
        2,
        {
            "flush.messages": "300",
            "compression.type": "zstd",
            "message.timestamp.type": "LogAppendTime",
        },
    ),
}


def targets(*names: str) -> list[Target]:
    return [Target(name, index) for name in names for index in range(TOPICS[name][0])]


@pytest.mark.timeout(300)
def test_kill_in_the_middle_of_produce(
    broker: BrokerProcess, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("KILL_SEED", "1"))
    kill_again_and_again(broker, QUICK_ROUNDS, seed, record_property)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_eight_kills_in_a_row(
    broker: BrokerProcess, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("KILL_SEED", "1"))
    kill_again_and_again(broker, LONG_ROUNDS, seed, record_property)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_kills_in_a_row(
    broker: BrokerProcess, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("KILL_SEED") or random.randrange(1 << 32))
    kill_again_and_again(broker, SOAK_ROUNDS, seed, record_property)


def test_kill_while_topics_come_and_go(broker: BrokerProcess) -> None:
    """A topic that was created is there, one that was deleted is not; of those on the way either."""
    chance = random.Random(1)
    known: dict[str, bool] = {}
    undecided: set[str] = set()
    broker.start()

    def come_and_go(first: int) -> None:
        with contextlib.suppress(OSError), Wire(broker.bootstrap) as wire:
            for number in itertools.count(first):
                name = f"topic-{number}"
                undecided.add(name)
                wire.create_topic(name, 2)
                known[name] = True
                undecided.discard(name)
                if chance.random() < 0.5:
                    undecided.add(name)
                    wire.delete_topic(name)
                    known[name] = False
                    undecided.discard(name)

    for life in range(4):
        thread = threading.Thread(target=come_and_go, args=[1000 * life], daemon=True)
        thread.start()
        threading.Event().wait(chance.uniform(0.1, 0.4))
        broker.kill()
        thread.join(30)
        assert not thread.is_alive()
        broker.start()
        with Wire(broker.bootstrap) as wire:
            names = wire.topic_names()
            wanted = {name for name, there in known.items() if there}
            assert names - undecided == wanted - undecided
            for name in names:
                for partition in (0, 1):
                    # What was torn while the partition was made is mended when it is first used.
                    _, end = wire.bounds(name, partition)
                    if chance.random() < 0.1:
                        assert wire.produce(name, partition, [b"%d" % end]) == end
    assert len(known) > 20
    assert broker.stop() == 0
    assert_sound(broker.data)


def kill_again_and_again(
    broker: BrokerProcess, rounds: int, seed: int, note: Callable[[str, object], None]
) -> None:
    print(f"KILL_SEED={seed} KILL_ROUNDS={rounds}")
    chance = random.Random(seed)
    broker.start()
    with Wire(broker.bootstrap) as wire:
        for name, (partitions, config) in TOPICS.items():
            wire.create_topic(name, partitions, config)
    writers: list[Writer] = [
        ConfluentWriter(0, broker.bootstrap, targets("plain", "rolling"), seed, codec="lz4"),
        ConfluentWriter(1, broker.bootstrap, targets("plain", "flushed"), seed),
        RawWriter(2, broker.bootstrap, targets("rolling", "flushed"), seed),
        RawWriter(3, broker.bootstrap, targets("plain", "rolling"), seed),
    ]
    tails = [Tail(broker.bootstrap, Target(name, 0)) for name in TOPICS]
    threads: list[Writer | Tail] = [*writers, *tails]
    for thread in threads:
        thread.start()
    kills = kills_at_start = 0
    while kills < rounds:
        await_progress(writers)
        # How long it runs before it is killed is the point of the test, no wait for anything.
        threading.Event().wait(chance.uniform(0.0, 0.5))
        broker.kill()
        kills += 1
        while chance.random() < 0.2 and kills < rounds:
            # Once more before it is up: in the middle of recovery, if it has come that far.
            try:
                broker.start(timeout=chance.uniform(0.1, 0.6))
            except BrokerDied:
                kills_at_start += 1
            else:
                broker.kill()
            kills += 1
        broker.start()
        with Wire(broker.bootstrap) as wire:
            check_end(wire, writers)
    await_progress(writers)
    for thread in threads:
        thread.finish()
    assert not [failure for thread in threads for failure in thread.failures]
    with Wire(broker.bootstrap) as wire:
        total = check_promises(wire, writers, tails)
    assert broker.stop() == 0
    verified = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "log", "verify", "--deep", str(broker.data)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout[-4000:] + verified.stderr[-4000:]
    repeated = sum(each.repeated for each in writers if isinstance(each, RawWriter))
    torn = broker.log_text().count(": cut at offset")
    for name, value in {
        "seed": seed, "kills": kills, "kills before it was up": kills_at_start,
        "records": total, "batches sent again": repeated, "torn tails cut": torn,
    }.items():  # fmt: skip
        note(name, value)
        print(f"{name}: {value}")
    assert repeated, "no kill fell between a batch and its answer"
    dump_sample(broker.data, chance)


def dump_sample(data: Path, chance: random.Random) -> None:
    """Kafka's own tool reads some of the files, too."""
    try:
        jars = kafka_jars()
    except pytest.skip.Exception as reason:
        print(f"not shown to Kafka's dump tool: {reason}")
        return
    folders = [data / f"{name}-{index}" for name, index in product(TOPICS, (0, 1))]
    logs = [path for folder in folders for path in sorted(folder.glob("*.log"))]
    sample = [path for path in logs if path.stat().st_size < 8 << 20]
    sample = chance.sample(sample, min(4, len(sample)))
    indexes = [path.with_suffix(suffix) for path in sample for suffix in (".index", ".timeindex")]
    indexes = [path for path in indexes if path.exists()]
    said = dump(jars, [*sample, *indexes], "--deep-iteration", "--verify-index-only")
    assert said.count("Log starting offset") == len(sample)
    said = dump(jars, indexes, "--index-sanity-check")
    assert said.count("passed sanity check") == len(indexes)
