"""Logs of a stopped Kafka broker in the data folder of a single node. (Those of a real one: interop.)"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from import_kit.kafka_folder import NODE, NOW, KafkaFolder, batch_of, framed

from ottla import Admin, Consumer, Producer
from ottla.client.admin.configs import Resource
from ottla.cluster.controller import Controller
from ottla.cluster.store import StoreError
from ottla.coordinator.groups.records import offset_key, offset_value
from ottla.protocol.message import uuid_text
from ottla.server.importing.importing import STAGING, ImportReport, import_logs
from ottla.server.importing.metadata_log import (
    ConfigRecord,
    KafkaMetadata,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnreadableMetadataLog,
    read_metadata_log,
)
from ottla.server.importing.source import CannotImport
from ottla.storage.files import OS_FILES
from ottla.testing import BrokerProcess

ORDERS = [[b"a%d" % at for at in range(10)], [b"b%d" % at for at in range(4)], []]


@pytest.fixture
def source(tmp_path: Path) -> KafkaFolder:
    return KafkaFolder(tmp_path / "source")


@pytest.fixture
def take(source: KafkaFolder, tmp_path: Path) -> Iterator[Callable[..., ImportReport]]:
    """Imports, and sees to it that nothing of Kafka's was changed."""
    seen: list[dict[str, bytes]] = []

    def contents() -> dict[str, bytes]:
        return {
            str(path.relative_to(source.path)): path.read_bytes()
            for path in sorted(source.path.rglob("*"))
            if path.is_file()
        }

    def run(*folders: Path, **options: Any) -> ImportReport:
        seen[:] = [contents()]
        return import_logs(folders or [source.path], tmp_path / "data", **options)

    yield run
    if seen:
        assert contents() == seen[0]


def values(bootstrap: str, topic: str) -> list[list[bytes]]:
    with Admin(bootstrap) as admin, Consumer(bootstrap) as consumer:
        (described,) = admin.describe_topics(topic).values()
        found: list[list[bytes]] = [[] for _ in described.partitions]
        for row in consumer.read(topic).to_pylist():
            found[row["partition"]].append(row["value"])
    return found


def test_topics_groups_and_settings(
    source: KafkaFolder, take: Callable[..., ImportReport], tmp_path: Path
) -> None:
    topic_id = source.add("orders", ORDERS, {"retention.ms": "-1", "cleanup.policy": "delete"})
    source.starts["orders", 0] = 2
    commit = offset_key("billing", "orders", 0), offset_value(7, 3, "", NOW, -1, topic_id)
    source.add(
        "__consumer_offsets", [[commit[1]]], {"cleanup.policy": "compact"}, keys=[[commit[0]]]
    )
    source.save()
    report = take()
    assert [(each.name, each.partitions, each.offsets) for each in report.topics] == [
        ("__consumer_offsets", 1, 1),
        ("orders", 3, 12),
    ]
    assert report.is_clean
    assert not report.cut
    assert not (tmp_path / "data" / STAGING).exists()
    with BrokerProcess(tmp_path / "data") as node:
        assert values(node.bootstrap, "orders") == [ORDERS[0][2:], *ORDERS[1:]]
        with Admin(node.bootstrap) as admin:
            described = admin.describe_topics("orders")["orders"]
            assert described.topic_id == uuid_text(topic_id)
            settings = admin.describe_configs(Resource.topic("orders"))[Resource.topic("orders")]
            assert settings["retention.ms"].value == "-1"
            committed = admin.committed_offsets("billing")
            assert [(key.topic, key.partition) for key in committed] == [("orders", 0)]
            assert [each.offset for each in committed.values()] == [7]
        with Producer(node.bootstrap, enable_idempotence=True) as producer:
            written = producer.send("orders", b"new", partition=0).result(20)
        assert written.offset == 10
        # Nobody gets a producer id that Kafka may have given to somebody.
        with Admin(node.bootstrap) as admin:
            (producers,) = admin.describe_producers([("orders", 0)]).values()
        assert [each.producer_id >= 4000 for each in producers] == [True]


