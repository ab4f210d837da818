"""The data folders of a stopped Kafka broker: whose they are, what is in them, what can be taken."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.cluster.names import SHARE_GROUP_STATE
from ottla.logfiles.checkpoint import InvalidCheckpoint, parse_offsets
from ottla.logfiles.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    DELETED_SUFFIX,
    FOLDER_IDENTITY,
    FOLDER_LOCK,
    KAFKA_METADATA,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from ottla.server.broker import METADATA_FILE
from ottla.server.importing.metadata_log import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    KafkaMetadata,
    KafkaTopic,
    UnreadableMetadataLog,
    read_metadata_log,
)
from ottla.storage.checkpoints import read_folder_identity, read_partition_metadata
from ottla.storage.errors import CorruptCheckpoint
from ottla.storage.folders import Checkpoints, Key

# Named in a message; there may be thousands.
_NAMED: Final = 5
_TIERED: Final = "remote.storage.enable"


class CannotImport(Exception):
    """Why logs cannot be taken over, in one sentence for whoever asked. Nothing was changed then."""


@dataclass(frozen=True)
class SourceLog:
    """One partition's log in a Kafka broker's folder."""

    folder: Path
    files: tuple[Path, ...]
    size: int  # of all files, in bytes


@dataclass(frozen=True)
class SourceTopic:
    name: str
    topic_id: bytes
    logs: tuple[SourceLog, ...]  # by partition
    config: Mapping[str, str]  # what Kafka has set for it

    @property
    def size(self) -> int:
        return sum(log.size for log in self.logs)


@dataclass(frozen=True)
class ImportSource:
    """What is to be imported of a Kafka broker's data folder."""

    node_id: int
    topics: tuple[SourceTopic, ...]
    offsets: Checkpoints  # of all logs
    is_clean: bool  # the broker was stopped in good order
    next_producer_id: int
    # What there is that is not taken over, in words.
    left_out: tuple[str, ...] = field(default=())


