"""Names of log folders and of the files in them, for everybody who reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.cluster.names import CLUSTER_METADATA
from ottla.logfiles.checkpoint import InvalidCheckpoint, parse_offsets
from ottla.logfiles.folders import NotALog, find_logs, log_starts, segments_in
from ottla.logfiles.names import (
    DAMAGED_SUFFIX,
    DELETE_SUFFIX,
    KAFKA_METADATA,
    STRAY_SUFFIX,
    base_offset_of,
    marked_folder_name,
    name_before_set_aside,
    offset_in,
    parse_folder_name,
    segment_name,
)


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b-12", ("a-b", 12)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("orders-2147483647", ("orders", 2**31 - 1)),
        ("orders-2147483648", None),
        ("orders-00", None),
        ("orders-01", None),
        ("orders", None),
        ("-1", None),
        ("orders-٣", None),
        ("órders-1", None),
        ("orders-0.0123456789abcdef0123456789abcdef-delete", None),
    ],
)
def test_a_folder_is_a_log_by_its_name(name: str, log: tuple[str, int] | None) -> None:
    assert parse_folder_name(name) == log


def test_folders_on_their_way_out_and_in() -> None:
    renamed = marked_folder_name("orders-3", STRAY_SUFFIX)
    assert re.fullmatch(r"orders-3\.[0-9a-f]{32}-stray", renamed)
    assert name_before_set_aside(renamed) == "orders-3"
    # What was deleted or damaged does not come back by itself, nor what was cut.
    for suffix in (DELETE_SUFFIX, DAMAGED_SUFFIX):
        assert name_before_set_aside(marked_folder_name("orders-3", suffix)) is None
    cut = marked_folder_name("o" * 249 + "-3", STRAY_SUFFIX)
    assert len(cut) == 255
    assert name_before_set_aside(cut) is None


def test_kafkas_metadata_is_no_topic_that_can_be_created() -> None:
    assert parse_folder_name(KAFKA_METADATA) == (CLUSTER_METADATA, 0)


def test_segments_are_told_from_files_under_way(tmp_path: Path) -> None:
    for name in (
        "00000000000000000007.log",
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.log.swap",
        "00000000000000000003.log.cleaned",
        "00000000000000000005.log.deleted",
        "5.log",
        "notes.log",
    ):
        (tmp_path / name).touch()
    assert [each.base_offset for each in segments_in(tmp_path)] == [0, 7]
    assert segment_name(7) == "00000000000000000007"
    assert offset_in("00000000000000000007.snapshot", ".snapshot") == 7
    assert offset_in("00000000000000000007.snapshot.deleted", ".snapshot") is None
    assert base_offset_of("00000000000000000007.snapshot.deleted") == 7


def test_what_is_no_log_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="holds no logs"):
        find_logs(tmp_path)
    with pytest.raises(NotALog, match="there is no"):
        find_logs(tmp_path / "nowhere")


def test_log_starts(tmp_path: Path) -> None:
    assert log_starts(tmp_path) == {}
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    checkpoint.write_bytes(b"0\n2\norders 0 5\norders 1 7\n")
    assert log_starts(tmp_path) == {("orders", 0): 5, ("orders", 1): 7}
    checkpoint.write_bytes(b"0\n2\norders 0 5\n")
    with pytest.raises(InvalidCheckpoint, match="1 entries instead of 2"):
        log_starts(tmp_path)
    with pytest.raises(InvalidCheckpoint, match="twice"):
        parse_offsets(b"0\n2\norders 0 5\norders 0 7\n")
