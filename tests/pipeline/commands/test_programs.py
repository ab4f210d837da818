"""Jobs as users start them, to their end: `ottla mirror`, `ottla sql --to`, the web-log sample."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from ottla import Admin, Consumer, Producer
from ottla.client.errors import OttlaError
from ottla.pipeline.examples import examples_folder
from ottla.testing import BrokerProcess
from weblogs.traffic import Traffic

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.programs import QUICK, Start, finish, start
from pipeline_kit.writing import until

__all__ = ["start"]

# Each starts Sparks of its own. What the commands do is tested with one Spark for all, too
# (test_mirror.py, test_weblogs.py, sql/test_sql.py); commands on their own also in test_demo.py and
# sql/test_server.py.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300, func_only=True)]

BATCH = 30  # records that the mirror takes at once


@pytest.fixture
def target(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Another cluster."""
    with BrokerProcess(tmp_path / "target") as process:
        yield process


def send(servers: str, topic: str, values: Iterator[Any] | list[Any] | range) -> None:
    with Producer(servers) as producer:
        for number, value in enumerate(values):
            producer.send(topic, str(value), partition=number % 2)


def values(servers: str, topic: str, start: Any = "earliest") -> list[str]:
    with Consumer(servers) as consumer:
        found = consumer.read(topic, start, columns=["value"])["value"].to_pylist()
    return [each.decode() for each in found]


def await_while_running(command: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Until something is so; the command must not end before."""

    def is_so() -> bool:
        assert command.poll() is None, command.communicate()
        return reached()

    until(is_so, 200)


def read_as_member(
    servers: str, group: str, topic: str, enough: Callable[[set[str]], bool]
) -> set[str]:
    """What a member of the group reads until it has enough; it commits that, and leaves."""
    found: set[str] = set()
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(servers, group=group, **settings) as consumer:
        consumer.subscribe(topic)
        while not enough(found):
            record = consumer.next_record(timeout=60)
            assert record is not None
            found.add((record.value or b"").decode())
        consumer.commit()
    return found


def test_mirror_and_a_group_that_moves(
    broker: BrokerProcess,
    admin: Admin,
    target: BrokerProcess,
    topic: str,
    tmp_path: Path,
    start: Start,
) -> None:
    """While the mirror runs, the group reads a part here, and goes on there; more comes meanwhile."""
    admin.create_topic(topic, 2)
    group = f"{topic}-readers"
    send(broker.bootstrap, topic, range(100))
    words = ("mirror", topic, "--from", broker.bootstrap, "--to", target.bootstrap)
    words += (
        "--groups",
        re.escape(group),
        "--batch",
        str(BATCH),
        "--state",
        str(tmp_path / "state"),
    )
    mirror = start(*words, "--follow", "--every", "0 seconds", *QUICK)
    here = read_as_member(broker.bootstrap, group, topic, lambda found: len(found) >= 40)
    ends = {each: offset.offset for each, offset in admin.committed_offsets(group).items()}
    assert sum(ends.values()) >= 40
    with Admin(target.bootstrap) as there:

        def translated() -> bool:
            try:
                known = there.committed_offsets(group)
            except OttlaError:
                return False
            at = {each: offset.offset for each, offset in known.items()}
            return all(at.get(each, 0) >= end - BATCH for each, end in ends.items())

        await_while_running(mirror, translated)
    send(broker.bootstrap, topic, range(100, 150))
    everything = {str(number) for number in range(150)}
    read = read_as_member(target.bootstrap, group, topic, lambda found: here | found == everything)
    assert len(here) + len(read) <= 150 + BATCH  # at most one batch is read twice
    mirror.send_signal(signal.SIGINT)
    finish(mirror)
    send(broker.bootstrap, topic, range(150, 160))
    _, told = finish(start(*words, *QUICK))
    assert sorted(values(target.bootstrap, topic), key=int) == [str(n) for n in range(160)]
    assert "mirror from" in told


def test_sql_followed_into_a_folder(
    broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path, start: Start
) -> None:
    """Stopped and started again it goes on: every row is there once."""
    admin.create_topic(topic, 2)
    folder = tmp_path / "rows"
    query = f"SELECT n, n * 2 AS twice FROM `{topic}` WHERE n % 2 = 0"
    words = ("sql", query, "--follow", "--to", folder, "--server", broker.bootstrap)
    for round_ in (1, 2):
        send(
            broker.bootstrap,
            topic,
            [json.dumps({"n": n}) for n in range(round_ * 10 - 10, round_ * 10)],
        )
        command = start(*words, *QUICK)
        await_while_running(command, lambda count=round_ * 5: len(rows_in(folder)) >= count)
        command.send_signal(signal.SIGINT)
        finish(command)
    assert sorted(rows_in(folder)) == [(n, 2 * n) for n in range(0, 20, 2)]


def rows_in(folder: Path) -> list[tuple[int, int]]:
    """Those of the files that count, by Spark's own list of them."""
    found: list[tuple[int, int]] = []
    for batch in (folder / "_spark_metadata").glob("[0-9]*"):
        for line in batch.read_text().splitlines()[1:]:
            table = pyarrow.parquet.read_table(json.loads(line)["path"].removeprefix("file://"))
            found += zip(table["n"].to_pylist(), table["twice"].to_pylist(), strict=True)
    return found


def test_sql_into_a_topic(
    broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path, start: Start
) -> None:
    """What is there now, and (followed) results that change."""
    results = f"{topic}-results"
    admin.create_topic(topic, 2)
    admin.create_topic(results, 1)
    send(broker.bootstrap, topic, ['{"page": "/"}', '{"page": "/cart"}', '{"page": "/"}'])
    query = f"SELECT page AS key, count(*) AS hits FROM `{topic}` GROUP BY page"
    words = ("sql", query, "--to", results, "--server", broker.bootstrap, *QUICK)
    finish(start(*words))
    assert sorted(values(broker.bootstrap, results)) == ['{"hits":1}', '{"hits":2}']
    command = start(*words, "--follow", "--checkpoint", tmp_path / "checkpoint")
    await_while_running(command, lambda: len(values(broker.bootstrap, results)) == 4)
    send(broker.bootstrap, topic, ['{"page": "/"}'])
    await_while_running(command, lambda: len(values(broker.bootstrap, results)) == 5)
    command.send_signal(signal.SIGTERM)
    finish(command)
    with Consumer(broker.bootstrap) as consumer:
        last = consumer.read(results, columns=["key", "value"]).to_pylist()[-1]
    assert (last["key"], last["value"]) == (b"/", b'{"hits":3}')
    assert not (tmp_path / "spark-warehouse").exists()  # nothing is left where it was started


def test_the_sample_pipeline(
    broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path, start: Start
) -> None:
    """As its documentation says."""
    lines = Traffic(7, 20, 1_794_571_200).until(1_794_571_200 + 150)
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        for line in lines:
            producer.send(topic, line)
    script = examples_folder() / "weblogs" / "job.py"
    arguments = (
        "--server",
        broker.bootstrap,
        "--topic",
        topic,
        "--folder",
        tmp_path / "out",
        "--once",
    )
    _, told = finish(start("pipeline", "run", *QUICK, script, "--", *arguments))
    newest = {}
    with Consumer(broker.bootstrap) as consumer:
        for row in consumer.read(f"{topic}-minutes", columns=["key", "value"]).to_pylist():
            newest[row["key"]] = json.loads(row["value"])
    assert sum(each["requests"] for each in newest.values()) == len(lines)
    assert pyarrow.parquet.read_table(tmp_path / "out" / "requests").num_rows == len(lines)
    assert "table: " in told
