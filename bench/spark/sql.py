"""`ottla sql` as a user waits for it: the first answer, the next one, and mistakes.

Every time is that of a whole command, from its start to its end. The query counts the records of a topic
of 10,000 JSON values. The first answer includes the start of Spark, which the command leaves behind; the
second finds it ready. A misspelt topic and a typing error are tried with no Spark there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from bench.harness.bench import Bench, Row
from bench.harness.errors import BenchError
from bench.harness.results import Measurement, Target
from ottla import Producer

TOPIC = "orders"
RECORDS = 10_000
QUERY = f"SELECT count(*), sum(amount) FROM {TOPIC}"
TIMEOUT = 120.0  # seconds


def _command(*words: str, environment: Mapping[str, str], fails: bool = False) -> float:
    """The seconds that a command takes."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    seconds = time.perf_counter() - began
    if bool(done.returncode) != fails:
        raise BenchError(f"`ottla {' '.join(words)}` ended with {done.returncode}: {done.stderr}")
    return seconds


def _run(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    broker = bench.new_ottla("disk")
    broker.start()
    with broker.client() as client:
        client.create_topic(TOPIC, 1)
    host, port = broker.address
    address = f"{host}:{port}"
    with Producer(address) as producer:
        for number in range(RECORDS):
            producer.send(TOPIC, json.dumps({"amount": number / 2, "item": f"item {number % 50}"}))
    times: dict[str, list[float]] = {"first": [], "second": [], "topic": [], "syntax": []}
    with tempfile.TemporaryDirectory() as folder, broker.blamed():
        environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": folder,
            "XDG_STATE_HOME": folder,
            "OTTLA_SPARK_SERVER": "1",
            "OTTLA_SERVER": address,
        }
        try:
            for _ in range(bench.rounds):
                misspelt = ("sql", "SELECT * FROM orderz")
                times["topic"].append(_command(*misspelt, environment=environment, fails=True))
                times["syntax"].append(
                    _command("sql", "SELEC 1", environment=environment, fails=True)
                )
                times["first"].append(_command("sql", QUERY, environment=environment))
                times["second"].append(_command("sql", QUERY, environment=environment))
                _command("spark", "stop", environment=environment)
        finally:
            _command("spark", "stop", environment=environment)
    bench.discard(broker)
    told: dict[str, tuple[str, Target | None]] = {
        "first": ("first answer of a small query, with the start of Spark", None),
        "second": ("second answer of a small query", Target(1.0, 1.0, "figure")),
        "topic": ("a misspelt topic is told", Target(2.0, 2.0, "figure")),
        "syntax": ("a typing error is told", Target(2.0, 2.0, "figure")),
    }
    return [
        Measurement("sql", "", what, "s", False, {broker.name: times[name]}, target)
        for name, (what, target) in told.items()
    ]


ROWS = (Row("sql", "`ottla sql`: first and second answer, mistakes", _run),)
