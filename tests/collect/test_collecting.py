"""What becomes of files between two runs of a collector, and while one runs."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import shutil
import socket
import threading

import cramjam
import pyarrow as pa
import pytest
from collect_kit import Collecting, wait_until

from ottla import Admin
from ottla.client.admin.configs import Resource
from ottla.client.errors import TopicNotFound
from ottla.pipeline.collect import (
    Incomplete,
    KeyChoice,
    NameTaken,
    Unreadable,
    collector,
    following,
)
from ottla.pipeline.collect.lines import END_HEADER, PART_HEADER


def test_each_run_goes_on_where_the_last_one_was(collecting: Collecting) -> None:
    collecting.write("a.log", b"one\ntwo\n")
    collecting.once("a.log")
    collecting.once("a.log")
    assert collecting.values() == [b"one", b"two"]
    collecting.write("a.log", b"three\nfo")
    collecting.once("a.log")
    assert collecting.values() == [b"one", b"two", b"three"]
    assert "without a newline" in collecting.notes[-1]
    collecting.write("a.log", b"ur\n")
    collecting.once("a.log")
    assert collecting.values()[3:] == [b"four"]


def test_lines_are_bytes_and_say_where_they_are_from(collecting: Collecting) -> None:
    path = collecting.write("a.log", b"\xff\xfe\x00\n\n\xc3\xa4\r\n")
    collecting.once("a.log")
    name = os.fsencode(path)
    assert collecting.rows("key", "value", "headers") == [
        {
            "key": name,
            "value": value,
            "headers": [
                {"key": "host", "value": socket.gethostname().encode()},
                {"key": "file", "value": name},
            ],
        }
        for value in (b"\xff\xfe\x00", b"", b"\xc3\xa4\r")
    ]


def test_keys_and_headers_are_a_matter_of_choice(collecting: Collecting) -> None:
    collecting.write("a.log", b"x\n")
    collecting.once("a.log", name="host", key=KeyChoice.HOST, headers=False)
    collecting.once("a.log", name="none", key=KeyChoice.NONE, headers=False)
    host = socket.gethostname().encode()
    assert collecting.rows("key", "headers") == [
        {"key": host, "headers": []},
        {"key": None, "headers": []},
    ]


def test_folders_and_globs_find_files_once(collecting: Collecting) -> None:
    (collecting.folder / "deep" / "er").mkdir(parents=True)
    for name in ("a.log", "b.txt", "c.log.gz", ".hidden", "debug.log", "deep/er/d.log"):
        collecting.write(name, f"{name}\n")
    os.symlink(collecting.folder / "a.log", collecting.folder / "link.log")
    collecting.once(".", "**/*.log", exclude=["debug.*"])
    assert sorted(collecting.values()) == [b"a.log", b"b.txt", b"deep/er/d.log"]
    collecting.once("c.log.gz")  # by its name, it is wanted
    assert collecting.values()[3:] == [b"c.log.gz"]


PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    ".lz4": lambda data: bytes(cramjam.lz4.compress(data)),
}


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_files_are_unpacked(collecting: Collecting, ending: str) -> None:
    lines = [b"line %d" % number for number in range(1000)]
    # In two pieces one after the other, as `cat a.gz b.gz` makes it.
    packed = b"".join(
        PACKERS[ending](b"".join(line + b"\n" for line in some))
        for some in (lines[:400], lines[400:])
    )
    collecting.write(f"a.log{ending}", packed)
    collecting.once(f"a.log{ending}")
    assert collecting.values() == lines
    collecting.once(f"a.log{ending}")  # it was sent, and stays so
    assert collecting.values() == lines
    assert collecting.notes == []


@pytest.mark.parametrize("ending", PACKERS)
def test_a_compressed_file_that_is_cut_off(collecting: Collecting, ending: str) -> None:
    """What can be read of it is sent, once, and it is told that there was more."""
    # Blocks of random letters: nothing is left of them when the stream is cut.
    lines = [random.Random(number).randbytes(100).hex().encode() for number in range(8000)]
    whole = PACKERS[ending](b"".join(line + b"\n" for line in lines))
    name = f"a.log{ending}"
    collecting.write(name, whole[: len(whole) * 3 // 4])
    for _ in range(2):
        with pytest.raises(Incomplete, match=r"^1 file was not sent in full$"):
            collecting.once(name)
        sent = collecting.values()
        assert 0 < len(sent) < len(lines)
        assert sent == lines[: len(sent)]
    assert collecting.notes[0].endswith("what is before that is sent")
    assert f"{name} is damaged: it cannot be unpacked: " in collecting.notes[0]
    with (collecting.folder / name).open("r+b") as file:
        file.write(whole)  # what a copy looks like that was not done yet
    collecting.once(name)
    assert collecting.values() == lines


def test_all_that_can_be_unpacked_is_sent(collecting: Collecting) -> None:
    lines = [b"line %d" % number for number in range(10_000)]
    whole = gzip.compress(b"".join(line + b"\n" for line in lines))
    collecting.write("a.gz", whole[:-8])  # the end of the lines, without the sum that follows
    with pytest.raises(Incomplete):
        collecting.once("a.gz")
    assert collecting.values() == lines


def test_a_compressed_file_that_is_still_written(collecting: Collecting) -> None:
    lines = [random.Random(number).randbytes(100).hex().encode() for number in range(5000)]
    whole = gzip.compress(b"".join(line + b"\n" for line in lines))
    collecting.write("a.gz", whole[:-1000])
    with collecting.following("a.gz"):
        wait_until(lambda: bool(collecting.values()))
        collecting.write("a.gz", whole[-1000:])
        wait_until(lambda: len(collecting.values()) >= len(lines))
    assert collecting.values() == lines


def test_files_that_are_left_out_are_told(collecting: Collecting) -> None:
    collecting.write("a.log", b"line\n")
    collecting.write("b.zip", b"PK\x03\x04rest")
    with pytest.raises(Incomplete, match="1 file was not sent in full"):
        collecting.once("a.log", "b.zip")
    assert collecting.values() == [b"line"]
    assert any("b.zip is left out: it is a zip archive" in note for note in collecting.notes)


def test_a_file_renamed_while_nobody_looked(collecting: Collecting) -> None:
    collecting.write("a.log", b"1\n2\n")
    collecting.once("a.log")
    collecting.write("a.log", b"3\n")
    (collecting.folder / "a.log").rename(collecting.folder / "a.log.1")
    collecting.write("a.log", b"4\n")
    collecting.once("a.log")
    # Not found by the pattern, and yet read on; the order of its lines is kept.
    assert collecting.values() == [b"1", b"2", b"3", b"4"]
    keys = {row["key"] for row in collecting.rows("key")}
    assert keys == {os.fsencode(collecting.folder / "a.log")}


def test_a_file_that_vanished_while_nobody_looked_is_named(collecting: Collecting) -> None:
    path = collecting.write("a.log", b"1\n")
    collecting.once("a.log")
    path.unlink()
    collecting.write("b.log", b"2\n")
    collecting.once(".")  # another pattern: not asked for any more
    assert not any("gone" in note for note in collecting.notes)
    collecting.once("*.log")
    collecting.write("b.log", b"3\n")
    (collecting.folder / "b.log").unlink()
    collecting.write("c.log", b"4\n")
    collecting.once("*.log")
    assert any("b.log" in note and "gone" in note for note in collecting.notes)
    assert collecting.values() == [b"1", b"2", b"4"]


@pytest.mark.parametrize("content", [b"new\n", b"newer and longer than what was there before\n"])
def test_a_file_written_anew_is_read_from_its_start(collecting: Collecting, content: bytes) -> None:
    path = collecting.write("a.log", b"first\nsecond\n")
    collecting.once("a.log")
    inode = path.stat().st_ino
    path.write_bytes(content)
    assert path.stat().st_ino == inode
    collecting.once("a.log")
    assert collecting.values() == [b"first", b"second", content.rstrip()]


@pytest.mark.parametrize("more", [b"", b"4\n", b"a line that is longer than all before\n"])
def test_copied_and_emptied_while_nobody_looked(collecting: Collecting, more: bytes) -> None:
    path = collecting.write("a.log", b"line 1\nline 2\n")
    collecting.once("a.log*")
    collecting.write("a.log", b"line 3\n")
    shutil.copy(path, collecting.folder / "a.log.1")
    os.truncate(path, 0)
    collecting.write("a.log", more)
    collecting.once("a.log*")
    collecting.once("a.log*")
    wanted = [b"line 1", b"line 2", b"line 3", *more.splitlines()]
    assert sorted(collecting.values()) == sorted(wanted)


def test_copied_and_emptied_while_somebody_looks(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FIND_EVERY", 0.0)
    path = collecting.write("a.log", b"1 is the first line\n")
    with collecting.following("a.log*"):
        collecting.await_values([b"1 is the first line"])
        shutil.copy(path, collecting.folder / "a.log.1")
        collecting.write("b.log", b"")
        collecting.write("a.log", b"2\n")
        # Sent from the original; the copy does not have it.
        collecting.await_values([b"1 is the first line", b"2"])
        os.truncate(path, 0)
        collecting.write("a.log", b"3\n")
        collecting.await_values([b"1 is the first line", b"2", b"3"])
    collecting.once("a.log*")
    assert len(collecting.values()) == 3


def test_files_that_only_look_alike_are_all_read(collecting: Collecting) -> None:
    collecting.write("a.log", b"same\nsame\n")
    collecting.once("*")
    collecting.write("b.log", b"same\nsame\n")  # not named after the other
    collecting.write("a.log.err", b"same\nsame\nbut longer\n")  # no copy has more than its original
    collecting.once("*")
    assert sorted(collecting.values()) == sorted([b"same"] * 6 + [b"but longer"])


def test_a_file_that_is_deleted_is_read_to_its_end(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LET_GO_AFTER", 0.2)
    path = collecting.write("a.log", b"1\n")
    with collecting.following("*"):
        collecting.await_values([b"1"])
        with path.open("ab") as writer:
            path.unlink()
            writer.write(b"2\nunfinished")
            writer.flush()
            collecting.await_values([b"1", b"2", b"unfinished"])
    collecting.notes.clear()
    collecting.write("b.log", b"")
    collecting.once("*")
    assert not collecting.notes  # its position was forgotten


def test_new_files_are_found_and_a_predecessor_goes_first(collecting: Collecting) -> None:
    with collecting.following("a.log"):
        wait_until(lambda: any("not there yet" in note for note in collecting.notes))
        path = collecting.write("a.log", b"1\n")
        collecting.await_values([b"1"])
        collecting.write("a.log", b"2\n")
        path.rename(path.with_suffix(".1"))
        path.write_bytes(b"3\n")
        collecting.await_values([b"1", b"2", b"3"])
        with path.with_suffix(".1").open("ab") as late:  # a writer that has not reopened its file
            late.write(b"late\n")
        collecting.await_values([b"1", b"2", b"3", b"late"])


def test_files_that_wait_are_read_in_turn(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many others are followed in which nothing happens."""
    take_a_line_of_each_file(collecting, monkeypatch, at_once=2)
    for number in range(20):
        collecting.write(f"quiet-{number}.log", b"")
    names = [b"a", b"b", b"c"]
    for name in names:
        collecting.write(f"{name.decode()}.log", long_lines(*[name] * 8))
    for number in range(20, 40):
        collecting.write(f"quiet-{number}.log", b"")
    collecting.once("*.log")
    order = [value.split()[0] for value in collecting.values()]
    assert len(order) == 24
    for end in range(len(order)):
        counts = [order[:end].count(name) for name in names]
        assert max(counts) - min(counts) <= 1, order


