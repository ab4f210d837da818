"""Takes logs over into the data folder of a single node, which is new or was stopped.

The logs are copied into a folder beside those that are there, loaded as a broker would load them (after
a crash of Kafka's: recovered, the end that is not whole cut off) and synced. Only then they get their
names, and last of all their topics become known. Until that moment a node that starts knows nothing of
them. Broken off, the import is begun again, and knows its own traces by the topics' ids.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.cluster.adoption import CannotAdopt, only_broker
from ottla.cluster.controller import Controller
from ottla.cluster.decisions.imports import ImportedTopic, check_import
from ottla.cluster.draft import Draft
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.metadata import ClusterImage, ResourceType
from ottla.cluster.names import TRANSACTION_STATE
from ottla.cluster.store import StoreError
from ottla.logfiles.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    DELETIONS_CHECKPOINT,
    FOLDER_LOCK,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    SEALED_SEGMENTS_CHECKPOINT,
)
from ottla.protocol.errors import ProtocolError
from ottla.server.adoption import ADOPTED_SUFFIX
from ottla.server.broker import METADATA_FILE, SUPPORTED_FEATURES
from ottla.server.configuration.broker_config import BrokerConfig
from ottla.server.configuration.rules import Rules
from ottla.server.importing.source import (
    CannotImport,
    ImportSource,
    SourceLog,
    SourceTopic,
    locked,
    survey,
)
from ottla.settings import BrokerLayers
from ottla.storage import config as topic_config
from ottla.storage.checkpoints import (
    lock_folder,
    read_offsets,
    read_partition_metadata,
    write_clean_shutdown,
    write_offsets,
    write_partition_metadata,
)
from ottla.storage.errors import CorruptCheckpoint, FolderLocked, StorageError
from ottla.storage.files import OS_FILES
from ottla.storage.folders import Checkpoints, DataFolder, Key, key_of_folder
from ottla.storage.log.log import Log
from ottla.storage.logs import Logs

STAGING: Final = "import-under-way"
# The files of a data folder in the order of Checkpoints.
_CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    CLEANER_CHECKPOINT,
    SEALED_SEGMENTS_CHECKPOINT,
    DELETIONS_CHECKPOINT,
)
_CHUNK: Final = 32 << 20
# What a file system answers that cannot copy by itself, or not from that one.
_CANNOT_COPY: Final = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
# Beside the logs themselves, for what the node writes first.
_SPARE_BYTES: Final = 64 << 20

# Called with the bytes that were copied since the last call.
Copied = Callable[[int], None]


@dataclass(frozen=True)
class ReportedTopic:
    """A topic that was, or would be, taken over."""

    name: str
    partitions: int
    size: int  # bytes
    offsets: int | None = None  # from the starts to the ends of its logs


@dataclass(frozen=True)
class ImportReport:
    """What an import did, or would do."""

    node_id: int
    topics: tuple[ReportedTopic, ...]
    is_clean: bool
    left_out: tuple[str, ...]
    # Settings of topics that Ottla does not have: topic, name, value, why.
    settings_left_out: tuple[tuple[str, str, str, str], ...]
    # Bytes that were cut off the ends of logs, by the log's name.
    cut: Mapping[str, int] = field(default_factory=dict)
    # Logs with transactions that nobody will ever end.
    open_transactions: tuple[str, ...] = ()


def import_logs(
    folders: Sequence[Path],
    target: Path,
    *,
    node_id: int = 1,
    wanted: Collection[str] = (),
    unwanted: Collection[str] = (),
    dry_run: bool = False,
    begun: Callable[[int], Copied] = lambda _total: lambda _copied: None,
) -> ImportReport:
    """Takes the topics of a stopped Kafka broker over. CannotImport says what is in the way; then no
    topic has been added. `node_id` is the number of a new node; one that is there keeps its own. `begun`
    is told how many bytes are to be copied. Blocks."""
    with locked(folders):
        source = survey(folders, wanted, unwanted)
        return _Import(source, target, node_id).run(dry_run=dry_run, begun=begun)


class _Import:
    """One import, under the locks of its sources."""

    def __init__(self, source: ImportSource, target: Path, node_id: int) -> None:
        self._source = source
        self._target = target
        self._metadata = target / METADATA_FILE
        self._node_id = node_id
        self._config = BrokerConfig(
            BrokerLayers(static={"log.dirs": str(target), "node.id": str(node_id)})
        )
        self._rules = Rules(lambda: self._config)
        self._settings_left_out: list[tuple[str, str, str, str]] = []
        self._configs = {topic.name: self._known_settings(topic) for topic in source.topics}

    def run(self, *, dry_run: bool, begun: Callable[[int], Copied]) -> ImportReport:
        try:
            self._check_target()
            if dry_run and not self._target.exists():
                return self._report()
            self._target.mkdir(0o700, parents=True, exist_ok=True)
            lock = lock_folder(str(self._target))
        except FolderLocked as error:
            raise CannotImport(f"{error}; stop that broker first") from error
        except OSError as error:
            raise CannotImport(str(error)) from error
        try:
            return self._run_locked(dry_run=dry_run, begun=begun)
        except (StoreError, ProtocolError, StorageError, OSError) as error:
            raise CannotImport(str(error)) from error
        finally:
            shutil.rmtree(self._target / STAGING, ignore_errors=True)
            OS_FILES.close(lock)

    def _run_locked(self, *, dry_run: bool, begun: Callable[[int], Copied]) -> ImportReport:
        self._check_logs()
        if self._metadata.exists():
            image = asyncio.run(self._image())
            if image is not None:
                self._check_metadata(image)
        self._check_room()
        if dry_run:
            return self._report()
        copied = begun(sum(topic.size for topic in self._source.topics))
        found = self._copy_and_load(copied)
        self._move_in(found.offsets)
        asyncio.run(self._make_known(found))
        return found.report

    # What may be in the way

    def _check_target(self) -> None:
        target = self._target
        if os.path.exists(str(self._metadata) + ADOPTED_SUFFIX):
            raise CannotImport(
                f"{target} is the folder of a broker of a cluster: import into that of a single node, "
                "and make it a cluster afterwards (`ottla cluster adopt`)"
            )
        if not target.exists() or self._metadata.exists():
            return
        if not target.is_dir():
            raise CannotImport(f"{target} is no folder")
        others = sorted(each.name for each in target.iterdir() if not self._may_be_left(each))
        if others:
            raise CannotImport(
                f"{target} is neither empty nor the data folder of a single node: it has {others[0]}"
            )

    def _may_be_left(self, path: Path) -> bool:
        """Whether an import that was broken off may have made it."""
        own = (STAGING, FOLDER_LOCK, CLEAN_SHUTDOWN, *_CHECKPOINTS)
        return path.name in own or self._is_trace(path)

    def _is_trace(self, path: Path) -> bool:
        """Whether a folder was left by an import of the same topic that was broken off."""
        key = key_of_folder(path.name)
        try:
            found = read_partition_metadata(str(path / PARTITION_METADATA))
        except (OSError, CorruptCheckpoint):
            return False
        return any(
            key is not None and key[0] == topic.name and found == topic.topic_id
            for topic in self._source.topics
        )

    def _check_logs(self) -> None:
        is_clean = (self._target / CLEAN_SHUTDOWN).exists()
        for path in self._target.iterdir():
            if key_of_folder(path.name) is None or self._is_trace(path):
                continue
            if not is_clean:
                raise CannotImport(
                    f"the node of {self._target} was not stopped in good order: start it, and stop it"
                )

    def _check_room(self) -> None:
        needed = sum(topic.size for topic in self._source.topics) + _SPARE_BYTES
        free = shutil.disk_usage(self._target).free
        if free < needed:
            raise CannotImport(
                f"{self._target} has room for {free:,} bytes, and {needed:,} are needed"
            )

    def _known_settings(self, topic: SourceTopic) -> dict[str, str]:
        """What Kafka has set for a topic, without what is not known here."""
        known: dict[str, str] = {}
        for name, value in sorted(topic.config.items()):
            try:
                wanted = {**known, name: value}
                self._rules.check((ResourceType.TOPIC, topic.name), wanted, wanted.keys())
            except ProtocolError as error:
                why = error.message or "it is not known"
                self._settings_left_out.append((topic.name, name, value, why))
            else:
                known[name] = value
        return known

    def _check_metadata(self, image: ClusterImage) -> None:
        if image.brokers or image.fenced or image.topics:
            try:
                self._node_id = only_broker(image)
            except CannotAdopt as error:
                raise CannotImport(str(error)) from error
        topics = [
            ImportedTopic(each.name, each.topic_id, (), self._configs[each.name])
            for each in self._source.topics
        ]
        try:
            check_import(Draft(image), topics, self._rules)
        except ProtocolError as error:
            raise CannotImport(
                f"{(error.message or '').rstrip('.')}: leave it out with --exclude, or import into "
                "another folder"
            ) from error
        for topic in self._source.topics:
            for partition in range(len(topic.logs)):
                path = self._target / f"{topic.name}-{partition}"
                if path.exists() and not self._is_trace(path):
                    raise CannotImport(f"{path} is in the way, which belongs to no topic")

    # The metadata

    async def _image(self) -> ClusterImage | None:
        store = EmbeddedStore(self._metadata)
        await store.start()
        try:
            return await load_image(store)
        finally:
            await store.close()

    async def _make_known(self, found: _Found) -> None:
        store = EmbeddedStore(self._metadata)
        await store.start()
        controller = Controller(store, self._node_id, self._rules, SUPPORTED_FEATURES)
        try:
            await controller.open()
            await controller.import_topics(found.topics, found.free_producer_id)
        finally:
            await controller.close()
            await store.close()

    # The logs

    def _copy_and_load(self, copied: Copied) -> _Found:
        """Copies all logs beside those that are there, and loads them."""
        staging = self._target / STAGING
        _remove(staging)
        staging.mkdir(0o700)
        keys: dict[Key, SourceTopic] = {}
        before: dict[Key, int] = {}
        for topic in self._source.topics:
            for partition, log in enumerate(topic.logs):
                key = (topic.name, partition)
                keys[key] = topic
                before[key] = _copy(log, staging / f"{key[0]}-{key[1]}", copied)
                # An old broker may not have written it.
                write_partition_metadata(
                    str(staging / f"{key[0]}-{key[1]}" / PARTITION_METADATA), topic.topic_id
                )
        own = DataFolder(str(staging), OS_FILES)
        own.store_now(_only(self._source.offsets, keys))
        if self._source.is_clean:
            own.mark_clean(-1)
        OS_FILES.fsync_folder(str(staging))
        logs = Logs([str(staging)], self._topic_config)
        logs.open()
        try:
            found = self._look_at(logs, keys, before)
        finally:
            logs.close()
        (closed,) = logs.folders
        return found.with_offsets(closed.stored)

    def _topic_config(self, topic: str) -> topic_config.LogConfig:
        return topic_config.parse(self._configs[topic], self._config.log_defaults)

    def _look_at(
        self, logs: Logs, keys: Mapping[Key, SourceTopic], before: Mapping[Key, int]
    ) -> _Found:
        epochs: dict[str, list[int]] = {}
        offsets: dict[str, int] = {}
        cut: dict[str, int] = {}
        unfinished: list[str] = []
        has_coordinator = TRANSACTION_STATE in self._configs
        largest_producer_id = self._source.next_producer_id - 1
        for key in keys:
            try:
                log = logs.get(*key)
            except StorageError as error:
                source = keys[key].logs[key[1]].folder
                copy = f"{self._target / STAGING / source.name}"
                raise CannotImport(f"{source.name}: {error}".replace(copy, str(source))) from error
            self._check_end(log)
            epochs.setdefault(key[0], []).append(log.epochs.latest_epoch + 1)
            length = log.log_end_offset - log.log_start_offset
            offsets[key[0]] = offsets.get(key[0], 0) + length
            largest_producer_id = max(largest_producer_id, *log.producers.producers, -1)
            if log.producers.first_unstable_offset is not None and not has_coordinator:
                unfinished.append(log.name)
            lost = before[key] - _log_bytes(Path(log.folder))
            if lost > 0 and not self._source.is_clean:
                cut[log.name] = lost
        topics = [
            ImportedTopic(each.name, each.topic_id, epochs[each.name], self._configs[each.name])
            for each in self._source.topics
        ]
        report = self._report(offsets, cut, tuple(unfinished))
        nothing = Checkpoints({}, {}, {}, {}, {}, {})
        return _Found(topics, largest_producer_id + 1, report, nothing)

    def _check_end(self, log: Log) -> None:
        """What Kafka counted as replicated must be there. After a clean shutdown the log itself knows
        where it has to end; after a crash this is all that tells of a copy that is not whole."""
        committed = self._source.offsets.high_watermarks.get((log.topic, log.partition), 0)
        if log.log_end_offset < committed:
            raise CannotImport(
                f"{log.name} ends at offset {log.log_end_offset}, and Kafka had records up to "
                f"{committed}: the folder is not a whole copy, or they were lost in a crash. If it is "
                "all that there is, start Kafka with it and stop it in good order first"
            )

    def _report(
        self,
        offsets: Mapping[str, int] | None = None,
        cut: Mapping[str, int] | None = None,
        unfinished: tuple[str, ...] = (),
    ) -> ImportReport:
        return ImportReport(
            self._node_id,
            tuple(
                ReportedTopic(
                    each.name,
                    len(each.logs),
                    each.size,
                    None if offsets is None else offsets[each.name],
                )
                for each in self._source.topics
            ),
            self._source.is_clean,
            self._source.left_out,
            tuple(self._settings_left_out),
            cut or {},
            unfinished,
        )

    def _move_in(self, offsets: Checkpoints) -> None:
        """The logs get their names. The checkpoints know them before; what they say of a log that is not
        there concerns nobody. So the folder is at all times one that was stopped in good order."""
        staging = self._target / STAGING
        for name, new in zip(_CHECKPOINTS, offsets, strict=True):
            path = str(self._target / name)
            known = read_offsets(path)
            if new:
                write_offsets(path, {**known, **new})
        if not (self._target / CLEAN_SHUTDOWN).exists():
            write_clean_shutdown(str(self._target / CLEAN_SHUTDOWN), -1)
        for topic in self._source.topics:
            for partition in range(len(topic.logs)):
                place = self._target / f"{topic.name}-{partition}"
                _remove(place)  # a trace of an import that was broken off
                os.rename(staging / place.name, place)
        OS_FILES.fsync_folder(str(self._target))


@dataclass(frozen=True)
class _Found:
    """What the logs say, once they are loaded."""

    topics: list[ImportedTopic]
    free_producer_id: int
    report: ImportReport
    offsets: Checkpoints

    def with_offsets(self, offsets: Checkpoints) -> _Found:
        return _Found(self.topics, self.free_producer_id, self.report, offsets)


def _only(offsets: Checkpoints, keys: Collection[Key]) -> Checkpoints:
    return Checkpoints(*({key: one[key] for key in keys if key in one} for one in offsets))


def _copy(log: SourceLog, target: Path, copied: Copied) -> int:
    """Copies the files of a log; the bytes of its segments."""
    target.mkdir(0o700)
    for path in log.files:
        _copy_file(path, target / path.name, copied)
    OS_FILES.fsync_folder(str(target))
    return _log_bytes(target)


def _copy_file(source: Path, target: Path, copied: Copied) -> None:
    with source.open("rb", 0) as reader, open(target, "xb", 0, opener=_own_file) as writer:
        left = os.fstat(reader.fileno()).st_size
        by_kernel = hasattr(os, "copy_file_range")
        while left > 0:
            done = 0
            if by_kernel:
                # Shares the blocks where the file system can.
                try:
                    done = os.copy_file_range(reader.fileno(), writer.fileno(), min(left, _CHUNK))
                except OSError as error:
                    if error.errno not in _CANNOT_COPY:
                        raise
                    by_kernel = False
                    continue
            else:
                data = reader.read(min(left, _CHUNK))
                done = len(data)
                view = memoryview(data)
                while view:
                    view = view[writer.write(view) :]
            if not done:
                raise CannotImport(f"{source} became shorter while it was copied")
            left -= done
            copied(done)
        os.fsync(writer.fileno())


def _own_file(path: str, flags: int) -> int:
    """For nobody but the broker to read, as all of its files."""
    return os.open(path, flags, 0o600)


def _log_bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir() if each.suffix == LOG_SUFFIX)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
