"""A partition of one broker over a log in memory, and what it asks its broker for."""

from __future__ import annotations

from storage_kit.faulty_files import Disk, FaultyFiles

from ottla.cluster.metadata import Partition as PartitionState
from ottla.record.batch import Record, build_batch
from ottla.replication.partition import Appended, Partition
from ottla.storage.config import LogConfig
from ottla.storage.files import Files
from ottla.storage.log.log import Log
from ottla.storage.logs import Logs

BROKER = 1
TOPIC_ID = b"o" * 16
DATA = "/data"


def state(
    isr: tuple[int, ...] = (1, 2, 3),
    leader: int = BROKER,
    replicas: tuple[int, ...] = (1, 2, 3),
    leader_epoch: int = 5,
    partition_epoch: int = 9,
    index: int = 0,
) -> PartitionState:
    return PartitionState(index, replicas, isr, leader, leader_epoch, partition_epoch)


def batch(count: int, *, base: int = 0, epoch: int = 0, value: bytes = b"v") -> bytes:
    """A batch as a leader has stored it."""
    records = [Record(base + at, 1000, b"k", value, ()) for at in range(count)]
    return bytes(build_batch(records, base_offset=base, leader_epoch=epoch))


class Holder:
    """The broker around one partition: the clock, the log, what it was asked for."""

    def __init__(
        self,
        initial: PartitionState,
        *,
        min_isr: int = 1,
        topic: str = "t",
        data: str = DATA,
        files: Files | None = None,
    ) -> None:
        """`files`: a log on a disk, in the folder `data`."""
        self.now = 0
        self.terms = 0
        self.asked: list[dict[int, int]] = []
        self.suspects: list[int] = []
        # Broker epochs as the controller knows them.
        self.known = {each: 10 * each for each in range(1, 10)}
        self.config = LogConfig(min_insync_replicas=min_isr)
        if files is None:
            disk = Disk()
            disk.make_durable_folder(data)
            files = FaultyFiles(disk)
        self.logs = Logs(
            [data],
            lambda _: self.config,
            files=files,
            clock=lambda: self.now,
            recovery_threads=1,
        )
        self.logs.open()
        self.partition = Partition(BROKER, topic, TOPIC_ID, initial, self)
        self.partition.configure(self.config)

    @property
    def high_watermark(self) -> int:
        return self.partition.log.high_watermark

    def configure(self, *, min_isr: int) -> None:
        self.config = LogConfig(min_insync_replicas=min_isr)
        self.partition.configure(self.config)

    def append(self, count: int = 1) -> Appended:
        return self.partition.append(bytearray(batch(count)), self.now)

    def fetched(self, broker_id: int, offset: int) -> None:
        self.partition.fetched(broker_id, offset, 10 * broker_id, self.now)

    # What a partition needs of its broker (replication.partition.Owner) -----------------------------

    def load(self, partition: Partition) -> Log:
        return self.logs.get_or_create(partition.topic, partition.index, partition.topic_id)

    def appended(self, partition: Partition, size: int) -> None:
        pass

    def advanced(self, partition: Partition, size: int) -> None:
        pass

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self.known

    def may_be_in_sync(self, broker_id: int, broker_epoch: int) -> bool:
        return self.known.get(broker_id) == broker_epoch

    def suspected(self, partition: Partition, offset: int) -> None:
        self.suspects.append(offset)

    def isr_wanted(self, partition: Partition) -> None:
        assert partition.wanted_isr is not None
        self.asked.append(dict(partition.wanted_isr))

    def role_changed(self, partition: Partition) -> None:
        self.terms += 1