def test_into_a_node_that_has_topics(
    source: KafkaFolder, take: Callable[..., ImportReport], tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data") as node:
        with Admin(node.bootstrap) as admin:
            admin.create_topic("own", 2)
        with Producer(node.bootstrap) as producer:
            producer.send("own", b"mine", partition=1).result(20)
    source.add("orders", ORDERS)
    source.add("others", [[b"x"]])
    source.save()
    dry = take(dry_run=True)
    assert [(each.name, each.offsets) for each in dry.topics] == [
        ("orders", None),
        ("others", None),
    ]
    assert not (tmp_path / "data" / "orders-0").exists()
    assert [each.name for each in take(unwanted=["others"]).topics] == ["orders"]
    with pytest.raises(CannotImport, match="Topic 'orders' already exists"):
        take()
    assert [each.name for each in take(wanted=["others"]).topics] == ["others"]
    # Twice started: what a first start writes does not make the second one stumble.
    for _ in range(2):
        with BrokerProcess(tmp_path / "data") as node:
            assert values(node.bootstrap, "own") == [[], [b"mine"]]
            assert values(node.bootstrap, "orders") == ORDERS
            assert values(node.bootstrap, "others") == [[b"x"]]


def test_after_a_crash_of_kafka(
    source: KafkaFolder, take: Callable[..., ImportReport], tmp_path: Path
) -> None:
    source.add("orders", ORDERS)
    source.save(clean=False)
    with (source.path / "orders-1" / f"{0:020}.log").open("ab") as log:
        log.write(batch_of([b"torn"], 4)[:-3])
    (source.path / "orders-0" / f"{0:020}.index").write_bytes(bytes(4096))
    report = take()
    assert not report.is_clean
    assert report.cut == {"orders-1": len(batch_of([b"torn"], 4)) - 3}
    with BrokerProcess(tmp_path / "data") as node:
        assert values(node.bootstrap, "orders") == ORDERS


@pytest.mark.parametrize("left", [0, 1, 106])
def test_half_a_copy_after_a_crash_of_kafka(
    source: KafkaFolder, take: Callable[..., ImportReport], tmp_path: Path, left: int
) -> None:
    """The end may be cut at a batch, and whatever the checkpoints say may be newer than the logs."""
    source.add("orders", ORDERS)
    source.save(clean=False)
    log = source.path / "orders-0" / f"{0:020}.log"
    whole = log.read_bytes()
    half = len(whole) // 2
    assert batch_of(ORDERS[0][:5]) == whole[:half]
    log.write_bytes(whole[: left and half + left - 1])
    if not left:
        log.unlink()
    with pytest.raises(
        CannotImport, match=r"orders-0 ends at offset [05], and Kafka had .* up to 10"
    ):
        take()
    assert not (tmp_path / "data" / "metadata.db").exists()
    log.write_bytes(whole)
    assert take().topics[0].offsets == 14


def test_broken_off_and_begun_again(
    source: KafkaFolder,
    take: Callable[..., ImportReport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source.add("orders", ORDERS)
    source.save()

    async def fail(*_: object) -> None:
        raise StoreError("no room")

    for method in ("import_topics", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(Controller, method, fail)
            with pytest.raises(CannotImport, match="no room"):
                take()
        assert (tmp_path / "data" / "orders-0").exists()
    take()
    with BrokerProcess(tmp_path / "data") as node:
        assert values(node.bootstrap, "orders") == ORDERS


def test_what_is_not_taken_over_is_told(
    source: KafkaFolder, take: Callable[..., ImportReport]
) -> None:
    source.add("orders", ORDERS, {"no.such.setting": "1", "retention.ms": "5000"})
    source.add("__share_group_state", [[b"x"]])
    source.metadata.append(
        ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="1")
    )
    source.save()
    report = take(dry_run=True)
    assert [each.name for each in report.topics] == ["orders"]
    assert [each[:3] for each in report.settings_left_out] == [("orders", "no.such.setting", "1")]
    assert report.left_out == (
        "settings of brokers that were changed while they ran",
        "the state of share groups (__share_group_state)",
    )


def _running(source: KafkaFolder, _: Path) -> None:
    OS_FILES.lock(str(source.path / ".lock"))


def _of_zookeeper(source: KafkaFolder, _: Path) -> None:
    (source.path / "meta.properties").write_text("version=0\nbroker.id=7\ncluster.id=x\n")


def _no_identity(source: KafkaFolder, _: Path) -> None:
    (source.path / "meta.properties").unlink()


def _of_ottla(source: KafkaFolder, _: Path) -> None:
    (source.path / "metadata.db").touch()


def _no_metadata_log(source: KafkaFolder, _: Path) -> None:
    shutil.rmtree(source.path / "__cluster_metadata-0")


def _damaged_metadata_log(source: KafkaFolder, _: Path) -> None:
    path = source.path / "__cluster_metadata-0" / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def _log_missing(source: KafkaFolder, _: Path) -> None:
    shutil.rmtree(source.path / "orders-1")


def _log_of_another_topic(source: KafkaFolder, _: Path) -> None:
    path = source.path / "orders-1" / "partition.metadata"
    path.write_text("version: 0\ntopic_id: KDEkmZ1kTBCQvIYpP2HHqA")


def _damaged_log(source: KafkaFolder, _: Path) -> None:
    path = source.path / "orders-0" / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:100])


def _strange_target(_: KafkaFolder, target: Path) -> None:
    target.mkdir()
    (target / "photos").mkdir()


def _target_of_a_cluster(_: KafkaFolder, target: Path) -> None:
    target.mkdir()
    (target / "metadata.db.adopted").touch()


def _target_in_use(_: KafkaFolder, target: Path) -> None:
    target.mkdir()
    OS_FILES.lock(str(target / ".lock"))


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_running, "a broker uses .*: stop it first"),
        (_of_zookeeper, "coordinated by ZooKeeper"),
        (_no_identity, "it has no meta.properties"),
        (_of_ottla, "a data folder of Ottla"),
        (_no_metadata_log, "no __cluster_metadata-0"),
        (_damaged_metadata_log, "is damaged"),
        (_log_missing, "orders-1 should be in these data folders"),
        (_log_of_another_topic, "orders-1 should be in these data folders"),
        pytest.param(_damaged_log, "/source/orders-0: it ends at 0", marks=pytest.mark.complains),
        (_strange_target, "it has photos"),
        (_target_of_a_cluster, "a broker of a cluster"),
        (_target_in_use, "stop that broker first"),
    ],
)
def test_refused(
    source: KafkaFolder,
    take: Callable[..., ImportReport],
    tmp_path: Path,
    prepare: Callable[[KafkaFolder, Path], None],
    words: str,
) -> None:
    source.add("orders", ORDERS)
    source.save()
    prepare(source, tmp_path / "data")
    with pytest.raises(CannotImport, match=words):
        take()
    assert not (tmp_path / "data" / "metadata.db").exists()
    assert not (tmp_path / "data" / "orders-0").exists()


