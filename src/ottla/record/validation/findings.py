"""What a walk over the records of a batch is told, and what it finds.

Two walks give the same findings: `plain_walk` in Python, and `kernel`, which is compiled. Numbers go
to the compiled one and come back from it in one array of 64-bit integers, whose places are named here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Rules(NamedTuple):
    """What the topic asks of a record, beyond being readable. In the order of the places below."""

    keys_required: bool = False  # the topic is compacted
    checks_times: bool = False  # the producer's times are kept, so they have to be in range
    before_max_ms: int = 2**63 - 1
    after_max_ms: int = 2**63 - 1


class Fault(IntEnum):
    """Why records cannot be read; the first one in a batch ends its walk."""

    NONE = 0
    RECORD_LENGTH = 1
    END_OF_BATCH = 2
    VARINT = 3
    KEY_LENGTH = 4
    VALUE_LENGTH = 5
    HEADER_COUNT = 6
    HEADER_KEY = 7
    HEADER_VALUE = 8
    BYTES_IN_RECORD = 9
    BYTES_AFTER_RECORDS = 10
    OFFSET_DELTA = 11


FAULTS = {
    Fault.RECORD_LENGTH: "its length does not fit into the batch",
    Fault.END_OF_BATCH: "the batch ends before it",
    Fault.VARINT: "a number in it is cut or has too many bits",
    Fault.KEY_LENGTH: "its key does not fit into the record",
    Fault.VALUE_LENGTH: "its value does not fit into the record",
    Fault.HEADER_COUNT: "it cannot have so many headers",
    Fault.HEADER_KEY: "a header's key is missing or does not fit into the record",
    Fault.HEADER_VALUE: "a header's value does not fit into the record",
    Fault.BYTES_IN_RECORD: "its length is not that of its fields",
    Fault.BYTES_AFTER_RECORDS: "bytes are left after it, the last record",
    Fault.OFFSET_DELTA: "its offset delta is not its place in the batch",
}


class Misfit(IntEnum):
    """Why a readable record may not be in this topic; each such record is named."""

    NO_KEY = 1
    TIME_OUT_OF_RANGE = 2


class Walked(NamedTuple):
    """The findings of a whole walk."""

    fault: int
    record: int  # the one with the fault
    max_timestamp: int
    misfits: list[tuple[int, int]]  # record, Misfit
    misfit_count: int  # also those for which there was no room in the list


# Misfits that are named; a client retries the others, and then hears of the next ones.
MOST_MISFITS = 10_000

NO_TIMESTAMP = -1

# Bytes of the longest varints: 32 bits and 64 bits.
VARINT_BYTES = 5
VARLONG_BYTES = 10

# Places in the numbers that go to the compiled walk …
START = 0
END = 1
COUNT = 2
BASE_TIMESTAMP = 3
NOW = 4
KEYS_REQUIRED = 5
CHECKS_TIMES = 6
BEFORE_MAX = 7
AFTER_MAX = 8
MISFIT_ROOM = 9
# … and in what comes back.
FAULT = 10
RECORD = 11
MAX_TIMESTAMP = 12
MISFIT_COUNT = 13
RETURNED = 14  # numba's functions return by a pointer; it is not looked at
NUMBERS = 15

# Batches that a frame may hold: producers send as many at once, and more only to hundreds of partitions.
MOST_BATCHES = 64

# Places in the numbers that go to the compiled check of a frame: what changes from frame to frame, what
# does not (the rules in their order) …
FRAME_START = 0
FRAME_END = 1
FRAME_NOW = 2
BEFORE_BYTES = 3
IS_COMPACT = 4
LARGEST = 5
FRAME_KEYS_REQUIRED = 6
FRAME_CHECKS_TIMES = 7
FRAME_BEFORE_MAX = 8
FRAME_AFTER_MAX = 9
FRAME_RETURNED = 10
# … and what comes back: how many batches there are, and for each of them three places.
ACCEPTED = 11
FOUND = 12
NUMBER = 0
BATCH_START = 1
BATCH_END = 2
FOUND_PLACES = 3
FRAME_NUMBERS = FOUND + FOUND_PLACES * MOST_BATCHES

# Bytes of a batch up to which the compiled check of a frame verifies the checksum, too. A library does
# it faster, with the processor's own instruction, but has to be called for it.
SHORT_BATCH = 1024

# A misfit as one number: the record's index above these bits, the kind in them.
MISFIT_BITS = 2
