"""The compiled walk along a buffer's batches, and their checksums.

A part of `kernels`, whose rules hold here: whoever wants these functions takes them from there. The walk
makes the plan of `kernels.decode_records`. Both run without the interpreter's lock, so that a thread
which decodes does not stand in the way of the one that receives.

CRC32C is a processor's instruction on x86-64 and on ARM, of eight bytes each. Its result is there some
cycles later, so three stretches are summed up side by side and put together by tables, which say what
a sum becomes after so many zero bytes: checksums are linear. Other processors take the word's sum from
tables, too.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from crc32c import crc32c as reference
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from ottla.record.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    RECORD_COUNT_AT,
    SMALLEST_RECORD,
)
from ottla.record.columns.kernels.arrays import (
    ALL_ONES,
    INPUT,
    INT64S,
    LARGEST_INT64,
    TABLE,
    int8,
    int64,
    uint64,
)

Function = TypeVar("Function", bound=Callable[..., Any])

# Places in a row of the plan.
PLAN_HEADER = 0  # where the batch starts in `headers`
PLAN_START = 1  # where its contents start in `contents`, decompressed
PLAN_END = 2

# Places in the state of a walk: what the caller sets …
WALK_POSITION = 0  # of the next batch; the kernel moves it on
WALK_LIMIT = 1  # batches that begin at or after this position are left
WALK_START_OFFSET = 2
WALK_END_OFFSET = 3
WALK_MAX_RECORDS = 4
WALK_SPECIAL = 5  # bits of a batch's attributes that are the caller's to deal with
WALK_CHECKS = 6  # whether checksums are checked
# … and what the kernel says.
WALK_RECORDS = 7  # in the batches, at most: not what headers claim, but what there is room for
# Of `kernels.decode_plain`: batches of the plan that are being read; 0 when the next are to be planned.
WALK_PLANNED = 8
WALK_READ = (
    9  # where the last batch starts of those that it has read as a whole; the caller sets -1
)
# Of `kernels.receive_plain`: bytes that are there, and up to where to receive.
WALK_ARRIVED = 10
WALK_UNTIL = 11
WALK_STATE_SIZE = 12

# Bytes of each of the three stretches: as long ones as fit, since putting them together takes its time,
# then shorter ones, since what is left is summed up three times as slowly.
_LONG = 4096
_MIDDLE = 512
_SHORT = 64
_SMALLEST_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD


# The caller holds on to every array, and no kernel makes one: numba need not count who uses them. It did
# so for every record, and atomically, which has a processor wait for all that it has written before.
_UNCOUNTED = {"_nrt": False}


def compiled(signature: Any) -> Callable[[Function], Function]:
    """Compile now, for this signature only, without the interpreter's lock, cached if possible."""

    def decorate(function: Function) -> Function:
        options: dict[str, Any] = {"nogil": True, "cache": True, **_UNCOUNTED}
        while True:
            try:
                return njit(signature, **options)(function)  # type: ignore[no-any-return]
            except KeyError:
                # A numba that does not know the option, which is none of those it documents.
                if not options.pop("_nrt", True):
                    continue
                raise
            except RuntimeError:
                # No folder for the cache can be written.
                if options.pop("cache", False):
                    continue
                raise

    return decorate


@register_jitable(forceinline=True)
def big_endian(data: Any, at: int, size: int) -> Any:
    value = int64(int8(data[at]))
    for index in range(1, size):
        value = (value << 8) | int64(data[at + index])
    return value


def _after_zero_bytes(count: int, register: int) -> int:
    """What `count` zero bytes make of the sum's register."""
    return reference(bytes(count), register ^ ALL_ONES) ^ ALL_ONES


def zeros_table(count: int) -> Any:
    """`_after_zero_bytes` for each of the register's four bytes."""
    return np.array(
        [
            [_after_zero_bytes(count, byte << shift) for byte in range(256)]
            for shift in (0, 8, 16, 24)
        ],
        np.uint32,
    )


_AFTER_LONG = zeros_table(_LONG)
_AFTER_MIDDLE = zeros_table(_MIDDLE)
_AFTER_SHORT = zeros_table(_SHORT)
# Of a word: the sum of its byte number n is that byte's after 8 - n zeros.
_OF_BYTE = np.array(
    [[_after_zero_bytes(8 - at, byte) for byte in range(256)] for at in range(8)], np.uint64
)

_INSTRUCTIONS = {
    "x86_64": ("sse4.2", "llvm.x86.sse42.crc32.64.64", 64),
    "AMD64": ("sse4.2", "llvm.x86.sse42.crc32.64.64", 64),
    "aarch64": ("crc", "llvm.aarch64.crc32cx", 32),
    "arm64": ("crc", "llvm.aarch64.crc32cx", 32),
}


