"""The records of a produced batch are checked before it is stored (`ottla.record.validation`).

Most batches are checked on the loop, in some microseconds. A large or compressed one that would take
longer is checked by a thread, on its way through the partition's lane, so that the order of batches
stays what it was; the compiled walk lets the loop go on meanwhile. Until there is a compiled walk, a
worker process does it: the plain one would hold the interpreter's lock.

A topic whose `compression.type` is not the producer's has its batches packed anew after that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.record.batch import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    CODEC_MASK,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    RECORDS_AT,
)
from ottla.record.errors import InvalidBatch, TooLarge
from ottla.record.validation.checking import (
    INLINE_LIMIT,
    QUICK_BYTES,
    check_and_correct,
    check_records,
    is_quick,
)
from ottla.record.validation.readiness import readiness
from ottla.server.configuration.record_rules import record_rules
from ottla.server.disk import workers

if TYPE_CHECKING:
    from ottla.record.batch import HeaderFields
    from ottla.record.validation.findings import Rules
    from ottla.record.validation.machine_code import CompiledWalk
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.server.disk.lanes import Batches, Transform


class RecordChecks:
    """Checks the records of batches whose header and checksum are right."""

    __slots__ = ("_lanes", "_walker", "_workers")

    def __init__(self, broker: Broker) -> None:
        self._lanes = broker.lanes
        self._workers = broker.workers
        # The loop's own, once there is one.
        self._walker: CompiledWalk | None = None

    def upgrade(self, target: Partition, now_ms: int) -> Transform:
        """For a message set of an old format: what makes checked batches of it."""
        config = target.config
        return self._workers.upgrade(config, record_rules(config), now_ms)

    def check(
        self,
        target: Partition,
        records: memoryview,
        fields: HeaderFields,
        rules: Rules,
        now_ms: int,
    ) -> tuple[HeaderFields, Transform | None]:
        """The header as it is from now on, and what is to be done before the append: it may refuse the
        batch, or give another in its place. InvalidBatch."""
        walker = self._walker
        if (
            walker is not None
            and fields[ATTRIBUTES] & CODEC_MASK == 0
            and fields[BATCH_LENGTH] <= QUICK_BYTES
            and target.config.compression_type == "producer"
            # All is well with nearly every batch; if it is not, this did not change anything.
            and walker.largest_time(
                records, RECORDS_AT, fields[RECORD_COUNT], fields[BASE_TIMESTAMP], rules, now_ms
            )
            == fields[MAX_TIMESTAMP]
        ):
            return fields, None
        repacking = None
        if target.config.compression_type != "producer":
            codec = fields[ATTRIBUTES] & CODEC_MASK
            repacking = self._workers.repacking(target.config, codec)
        if is_quick(fields):
            if walker is None and readiness.compiled is not None:
                self._walker = readiness.compiled.for_another_thread()
            try:
                return check_and_correct(records, fields, rules, now_ms, INLINE_LIMIT), repacking
            except TooLarge:
                # Little on the wire, much inside.
                pass
        return fields, partial(self._check_elsewhere, fields, rules, now_ms, repacking)

    def is_right(
        self, records: memoryview, fields: HeaderFields, rules: Rules, now_ms: int
    ) -> bool:
        """Whether `check` could do its work at once and would neither refuse nor correct the batch.
        Changes nothing."""
        if not is_quick(fields):
            return False
        try:
            largest = check_records(records, fields, rules, now_ms, INLINE_LIMIT)
        except InvalidBatch:
            return False
        return largest == fields[MAX_TIMESTAMP] or not rules.checks_times

    async def _check_elsewhere(
        self,
        fields: HeaderFields,
        rules: Rules,
        now_ms: int,
        repacking: Transform | None,
        batch: Batches,
    ) -> Batches:
        if readiness.compiled is None:
            readiness.walked(fields[RECORD_COUNT])
            batch = await self._workers.check(rules, now_ms, batch)
        else:
            lanes = self._lanes
            what = (memoryview(batch), fields, rules, now_ms, workers.DECOMPRESSED_LIMIT)
            check = partial(check_and_correct, *what, in_thread=True)
            await lanes.loop.run_in_executor(lanes.threads, check)
        return batch if repacking is None else await repacking(batch)
