"""The logs in a broker's data folders, by topic and partition: loaded, made, deleted, moved."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ottla.logfiles.names import PARTITION_METADATA, SET_ASIDE_START
from ottla.storage.checkpointing import Checkpointing
from ottla.storage.checkpoints import write_partition_metadata
from ottla.storage.config import LogConfig
from ottla.storage.errors import (
    CorruptFile,
    FolderOffline,
    LogOffline,
    OutOfResources,
    TopicIdMismatch,
    UnknownLog,
    is_full_disk,
    passes,
)
from ottla.storage.files import OS_FILES, Files
from ottla.storage.folders import (
    Checkpoints,
    DataFolder,
    Key,
    damaged_folder_name,
    deleted_folder_name,
    stray_folder_name,
)
from ottla.storage.log.log import Log
from ottla.storage.log.producer_state import DEFAULT_EXPIRATION_MS
from ottla.storage.log.state import LogOwner, LogState
from ottla.storage.recovery.load import create_log, load_log
from ottla.storage.relocation import COMPLETE, Relocation
from ottla.storage.removal import RemovalJob, Removals
from ottla.storage.segments.file import OpenFiles

logger = logging.getLogger(__name__)

DEFAULT_CHECKPOINT_INTERVAL_MS = 5_000
# What failed for want of descriptors, memory or room is spoken of no more often than that.
COMPLAINT_MS = 60_000


def now_in_ms() -> int:
    return time.time_ns() // 1_000_000


class PlacedLogs(LogOwner):
    """Which logs there are and where, and what they tell. `Logs` adds what is done with all of them."""

    def __init__(
        self,
        folders: Sequence[str],
        config_of: Callable[[str], LogConfig],
        *,
        files: Files = OS_FILES,
        clock: Callable[[], int] = now_in_ms,
        max_open_files: int | None = None,
        recovery_threads: int = 2,
        producer_expiration_ms: int = DEFAULT_EXPIRATION_MS,
    ) -> None:
        """`config_of` gives a topic's configuration; it is asked when a log is made or loaded.
        `max_open_files`: how many segment files are kept open, see `open_files_budget`."""
        self.files = files
        self.open_files = OpenFiles(files, max_open_files)
        self.folders = [DataFolder(path, files, self.open_files.reserve) for path in folders]
        self.producer_expiration_ms = producer_expiration_ms
        # May be changed while running.
        self.checkpoint_interval_ms = DEFAULT_CHECKPOINT_INTERVAL_MS
        # Called when a log should be flushed before the next timer (flush.messages, a roll).
        self.on_flush_wanted: Callable[[Log], None] | None = None
        # Whether a log is that of a topic that is known, by its topic's id (None: not looked up, or
        # not known). Others are left alone, also by retention.
        self.is_known: Callable[[Key, bytes | None], bool] = lambda _key, _topic_id: True
        # Called when a log went offline.
        self.on_offline: Callable[[Log], None] | None = None
        # Folders that somebody wants logs in which are not here yet.
        self.preferred: dict[Key, DataFolder] = {}
        # Called when an append to a log found its disk full, or no descriptor.
        self.on_refused: Callable[[Log, OSError], None] | None = None
        self._config_of = config_of
        self._clock = clock
        self._recovery_threads = recovery_threads
        # Every log that is here → its folder; those of them that are loaded; those that cannot be.
        self._places: dict[Key, DataFolder] = {}
        self._loaded: dict[Key, Log] = {}
        self._broken: dict[Key, str] = {}
        # Logs that are not here although a folder's checkpoints tell of records in them, and in which
        # folder they were.
        self._missing: dict[Key, DataFolder] = {}
        # Logs that want recovery and could not be loaded for want of descriptors or memory.
        self._unrecovered: set[Key] = set()
        # Logs with unflushed data, those first that have it longest.
        self._dirty: dict[Log, None] = {}
        self._removals = Removals()
        # Logs that are being copied to another folder: none of them may be compacted meanwhile.
        self.relocating: set[Log] = set()
        self._checkpoints = Checkpointing(self.folders, self._places, self._loaded, self._missing)
        # The name of this run of the broker, "" if it has none, and the runs before it that are known
        # in all folders.
        self.run = ""
        self.former_runs: tuple[str, ...] = ()
        # What the clock said when it was last read.
        self._last_looked_ms = 0
        # When it was last said that a folder has no room, or that there were no descriptors for it.
        self._complained_ms: dict[DataFolder, int] = {}

    # Logs

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def keys(self) -> list[Key]:
        """Topic and partition of every log that is here, loaded or not."""
        return list(self._places)

    def loaded(self) -> list[Log]:
        return list(self._loaded.values())

    def find_loaded(self, topic: str, partition: int) -> Log | None:
        """The log, if it is loaded."""
        return self._loaded.get((topic, partition))

    def folder_of(self, topic: str, partition: int) -> DataFolder:
        folder = self._places.get((topic, partition))
        if folder is None:
            raise UnknownLog(topic, partition)
        return folder

    def get(self, topic: str, partition: int) -> Log:
        """The log; loads it if need be. UnknownLog, LogOffline, OutOfResources."""
        log = self._loaded.get((topic, partition))
        if log is not None:
            return log
        return self._load((topic, partition))

    def _load(self, key: Key) -> Log:
        folder = self._places.get(key)
        if folder is None:
            raise UnknownLog(*key)
        name = f"{key[0]}-{key[1]}"
        reason = folder.offline or self._broken.get(key)
        if reason is not None:
            raise LogOffline(name, reason)
        try:
            log = self._read(folder, key, folder.stored, clean=folder.clean)
        except (OSError, CorruptFile) as error:
            if isinstance(error, OSError) and passes(error):
                # It says nothing of the log: who asks for it next may have more luck.
                if not folder.clean:
                    self._unrecovered.add(key)
                raise OutOfResources(name, str(error)) from error
            self._broken[key] = str(error)
            logger.error("%s is offline: %s", name, error)
            raise LogOffline(name, str(error)) from error
        self._unrecovered.discard(key)
        self._loaded[key] = log
        return log

    def _read(self, folder: DataFolder, key: Key, stored: Checkpoints, *, clean: bool) -> Log:
        """The log as its files have it, and the checkpoints. OSError, CorruptFile."""
        return load_log(
            folder.log_path(key),
            *key,
            self._config_of(key[0]),
            self.files,
            self.open_files,
            self,
            clean=clean,
            recovery_point=stored.recovery_points.get(key, 0),
            log_start_offset=stored.start_offsets.get(key, 0),
            high_watermark=stored.high_watermarks.get(key, 0),
            now_ms=self._clock(),
            first_dirty_offset=stored.first_dirty_offsets.get(key, 0),
            fingerprint=stored.fingerprints.get(key, 0),
            deletions_end=stored.deletion_ends.get(key, 0),
            producer_expiration_ms=self.producer_expiration_ms,
        )

    def _load_quietly(self, key: Key) -> None:
        try:
            self._load(key)
        except LogOffline:
            pass  # said, and kept in _broken
        except OutOfResources as error:
            logger.warning("%s; it is recovered when it is used", error)

    def create(self, topic: str, partition: int, topic_id: bytes | None = None) -> Log:
        """A new log, in the folder with the fewest. LogOffline if it cannot be made there, which says
        nothing of other logs; FolderOffline if no folder is left."""
        key = (topic, partition)
        if key in self._places:
            raise ValueError(f"{topic}-{partition} is here already")
        wanted = self.preferred.pop(key, None)
        while True:
            folder = min(
                (folder for folder in self.folders if folder.offline is None),
                key=lambda folder: (folder is not wanted, folder.partitions),
                default=None,
            )
            if folder is None:
                raise FolderOffline(self.folders[0].path, "no data folder is left")
            try:
                self._missing.pop(key, None)
                if any(key in offsets for offsets in folder.stored):
                    # A log of that name was here; its offsets must not be taken for the new one's,
                    folder.store_now(self._checkpoints.offsets(folder))
                if key in folder.unsynced_deletions:
                    # nor its records, should the power go before the new log's name is synced.
                    folder.sync_deletions()
                log = create_log(
                    folder.log_path(key),
                    topic,
                    partition,
                    topic_id,
                    self._config_of(topic),
                    self.files,
                    self.open_files,
                    self,
                    self.producer_expiration_ms,
                )
            except FileExistsError as error:
                # Not in another folder instead: should this be a log, the next start would find two.
                reason = f"{folder.log_path(key)} is in the way, which this broker did not make"
                raise LogOffline(f"{topic}-{partition}", reason) from error
            except OSError as error:
                if passes(error):
                    raise OutOfResources(f"{topic}-{partition}", str(error)) from error
                if error.errno == errno.ENAMETOOLONG:
                    raise LogOffline(f"{topic}-{partition}", str(error)) from error
                self.take_folder_offline(folder, str(error))
                continue
            self._places[key] = folder
            self._loaded[key] = log
            folder.partitions += 1
            return log

    def get_or_create(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        is_new: bool = False,
        leads: bool = False,
    ) -> Log:
        """The topic's log. Unless the topic `is_new`, its log may lie in a folder that is offline, and
        none is made in another: LogOffline. Nor is one made in place of a log that had records, if this
        broker `leads`: followers would take the empty one for the truth, and cut off what they have.

        TopicIdMismatch if there is one of another topic of that name: one that was deleted while
        this broker was down. `delete` it then.
        """
        if (topic, partition) not in self._places:
            for folder in self.folders:
                if folder.offline is not None and not is_new:
                    reason = f"it may be in data folder {folder.path}: {folder.offline}"
                    raise LogOffline(f"{topic}-{partition}", reason)
            if leads and not is_new and (topic, partition) in self._missing:
                path = self._missing[topic, partition].log_path((topic, partition))
                raise LogOffline(f"{topic}-{partition}", f"{path} is gone, and it had records")
            return self.create(topic, partition, topic_id)
        log = self.get(topic, partition)
        if log.topic_id is None:
            # Made by an old broker, or the file was lost in a crash.
            path = f"{log.folder}/{PARTITION_METADATA}"
            try:
                write_partition_metadata(path, topic_id, self.files)
            except OSError as error:
                if passes(error):
                    raise OutOfResources(log.name, str(error)) from error
                raise log.go_offline(f"write to {path} failed: {error}") from error
            log.identify(topic_id)
        elif log.topic_id != topic_id:
            raise TopicIdMismatch(log.name, log.topic_id, topic_id)
        return log

    def delete(self, topic: str, partition: int) -> None:
        """The log is gone at once, its name is free; its files go after file.delete.delay.ms. (Also
        one that is broken or of an unknown topic.)"""
        key = (topic, partition)
        folder = self.folder_of(topic, partition)
        log = self._loaded.get(key)
        if log is not None:
            log.close()
            log.leave_folder()
            self._dirty.pop(log, None)
        folders = [f"{folder.path}/{deleted_folder_name(f'{topic}-{partition}')}"]
        try:
            self.files.rename(folder.log_path(key), folders[0])
        except FileNotFoundError:
            folders = []  # removed by hand; what has the name after the delay is another log
        except OSError as error:
            self.take_folder_offline(folder, str(error))
            raise LogOffline(f"{topic}-{partition}", str(error)) from error
        if log is not None:
            log.give_up("the topic was deleted")
            del self._loaded[key]
        self._broken.pop(key, None)
        self._unrecovered.discard(key)
        del self._places[key]
        folder.partitions -= 1
        folder.unsynced_deletions.add(key)
        folder.void_jobs()
        now_ms = self._now()
        delay_ms = self._config_of(topic).file_delete_delay_ms
        self._removals.sync_soon(folder.path, self.files)
        self._removals.add(now_ms + delay_ms, RemovalJob(self.files, folders=folders))

    def set_aside(self, topic: str, partition: int, *, damaged: bool = False) -> str:
        """Rename the folder of a log, which frees the log's name; the files stay for their owner to look
        at. One that is `damaged` is not to be taken back."""
        key = (topic, partition)
        folder = self.folder_of(topic, partition)
        log = self._loaded.get(key)
        start = folder.stored.start_offsets.get(key, 0) if log is None else log.log_start_offset
        if start and not damaged:
            # The checkpoint forgets it. Should the log come back, what was deleted must not.
            note = f"{folder.log_path(key)}/{SET_ASIDE_START}"
            try:
                self.files.replace_file(note, b"%d" % start)
            except OSError as error:
                if passes(error):
                    raise OutOfResources(f"{topic}-{partition}", str(error)) from error
                self.take_folder_offline(folder, str(error))
                raise LogOffline(f"{topic}-{partition}", str(error)) from error
        if log is not None:
            del self._loaded[key]
            log.close()
            log.leave_folder()
            log.give_up("set aside")
            self._dirty.pop(log, None)
        name = f"{topic}-{partition}"
        other = damaged_folder_name(name) if damaged else stray_folder_name(name)
        renamed = f"{folder.path}/{other}"
        try:
            self.files.rename(folder.log_path(key), renamed)
        except OSError as error:
            self.take_folder_offline(folder, str(error))
            raise LogOffline(f"{topic}-{partition}", str(error)) from error
        self._broken.pop(key, None)
        self._unrecovered.discard(key)
        del self._places[key]
        folder.partitions -= 1
        folder.unsynced_deletions.add(key)
        folder.void_jobs()
        folder.strays.append(os.path.basename(renamed))
        return renamed

    def take_back(self, folder: DataFolder, name: str, topic: str, partition: int) -> None:
        """Give a log that was set aside its name again: its topic is known after all. OSError."""
        key = (topic, partition)
        if key in self._places:
            raise ValueError(f"{topic}-{partition} is here already")
        try:
            start = int(self.files.read_file(f"{folder.path}/{name}/{SET_ASIDE_START}"))
        except (FileNotFoundError, ValueError):
            start = 0
        if start or any(key in offsets for offsets in folder.stored):
            # They may be those of another log, which had the name meanwhile: all of this one is checked.
            stored = self._checkpoints.offsets(folder)
            if start:
                starts = {**stored.start_offsets, key: start}
                stored = stored._replace(start_offsets=starts)
            folder.store_now(stored)
        self.files.rename(f"{folder.path}/{name}", folder.log_path(key))
        self.files.fsync_folder(folder.path)
        with suppress(FileNotFoundError):
            self.files.unlink(f"{folder.log_path(key)}/{SET_ASIDE_START}")
        folder.strays.remove(name)
        self._places[key] = folder
        folder.partitions += 1

    # Moves between folders (relocation.py)

    def begin_relocation(self, log: Log, target: DataFolder) -> Relocation:
        """A copy of a log in another folder, still empty. StorageError if it cannot be made.

        A pass of compaction ends here: a tombstone, a deleted record or a marker that went before it was
        copied would be missing in the copy, which may have what it had put an end to."""
        try:
            relocation = Relocation(
                log,
                target,
                self._config_of(log.topic),
                self.files,
                self.open_files,
                self.producer_expiration_ms,
            )
        except OSError as error:
            raise OutOfResources(log.name, str(error)) from error
        self.relocating.add(log)
        if log.compaction is not None and not log.compaction.job.only_erases:
            log.compaction.stop()
        return relocation

    def give_up_relocation(self, relocation: Relocation) -> None:
        """Stop a move between data folders, and remove its copy."""
        self.relocating.discard(relocation.source)
        relocation.copy.close()
        relocation.copy.leave_folder()
        relocation.copy.give_up("the move to another data folder was given up")
        self._removals.add(self._clock(), RemovalJob(self.files, folders=[relocation.path]))

    def end_relocation(self, relocation: Relocation) -> Log:
        """The copy, which has everything and was synced, takes the place of the log: the log from now
        on. Blocks for some syncs of folders. LogOffline if one of the disks fails; OutOfResources if
        the log stays where it is, and the copy was given up."""
        source, target = relocation.source, relocation.target
        self.relocating.discard(source)
        key = (source.topic, source.partition)
        if self._loaded.get(key) is not source or source.offline is not None:
            # Deleted, perhaps, and another has its name.
            self.give_up_relocation(relocation)
            raise LogOffline(source.name, source.offline or "it was closed")
        folder = self._places[key]
        path = target.log_path(key)
        end, start = source.log_end_offset, relocation.copy.log_start_offset
        high_watermark, first_dirty = source.high_watermark, relocation.first_dirty_offset
        renamed = f"{folder.path}/{deleted_folder_name(source.name)}"
        try:
            # Whatever is stored there of a log of that name goes. Without the start of this one, records
            # that were deleted would be back after a crash.
            others = self._checkpoints.offsets(target)
            stored = others.with_log(key, end, start, high_watermark, first_dirty)
            target.store_now(stored)
            self.files.replace_file(f"{relocation.path}/{COMPLETE}", source.name.encode())
            self.files.fsync_folder(relocation.path)
            self.files.fsync_folder(target.path)
        except OSError as error:
            # Nothing has happened to the log.
            self.give_up_relocation(relocation)
            raise OutOfResources(source.name, str(error)) from error
        relocation.copy.close()
        relocation.copy.leave_folder()
        relocation.copy.give_up("it has taken the place of its log")
        source.close()
        source.leave_folder()
        self._dirty.pop(source, None)
        at_work = folder
        try:
            with self.open_files.reserve.lent():
                self.files.rename(folder.log_path(key), renamed)
                self.files.fsync_folder(folder.path)
                at_work = target
                self.files.rename(relocation.path, path)
                self.files.fsync_folder(target.path)
        except OSError as error:
            self.take_folder_offline(at_work, str(error))
            raise source.go_offline(str(error)) from error
        source.give_up("it was moved to another data folder")
        del self._loaded[key]
        self._places[key] = target
        folder.partitions -= 1
        target.partitions += 1
        for each in (folder, target):
            each.void_jobs()
        self._removals.add(self._clock(), RemovalJob(self.files, folders=[renamed]))
        try:
            log = self._read(target, key, stored, clean=True)
            self.files.unlink(f"{path}/{COMPLETE}")
        except (OSError, CorruptFile) as error:
            self._broken[key] = str(error)
            raise LogOffline(source.name, str(error)) from error
        self._loaded[key] = log
        target.store_now(self._checkpoints.offsets(target))
        return log

    def reconfigure(self, topic: str) -> None:
        """Give the topic's loaded logs its changed configuration."""
        config = self._config_of(topic)
        for (name, _), log in self._loaded.items():
            if name == topic:
                log.reconfigure(config)

    # What logs tell (LogOwner)

    def became_dirty(self, log: LogState) -> None:
        assert isinstance(log, Log)
        self._dirty[log] = None

    def wants_flush(self, log: LogState) -> None:
        assert isinstance(log, Log)
        self._dirty.setdefault(log)
        if self.on_flush_wanted is not None:
            self.on_flush_wanted(log)

    def went_offline(self, log: LogState) -> None:
        assert isinstance(log, Log)
        if self.on_offline is not None:
            self.on_offline(log)

    def refused_append(self, log: LogState, error: OSError) -> None:
        assert isinstance(log, Log)
        if self.on_refused is not None:
            self.on_refused(log, error)

    def lower_offsets(self, log: LogState, offset: int) -> None:
        # In any thread: of the other logs, what is stored stays as it is.
        key = (log.topic, log.partition)
        self._places[key].lower(key, offset, log.lower_first_dirty(offset))

    def take_folder_offline(self, folder: DataFolder, reason: str) -> None:
        """Take a folder that failed offline, and all its logs with it."""
        if folder.offline is None:
            folder.offline = reason
            logger.error("data folder %s is offline: %s", folder.path, reason)
            for key, place in self._places.items():
                log = self._loaded.get(key)
                if place is folder and log is not None:
                    log.go_offline(f"data folder {folder.path} is offline: {reason}")

    def _now(self) -> int:
        """The clock, after what was noted by an earlier reading has been put right."""
        now_ms = self._clock()
        self._follow_clock_set_back(now_ms)
        return now_ms

    def _follow_clock_set_back(self, now_ms: int) -> None:
        """Move the times that were noted back as far as the clock was set back, if it was, so that
        nothing happens later for it. Called before any time is noted: that must not be moved with the
        rest."""
        back = self._last_looked_ms - now_ms
        self._last_looked_ms = now_ms
        if back <= 0:
            return
        for folder in self._complained_ms:
            self._complained_ms[folder] -= back
        self._checkpoints.clock_set_back(back)
        self._removals.clock_set_back(back)

    def _folder_failed(self, folder: DataFolder, error: OSError) -> None:
        if not passes(error):
            self.take_folder_offline(folder, str(error))
            return
        now_ms = self._now()
        if now_ms - self._complained_ms.get(folder, 0) >= COMPLAINT_MS:
            self._complained_ms[folder] = now_ms
            what = "is full" if is_full_disk(error) else "is tried again"
            logger.warning("data folder %s %s: %s", folder.path, what, error)
