"""Apache Kafka's own command-line tools, each as a user would call it.

They are the classes behind the scripts in Kafka's bin folder: kafka-topics.sh is TopicCommand, and so
on. What they print is read as loosely as it can be while the facts in it are checked.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop_kit import toolchain
from interop_kit.clients.client import Start
from interop_kit.message_sets import CODEC_NUMBERS
from interop_kit.records import Record, assert_same, now_ms, numbered, plain_records

TOOLS = "org.apache.kafka.tools"


@dataclass(frozen=True)
class Said:
    output: str
    complaints: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


@pytest.fixture(scope="session")
def run() -> Callable[..., Said]:
    """Runs a tool with arguments; fails when the tool does."""
    java = toolchain.kafka_tools()

    def run(name: str, *arguments: str, given: str = "", fails: bool = False) -> Said:
        done = subprocess.run(
            [*java, name, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        story = f"{name} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert (done.returncode != 0) == fails, story
        return Said(done.stdout, done.stderr)

    return run


@pytest.fixture
def tool(run, broker) -> Callable[..., Said]:
    """Runs a tool that is told where the broker is."""

    def tool(name: str, *arguments: str, **options: object) -> Said:
        return run(f"{TOOLS}.{name}", "--bootstrap-server", broker.bootstrap, *arguments, **options)

    return tool


def test_topics(tool, reference, topic) -> None:
    arguments = ["--create", "--topic", topic, "--partitions", "3", "--replication-factor", "1"]
    said = tool("TopicCommand", *arguments, "--config", "retention.ms=7200000")
    assert f"Created topic {topic}." in said.output
    again = tool("TopicCommand", *arguments, fails=True)
    assert "already exists" in again.output + again.complaints
    assert topic in tool("TopicCommand", "--list").lines
    described = tool("TopicCommand", "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s+TopicId: \S{{22}}\s+PartitionCount: 3\s", described.output)
    assert "retention.ms=7200000" in described.output
    rows = re.findall(
        r"Partition: (\d)\s+Leader: (\d+)\s+Replicas: (\d+)\s+Isr: (\d+)", described.output
    )
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert all(leader == replicas == in_sync for _, leader, replicas, in_sync in rows)
    tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "5")
    reference.await_topic(topic)
    assert reference.offsets(topic, 4) == (0, 0)
    tool("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tool("TopicCommand", "--list").lines


@pytest.mark.long
def test_topic_configs(run, broker, reference, topic) -> None:
    def configs(*arguments: str) -> str:
        where = ["--bootstrap-server", broker.bootstrap, "--entity-type", "topics"]
        return run("kafka.admin.ConfigCommand", *where, "--entity-name", topic, *arguments).output

    reference.create_topic(topic)
    configs("--alter", "--add-config", "retention.ms=3600000,cleanup.policy=[compact,delete]")
    described = configs("--describe")
    assert "retention.ms=3600000" in described
    assert "cleanup.policy=compact,delete" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=3600000" in described
    everything = configs("--describe", "--all")
    assert re.search(r"^\s*segment.bytes=1073741824 .*DEFAULT_CONFIG", everything, re.MULTILINE)
    configs("--alter", "--delete-config", "retention.ms")
    assert reference.topic_config(topic)["retention.ms"] == "604800000"


@pytest.mark.long
def test_broker_configs(run, broker) -> None:
    where = ["--bootstrap-server", broker.bootstrap, "--entity-type", "brokers"]
    described = run("kafka.admin.ConfigCommand", *where, "--describe", "--all").output
    assert re.search(r"All configs for broker \d+ are:", described)
    for name in ("log.retention.hours=168", "message.max.bytes=1048588", "num.partitions=1"):
        assert re.search(rf"^\s*{re.escape(name)} ", described, re.MULTILINE), name


@pytest.mark.long
def test_get_offsets(tool, reference, topic) -> None:
    reference.create_topic(topic, 2)
    records = numbered(plain_records(20, step=1000))
    reference.produce(topic, records[:12])
    reference.produce(topic, records[12:], "zstd")

    def offsets(*arguments: str) -> list[str]:
        return sorted(tool("GetOffsetShell", "--topic", topic, *arguments).lines)

    assert offsets() == [f"{topic}:0:20", f"{topic}:1:0"]
    assert offsets("--time", "earliest") == [f"{topic}:0:0", f"{topic}:1:0"]
    moment = str(records[15].timestamp - 10)
    assert offsets("--time", moment, "--partitions", "0") == [f"{topic}:0:15"]
    assert offsets("--time", "max-timestamp", "--partitions", "0") == [f"{topic}:0:19"]


def test_console_producer(tool, reference, topic) -> None:
    reference.create_topic(topic)
    properties = ["parse.key=true", "key.separator=:", "parse.headers=true", "null.marker=NULL"]
    options = [word for one in properties for word in ("--reader-property", one)]
    lines = "a:1,b:2\tkey-1:one\nh:x\tkey-2:two\nh:y\tkey-3:NULL\n"
    arguments = ["--topic", topic, "--compression-codec", "lz4", *options]
    tool("ConsoleProducer", *arguments, given=lines)
    expected = [
        Record(b"one", b"key-1", (("a", b"1"), ("b", b"2"))),
        Record(b"two", b"key-2", (("h", b"x"),)),
        Record(None, b"key-3", (("h", b"y"),)),
    ]
    assert_same(reference.consume(topic, 0, 3), numbered(expected))


def test_console_consumer(tool, reference, topic) -> None:
    reference.create_topic(topic)
    records = plain_records(10)
    reference.produce(topic, records, "gzip")
    shown = ["print.offset", "print.key", "print.timestamp", "print.partition"]
    options = [word for one in shown for word in ("--formatter-property", f"{one}=true")]
    # With a partition given it assigns it to itself; no consumer group takes part.
    place = ["--partition", "0", "--offset", "4", "--max-messages", "6"]
    said = tool("consumer.ConsoleConsumer", "--topic", topic, *place, *options)
    assert said.lines == [
        f"CreateTime:{record.timestamp}\tPartition:0\tOffset:{record.offset}\t"
        f"{record.key.decode()}\t{record.value.decode()}"
        for record in numbered(records)[4:]
    ]


@pytest.mark.long
def test_delete_records(tool, reference, topic, tmp_path: Path) -> None:
    reference.create_topic(topic)
    records = numbered(plain_records(30))
    for first in range(0, 30, 10):
        reference.produce(topic, records[first : first + 10])
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 17}]}
    request = tmp_path / "delete.json"
    request.write_text(json.dumps(wanted))
    said = tool("DeleteRecordsCommand", "--offset-json-file", str(request))
    assert re.search(r"low_watermark: 17\b", said.output)
    assert reference.offsets(topic, 0) == (17, 30)
    # The batch that holds offset 17 is still whole in the log; readers start within it.
    assert_same(reference.consume(topic, 0, 13, Start(offset=17)), records[17:])


@pytest.mark.long
def test_log_dirs(tool, reference, broker, topic) -> None:
    reference.create_topic(topic, 2)
    reference.produce(topic, plain_records(50))
    said = tool("LogDirsCommand", "--describe", "--topic-list", topic)
    answer = json.loads(next(line for line in said.lines if line.startswith("{")))
    (node,) = answer["brokers"]
    folders = node["logDirs"]
    assert all(folder["error"] is None for folder in folders)
    sizes = {one["partition"]: one["size"] for folder in folders for one in folder["partitions"]}
    assert sizes.keys() == {f"{topic}-0", f"{topic}-1"}
    assert sizes[f"{topic}-0"] > 2000
    assert sizes[f"{topic}-1"] == 0
    if broker.data is not None:
        log = broker.log_folder(topic) / "00000000000000000000.log"
        assert sizes[f"{topic}-0"] == log.stat().st_size


def test_broker_api_versions(tool, broker) -> None:
    said = tool("BrokerApiVersionsCommand")
    assert said.output.startswith(broker.bootstrap)
    for name, lowest in (("Produce(0)", 0), ("Fetch(1)", 4), ("ApiVersions(18)", 0)):
        found = re.search(rf"{re.escape(name)}: (\d+) to (\d+) \[usable: (\d+)\]", said.output)
        assert found, name
        assert int(found[1]) <= max(lowest, 4)
        assert int(found[3]) <= int(found[2])
    unusable = re.findall(r"(\w+\(\d+\)): .*\[unusable", said.output)
    assert not unusable


def test_cluster_id(run, broker) -> None:
    said = run(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", broker.bootstrap)
    assert re.search(r"Cluster ID: \S{22}", said.output)


@pytest.mark.long
def test_features(tool) -> None:
    for line in tool("FeatureCommand", "describe").lines:
        form = r"Feature: \S+\s+SupportedMinVersion: \S.*\sSupportedMaxVersion: \S.*\sFinalized"
        assert re.match(form, line), line


@pytest.mark.long
def test_a_level_is_lowered_and_raised(tool) -> None:
    def level() -> str:
        (line,) = (
            each for each in tool("FeatureCommand", "describe").lines if "ottla.version" in each
        )
        return line.split("FinalizedVersionLevel:")[1].split()[0]

    assert level() == "1"
    tool("FeatureCommand", "downgrade", "--feature", "ottla.version=0")
    assert level() == "0"
    tool("FeatureCommand", "upgrade", "--feature", "ottla.version=1")
    assert level() == "1"


@pytest.mark.long
def test_producer_perf_test(tool, reference, topic) -> None:
    """kafka-producer-perf-test.sh, small: every record arrives."""
    reference.create_topic(topic, 3)
    said = tool(
        "ProducerPerformance", "--topic", topic, "--num-records", "5000", "--record-size", "100",
        "--throughput", "-1", "--command-property", "acks=all", "compression.type=lz4",
    )  # fmt: skip
    assert "5000 records sent" in said.output
    assert sum(reference.offsets(topic, partition)[1] for partition in range(3)) == 5000


@pytest.mark.long
def test_verifiable_producer(tool, reference, topic) -> None:
    reference.create_topic(topic)
    said = tool("VerifiableProducer", "--topic", topic, "--max-messages", "200", "--acks", "-1")
    events = [json.loads(line) for line in said.lines]
    acknowledged = [event["offset"] for event in events if event["name"] == "producer_send_success"]
    assert sorted(acknowledged) == list(range(200))
    values = [record.value for record in reference.consume(topic, 0, 200)]
    assert values == [str(number).encode() for number in range(200)]


@pytest.mark.parametrize("codec", CODEC_NUMBERS)
def test_dump_log(run, reference, broker, topic, codec) -> None:
    """Kafka's dump tool reads, and verifies, the files of the log."""
    reference.create_topic(topic, config={"index.interval.bytes": "200"})
    records = numbered(plain_records(60, step=50))
    for first in range(0, 60, 10):
        reference.produce(topic, records[first : first + 10], codec)
    folder = broker.log_folder(topic)
    name = f"{TOOLS}.DumpLogSegments"
    log = folder / "00000000000000000000.log"
    said = run(name, "--files", str(log), "--print-data-log", "--deep-iteration")
    batches = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+)", said.output, re.M)
    assert batches == [(str(at), str(at + 9), "10") for at in range(0, 60, 10)]
    assert said.output.count(f"compresscodec: {codec}") == len(batches)
    assert said.output.count("isvalid: true") == len(batches)
    assert "isvalid: false" not in said.output
    for record in records:
        assert f"offset: {record.offset} CreateTime: {record.timestamp} keySize:" in said.output
        assert f"payload: {record.value.decode()}" in said.output


