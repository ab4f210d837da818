"""Produce: append record batches to the logs of partitions that this broker leads.

- A batch is checked (length, magic, CRC32C, count, size, timestamps, sequence), stamped with its
  offset in place, and stored whole or not at all. Partitions of one request succeed or fail alone.
- acks=1 answers when the batch is in the leader's page cache, acks=all (-1) when every in-sync
  replica has it and there are at least `min.insync.replicas` of them. acks=0 is never answered; an
  error then closes the connection, since that is the only way left to tell.
- A batch that an idempotent producer sends again is answered with its first offset.
- A transaction's first batch in a partition is written only if the transaction's coordinator knows
  the partition to be part of it (server/coordination/verification.py); from v12 on the batch makes
  it so.
- `compression.type` other than the producer's own: recompressed in a worker process.

Versions:
  v0–v2   message sets of formats 0 and 1, converted to format 2; v1 adds throttle time, v2 the
          append time. Kafka 4 no longer takes these.
  v3      transactional id; record batches (format 2), exactly one for each partition
  v5      log start offset in the answer
  v7      Zstandard allowed
  v8      record errors and a message for each partition
  v9      flexible
  v10     the new leader in the answer when this one is not it
  v11     TRANSACTION_ABORTABLE
  v12     the second transaction protocol: partitions are added to a transaction by their batches
  v13     topics by id
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.frame import frame_response
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.record.batch import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
    read_header,
    stamp,
)
from ottla.record.codecs import Codec
from ottla.record.errors import InvalidBatch, InvalidRecord
from ottla.server import many_batches
from ottla.server.api import Api, Serve, decode_request, handles_raw
from ottla.server.coordination.verification import Client, Verdict, is_open, verify
from ottla.server.disk.lanes import SLOW_WRITE_SECONDS, Transform
from ottla.server.failures import error_code, error_message
from ottla.server.network.connection import Connection, HeldBytes, Slot
from ottla.storage.errors import OutOfResources, RecordTooLarge, StorageError

if TYPE_CHECKING:
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.storage.append import Append

_FIRST_FLEXIBLE = 9
_FIRST_TOPIC_IDS = 13
_FIRST_FORMAT_2 = 3
_FIRST_ZSTD = 7
_ZSTD = int(Codec.ZSTD)
# What the general way has to look at.
_SPECIAL = TRANSACTIONAL_BIT | CONTROL_BIT

# transactional id length, acks, timeout, topics, length of the first topic's name
_read_old_start = struct.Struct(">hhiih").unpack_from
_OLD_START = 14
# partitions, index of the first, size of its records
_read_old_partition = struct.Struct(">iii").unpack_from
_OLD_PARTITION = 12
# no transactional id, acks, timeout, one topic, length of its name (or its id)
_read_new_start = struct.Struct(">BhiB").unpack_from
_NEW_START = 8
# one partition, its index
_read_new_partition = struct.Struct(">Bi").unpack_from
_NEW_PARTITION = 5
_read_batch_length = struct.Struct(">i").unpack_from
_NO_TAGS = b"\0\0\0"

_clock = time.perf_counter
_time = time.time
_ACKS = (1, -1)
# What is told of an append: base offset, append time (-1: the producer's times count), and where the
# log starts.
Appended = tuple[int, int, int]
# The client that Kafka lets write to internal topics: its own administration tools.
ADMIN_CLIENT_ID = "__admin_client"


def _outcome(done: Append) -> Appended:
    return done.base_offset, done.log_append_time, done.log_start_offset


def _old_layout(version: int, length: int) -> struct.Struct:
    """The whole answer for one partition: size, correlation id | topics | name | partitions |
    index, error, base offset, append time, log start offset (v5+) | record errors, message (v8+) |
    throttle time"""
    tail = "qihi" if version >= 8 else "qi" if version >= 5 else "i"
    return struct.Struct(f">iiih{length}siihqq{tail}")


def _new_layout(version: int, length: int) -> struct.Struct:
    """The same in the flexible form: tags | topics | name or id | partitions | index, error, base
    offset, append time, log start offset | record errors, message, tags | tags | throttle, tags"""
    name = "16s" if version >= _FIRST_TOPIC_IDS else f"B{length}s"
    return struct.Struct(f">iiBB{name}BihqqqBBBBiB")


class _Layouts:
    """Response layouts for the fast path, made on first use."""

    __slots__ = ("_known", "_make", "_version")

    def __init__(self, version: int, make: Callable[[int, int], struct.Struct]) -> None:
        self._version = version
        self._make = make
        self._known: dict[int, struct.Struct] = {}

    def __call__(self, length: int) -> struct.Struct:
        found = self._known.get(length)
        if found is None:
            found = self._known[length] = self._make(self._version, length)
        return found


@handles_raw(ProduceRequest, versions=(0, 13))
def bind(broker: Broker, _: Api) -> Serve:
    """One batch for one partition, as most producers send it, is appended and answered without any
    object in between; batches for several partitions nearly so. Everything else, and every refusal,
    takes the general way."""
    by_raw_name = broker.partitions.by_raw_name
    by_id = broker.partitions.by_id
    lanes = broker.lanes
    layouts = [
        _Layouts(version, _old_layout if version < _FIRST_FLEXIBLE else _new_layout)
        for version in range(14)
    ]

    def append(target: Partition, view: memoryview, version: int) -> Appended | None:
        """Append if nothing about the batch or the partition asks for a closer look."""
        if (
            target.lane is not None
            or not target.plain
            or (version < _FIRST_ZSTD and view[ATTRIBUTES_AT + 1] & CODEC_MASK == _ZSTD)
        ):
            return None
        started = _clock()
        now_ms = int(_time() * 1000)
        try:
            if lanes.slow and lanes.is_slow(target.log.folder):
                return None
            done = target.append_simple(view, now_ms)
            if done is None:
                if (
                    view[MAGIC_AT] != 2
                    # Less than a whole batch, or more than one.
                    or _read_batch_length(view, BATCH_LENGTH_AT)[0] + LENGTH_OVERHEAD != len(view)
                    or view[ATTRIBUTES_AT + 1] & _SPECIAL
                ):
                    return None
                done = _outcome(target.append(view, now_ms))
        except OutOfResources:
            stamp(view, 0, 0, -1)  # as it came, for the general way
            return None
        except (InvalidBatch, StorageError):
            # The general way meets the same refusal and words the answer.
            return None
        took = _clock() - started
        if took > SLOW_WRITE_SECONDS:
            lanes.mark_slow(target.log.folder, took)
        return done

    def serve_old(
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        no_transaction, acks, _, topics, length = _read_old_start(view, at)
        name_at = at + _OLD_START
        partition_at = name_at + length
        records_at = partition_at + _OLD_PARTITION
        if (
            no_transaction != -1
            or topics != 1
            or acks not in _ACKS
            or length <= 0
            or records_at + HEADER_SIZE > stop
        ):
            return False
        name = bytes(view[name_at:partition_at])
        count, index, size = _read_old_partition(view, partition_at)
        if count != 1 or records_at + size != stop:
            return False
        found = by_raw_name.get(name)
        if found is None or not 0 <= index < len(found):
            return False
        done = append(found[index], view[records_at:stop], version)
        if done is None:
            return False
        base_offset, append_time, start_offset = done
        layout = layouts[version](length)
        if version >= 8:
            reply = layout.pack(
                layout.size - 4, correlation_id, 1, length, name, 1, index, 0,
                base_offset, append_time, start_offset, 0, -1, 0,
            )  # fmt: skip
        elif version >= 5:
            reply = layout.pack(
                layout.size - 4, correlation_id, 1, length, name, 1, index, 0,
                base_offset, append_time, start_offset, 0,
            )  # fmt: skip
        else:
            reply = layout.pack(
                layout.size - 4, correlation_id, 1, length, name, 1, index, 0,
                base_offset, append_time, 0,
            )  # fmt: skip
        connection.answer(reply)
        return True

    def serve_new(
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        no_transaction, acks, _, topics = _read_new_start(view, at)
        name_at = at + _NEW_START
        if version >= _FIRST_TOPIC_IDS:
            length = 16
        else:
            length = view[name_at] - 1
            name_at += 1
        partition_at = name_at + length
        if (
            no_transaction
            or topics != 2
            or acks not in _ACKS
            or not 0 < length < 127
            or partition_at + _NEW_PARTITION + HEADER_SIZE > stop
        ):
            return False
        name = bytes(view[name_at:partition_at])
        count, index = _read_new_partition(view, partition_at)
        if count != 2 or view[stop - 3 : stop] != _NO_TAGS:
            return False
        records_at = partition_at + _NEW_PARTITION
        size = shift = 0
        while True:
            byte = view[records_at]
            records_at += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                return False
        if records_at + size - 1 != stop - 3 or size <= HEADER_SIZE:
            return False
        found = by_id.get(name) if version >= _FIRST_TOPIC_IDS else by_raw_name.get(name)
        if found is None or not 0 <= index < len(found):
            return False
        done = append(found[index], view[records_at : stop - 3], version)
        if done is None:
            return False
        base_offset, append_time, start_offset = done
        layout = layouts[version](length)
        if version >= _FIRST_TOPIC_IDS:
            reply = layout.pack(
                layout.size - 4, correlation_id, 0, 2, name, 2, index, 0, base_offset,
                append_time, start_offset, 1, 0, 0, 0, 0, 0,
            )  # fmt: skip
        else:
            reply = layout.pack(
                layout.size - 4, correlation_id, 0, 2, length + 1, name, 2, index, 0,
                base_offset, append_time, start_offset, 1, 0, 0, 0, 0, 0,
            )  # fmt: skip
        connection.answer(reply)
        return True

    def serve_many(
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> list[Appended] | None:
        """None if it is answered; otherwise what was appended before a part that needs a closer
        look."""
        appended: list[Appended] = []
        request = many_batches.find(view, at, stop, version)
        if request is None or request[0] not in _ACKS:
            return appended
        topics = request[1]
        known = by_id if version >= _FIRST_TOPIC_IDS else by_raw_name
        answer = many_batches.Answer(version, correlation_id, len(topics))
        part = answer.part
        plainly = version >= _FIRST_ZSTD and not lanes.slow
        started = _clock()
        now_ms = int(_time() * 1000)
        for key, parts in topics:
            found = known.get(key)
            if found is None:
                return appended
            answer.topic(key, len(parts))
            count = len(found)
            for index, start, end in parts:
                if not 0 <= index < count or end - start < HEADER_SIZE:
                    return appended
                target = found[index]
                done = None
                if plainly and target.plain and target.lane is None:
                    try:
                        done = target.append_simple(view[start:end], now_ms)
                    except StorageError:
                        stamp(view, start, 0, -1)  # as it came, for the general way
                        return appended
                if done is None:
                    done = append(target, view[start:end], version)
                    if done is None:
                        return appended
                appended.append(done)
                part(index, done)
                took = _clock() - started
                if took > SLOW_WRITE_SECONDS:
                    lanes.mark_slow(target.log.folder, took)
                    plainly = False
                started += took
        connection.answer(answer.frame())
        return None

    def serve(
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> None:
        appended: Sequence[Appended] | None = ()
        # The smallest request that can hold a batch is longer than what either way reads blindly.
        if stop - at > HEADER_SIZE + _OLD_START:
            if version >= _FIRST_FLEXIBLE:
                if serve_new(connection, view, at, stop, version, correlation_id):
                    return
            elif version >= 3 and serve_old(connection, view, at, stop, version, correlation_id):
                return
            if version >= _FIRST_FORMAT_2:
                appended = serve_many(connection, view, at, stop, version, correlation_id)
                if appended is None:
                    return
        assert appended is not None
        request = decode_request(ProduceRequest, view, at, stop, version)
        _General(broker, connection, request, version, correlation_id, appended).run()

    return serve


class _General:
    """One Produce request of any shape; answers when the last of its partitions is done."""

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        request: ProduceRequest,
        version: int,
        correlation_id: int,
        appended: Sequence[Appended] = (),
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.request = request
        self.version = version
        self.correlation_id = correlation_id
        self.response = ProduceResponse(responses=[])
        self.failed: ErrorCode | None = None
        self.open = 1  # appends not finished yet, and this very walk over the request
        self.slot: Slot | None = None
        # What the coordinator said of the partitions of a transaction, as far as it was asked.
        self.verdict: dict[tuple[str, int], ErrorCode] = {}
        self.kept: list[HeldBytes] = []
        # What was appended of the request's first partitions before one was met that needs this way.
        self.appended = iter(appended)

    def run(self) -> None:
        if self.request.transactional_id is None:
            self._append()
        else:
            self._verify()

    def _verify(self) -> None:
        """Ask the coordinator for the partitions in which the transaction begins, then go on."""
        begins = self._beginning()
        waiting = len(begins)

        def answered(verdict: Verdict) -> None:
            nonlocal waiting
            self.verdict.update(verdict)
            waiting -= 1
            if not waiting:
                self._append()

        transactional_id = self.request.transactional_id
        assert transactional_id is not None
        client = Client.of_produce(self.version)
        if not begins:
            self._append()
        for producer, partitions in begins.items():
            verify(self.broker, transactional_id, producer, partitions, client, answered)
        if waiting:
            # The requests behind this one must not overtake it.
            self.slot = self.connection.reserve(exclusive=True)
            self._keep()

    def _beginning(self) -> dict[Identity, list[tuple[str, int]]]:
        """The partitions that hold no batch of the transaction yet, by its producer; one, usually."""
        begins: dict[Identity, list[tuple[str, int]]] = {}
        for topic in self.request.topic_data:
            found = self._find(topic)
            for data in topic.partition_data:
                records = data.records
                if (
                    found is None
                    or not 0 <= data.index < len(found)
                    or records is None
                    or len(records) < HEADER_SIZE
                    or records[MAGIC_AT] != 2
                    or not records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT
                ):
                    continue
                target = found[data.index]
                header = read_header(records)
                producer = Identity(header.producer_id, header.producer_epoch)
                try:
                    if not is_open(target, producer):
                        begins.setdefault(producer, []).append((target.topic, target.index))
                except StorageError:
                    # The append meets the same, and says so.
                    continue
        return begins

    def _keep(self) -> None:
        """Keep the batches: the buffer that they stand in is the next request's."""
        for topic in self.request.topic_data:
            for data in topic.partition_data:
                if data.records is not None:
                    kept = self.connection.keep(data.records)
                    data.records = memoryview(kept.data)
                    self.kept.append(kept)

    def _find(self, topic: TopicProduceData) -> list[Partition] | None:
        partitions = self.broker.partitions
        if self.version >= _FIRST_TOPIC_IDS:
            return partitions.by_id.get(topic.topic_id)
        return partitions.by_name.get(topic.name)

    def _append(self) -> None:
        by_id = self.version >= _FIRST_TOPIC_IDS
        for topic in self.request.topic_data:
            found = self._find(topic)
            answers = [self._begin(found, data, by_id) for data in topic.partition_data]
            self.response.responses.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=answers
                )
            )
        for kept in self.kept:
            kept.release()
        self.open -= 1
        if not self.open:
            self._answer()
        elif self.slot is None:
            # Also where no answer is wanted: unfinished requests are counted by their slots.
            self.slot = self.connection.reserve()

    def _begin(
        self, found: list[Partition] | None, data: PartitionProduceData, by_id: bool
    ) -> PartitionProduceResponse:
        """Append one partition's records, now or through its lane; the answer may be filled later."""
        answer = PartitionProduceResponse(
            index=data.index, base_offset=-1, log_append_time_ms=-1, log_start_offset=-1
        )
        done = next(self.appended, None)
        if done is not None:
            self._fill(answer, done)
            return answer
        try:
            if found is None and by_id:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID)
            if found is None or not 0 <= data.index < len(found):
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            target = found[data.index]
            records = data.records
            transform = self._check(target, records)
            assert records is not None
            lanes = self.broker.lanes
            if transform is None and target.lane is None and not lanes.is_slow(target.log.folder):
                self._fill(answer, _outcome(target.append(records, int(_time() * 1000))))
            else:
                self.open += 1
                kept = self.connection.keep(records)
                lanes.append(target, kept.data, partial(self._done, answer, kept), transform)
        except (ProtocolError, InvalidBatch, StorageError) as error:
            self._refuse(answer, error)
        return answer

    def _check(self, target: Partition, records: memoryview | None) -> Transform | None:
        """Whatever is to be known before the log looks at the batch; what has to be done to it."""
        acks = self.request.acks
        if acks not in (0, 1, -1):
            raise ProtocolError(ErrorCode.INVALID_REQUIRED_ACKS)
        if target.leader != self.broker.id:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if target.internal and self.connection.client_id != ADMIN_CLIENT_ID:
            raise ProtocolError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, "internal topics are the broker's own"
            )
        config = target.log.config
        # A topic with fewer replicas than it wants in sync is content with those it has, as in Kafka.
        wanted = min(config.min_insync_replicas, len(target.replicas))
        if acks == -1 and len(target.isr) < wanted:
            raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS)
        workers = self.broker.workers
        if self.version < _FIRST_FORMAT_2:
            if records is None or len(records) == 0:
                raise InvalidRecord("the request has no messages")
            if len(records) > MAGIC_AT and records[MAGIC_AT] > 1:
                raise InvalidRecord(f"format {records[MAGIC_AT]} in Produce v{self.version}")
            return workers.upgrade(config)
        if records is None or len(records) < HEADER_SIZE:
            raise InvalidRecord("the request has no batch")
        if records[MAGIC_AT] != 2:
            raise InvalidRecord(f"format {records[MAGIC_AT]} in Produce v{self.version}")
        if len(records) > config.max_message_bytes:
            # Also of batches that would be smaller once they are recompressed.
            raise RecordTooLarge(len(records), config.max_message_bytes)
        header = read_header(records)
        if header.size < len(records):
            raise InvalidRecord("more than one batch for a partition")
        attributes = header.attributes
        if attributes & CONTROL_BIT:
            raise InvalidRecord("producers do not write control batches")
        codec = attributes & CODEC_MASK
        if codec == _ZSTD and self.version < _FIRST_ZSTD:
            raise ProtocolError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if attributes & TRANSACTIONAL_BIT:
            if not self.request.transactional_id:
                raise ProtocolError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            code = self.verdict.get((target.topic, target.index))
            if code:
                raise ProtocolError(code)
        return workers.transform(config, codec)

    def _done(
        self, answer: PartitionProduceResponse, kept: HeldBytes, result: Append | Exception
    ) -> None:
        # Where it failed, a thread may have been left behind.
        kept.release(reusable=not isinstance(result, Exception))
        if isinstance(result, Exception):
            self._refuse(answer, result)
        else:
            self._fill(answer, _outcome(result))
        self.open -= 1
        if not self.open:
            self._answer()

    @staticmethod
    def _fill(answer: PartitionProduceResponse, done: Appended) -> None:
        answer.base_offset, answer.log_append_time_ms, answer.log_start_offset = done

    def _refuse(self, answer: PartitionProduceResponse, error: Exception) -> None:
        code = error_code(error)
        answer.error_code = code
        answer.error_message = error_message(error)
        self.failed = code

    def _answer(self) -> None:
        if not self.request.acks:
            if self.failed is not None:
                self.connection.hang_up(
                    f"produce without acknowledgement failed: {self.failed.name}"
                )
            if self.slot is not None:
                self.slot.fill([])
            return
        frame = frame_response(self.response, self.version, self.correlation_id)
        if self.slot is not None:
            self.slot.fill([frame])
        else:
            self.connection.answer(frame)