@contextmanager
def locked(folders: Sequence[Path]) -> Iterator[None]:
    """No broker uses the folders, and none begins to. CannotImport if one does.

    Kafka's lock is on the file `.lock`. A lock for readers keeps it out too, and takes no more than
    the right to read.
    """
    with ExitStack() as held:
        for folder in folders:
            try:
                descriptor = os.open(folder / FOLDER_LOCK, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # a copy of a folder
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotImport(f"a broker uses {folder}: stop it first") from None
        yield


def survey(
    folders: Sequence[Path], wanted: Collection[str] = (), unwanted: Collection[str] = ()
) -> ImportSource:
    """Looks at all data folders (log.dirs) of one broker. CannotImport says what is in the way."""
    node_id = _owner(folders)
    metadata = _metadata(folders)
    topics = _chosen(metadata, wanted, unwanted)
    _check_tiers(metadata, topics)
    logs = _logs(folders, topics)
    _check_replicas(node_id, topics, logs)
    offsets = Checkpoints({}, {}, {}, {}, {}, {})
    for folder in folders:
        offsets = _merged(offsets, _offsets(folder))
    return ImportSource(
        node_id,
        tuple(
            SourceTopic(
                topic.name,
                topic.topic_id,
                tuple(logs[topic.name, each] for each in sorted(topic.partitions)),
                metadata.configs.get((TOPIC_RESOURCE, topic.name), {}),
            )
            for topic in sorted(topics, key=lambda topic: topic.name)
        ),
        offsets,
        all((folder / CLEAN_SHUTDOWN).exists() for folder in folders),
        metadata.next_producer_id,
        _left_out(metadata, unwanted),
    )


def _owner(folders: Sequence[Path]) -> int:
    """The broker whose folders these are."""
    owners: set[tuple[str, str]] = set()
    for folder in folders:
        if (folder / METADATA_FILE).exists():
            raise CannotImport(f"{folder} is a data folder of Ottla, not of Apache Kafka")
        try:
            properties = read_folder_identity(str(folder / FOLDER_IDENTITY))
        except CorruptCheckpoint as error:
            raise CannotImport(str(error)) from error
        if properties is None:
            raise CannotImport(
                f"{folder} is no data folder of a Kafka broker: it has no {FOLDER_IDENTITY}"
            )
        node = properties.get("node.id", "")
        if not node.isdecimal():
            raise CannotImport(
                f"{folder / FOLDER_IDENTITY} names no node.id: folders of a Kafka that was "
                "coordinated by ZooKeeper are not taken over"
            )
        owners.add((properties.get("cluster.id", ""), node))
    if len(owners) > 1:
        raise CannotImport("the folders are those of several brokers: take those of one")
    return int(owners.pop()[1])


def _metadata(folders: Sequence[Path]) -> KafkaMetadata:
    for folder in folders:
        path = folder / KAFKA_METADATA
        if path.is_dir():
            try:
                return read_metadata_log(path)
            except (UnreadableMetadataLog, OSError) as error:
                raise CannotImport(str(error)) from error
    raise CannotImport(
        f"there is no {KAFKA_METADATA} in the data folder, without which nobody knows what settings the "
        "topics have: name all folders of the broker, that of metadata.log.dir too"
    )


def _chosen(
    metadata: KafkaMetadata, wanted: Collection[str], unwanted: Collection[str]
) -> list[KafkaTopic]:
    known = {topic.name for topic in metadata.topics.values()}
    for name in (*wanted, *unwanted):
        if name not in known:
            raise CannotImport(f"Kafka has no topic '{name}'")
    chosen = [
        topic
        for topic in metadata.topics.values()
        if topic.name not in unwanted
        and topic.name != SHARE_GROUP_STATE
        and (not wanted or topic.name in wanted)
    ]
    if not chosen:
        raise CannotImport("there is no topic to take over")
    return chosen


def _check_tiers(metadata: KafkaMetadata, topics: Sequence[KafkaTopic]) -> None:
    tiered = [
        topic.name
        for topic in topics
        if metadata.configs.get((TOPIC_RESOURCE, topic.name), {}).get(_TIERED) == "true"
    ]
    if tiered:
        raise CannotImport(
            f"part of the records of {_some(tiered)} is in tiered storage ({_TIERED}), which is not "
            "taken over: exclude these topics, or move them with `ottla mirror`"
        )


def _logs(folders: Sequence[Path], topics: Sequence[KafkaTopic]) -> dict[Key, SourceLog]:
    ids = {(topic.name, each): topic.topic_id for topic in topics for each in topic.partitions}
    logs: dict[Key, SourceLog] = {}
    for key, topic_id in ids.items():
        for folder in folders:
            path = folder / f"{key[0]}-{key[1]}"
            if not path.is_dir():
                continue
            try:
                found = read_partition_metadata(str(path / PARTITION_METADATA))
            except CorruptCheckpoint as error:
                raise CannotImport(str(error)) from error
            if found not in (None, topic_id):
                continue  # of a topic of that name that was deleted
            if key in logs:
                raise CannotImport(f"{path.name} is in two data folders")
            files = tuple(
                sorted(
                    each
                    for each in path.iterdir()
                    if each.is_file() and not each.name.endswith(DELETED_SUFFIX)
                )
            )
            logs[key] = SourceLog(path, files, sum(each.stat().st_size for each in files))
    return logs


def _check_replicas(
    node_id: int, topics: Sequence[KafkaTopic], logs: Mapping[Key, SourceLog]
) -> None:
    elsewhere: list[str] = []
    lagging: list[str] = []
    missing: list[str] = []
    for topic in topics:
        if sorted(topic.partitions) != list(range(len(topic.partitions))):
            raise CannotImport(f"the metadata log does not tell of all partitions of {topic.name}")
        for index, partition in topic.partitions.items():
            name = f"{topic.name}-{index}"
            if node_id not in partition.replicas:
                elsewhere.append(name)
            elif (topic.name, index) not in logs:
                missing.append(name)
            elif not partition.has_everything(node_id):
                lagging.append(name)
    if elsewhere:
        raise CannotImport(
            f"broker {node_id} has no replica of {_some(elsewhere)}: take a broker that has all "
            "partitions of the topics, or exclude topics"
        )
    if missing:
        raise CannotImport(
            f"{_some(missing)} should be in these data folders and is not: name all folders of the "
            "broker (log.dirs)"
        )
    if lagging:
        raise CannotImport(
            f"broker {node_id} was not in sync for {_some(lagging)} when it stopped, and may lack "
            "records: stop the brokers of a cluster one after the other and take the last one's folder"
        )


def _offsets(folder: Path) -> Checkpoints:
    return Checkpoints(
        _checkpoint(folder / RECOVERY_POINT_CHECKPOINT),
        _checkpoint(folder / LOG_START_CHECKPOINT),
        _checkpoint(folder / REPLICATION_CHECKPOINT),
        _checkpoint(folder / CLEANER_CHECKPOINT),
        {},
        {},
    )


def _checkpoint(path: Path) -> dict[Key, int]:
    try:
        return parse_offsets(path.read_bytes())
    except FileNotFoundError:
        return {}
    except InvalidCheckpoint as error:
        raise CannotImport(f"{path}: {error.reason}") from error


def _merged(one: Checkpoints, other: Checkpoints) -> Checkpoints:
    return Checkpoints(*({**a, **b} for a, b in zip(one, other, strict=True)))


def _left_out(metadata: KafkaMetadata, unwanted: Collection[str]) -> tuple[str, ...]:
    words = set(metadata.left_out)
    for kind, what in (
        (BROKER_RESOURCE, "settings of brokers that were changed while they ran"),
        (GROUP_RESOURCE, "settings of groups"),
    ):
        if any(found == kind for found, _ in metadata.configs):
            words.add(what)
    names = {topic.name for topic in metadata.topics.values()}
    if SHARE_GROUP_STATE in names and SHARE_GROUP_STATE not in unwanted:
        words.add(f"the state of share groups ({SHARE_GROUP_STATE})")
    return tuple(sorted(words))


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
