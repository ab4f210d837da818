"""rsyslog ships log lines: Debian's rsyslogd with omkafka, fed by a file and by a program's syslog."""

from __future__ import annotations

import json
import logging
import logging.handlers
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop_kit import toolchain
from interop_kit.clients.wire_client import WireClient
from interop_kit.wire import stored_batches

from ottla.testing.guardian import end_with_this_program

CONFIGURATION = """\
global(workDirectory="{folder}")
module(load="imfile")
module(load="imuxsock" SysSock.Use="off")
module(load="omkafka")

template(name="line" type="string" string="%msg%")
template(name="document" type="list" option.jsonf="on") {{
  property(outname="program" name="programname" format="jsonf")
  property(outname="severity" name="syslogseverity-text" format="jsonf")
  property(outname="message" name="msg" format="jsonf")
}}

ruleset(name="file lines") {{
  action(type="omkafka" broker=["{bootstrap}"] topic="{topic}" key="{key}" template="line"
         errorFile="{folder}/errors.json"
         action.resumeInterval="1" action.resumeRetryCount="-1"
         confParam=["compression.codec={codec}", "linger.ms=20", "reconnect.backoff.max.ms=100"])
}}
ruleset(name="programs") {{
  action(type="omkafka" broker=["{bootstrap}"] topic="{topic}" template="document"
         errorFile="{folder}/errors.json"
         action.resumeInterval="1" action.resumeRetryCount="-1"
         confParam=["compression.codec={codec}", "linger.ms=20", "reconnect.backoff.max.ms=100"])
}}

input(type="imfile" file="{folder}/access.log" tag="access:" ruleset="file lines")
input(type="imuxsock" socket="{folder}/socket" ruleset="programs")
"""

LINES = [
    '192.0.2.{0} - - [10/Oct/2000:13:55:36 -0700] "GET /page/{0} HTTP/1.1" 200 {1}'.format(
        number % 250, 2000 + number
    )
    for number in range(500)
]

StartRsyslog = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_rsyslog(tmp_path: Path) -> Iterator[StartRsyslog]:
    program = toolchain.tool("rsyslogd")
    if not any(Path("/usr/lib").rglob("rsyslog/omkafka.so")):
        toolchain.missing("rsyslog has no omkafka (rsyslog-kafka is not installed)")
    started: list[subprocess.Popen[bytes]] = []

    def start(bootstrap: str, topic: str, codec: str = "snappy") -> subprocess.Popen[bytes]:
        configuration = tmp_path / "rsyslog.conf"
        configuration.write_text(
            CONFIGURATION.format(
                folder=tmp_path, bootstrap=bootstrap, topic=topic, codec=codec, key="web-1"
            )
        )
        command = [program, "-n", "-f", str(configuration), "-i", str(tmp_path / "rsyslog.pid")]
        with (tmp_path / "rsyslog.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        end_with_this_program(process.pid)
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    log = tmp_path / "rsyslog.log"
    print(log.read_text() if log.exists() else "rsyslog was not started")


def append(path: Path, lines: list[str]) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def values(reader: WireClient, topic: str, count: int) -> list[str]:
    return [record.value.decode() for record in reader.consume(topic, 0, count)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_of_a_file(start_rsyslog, reference, broker, topic, tmp_path, codec) -> None:
    """What was there before it started, and what is written while it runs, each line once."""
    reference.create_topic(topic)
    append(tmp_path / "access.log", LINES[:200])
    before = int(time.time()) * 1000  # rsyslog stamps with whole seconds
    start_rsyslog(broker.bootstrap, topic, codec)
    assert values(reference, topic, 200) == LINES[:200]
    append(tmp_path / "access.log", LINES[200:])
    records = reference.consume(topic, 0, 500)
    assert [record.value.decode() for record in records] == LINES
    assert {record.key for record in records} == {b"web-1"}
    assert all(before <= record.timestamp <= before + 120_000 for record in records)
    # Its library leaves a batch as it is that would not get smaller: a single line.
    codecs = {batch.codec for batch in stored_batches(broker.bootstrap, topic)}
    assert codec in codecs
    assert codecs <= {codec, "none"}


def test_log_of_a_program(start_rsyslog, reference, broker, topic, tmp_path) -> None:
    """Python's logging, over the syslog socket, as JSON documents; the topic makes itself."""
    start_rsyslog(broker.bootstrap, topic)
    socket = tmp_path / "socket"
    deadline = time.monotonic() + 20
    while not socket.exists():
        assert time.monotonic() < deadline, "rsyslog has not opened its socket"
        time.sleep(0.01)
    handler = logging.handlers.SysLogHandler(str(socket))
    handler.setFormatter(logging.Formatter("shop[7]: %(message)s"))
    logger = logging.Logger("shop")
    logger.addHandler(handler)
    try:
        for number in range(50):
            logger.warning('order "%d" is late: %s', number, "ä€🙂")
        logger.error("done")
    finally:
        handler.close()
    reference.await_topic(topic)
    documents = [json.loads(text) for text in values(reference, topic, 51)]
    assert {document["program"] for document in documents} == {"shop"}
    assert [document["severity"] for document in documents] == ["warning"] * 50 + ["err"]
    messages = [document["message"].strip() for document in documents]
    expected = [f'order "{number}" is late: ä€🙂' for number in range(50)]
    assert messages == [*expected, "done"]


def test_lines_survive_a_restart_of_the_broker(
    start_rsyslog, fresh_broker, topic, tmp_path
) -> None:
    """Lines written while the broker is away arrive when it is back; none is lost or doubled."""
    broker = fresh_broker()
    reader = WireClient(broker.bootstrap)
    reader.create_topic(topic)
    append(tmp_path / "access.log", LINES[:100])
    start_rsyslog(broker.bootstrap, topic)
    assert values(reader, topic, 100) == LINES[:100]
    assert broker.stop() == 0
    append(tmp_path / "access.log", LINES[100:300])
    broker.start()
    assert values(reader, topic, 300) == LINES[:300]