def test_a_new_file_follows_the_one_that_a_later_start_found_by_its_name(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not one that had been renamed before that start."""
    path = collecting.write("a.log", b"1\n")
    collecting.once("a.log")
    path.rename(path.with_suffix(".1"))
    collecting.write("a.log", b"2\n")
    collecting.once("a.log")
    take_a_line_of_each_file(collecting, monkeypatch, at_once=1)
    monkeypatch.setattr(following, "FIND_EVERY", 0.0)
    collecting.write("a.log", long_lines(b"3", b"4", b"5"))

    def rotate_once(*_: int) -> None:
        if not path.with_suffix(".2").exists():
            path.rename(path.with_suffix(".2"))
            collecting.write("a.log", long_lines(b"6", b"7"))

    collecting.once("a.log", sent=rotate_once)
    order = [value.split()[0] for value in collecting.values()]
    assert order == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


def long_lines(*names: bytes) -> bytes:
    return b"".join(name + b" " + b"x" * 20_000 + b"\n" for name in names)


def take_a_line_of_each_file(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch, *, at_once: int
) -> None:
    """A round has one long line of each file, and of so many files."""
    with Admin(collecting.bootstrap) as admin:
        topic = Resource.topic(collecting.topic)
        admin.alter_configs(topic, assign={"max.message.bytes": "30000"})
    monkeypatch.setattr(collector, "PIECE", 1)  # as much as the longest line may have
    monkeypatch.setattr(collector, "ROUND", at_once * 20_000)


def test_from_the_end_means_the_first_start_only(collecting: Collecting) -> None:
    collecting.write("a.log", b"old\nbegun")
    collecting.once("*.log", from_end=True)
    assert collecting.values() == []
    collecting.write("a.log", b" and ended\n")
    collecting.write("b.log", b"new\n")  # came while nobody looked
    collecting.once("*.log", from_end=True)
    assert sorted(collecting.values()) == [b"begun and ended", b"new"]


def test_a_line_without_newline_is_sent_if_that_is_wanted(collecting: Collecting) -> None:
    collecting.write("a.log", b"one\ntwo")
    collecting.once("a.log", unfinished=True)
    collecting.write("a.log", b"three\n")
    collecting.once("a.log", unfinished=True)
    assert collecting.values() == [b"one", b"two", b"three"]


def test_lines_longer_than_the_topic_takes_are_cut(collecting: Collecting) -> None:
    with Admin(collecting.bootstrap) as admin:
        topic = Resource.topic(collecting.topic)
        admin.alter_configs(topic, assign={"max.message.bytes": "30000"})
    long = os.urandom(50_000).replace(b"\n", b"_")
    collecting.write("a.log", b"short\n" + long[:40_000])
    collecting.once("a.log")
    collecting.write("a.log", long[40_000:] + b"\nshort again\n")
    collecting.once("a.log")
    rows = collecting.rows("value", "headers")
    assert (rows[0]["value"], rows[-1]["value"]) == (b"short", b"short again")
    assert b"".join(row["value"] for row in rows[1:-1]) == long
    marks = [{pair["key"]: pair["value"] for pair in row["headers"]} for row in rows]
    assert [mark.get(PART_HEADER) for mark in marks] == [
        None,
        *(b"%d" % part for part in range(1, len(rows) - 1)),
        None,
    ]
    assert [END_HEADER in mark for mark in marks] == [False] * (len(rows) - 2) + [True, False]


def test_the_last_of_one_name_collects(collecting: Collecting) -> None:
    path = collecting.write("a.log", b"1\n")
    stop = threading.Event()
    ended: list[BaseException] = []

    def run() -> None:
        try:
            collecting.collector("a.log").run(stop)
        except NameTaken as taken:
            ended.append(taken)

    first = threading.Thread(target=run, daemon=True)
    first.start()
    collecting.await_values([b"1"])
    lines = [b"1"]
    with collecting.following("a.log"):
        # Whoever is no longer the last learns of it with the next line that it sends, not before.
        while first.is_alive():
            lines.append(b"%d" % (len(lines) + 1))
            with path.open("ab") as writer:
                writer.write(lines[-1] + b"\n")
            collecting.await_values(lines)
        assert ended
        collecting.await_values(lines)


def test_what_cannot_be_collected_is_refused(collecting: Collecting) -> None:
    with pytest.raises(Unreadable, match="no file"):
        collecting.once("none.log")
    os.mkfifo(collecting.folder / "pipe")
    with pytest.raises(Unreadable, match="neither a file nor a folder"):
        collecting.once("pipe")
    collecting.write("a.log", b"1\n")
    collecting.topic = "no-such-topic"
    with pytest.raises(TopicNotFound):
        collecting.once("a.log")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read(collecting: Collecting) -> None:
    collecting.write("secret.log", b"1\n").chmod(0)
    with pytest.raises(Unreadable, match="may not be read"):
        collecting.once("secret.log")
    collecting.write("a.log", b"2\n")
    collecting.once("*.log")
    assert collecting.values() == [b"2"]
    assert any("secret.log is left out" in note for note in collecting.notes)
