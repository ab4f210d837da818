"""Ranges of files are brought into the page cache, with and without a copy."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from ottla.storage import files as files_module
from ottla.storage.files import OS_FILES

SIZE = 8 << 20


@pytest.fixture
def cold(tmp_path: Path) -> int:
    """A file of which the page cache holds nothing."""
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(SIZE))
    fd = os.open(path, os.O_RDONLY)
    OS_FILES.disable_read_ahead(fd)
    # Pages that another processor is just about to put on its list of pages stay where they are.
    for _ in range(20):
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not _pages_in_memory(fd):
            break
    if not OS_FILES.tells_what_is_in_memory(fd) or OS_FILES.seems_in_memory(fd, 0, SIZE):
        os.close(fd)
        pytest.skip("here nobody knows what is in memory, or everything is")
    return fd


def _pages_in_memory(fd: int) -> int:
    """How many there are. (A read that must not wait would have the kernel fetch what it asks for.)"""
    found = (ctypes.c_ubyte * (SIZE // mmap.PAGESIZE))()
    with mmap.mmap(
        fd, SIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
    ) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        result = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(SIZE), found)
        del start
    assert result == 0
    return sum(page & 1 for page in found)


@pytest.mark.parametrize("way", ["sent nowhere", "copied"])
def test_a_range_is_in_memory_after_it_was_brought_there(
    cold: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "copied":
        monkeypatch.setattr(files_module, "_nowhere", lambda: -1)
    try:
        assert OS_FILES.bring_into_memory(cold, 1 << 20, 2 << 20)
        assert OS_FILES.seems_in_memory(cold, 1 << 20, 2 << 20)
        assert not OS_FILES.seems_in_memory(cold, 5 << 20, 1 << 20)
        assert not OS_FILES.bring_into_memory(cold, 1 << 20, 2 << 20), "it is there already"
        assert OS_FILES.bring_into_memory(cold, SIZE - mmap.PAGESIZE, 1 << 20), "beyond the end"
    finally:
        os.close(cold)


def test_without_a_descriptor_to_send_to_it_is_copied(
    cold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(files_module, "_nowhere", none_left)
    try:
        assert OS_FILES.bring_into_memory(cold, 0, 1 << 20)
        assert OS_FILES.seems_in_memory(cold, 0, 1 << 20)
    finally:
        os.close(cold)
