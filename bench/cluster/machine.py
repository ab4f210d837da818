"""One machine, one broker against several: how much all of them take together (`--brokers N`).

    python -m bench.cluster.machine                      1 and 2 brokers, three rounds of 5 s each
    python -m bench.cluster.machine --brokers 1 2 4 8    on a machine with more cores

Batches of 64 × 1 kB, acks=1, one replica, data on tmpfs, to partitions that are spread over all brokers.
A process for each broker sends: one sender alone would be the limit. All machines run side by side and
take turns, so that whatever else happens meets all of them. Shown along: how many cores the brokers and
the senders kept busy, which says whether there were cores left to use.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

from bench.harness import process
from bench.harness.batch import Shape
from bench.harness.load.produce import DEFAULTS, Load, PlainRequests, Requests, produce_load
from ottla import Admin
from ottla.testing import answers
from ottla.testing.ports import free_ports_in_a_row

SHAPE = Shape(64, 1000)
CONNECTIONS = 4  # of each sender
DEPTH = 5
PARTITIONS_PER_BROKER = 4
# Of one sender in one round: a tmpfs is memory.
MOST_IN_A_ROUND = 1 << 30


class Machine:
    """`ottla serve --brokers N` with its data in a folder that goes with it."""

    def __init__(self, brokers: int, folder: Path) -> None:
        self.brokers = brokers
        base = free_ports_in_a_row(brokers)
        self.ports = [base + step for step in range(brokers)]
        self._topics = 0
        log = (folder / f"{brokers}.log").open("wb")
        command = [sys.executable, "-m", "ottla.cli.main", "serve", "--brokers", str(brokers)]
        command += ["--listen", f"127.0.0.1:{base}", "--data", str(folder / f"{brokers}-brokers")]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while not all(answers("127.0.0.1", port) for port in self.ports):
            if self.process.poll() is not None:
                raise SystemExit((folder / f"{brokers}.log").read_text())

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def round(self, pool: ProcessPoolExecutor, seconds: float) -> tuple[float, float, float]:
        """MB/s of all brokers together; cores kept busy by the brokers, and by the senders."""
        self._topics += 1
        topic = f"load-{self._topics}"
        with Admin(f"127.0.0.1:{self.ports[0]}") as admin:
            admin.create_topic(topic, PARTITIONS_PER_BROKER * self.brokers)
            nodes = {each.id: each.port for each in admin.describe_cluster().brokers}
            led: dict[int, list[int]] = {}
            for each in admin.describe_topics([topic])[topic].partitions:
                assert each.leader is not None
                led.setdefault(nodes[each.leader], []).append(each.partition)
        before = process.cpu_seconds(self.process.pid)
        sending = [pool.submit(send, port, topic, led[port], seconds) for port in sorted(led)]
        loads = [each.result() for each in sending]
        busy = (process.cpu_seconds(self.process.pid) - before) / max(
            each.seconds for each in loads
        )
        with Admin(f"127.0.0.1:{self.ports[0]}") as admin:
            admin.delete_topics([topic])
        return (
            sum(each.megabytes_per_second for each in loads),
            busy,
            sum(each.client_cpu for each in loads),
        )


def send(port: int, topic: str, partitions: Sequence[int], seconds: float) -> Load:
    """One sender's round, to what one broker leads."""
    supplies: list[Requests] = [
        PlainRequests(topic, SHAPE, DEFAULTS, partition=partitions[number % len(partitions)])
        for number in range(CONNECTIONS)
    ]
    return produce_load(
        ("127.0.0.1", port), supplies, DEPTH, seconds=seconds, max_bytes=MOST_IN_A_ROUND
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Produce throughput of N brokers on one machine.")
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--folder", default="/dev/shm", help="where data goes; a tmpfs by default")
    given = parser.parse_args(arguments)
    print(f"{os.cpu_count()} cores; {SHAPE}, {CONNECTIONS} × {DEPTH} in flight for each broker")
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-", dir=given.folder) as folder,
        ProcessPoolExecutor(max(given.brokers), multiprocessing.get_context("forkserver")) as pool,
    ):
        machines: list[Machine] = []
        try:
            machines.extend(Machine(count, Path(folder)) for count in given.brokers)
            found: dict[int, list[tuple[float, float, float]]] = {
                each: [] for each in given.brokers
            }
            for number in range(given.rounds + 1):
                for machine in machines:
                    result = machine.round(pool, given.seconds)
                    if number:  # the first warms up
                        found[machine.brokers].append(result)
        finally:
            for machine in machines:
                machine.stop()
    first = None
    for count, rounds in found.items():
        speeds = sorted(speed for speed, _, _ in rounds)
        best = speeds[-1]
        first = first or best
        print(
            f"{count} broker{'s' if count > 1 else ''}: best {best:.0f} MB/s ({best / first:.2f}×), "
            f"median {median(speeds):.0f}; cores: brokers {median(b for _, b, _ in rounds):.2f}, "
            f"senders {median(s for _, _, s in rounds):.2f}"
        )


if __name__ == "__main__":
    main()
