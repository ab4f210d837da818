"""Ranges of files are brought into the page cache, with and without a copy."""

from __future__ import annotations

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
    os.fsync(fd)
    OS_FILES.disable_read_ahead(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if not OS_FILES.tells_what_is_in_memory(fd) or OS_FILES.seems_in_memory(fd, 0, SIZE):
        os.close(fd)
        pytest.skip("here nobody knows what is in memory, or everything is")
    return fd


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
        assert OS_FILES.bring_into_memory(cold, SIZE - 4096, 1 << 20), "beyond the end of the file"
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