def test_dump_indexes(run, reference, fresh_broker, topic) -> None:
    """After a clean stop the index files are on disk, and agree with the log."""
    from interop_kit.clients.wire_client import WireClient

    broker = fresh_broker()
    writer = WireClient(broker.bootstrap)
    writer.create_topic(topic, config={"index.interval.bytes": "200"})
    for first in range(0, 60, 10):
        writer.produce(topic, plain_records(10, start=now_ms() - 10_000 + first * 10))
    broker.stop()
    (folder,) = [path for path in broker.data.rglob(f"{topic}-0") if path.is_dir()]
    files = [folder / f"{0:020d}{kind}" for kind in (".index", ".timeindex")]
    said = run(f"{TOOLS}.DumpLogSegments", "--files", ",".join(map(str, files)))
    assert len(re.findall(r"^offset: \d+ position: \d+$", said.output, re.M)) >= 4
    assert len(re.findall(r"^timestamp: \d+ offset: \d+$", said.output, re.M)) >= 4
    for complaint in ("Mismatches", "out of order", "does not", "not found", "Error"):
        assert complaint not in said.output + said.complaints
    checked = run(f"{TOOLS}.DumpLogSegments", "--files", str(files[0]), "--index-sanity-check")
    assert "passed sanity check" in checked.output


@pytest.mark.long
def test_dump_of_what_coordinators_write(run, fresh_broker, topic) -> None:
    """Kafka's decoders read the records by which groups and transactions are remembered."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    broker = fresh_broker()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "payments"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.commit_transaction(30)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    broker.stop()

    def decoded(internal: str, decoder: str) -> str:
        logs = [
            str(path)
            for path in broker.data.rglob("*.log")
            if path.parent.name.startswith(internal)
        ]
        assert logs
        return run(f"{TOOLS}.DumpLogSegments", "--files", ",".join(logs), decoder).output

    offsets = decoded("__consumer_offsets-", "--offsets-decoder")
    assert f'"group":"readers","topic":"{topic}","partition":0' in offsets
    assert '"offset":1' in offsets
    transactions = decoded("__transaction_state-", "--transaction-log-decoder")
    assert '"transactionalId":"payments"' in transactions
    ongoing, prepared, complete = 1, 2, 4
    for status in (ongoing, prepared, complete):
        assert f'"transactionStatus":{status}' in transactions
