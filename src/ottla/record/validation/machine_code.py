"""The compiled walk as machine code in this process, and how it is called."""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import Any

from ottla.record.validation.findings import (
    MISFIT_BITS,
    MOST_MISFITS,
    NUMBERS,
    RETURNED,
    Rules,
    Walked,
)

_BATCH = struct.Struct("=5q")  # START to NOW
_RULES = struct.Struct("=5q")  # KEYS_REQUIRED to MISFIT_ROOM
_FOUND = struct.Struct("=4q")  # FAULT to MISFIT_COUNT
_FOUND_AT = _BATCH.size + _RULES.size
_INT64 = 8
# Room for the usual case that there is no misfit, and for the next usual one.
_FEW_MISFITS = 64
_MISFIT_MASK = (1 << MISFIT_BITS) - 1

# numba's functions take: where to put the result, where to put an exception (there is none), and the
# arguments. The types are not declared, and what is passed is of ctypes' own, because a conversion of
# each would cost half as much again as the call.
_KEEPING = ctypes.PYFUNCTYPE(ctypes.c_int)
_RELEASING = ctypes.CFUNCTYPE(ctypes.c_int)

_pack_batch = _BATCH.pack_into
_unpack_found = _FOUND.unpack_from
_byte_of = ctypes.c_char.from_buffer
_reference = ctypes.byref


class CompiledWalk:
    """The walk that is compiled at an address. One thread at a time may use one of these objects."""

    def __init__(self, address: int, frames_address: int, misfit_room: int = _FEW_MISFITS) -> None:
        self.address = address
        # Of the check of frames, which comes with it (`frames`).
        self.frames_address = frames_address
        # The interpreter's lock is kept for what takes microseconds: giving it away and getting it back
        # would take longer.
        self._keeping: Any = _KEEPING(address)
        self._releasing: Any = _RELEASING(address)
        self._misfit_room = misfit_room
        self._numbers = bytearray(NUMBERS * _INT64)
        self._misfits = bytearray(misfit_room * _INT64)
        # Held, so that the memory stays where it is.
        self._held = _byte_of(self._numbers), _byte_of(self._misfits)
        numbers_at, misfits_at = map(ctypes.addressof, self._held)
        self._numbers_at = ctypes.c_void_p(numbers_at)
        self._misfits_at = ctypes.c_void_p(misfits_at)
        self._returned_at = ctypes.c_void_p(numbers_at + RETURNED * _INT64)
        self._no_exception = ctypes.c_void_p(None)
        # Those that stand among the numbers.
        self._rules: Rules | None = None

    def for_another_thread(self) -> CompiledWalk:
        return CompiledWalk(self.address, self.frames_address)

    def largest_time(
        self,
        data: bytes | bytearray | memoryview,
        at: int,
        count: int,
        base_timestamp: int,
        rules: Rules,
        now_ms: int,
        releases_lock: bool = False,
    ) -> int | None:
        """The largest time of the records, or None if there is anything wrong with them, which `walk`
        says. (As nearly every batch is right, this half is made for speed.)"""
        numbers = self._numbers
        if rules is not self._rules:
            _RULES.pack_into(numbers, _BATCH.size, *rules, self._misfit_room)
            self._rules = rules
        _pack_batch(numbers, 0, at, len(data), count, base_timestamp, now_ms)
        call = self._releasing if releases_lock else self._keeping
        start = data if type(data) is bytes else _reference(_byte_of(data))
        call(self._returned_at, self._no_exception, start, self._numbers_at, self._misfits_at)
        found: tuple[int, int, int, int] = _unpack_found(numbers, _FOUND_AT)
        if found[0] or found[3]:
            return None
        return found[2]

    def walk(
        self,
        data: bytes | bytearray | memoryview,
        at: int,
        count: int,
        base_timestamp: int,
        rules: Rules,
        now_ms: int,
        releases_lock: bool = False,
    ) -> Walked:
        """As `plain_walk.walk`. `releases_lock` lets other threads run meanwhile."""
        where = (data, at, count, base_timestamp, rules, now_ms)
        self.largest_time(*where, releases_lock)
        fault, record, max_timestamp, misfit_count = _unpack_found(self._numbers, _FOUND_AT)
        room = self._misfit_room
        if misfit_count > room < MOST_MISFITS:
            again = CompiledWalk(self.address, self.frames_address, min(misfit_count, MOST_MISFITS))
            return again.walk(*where, releases_lock)
        found = struct.unpack_from(f"={min(misfit_count, room)}q", self._misfits)
        misfits = [(each >> MISFIT_BITS, each & _MISFIT_MASK) for each in found]
        return Walked(fault, record, max_timestamp, misfits, misfit_count)


def executables(codes: bytes) -> list[int]:
    """The addresses of the kernels, each with its size before it."""
    addresses = []
    at = 0
    while at < len(codes):
        start = at + 4
        at = start + int.from_bytes(codes[at:start], "big")
        addresses.append(executable(codes[start:at]))
    return addresses


def executable(code: bytes) -> int:
    """The address of memory that holds the code, for as long as the process lives."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    ]  # fmt: skip
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = library.mmap(None, len(code), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "no memory for compiled code")
    ctypes.memmove(address, code, len(code))
    # Never writable and executable at once.
    if library.mprotect(address, len(code), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "memory cannot be made executable")
    return int(address)
