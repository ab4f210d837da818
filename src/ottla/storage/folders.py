"""One data folder of a broker: its lock, its clean-shutdown marker, its checkpoints."""

from __future__ import annotations

import base64
import logging
import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ottla.logfiles.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    DAMAGED_SUFFIX,
    DELETE_SUFFIX,
    DELETIONS_CHECKPOINT,
    FOLDER_IDENTITY,
    KAFKA_METADATA,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    SEALED_SEGMENTS_CHECKPOINT,
    STRAY_SUFFIX,
    marked_folder_name,
    name_before_set_aside,
    parse_folder_name,
)
from ottla.storage import runs
from ottla.storage.checkpoints import (
    lock_folder,
    read_clean_shutdown,
    read_folder_identity,
    read_offsets,
    write_clean_shutdown,
    write_folder_identity,
    write_offsets,
)
from ottla.storage.errors import CorruptCheckpoint
from ottla.storage.files import Files, Reserve

logger = logging.getLogger(__name__)

# Topic and partition.
Key: TypeAlias = tuple[str, int]

_IDENTITY_VERSION = "1"
RUNNING = ".running"  # which boot of the machine a broker last ran in
RUNS = ".runs"  # the broker's runs that the folder knows of (runs.py)


class Checkpoints(NamedTuple):
    """What the checkpoint files of a folder say, by log."""

    recovery_points: Mapping[Key, int]
    start_offsets: Mapping[Key, int]
    high_watermarks: Mapping[Key, int]
    first_dirty_offsets: Mapping[Key, int]  # where compaction goes on
    # Names and sizes of sealed segments at the last clean shutdown (Segments.fingerprint).
    fingerprints: Mapping[Key, int]
    # Of logs with marks: up to where their snapshots of deleted records go, or further.
    deletion_ends: Mapping[Key, int]

    def with_log(
        self, key: Key, recovery_point: int, start: int, high_watermark: int, first_dirty: int
    ) -> Checkpoints:
        """These and those of one more log."""
        return Checkpoints(
            {**self.recovery_points, key: recovery_point},
            {**self.start_offsets, key: start},
            {**self.high_watermarks, key: high_watermark},
            {**self.first_dirty_offsets, key: first_dirty},
            self.fingerprints,
            self.deletion_ends,
        )


def key_of_folder(name: str) -> Key | None:
    """Topic and partition of a log's folder; None if it is none of a broker's logs. (Kafka's own log of
    metadata may lie in a folder that Ottla is given.)"""
    return None if name == KAFKA_METADATA else parse_folder_name(name)


def deleted_folder_name(name: str) -> str:
    """A name for the folder of a deleted log, which frees its own at once: `topic-N.<uuid>-delete`."""
    return marked_folder_name(name, DELETE_SUFFIX)


def stray_folder_name(name: str) -> str:
    """A name for a log whose topic nobody knows: `topic-N.<uuid>-stray`, out of the way and kept."""
    return marked_folder_name(name, STRAY_SUFFIX)


def damaged_folder_name(name: str) -> str:
    """A name for a damaged log in whose place another is made: `topic-N.<uuid>-damaged-stray`. It never
    gets its own back by itself, as a stray may whose topic is known again."""
    return marked_folder_name(name, DAMAGED_SUFFIX)


def parse_stray_name(name: str) -> Key | None:
    """Topic and partition of a log that was set aside; None if it is none, or if the name was cut."""
    before = name_before_set_aside(name)
    return None if before is None else key_of_folder(before)