def test_refused_for_what_the_metadata_say(
    source: KafkaFolder, take: Callable[..., ImportReport]
) -> None:
    source.add("here", [[b"x"]])
    source.add("elsewhere", [[b"x"]], replicas=[1, 2])
    source.add("lagging", [[b"x"]], replicas=[1, NODE], isr=[1])
    source.add("eligible", [[b"x"]], replicas=[1, NODE], isr=[], elr=[NODE])
    source.add("last", [[b"x"]], replicas=[1, NODE], isr=[], last_known=[NODE])
    source.add("behind", [[b"x"]], replicas=[1, NODE], isr=[], elr=[1], last_known=[NODE])
    source.add("tiered", [[b"x"]], {"remote.storage.enable": "true"})
    source.save()
    with pytest.raises(CannotImport, match="tiered storage"):
        take()
    with pytest.raises(CannotImport, match="has no replica of elsewhere-0"):
        take(unwanted=["tiered"])
    with pytest.raises(CannotImport, match="not in sync for lagging-0, behind-0 when"):
        take(unwanted=["tiered", "elsewhere"])
    with pytest.raises(CannotImport, match="no topic 'typo'"):
        take(wanted=["typo"])
    names = ["eligible", "here", "last"]
    assert [each.name for each in take(wanted=names).topics] == names


