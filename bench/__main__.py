"""`python -m bench`: picks the rows, runs them, prints and stores the figures."""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench import (
    fetch,
    groups,
    isolation,
    latency,
    memory,
    partitions,
    peer,
    produce,
    security,
    startup,
)
from bench.clients import consume as client_consume
from bench.clients import produce as client_produce
from bench.cluster import moves, three_brokers
from bench.harness.bench import Bench, Row
from bench.harness.errors import BenchError
from bench.harness.report import write_into
from bench.harness.results import ONE_LINE_HEADING, Measurement, one_line
from bench.logs import (
    backlog,
    backlog_life,
    cold,
    compaction,
    deletions,
    flushed,
    many_deletions,
)
from bench.spark import read as spark_read
from bench.spark import sql
from bench.spark import stream as spark_stream

BUSY = 0.7  # a load average above which somebody else is at work

# In this order rows that share brokers stand side by side.
ON_TMPFS = (
    *produce.ROWS_ON_TMPFS,
    *fetch.ROWS,
    *deletions.ROWS,
    *latency.ROWS,
    *client_produce.ROWS,
    *client_consume.ROWS,
    *spark_read.ROWS,
    *spark_stream.ROWS,
)
ON_DISK = (
    *produce.ROWS_ON_DISK,
    *flushed.ROWS,
    *backlog.ROWS,
    *isolation.ROWS,
    *compaction.ROWS,
)
ROWS: tuple[Row, ...] = (
    *ON_TMPFS,
    *ON_DISK,
    *startup.ROWS,
    *backlog_life.ROWS,
    *cold.ROWS,
    *many_deletions.ROWS,
    *memory.ROWS,
    *partitions.ROWS,
    *groups.ROWS,
    *three_brokers.ROWS,
    *flushed.CLUSTER_ROWS,
    *moves.ROWS,
    *security.ROWS,
    *sql.ROWS,
)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures Ottla, with Apache Kafka beside it in the same run.",
    )
    parser.add_argument(
        "names", nargs="*", help="rows, by the beginning of their name; default all"
    )
    parser.add_argument("--list", action="store_true", help="show the rows and stop")
    parser.add_argument("--quick", action="store_true", help="shorter rounds, fewer of them")
    parser.add_argument(
        "--peer",
        default="auto",
        metavar="auto|none|HOST:PORT",
        help="start Kafka here (default), run alone, or use a broker that runs already",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="store everything measured")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="put the table between the marks of this file, as in docs/benchmarks.md",
    )
    parser.add_argument(
        "--from-json",
        type=Path,
        action="append",
        metavar="FILE",
        help="measure nothing: show (or put into --markdown) what --json stored; repeat for more runs",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="of each broker in each row")
    parser.add_argument("--seconds", type=float, metavar="S", help="of each round")
    stored = parser.add_mutually_exclusive_group()
    stored.add_argument("--records", type=int, metavar="N", help="to store in the backlog rows")
    stored.add_argument(
        "--gigabytes",
        type=float,
        metavar="N",
        help="to store in the backlog rows, compressed: as many records as they hold",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Ottla's for this run; repeat for more",
    )
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), metavar="DIR")
    parser.add_argument("--disk", type=Path, metavar="DIR", help="for data on disk")
    return parser.parse_args(words)


def _chosen(names: Sequence[str], *, quick: bool) -> list[Row]:
    if not names:
        return [row for row in ROWS if not (quick and row.heavy)]
    for name in names:
        if not any(row.name.startswith(name) for row in ROWS):
            raise SystemExit(f"no row begins with {name!r}; --list shows them")
    return [row for row in ROWS if any(row.name.startswith(name) for name in names)]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    root = Path(__file__).parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return described.stdout.strip() or "unknown"


def _environment() -> dict[str, Any]:
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory_kb / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": peer.java_version(),
        "kafka": peer.VERSION,
        "ottla": _commit(),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def _command(options: argparse.Namespace) -> str:
    """What repeats this run, without the files that its results went to."""
    words = ["python", "-m", "bench", *map(shlex.quote, options.names)]
    words += ["--quick"] * options.quick
    words += [f"--peer {options.peer}"] * (options.peer != "auto")
    for name in ("rounds", "seconds", "records", "gigabytes"):
        if (value := getattr(options, name)) is not None:
            words.append(f"--{name} {value}")
    words += [f"--set {each}" for each in options.set]
    return " ".join(words)


def _stop(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(1)


def _measure(options: argparse.Namespace, rows: list[Row]) -> dict[str, Any]:
    signal.signal(signal.SIGTERM, _stop)  # so that brokers and folders are cleared away
    gc.disable()  # a collection would show up among the slowest requests
    environment = _environment()
    print(", ".join(f"{name} {value}" for name, value in environment.items()))
    if (load := environment["load_average_before"]) > BUSY:
        print(f"others are using this machine (load average {load:.1f}): the figures mean little")
    bench = Bench(
        quick=options.quick,
        peer_choice=options.peer,
        tmpfs=options.tmpfs,
        settings=dict(each.split("=", 1) for each in options.set),
        rounds_wanted=options.rounds,
        seconds_wanted=options.seconds,
        backlog_records=options.records,
        backlog_gigabytes=options.gigabytes,
        **({"disk": options.disk} if options.disk else {}),
    )
    began = time.monotonic()
    measurements: list[Measurement] = []
    failures: dict[str, str] = {}
    print(ONE_LINE_HEADING)
    try:
        for row in rows:
            gc.collect()
            row_began = time.monotonic()
            try:
                figures = row.run(bench)
            except (BenchError, OSError) as problem:
                failures[row.name] = str(problem)
                print(f"{row.name}: not measured: {problem}", flush=True)
                bench.drop_pairs()
                continue
            bench.say(f"{row.name} took {time.monotonic() - row_began:.0f} s")
            for figure in figures:
                print(one_line(figure), flush=True)
                for note in figure.notes:
                    print(f"      {note}", flush=True)
            measurements += figures
    finally:
        bench.close()
    print(f"took {(time.monotonic() - began) / 60:.1f} minutes")
    return {
        "environment": environment,
        "command": _command(options),
        "rounds": bench.rounds,
        "notes": bench.notes,
        "failures": failures,
        "measurements": [each.as_json() for each in measurements],
    }


def main(words: Sequence[str] | None = None) -> int:
    options = _arguments(words)
    rows = _chosen(options.names, quick=options.quick)
    if options.list:
        for row in rows:
            print(f"{row.name:24}{row.claim}")
        return 0
    if options.from_json is not None:
        results = [json.loads(path.read_text()) for path in options.from_json]
        print(ONE_LINE_HEADING)
        for each in (each for result in results for each in result["measurements"]):
            print(one_line(Measurement.from_json(each)))
    else:
        results = [_measure(options, rows)]
        if options.json is not None:
            options.json.write_text(json.dumps(results[0], indent=1) + "\n")
    if options.markdown is not None:
        write_into(options.markdown, results)
    return 1 if any(result["failures"] for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