def boot_id() -> str:
    """Names the time since the machine was last started; "" where that cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


class DataFolder:
    """A folder of logs.

    Files beside the logs' folders: `.lock`, `.running` (the boot in which a broker last ran here),
    `.runs` (the runs of the broker that the folder knows of), `.kafka_cleanshutdown` (only while no
    broker runs), `meta.properties` (whose logs these are) and the checkpoints of recovery points, log
    starts, high watermarks, the offsets where compaction goes on, the sealed segments of long logs and
    the ends of snapshots of deleted records, each replaced as a whole. A checkpoint may be older than
    the logs, never newer: a recovery point is stored after the sync, and lowered before a truncation.
    """

    def __init__(self, path: str, files: Files, reserve: Reserve | None = None) -> None:
        self.path = path
        self.files = files
        self._reserve = reserve or Reserve(0)
        # Why the folder cannot be used; None while it can.
        self.offline: str | None = None
        # The last shutdown was clean.
        self.clean = False
        # Names the folder, whatever its path; "" until it was claimed.
        self.directory_id = ""
        # The machine has been running since the last broker opened the folder: whatever that one wrote
        # is still in the page cache, even if it was killed.
        self.same_boot = False
        # The cluster whose logs these are: None if the folder does not say, "" if that is unreadable.
        self.cluster_id: str | None = None
        # The runs of the broker that the folder knows of, the present one last once it has begun.
        self.runs: tuple[str, ...] = ()
        # The broker whose logs these are, as the folder says it; None if it does not.
        self.node_id: int | None = None
        # Names of the folders of logs that were set aside.
        self.strays: list[str] = []
        # As the files have it. Replaced, never changed.
        self.stored = Checkpoints({}, {}, {}, {}, {}, {})
        # The number of logs in the folder.
        self.partitions = 0
        # Logs that were deleted and whose names may still come back in a power loss.
        self.unsynced_deletions: set[Key] = set()
        # A recovery point or log start has moved since `stored` was written.
        self.changed = False
        # Checkpoint files that could not be read: replaced by the next store, whatever it has to say.
        self._unreadable: set[str] = set()
        self._lock_fd = -1
        # Held while checkpoints are written; `_generation` makes those that were collected before
        # a recovery point was lowered come to nothing.
        self._writing = threading.Lock()
        self._generation = 0

    def __repr__(self) -> str:
        return f"<DataFolder {self.path}>"

    # Opening and closing

    def open(self) -> list[str]:
        """Locks the folder, takes the marker and the checkpoints in; the names of the folders in
        it. OSError if it cannot be used, FolderLocked if another broker does."""
        self.files.make_folders(self.path)
        self._lock_fd = lock_folder(self.path, self.files)
        marker = self._file(CLEAN_SHUTDOWN)
        self.clean = read_clean_shutdown(marker, self.files) is not None
        if self.clean:
            # Before anything is written: a crash from now on is one.
            self.files.unlink(marker)
        self.files.fsync_folder(self.path)
        self.stored = Checkpoints(
            self._read(RECOVERY_POINT_CHECKPOINT),
            self._read(LOG_START_CHECKPOINT),
            self._read(REPLICATION_CHECKPOINT),
            self._read(CLEANER_CHECKPOINT),
            self._read(SEALED_SEGMENTS_CHECKPOINT, needed=False),
            self._read(DELETIONS_CHECKPOINT, needed=False),
        )
        self.cluster_id = self._read_cluster_id()
        self._compare_boots()
        self._read_runs()
        names = sorted(self.files.folders(self.path))
        self.strays = [name for name in names if name.endswith(STRAY_SUFFIX)]
        return names

    def peek_cluster_id(self) -> str | None:
        """The cluster that the folder says it belongs to, without opening it or changing anything."""
        return self._read_cluster_id()

    def _read_cluster_id(self) -> str | None:
        try:
            properties = read_folder_identity(self._file(FOLDER_IDENTITY), self.files)
        except CorruptCheckpoint as error:
            logger.warning("%s", error)
            return ""
        if properties is None:
            return None
        self.directory_id = properties.get("directory.id", "")
        node_id = properties.get("node.id", "")
        self.node_id = int(node_id) if node_id.isdecimal() else None
        return properties.get("cluster.id", "")

    def _compare_boots(self) -> None:
        """Find out whether the last broker with these logs ran in this boot of the machine."""
        now = boot_id().encode()
        try:
            self.same_boot = bool(now) and self.files.read_file(self._file(RUNNING)) == now
        except FileNotFoundError:
            self.same_boot = False

    def _read_runs(self) -> None:
        try:
            data = self.files.read_file(self._file(RUNS))
        except FileNotFoundError:
            return
        self.runs = runs.parse(data)
        if data and not self.runs:
            logger.warning("%s makes no sense; ignored", self._file(RUNS))

    def note_runs(self, names: Sequence[str]) -> None:
        """Makes it last which runs the folder knows of, the present one last. OSError."""
        self.files.replace_file(self._file(RUNS), runs.render(names))
        self.runs = tuple(names)

    def mark_running(self) -> None:
        """Notes which boot of the machine the broker runs in. Only once the cluster knows of what may
        have been lost before: a broker that is killed earlier must say so again. A crash of the machine
        may lose the note, and then it is not the same boot anyway."""
        if not self.same_boot:
            self.files.replace_file(self._file(RUNNING), boot_id().encode())
            self.same_boot = True

    def claim(self, cluster_id: str, node_id: int) -> None:
        """Says in the folder whose logs it has. OSError if it cannot be written."""
        if not self.directory_id:
            # As Kafka prints an id.
            self.directory_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        properties = {
            "version": _IDENTITY_VERSION,
            "cluster.id": cluster_id,
            "node.id": str(node_id),
            "directory.id": self.directory_id,
        }
        write_folder_identity(self._file(FOLDER_IDENTITY), properties, self.files)
        self.cluster_id = cluster_id
        self.node_id = node_id

    def mark_clean(self, broker_epoch: int) -> None:
        write_clean_shutdown(self._file(CLEAN_SHUTDOWN), broker_epoch, self.files)

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            self.files.close(self._lock_fd)
            self._lock_fd = -1

    def sync_file_system(self) -> bool:
        """See Files. The lock's file has been open from the start: no error escapes it."""
        return self.files.sync_file_system(self._lock_fd)

    def sync_deletions(self) -> None:
        """Makes it last that deleted logs have lost their names."""
        self.files.fsync_folder(self.path)
        self.unsynced_deletions.clear()

    def log_path(self, key: Key) -> str:
        return f"{self.path}/{key[0]}-{key[1]}"

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _read(self, name: str, needed: bool = True) -> dict[Key, int]:
        try:
            return read_offsets(self._file(name), self.files)
        except CorruptCheckpoint as error:
            # Without recovery points the logs are checked from their start; nothing is lost.
            logger.warning("%s; ignored", error)
            self.clean = self.clean and not needed
            self._unreadable.add(name)
            self.changed = True
            return {}

    # Checkpoints

    def checkpoint(self, offsets: Checkpoints) -> CheckpointJob:
        """A job that stores them; collected now, written when it runs."""
        self.changed = False
        return CheckpointJob(self, offsets, self._generation)

    def store_now(self, offsets: Checkpoints) -> None:
        """Stores them before it returns, and makes jobs that are under way come to nothing: for what
        must not be ahead of the logs."""
        with self._writing:
            self._generation += 1
            self._reserve.use(lambda: self._store(offsets))

    def lower(self, key: Key, offset: int, first_dirty: int) -> None:
        """Makes it last, before it returns, that neither the recovery point nor the start of a log is
        above `offset`; in any thread. Jobs that were collected before come to nothing; those collected
        from now on must not say otherwise."""
        with self._writing:
            self._generation += 1
            self.changed = True
            stored = self.stored
            recovery_point = min(offset, stored.recovery_points.get(key, 0))
            start_offset = min(offset, stored.start_offsets.get(key, 0))
            lowered = stored._replace(
                recovery_points={**stored.recovery_points, key: recovery_point},
                start_offsets={**stored.start_offsets, key: start_offset},
                first_dirty_offsets={**stored.first_dirty_offsets, key: first_dirty},
            )
            if key in stored.deletion_ends:
                deletion_end = min(offset, stored.deletion_ends[key])
                lowered = lowered._replace(
                    deletion_ends={**stored.deletion_ends, key: deletion_end}
                )
            self._reserve.use(lambda: self._store(lowered))

    def void_jobs(self) -> None:
        """Makes jobs that are under way come to nothing: they speak of a log that is gone."""
        with self._writing:
            self._generation += 1
            self.changed = True

    def store(self, offsets: Checkpoints, generation: int) -> bool:
        """Whether they were stored: not if they are out of date."""
        with self._writing:
            if generation != self._generation:
                return False
            self._reserve.use(lambda: self._store(offsets))
            return True

    def _store(self, offsets: Checkpoints) -> None:
        # Log starts first: a log without segments ends at its start, and a recovery point after
        # that end would look like lost records.
        for field, name in (
            ("start_offsets", LOG_START_CHECKPOINT),
            ("recovery_points", RECOVERY_POINT_CHECKPOINT),
            ("high_watermarks", REPLICATION_CHECKPOINT),
            ("first_dirty_offsets", CLEANER_CHECKPOINT),
            ("fingerprints", SEALED_SEGMENTS_CHECKPOINT),
            ("deletion_ends", DELETIONS_CHECKPOINT),
        ):
            new: Mapping[Key, int] = getattr(offsets, field)
            if new != getattr(self.stored, field) or name in self._unreadable:
                write_offsets(self._file(name), new, self.files)
                self._unreadable.discard(name)
                self.stored = self.stored._replace(**{field: new})


class CheckpointJob:
    """Stores a folder's checkpoints; `run` on any thread."""

    __slots__ = ("_generation", "error", "folder", "offsets", "was_stored")

    def __init__(self, folder: DataFolder, offsets: Checkpoints, generation: int) -> None:
        self.folder = folder
        self.offsets = offsets
        self.error: OSError | None = None
        # Without an error it came to nothing if something was lowered meanwhile, or a log is gone.
        self.was_stored = False
        self._generation = generation

    def run(self) -> None:
        """Never raises; `error` tells."""
        try:
            self.was_stored = self.folder.store(self.offsets, self._generation)
        except OSError as error:
            self.error = error