@intrinsic
def _load_word(typing_context: Any, data: Any, at: Any) -> Any:
    """Eight bytes of an array as a number, the first of them the lowest; the caller checks bounds."""
    del typing_context, at
    signature = types.uint64(data, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, at = arguments
        array = context.make_array(signature.args[0])(context, builder, data)
        place = builder.bitcast(builder.gep(array.data, [at]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return signature, generate


@intrinsic
def _instruction(typing_context: Any, register: Any, word: Any) -> Any:
    """The sum's register after eight more bytes, by the processor."""
    del typing_context, register, word
    _, name, width = _INSTRUCTIONS[platform.machine()]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        register, word = arguments
        own = ir.IntType(width)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(own, [own, ir.IntType(64)]), name
        )
        narrow = register if width == 64 else builder.trunc(register, own)
        result = builder.call(function, [narrow, word])
        return result if width == 64 else builder.zext(result, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


# Intrinsics are called without the typing context that their definitions take.
word_at: Any = _load_word
_by_instruction: Any = _instruction


@register_jitable(forceinline=True)
def _sum_by_instruction(register: Any, word: Any) -> Any:
    return _by_instruction(register, word)


@register_jitable(forceinline=True)
def sum_by_tables(register: Any, word: Any) -> Any:
    """The same as the instruction, for processors that have none."""
    word ^= register
    result = uint64(0)
    for at in range(8):
        result ^= _OF_BYTE[at, (word >> uint64(8 * at)) & uint64(0xFF)]
    return result


def has_instruction() -> bool:
    """Whether the processor sums up words by itself."""
    machine = platform.machine()
    if machine not in _INSTRUCTIONS:
        return False
    return bool(binding.get_host_cpu_features().get(_INSTRUCTIONS[machine][0], False))


sum_of_word: Any = _sum_by_instruction if has_instruction() else sum_by_tables


@register_jitable(forceinline=True)
def after_zeros(table: Any, register: Any) -> Any:
    """The register after the zero bytes that the table is of."""
    byte = uint64(0xFF)
    return uint64(
        table[0, register & byte]
        ^ table[1, (register >> uint64(8)) & byte]
        ^ table[2, (register >> uint64(16)) & byte]
        ^ table[3, register >> uint64(24)]
    )


@register_jitable(forceinline=True)
def _sum_of_three(register: Any, data: Any, at: int, block: int, table: Any) -> Any:
    """The register after three blocks from `at` on; the caller checks bounds."""
    second = uint64(0)
    third = uint64(0)
    for place in range(at, at + block, 8):
        register = sum_of_word(register, word_at(data, place))
        second = sum_of_word(second, word_at(data, place + block))
        third = sum_of_word(third, word_at(data, place + 2 * block))
    return after_zeros(table, after_zeros(table, register) ^ second) ^ third


@compiled(types.uint64(types.uint64, INPUT, types.int64, types.int64))
def summed(register: Any, data: Any, start: int, end: int) -> Any:
    """The sum's register after data[start:end]."""
    if not 0 <= start <= end <= len(data):
        raise IndexError("a checksum beyond a buffer")
    at = start
    while end - at >= 3 * _LONG:
        register = _sum_of_three(register, data, at, _LONG, _AFTER_LONG)
        at += 3 * _LONG
    while end - at >= 3 * _MIDDLE:
        register = _sum_of_three(register, data, at, _MIDDLE, _AFTER_MIDDLE)
        at += 3 * _MIDDLE
    while end - at >= 3 * _SHORT:
        register = _sum_of_three(register, data, at, _SHORT, _AFTER_SHORT)
        at += 3 * _SHORT
    while end - at >= 8:
        register = sum_of_word(register, word_at(data, at))
        at += 8
    while at < end:
        low = (register ^ uint64(data[at])) & uint64(0xFF)
        # The last byte of a word stands before no zeros but its own.
        register = _OF_BYTE[7, low] ^ (register >> uint64(8))
        at += 1
    return register


@compiled(types.uint64(INPUT, types.int64, types.int64))
def crc32c(data: Any, start: int, end: int) -> Any:
    """The checksum of data[start:end]."""
    return summed(uint64(ALL_ONES), data, start, end) ^ uint64(ALL_ONES)


@compiled(types.int64(INPUT, INT64S, TABLE))
def walk_plain(data: Any, state: Any, plan: Any) -> int:
    """Go past the next batches that are nothing special, and put them into the plan; their number.

    These are whole, intact and have none of the special attributes, and begin between the offsets;
    the last of them reaches the limit of records, or that of the position. The first one that is
    anything else is left to the interpreter, which knows what to make of it.
    """
    at = state[WALK_POSITION]
    size = len(data)
    limit = min(size, state[WALK_LIMIT])
    first_offset = max(state[WALK_START_OFFSET], 0)
    end_offset = state[WALK_END_OFFSET]
    max_records = state[WALK_MAX_RECORDS]
    special = state[WALK_SPECIAL]
    checks = state[WALK_CHECKS] != 0
    records = 0
    count = 0
    while 0 <= at < limit and size - at >= HEADER_SIZE and records < max_records:
        if count >= len(plan):
            break
        base_offset = big_endian(data, at, 8)
        length = big_endian(data, at + 8, 4)
        attributes = big_endian(data, at + ATTRIBUTES_AT, 2)
        last_delta = big_endian(data, at + LAST_OFFSET_DELTA_AT, 4)
        end = at + LENGTH_OVERHEAD + length
        if (
            data[at + MAGIC_AT] != MAGIC
            or attributes & special != 0
            or length < _SMALLEST_LENGTH
            or end > size
            or not first_offset <= base_offset < end_offset
            or last_delta < 0
            or last_delta >= LARGEST_INT64 - base_offset
        ):
            break
        if checks:
            stored = big_endian(data, at + CRC_AT, 4) & ALL_ONES
            if uint64(stored) != crc32c(data, at + ATTRIBUTES_AT, end):
                break
        plan[count, PLAN_HEADER] = at
        plan[count, PLAN_START] = at + HEADER_SIZE
        plan[count, PLAN_END] = end
        count += 1
        claimed = big_endian(data, at + RECORD_COUNT_AT, 4)
        records += max(0, min(claimed, length // SMALLEST_RECORD))
        at = end
    state[WALK_POSITION] = at
    state[WALK_RECORDS] = records
    return count
