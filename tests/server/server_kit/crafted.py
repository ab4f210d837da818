"""Sends a crafted batch and tells what became of it, in a form in which brokers can be compared."""

from __future__ import annotations

from typing import Any

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.record.batch import read_header
from ottla.record.batch import records as records_of
from ottla.record.compression.codecs import Codec
from ottla.record.errors import InvalidBatch
from server_kit.calls import Topic, fetch, produce, whole_batches
from server_kit.wire import Wire


def ask(wire: Wire, topic: Topic, batch: bytes, now: int, version: int = 9) -> dict[str, Any]:
    """Produce the batch, which was built at `now`; error, named records, and what is stored of it.

    `stored` has the codec, the offsets and times of its records (one number if all times are the same,
    "append" for the broker's time) relative to the batch and to `now`, and the largest time that its
    header claims.
    """
    answer = produce(wire, topic, batch, version=version)
    told: dict[str, Any] = {"error": ErrorCode(answer.error_code).name}
    if answer.record_errors:
        told["records"] = [each.batch_index for each in answer.record_errors]
    if answer.error_code == 0:
        told["stored"] = _stored(wire, topic, answer, now)
    return told


def _stored(wire: Wire, topic: Topic, answer: PartitionProduceResponse, now: int) -> Any:
    data = fetch(wire, topic, answer.base_offset).records
    batch = whole_batches(data)[0]
    header = read_header(batch)
    assert header.base_offset == answer.base_offset
    append_time = answer.log_append_time_ms

    def relative(time: int) -> int | str:
        if append_time >= 0 and time == append_time:
            return "append"
        return time if time < 0 else time - now

    stored: dict[str, Any] = {
        "codec": Codec(header.codec).name.lower(),
        "max_timestamp": relative(header.max_timestamp),
    }
    try:
        found = list(records_of(batch))
    except InvalidBatch:
        return stored | {"unreadable": True}
    times = [relative(record.timestamp) for record in found]
    offsets = [record.offset - answer.base_offset for record in found]
    stored["offsets"] = len(offsets) if offsets == list(range(len(offsets))) else offsets
    stored["times"] = times[0] if len(set(times)) == 1 else times
    return stored
