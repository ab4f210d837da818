"""Moves of replicas between the data folders of this broker (AlterReplicaLogDirs).

One log at a time is copied, a portion at a time: what is not in memory is read in a thread, as for any
reader of old records. The partition is led and followed meanwhile as ever. When the copy has everything,
it takes the log's place between two appends (storage/relocation.py).

`replica.alter.log.dirs.io.max.bytes.per.second` limits what is copied as other settings limit what goes
to other brokers (replication/throttle.py).

A move that fails, for want of room say, is given up: the log stays where it is. Moves that were not at
their end when the broker stopped are begun again after its start: a folder has a file of the logs that
are to come to it (`moves-to-come`: in each line a log and its topic's id), which is replaced as a whole,
before AlterReplicaLogDirs is answered and after each move.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ottla.record.errors import InvalidBatch
from ottla.replication.following import whole_batches
from ottla.replication.partition import Role, append_copied
from ottla.replication.throttle import Limit
from ottla.server.partitions import monotonic_ms
from ottla.storage.errors import NotInMemory, StorageError
from ottla.storage.folders import key_of_folder
from ottla.storage.logs import now_in_ms

if TYPE_CHECKING:
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.storage.folders import DataFolder
    from ottla.storage.relocation import Relocation

log = logging.getLogger("ottla.relocation")

_PORTION = 1 << 20
# Between two portions the loop is everybody else's for as long as it takes; this is beside that.
_PAUSE_SECONDS = 0.001
# How long a log with an append under way is left alone.
_BUSY_SECONDS = 0.01
# So much is copied between two syncs: a log that was never synced syncs its folder whenever it begins a
# segment, on the loop, and waits there for all that was written.
_SYNC_BYTES = 64 << 20
# So much may be left to be synced on the loop when the copy takes the log's place.
_LAST_BYTES = 4 << 20

Key = tuple[str, int]

TO_COME: Final = "moves-to-come"


class Relocations:
    """Where logs are to go, and the one that is on its way. Belongs to the broker's loop."""

    def __init__(self, broker: Broker) -> None:
        self.limit = Limit()
        self._broker = broker
        self._wanted: dict[Key, tuple[Partition, DataFolder]] = {}
        self._current: Relocation | None = None
        self._task: asyncio.Task[None] | None = None
        self._stored: dict[DataFolder, list[str]] = {}  # the lines of the files, as last written

    def resume(self) -> None:
        """Begins the moves again that had not ended when the broker stopped. Blocks: to be called before
        it serves."""
        broker = self._broker
        for folder in broker.logs.folders:
            if folder.offline is not None:
                continue  # its file stays for the next start
            try:
                text = broker.logs.files.read_file(f"{folder.path}/{TO_COME}").decode()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                log.error("moves to data folder %s are not begun again: %s", folder.path, error)
                continue
            self._stored[folder] = text.splitlines()
            for line in self._stored[folder]:
                self._want_again(line, folder)
        self.store()

    def _want_again(self, line: str, folder: DataFolder) -> None:
        name, _, topic_id = line.partition(" ")
        key = key_of_folder(name)
        topic = None if key is None else self._broker.image.topics.get(key[0])
        if key is None or topic is None or topic.topic_id.hex() != topic_id:
            return  # deleted meanwhile
        partition = self._broker.partitions.get(*key)
        if partition is None or partition.role is Role.ABSENT:
            return
        try:
            partition.log  # noqa: B018 - opened, or made, if need be
        except StorageError as error:
            log.error("%s stays in its data folder: %s", name, error)
            return
        log.info("%s is on its way to data folder %s again", name, folder.path)
        self.want(partition, folder)

    def store(self) -> None:
        """Writes down what is to come to which folder. Blocks for some syncs."""
        topics, files = self._broker.image.topics, self._broker.logs.files
        for folder in self._broker.logs.folders:
            lines = [
                f"{topic}-{index} {topics[topic].topic_id.hex()}"
                for (topic, index), (_, target) in self._wanted.items()
                if target is folder and topic in topics
            ]
            if folder.offline is not None or lines == self._stored.get(folder, []):
                continue
            path = f"{folder.path}/{TO_COME}"
            try:
                if lines:
                    files.replace_file(path, ("\n".join(lines) + "\n").encode())
                elif files.exists(path):
                    files.unlink(path)
            except OSError as error:
                log.warning("moves to %s may not outlive the broker: %s", folder.path, error)
            else:
                self._stored[folder] = lines

    def want(self, partition: Partition, folder: DataFolder) -> None:
        """Move the partition's log to this folder. A move that is under way is given up, and none begins
        if the log lies there already."""
        key = (partition.topic, partition.index)
        self._wanted.pop(key, None)
        if self._broker.logs.folder_of(*key) is not folder:
            self._wanted[key] = partition, folder
            if self._task is None:
                self._task = self._broker.spawn(self._work(), "moves between data folders")

    def under_way(self) -> dict[Key, tuple[DataFolder, int, int]]:
        """The moves that have not ended: where to, the bytes of the copy, and the records it lacks."""
        found: dict[Key, tuple[DataFolder, int, int]] = {}
        for key, (partition, folder) in self._wanted.items():
            opened = partition.opened
            found[key] = folder, 0, 0 if opened is None else opened.log_end_offset
        current = self._current
        if current is not None:
            key = (current.source.topic, current.source.partition)
            if key in found:
                found[key] = current.target, current.copy.size, current.lag
        return found

    async def _work(self) -> None:
        try:
            while self._wanted:
                key, (partition, folder) = next(iter(self._wanted.items()))
                try:
                    await self._move(key, partition, folder)
                except (StorageError, InvalidBatch, OSError) as error:
                    log.error("%s-%d stays in its data folder: %s", *key, error)
                if self._wanted.get(key) == (partition, folder):
                    del self._wanted[key]
                self.store()
        finally:
            self._task = None

    async def _move(self, key: Key, partition: Partition, folder: DataFolder) -> None:
        logs = self._broker.logs
        source = partition.log
        relocation = self._current = logs.begin_relocation(source, folder)
        done = False
        try:
            while (
                self._wanted.get(key) == (partition, folder)
                and partition.opened is source
                and partition.role is not Role.ABSENT
            ):
                source.check_online()
                if source.is_busy or partition.lane is not None:
                    await asyncio.sleep(_BUSY_SECONDS)
                    continue
                relocation.agree(now_in_ms())
                copy = relocation.copy
                unsynced = copy.appended_bytes - copy.flushed_bytes
                if unsynced > (_SYNC_BYTES if relocation.lag else _LAST_BYTES):
                    await self._broker.loop.run_in_executor(
                        self._broker.threads, relocation.sync, now_in_ms()
                    )
                elif relocation.lag:
                    wait_ms = self.limit.wait_ms(monotonic_ms())
                    if wait_ms:
                        await asyncio.sleep(wait_ms / 1000)
                    elif not await self._copy(relocation):
                        await asyncio.sleep(_PAUSE_SECONDS)
                else:
                    relocation.sync(now_in_ms())
                    done = True
                    partition.replace_log(logs.end_relocation(relocation))
                    log.info("%s-%d lies in data folder %s now", *key, folder.path)
                    return
        finally:
            self._current = None
            if not done:
                logs.give_up_relocation(relocation)
            elif partition.opened is source and source.offline is not None:
                partition.forget_log()  # a disk failed in between: who uses it next is told
        if partition.role is Role.ABSENT:
            log.info("%s-%d is no longer on this broker", *key)

    async def _copy(self, relocation: Relocation) -> bool:
        """Copies a portion. True if it was the last, and the loop has served nobody since it was read:
        otherwise a busy log would never be without a rest."""
        source, copy = relocation.source, relocation.copy
        offset, end = copy.log_end_offset, source.log_end_offset
        reads = self._broker.reads
        try:
            piece = source.read(offset, _PORTION, end, True, False)
        except NotInMemory as missing:
            await reads.load(missing, _PORTION)
            return False
        if piece is None:
            raise StorageError(
                "compaction left no record at its end; try again after the next write"
            )
        # What is at the end was written a moment ago, and is in memory.
        active = source.active
        is_last = piece.segment is active and piece.position + piece.length >= active.size
        data = piece.read() if is_last else await reads.read(piece)
        if copy.log_end_offset == offset:
            append_copied(copy, whole_batches(data), now_in_ms())
            self.limit.record(len(data), monotonic_ms())
        return is_last