def test_a_node_that_crashed_is_no_target(
    source: KafkaFolder, take: Callable[..., ImportReport], tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data") as node:
        with Admin(node.bootstrap) as admin:
            admin.create_topic("own", 1)
        node.kill()
    source.add("orders", ORDERS)
    source.save()
    with pytest.raises(CannotImport, match="not stopped in good order"):
        take()


def test_the_folders_of_one_broker_belong_together(
    source: KafkaFolder, take: Callable[..., ImportReport], tmp_path: Path
) -> None:
    source.add("orders", ORDERS)
    source.save()
    second = KafkaFolder(tmp_path / "second").save()
    shutil.rmtree(second.path / "__cluster_metadata-0")
    shutil.move(source.path / "orders-1", second.path / "orders-1")
    with pytest.raises(CannotImport, match="orders-1 should be"):
        take()
    assert take(source.path, second.path).topics[0].offsets == 14
    other = KafkaFolder(tmp_path / "other", node=8).save()
    with pytest.raises(CannotImport, match="several brokers"):
        take(source.path, other.path)


def test_the_command(source: KafkaFolder, tmp_path: Path) -> None:
    source.add("orders", ORDERS, {"no.such.setting": "1"})
    source.save()

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        words = ["cluster", "import-logs", str(source.path), "--into", str(tmp_path / "data")]
        return subprocess.run(
            [sys.executable, "-m", "ottla.cli.main", *words, *options],
            capture_output=True,
            text=True,
            check=False,
        )

    dry = run("--dry-run")
    assert dry.stdout.splitlines()[-1] == "1 topic would be taken over"
    done = run("--node-id", "4")
    assert done.returncode == 0
    assert "took 1 topic over" in done.stdout
    assert "--node-id 4" in done.stdout
    assert "not taken over: no.such.setting=1 of orders" in done.stderr
    again = run("--json")
    assert (again.returncode, again.stdout) == (1, "")
    assert "nothing was taken over: Topic 'orders' already exists" in again.stderr
    with BrokerProcess(tmp_path / "data", settings={"node.id": "4"}) as node:
        assert values(node.bootstrap, "orders") == ORDERS


# The metadata log -----------------------------------------------------------------------------------


def _read(folder: Path, *batches: bytes, snapshot: bytes | None = None) -> KafkaMetadata:
    folder.mkdir()
    (folder / f"{0 if snapshot is None else 5:020}.log").write_bytes(b"".join(batches))
    if snapshot is not None:
        (folder / f"{5:020}-{1:010}.checkpoint").write_bytes(snapshot)
    return read_metadata_log(folder)


TOPIC = TopicRecord(name="t", topic_id=b"t" * 16)


def _config(value: str | None) -> bytes:
    return framed(ConfigRecord(resource_type=2, resource_name="t", name="a", value=value))


def test_a_snapshot_and_the_log_after_it(tmp_path: Path) -> None:
    snapshot = batch_of([framed(TOPIC), _config("1")])
    found = _read(tmp_path / "log", batch_of([_config("2")], 5), snapshot=snapshot)
    assert [each.name for each in found.topics.values()] == ["t"]
    assert found.configs == {(2, "t"): {"a": "2"}}


def test_what_is_taken_back_is_gone(tmp_path: Path) -> None:
    ids = [framed(ProducerIdsRecord(next_producer_id=each)) for each in (1000, 2000)]
    found = _read(tmp_path / "log", batch_of([framed(TOPIC), _config("1"), _config(None), *ids]))
    assert not found.configs
    assert found.next_producer_id == 2000
    gone = framed(RemoveTopicRecord(topic_id=TOPIC.topic_id))
    found = _read(tmp_path / "other", batch_of([framed(TOPIC), _config("1"), gone]))
    assert not found.topics
    assert not found.configs


def test_an_aborted_transaction_counts_for_nothing(tmp_path: Path) -> None:
    begin, end, abort = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", b"\x01\x19\x00\x00"
    log = batch_of([begin, framed(TOPIC), abort, begin])
    assert not _read(tmp_path / "log", log).topics
    log = batch_of([begin, framed(TOPIC), end])
    assert _read(tmp_path / "other", log).topics


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x02\x02\x00",  # a frame of another version
        framed(TOPIC)[:-4],
        framed(PartitionChangeRecord(partition_id=0, topic_id=b"x" * 16, isr=[1])),
    ],
)
def test_a_log_that_makes_no_sense(tmp_path: Path, value: bytes) -> None:
    with pytest.raises(UnreadableMetadataLog):
        _read(tmp_path / "log", batch_of([value]))


def test_a_log_whose_beginning_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / f"{9:020}.log").write_bytes(batch_of([framed(TOPIC)], 9))
    with pytest.raises(UnreadableMetadataLog, match="begins at offset 9"):
        read_metadata_log(folder)
