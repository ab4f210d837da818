"""`ottla log dump` and `ottla log verify` over files made here, sound and damaged."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from typer.testing import Result

from ottla.record.batch import HEADER_SIZE, Record, build_batch
from ottla.record.compression.codecs import Codec
from ottla.record.control import build_end_of_transaction
from ottla.record.legacy import build_message_set
from ottla.storage.checkpoints import write_offsets, write_partition_metadata
from ottla.storage.index.offset_index import OffsetIndex
from ottla.storage.index.time_index import TimeIndex
from ottla.storage.index.transaction_index import TransactionIndex
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.producer_state import ProducerStates

Run = Callable[..., Result]

START = 1_794_733_200_000
FIRST = "00000000000000000000"
SECOND = "00000000000000000020"
BATCH_RECORDS = 5


def _batch(base_offset: int, codec: Codec) -> bytes:
    records = [
        Record(offset, START + offset, b"key", b"value %d" % offset, (("h", b"\xff"),))
        for offset in range(base_offset, base_offset + BATCH_RECORDS)
    ]
    return build_batch(records, base_offset=base_offset, codec=codec, leader_epoch=0)


def _write_segment(folder: Path, base_offset: int, codecs: list[Codec]) -> list[int]:
    """A segment of one batch for each codec with its indexes; the positions of the batches."""
    stem = folder / f"{base_offset:020d}"
    offsets = OffsetIndex(f"{stem}.index", base_offset, 4096, fresh=True)
    times = TimeIndex(f"{stem}.timeindex", base_offset, 4096, fresh=True)
    data = b""
    positions = []
    for number, codec in enumerate(codecs):
        first = base_offset + number * BATCH_RECORDS
        last = first + BATCH_RECORDS - 1
        positions.append(len(data))
        if number:
            offsets.append(last, len(data))
        times.append(START + last, last)
        data += _batch(first, codec)
    stem.with_suffix(".log").write_bytes(data)
    offsets.write()
    times.write()
    return positions


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    """Two partitions: orders-0 with two segments (offsets 0 to 29), empty-3 with nothing in it."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    _write_segment(folder, 0, [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
    _write_segment(folder, 20, [Codec.SNAPPY, Codec.NONE])
    aborted = TransactionIndex(str(folder / f"{SECOND}.txnindex"), 20, 4096, fresh=True)
    aborted.append(7, 21, 24, 25)
    aborted.write()
    epochs = LeaderEpochs(str(folder / "leader-epoch-checkpoint"))
    epochs.assign(0, 0)
    epochs.write()
    states = ProducerStates(str(folder))
    (folder / f"{SECOND}.snapshot").write_bytes(states.encode())
    for name in ("orders-0", "empty-3"):
        (tmp_path / name).mkdir(exist_ok=True)
        write_partition_metadata(str(tmp_path / name / "partition.metadata"), bytes(range(16)))
    write_offsets(str(tmp_path / "recovery-point-offset-checkpoint"), {("orders", 0): 20})
    return tmp_path


def test_sound_files(offline: Run, data_folder: Path) -> None:
    result = offline("log", "verify", data_folder)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"orders-0: sound, offsets 0-29, 2 segments, 6 batches, 30 records, {_size(data_folder)} B",
        "2 logs checked, 1 of them empty",
    ]
    verdict = json.loads(offline("log", "verify", data_folder, "--deep", "--json").stdout)
    assert verdict["sound"] is True
    assert [log["log"] for log in verdict["logs"]] == ["empty-3", "orders-0"]
    assert verdict["logs"][1]["records"] == 30
    assert offline("log", "verify", data_folder / "orders-0").exit_code == 0
    assert offline("log", "verify", data_folder / "orders-0" / f"{FIRST}.log").exit_code == 0
    assert offline("log", "verify", data_folder / "empty-3").exit_code == 0


def _size(data_folder: Path) -> int:
    return sum(path.stat().st_size for path in data_folder.glob("orders-0/*.log"))


def _change(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    at = at if at >= 0 else len(content) + at
    content[at : at + len(data)] = data
    path.write_bytes(content)


def _flip(name: str, at: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        content = path.read_bytes()
        _change(path, at, bytes((content[at] ^ 0x01,)))

    return damage


def _replace(name: str, at: int, data: bytes) -> Callable[[Path], None]:
    return lambda folder: _change(folder / name, at, data)


def _cut(name: str, left_off: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-left_off])

    return damage


def _repeat_last_batch(folder: Path) -> None:
    path = folder / f"{SECOND}.log"
    path.write_bytes(path.read_bytes() + _batch(25, Codec.NONE))


def _overlap(folder: Path) -> None:
    path = folder / f"{FIRST}.log"
    path.write_bytes(path.read_bytes() + _batch(20, Codec.NONE))


def _below_name(folder: Path) -> None:
    (folder / f"{SECOND}.log").rename(folder / "00000000000000000022.log")
    for suffix in (".index", ".timeindex", ".txnindex"):
        (folder / f"{SECOND}{suffix}").unlink()


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (_flip(f"{FIRST}.log", -1), f"{FIRST}.log", "CRC32C does not match"),
        (_flip(f"{FIRST}.log", 70), f"{FIRST}.log", "CRC32C does not match"),
        (_replace(f"{FIRST}.log", 8, b"\x7f\0\0\0"), f"{FIRST}.log", "bytes are unreadable"),
        (_replace(f"{FIRST}.log", 16, b"\x09"), f"{FIRST}.log", "magic is 9"),
        (_cut(f"{SECOND}.log", 3), f"{SECOND}.log", "bytes are unreadable"),
        (_repeat_last_batch, f"{SECOND}.log", "batch begins at offset 25, before 30"),
        (_overlap, f"{FIRST}.log", "the next segment begins at 20"),
        (_below_name, "00000000000000000022.log", "batch begins at offset 20, before 22"),
        (_replace(f"{FIRST}.index", 4, b"\0\0\0\x07"), f"{FIRST}.index", "no batch begins at"),
        (_replace(f"{FIRST}.index", 0, b"\0\0\0\x02"), f"{FIRST}.index", "offset 2 is not in"),
        (_replace(f"{FIRST}.index", 8, b"\0\0\0\x01"), f"{FIRST}.index", "does not come after"),
        (_cut(f"{FIRST}.index", 3), f"{FIRST}.index", "no whole number of entries"),
        (
            _replace(f"{FIRST}.timeindex", 0, struct.pack(">q", START + 1000)),
            f"{FIRST}.timeindex",
            "does not come after",
        ),
        (
            _replace(f"{FIRST}.timeindex", 0, struct.pack(">q", START - 1000)),
            f"{FIRST}.timeindex",
            "a batch before it has time",
        ),
        (
            _replace(f"{FIRST}.timeindex", -4, struct.pack(">i", 77)),
            f"{FIRST}.timeindex",
            "offset 77 is not in the segment",
        ),
        (
            _replace(f"{SECOND}.txnindex", 18, struct.pack(">q", 500)),
            f"{SECOND}.txnindex",
            "its marker 500 is not here",
        ),
        (_flip(f"{SECOND}.txnindex", 0), f"{SECOND}.txnindex", "version"),
        (_flip(f"{SECOND}.snapshot", -1), f"{SECOND}.snapshot", "CRC32C does not match"),
        (lambda folder: (folder / f"{FIRST}.index").unlink(), f"{FIRST}.index", "missing"),
        (lambda folder: (folder / f"{FIRST}.timeindex").unlink(), f"{FIRST}.timeindex", "missing"),
        (
            lambda folder: (folder / "leader-epoch-checkpoint").write_text("0\n5\n0 0\n"),
            "leader-epoch-checkpoint",
            "",
        ),
        (
            lambda folder: (folder / "partition.metadata").write_text("version: 0\n"),
            "partition.metadata",
            "",
        ),
    ],
)
def test_damage_is_found(
    offline: Run,
    data_folder: Path,
    damage: Callable[[Path], Any],
    file: str,
    message: str,
) -> None:
    damage(data_folder / "orders-0")
    result = offline("log", "verify", data_folder, "--json")
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    assert verdict["sound"] is False
    problems = verdict["logs"][1]["problems"]
    assert any(problem["file"] == file and message in problem["message"] for problem in problems), (
        problems
    )
    text = offline("log", "verify", data_folder)
    assert text.exit_code == 1
    assert "orders-0: damaged" in text.stdout
    assert file in text.stdout
    assert f"found in {data_folder}" in text.stderr


def test_a_checkpoint_beyond_the_end(offline: Run, data_folder: Path) -> None:
    checkpoint = data_folder / "recovery-point-offset-checkpoint"
    write_offsets(str(checkpoint), {("orders", 0): 31})
    result = offline("log", "verify", data_folder)
    assert result.exit_code == 1
    assert "recovery-point-offset-checkpoint: orders-0 ends at 30, not beyond 31" in result.stdout
    checkpoint.write_text("what?\n")
    assert offline("log", "verify", data_folder).exit_code == 1


def test_only_deep_looks_at_records(offline: Run, tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    folder.mkdir()
    batch = bytearray(_batch(0, Codec.NONE))
    batch[HEADER_SIZE] ^= 0x40  # the first record's length; the checksum is made to fit
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    (folder / f"{FIRST}.log").write_bytes(batch)
    assert offline("log", "verify", folder).exit_code == 0
    assert offline("log", "verify", folder, "--deep").exit_code == 1
    assert offline("log", "dump", folder, "--records").exit_code == 1


def test_zeros_at_the_end_are_not_damage(offline: Run, data_folder: Path) -> None:
    folder = data_folder / "orders-0"
    for name in (f"{SECOND}.log", f"{SECOND}.index", f"{SECOND}.timeindex"):
        path = folder / name
        path.write_bytes(path.read_bytes() + bytes(24 * 1000))
    result = offline("log", "verify", data_folder)
    assert result.exit_code == 0, result.output


def _dumped(offline: Run, *words: Any) -> list[dict[str, Any]]:
    result = offline("log", "dump", *words, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_dump_batches(offline: Run, data_folder: Path) -> None:
    batches = _dumped(offline, data_folder)
    assert [(each["base_offset"], each["last_offset"]) for each in batches] == [
        (first, first + 4) for first in range(0, 30, 5)
    ]
    assert [each["codec"] for each in batches] == ["none", "gzip", "lz4", "zstd", "snappy", "none"]
    assert {each["log"] for each in batches} == {"orders-0"}
    assert batches[0]["max_timestamp"] == START + 4
    assert batches[4]["file"] == f"{SECOND}.log"
    text = offline("log", "dump", data_folder / "orders-0", "--from", 20).stdout.splitlines()
    assert text[-2].startswith("  position 0: offsets 20-24, 5 records, ")
    assert "format v2, snappy, epoch 0, 2026-11-15T09:00:00.024Z" in text[-2]


def test_dump_records(offline: Run, data_folder: Path) -> None:
    records = _dumped(offline, data_folder, "--records")
    assert [each["offset"] for each in records] == list(range(30))
    assert records[7]["value"] == "value 7"
    assert records[7]["headers"] == [{"key": "h", "value_base64": "/w=="}]
    some = _dumped(offline, data_folder, "--records", "--from", 13, "--count", 3)
    assert [each["offset"] for each in some] == [13, 14, 15]
    text = offline("log", "dump", data_folder, "-r", "-o", 29).stdout
    assert '29 2026-11-15T09:00:00.029Z key="key" value="value 29" h=0xff' in text


def test_dump_indexes(offline: Run, data_folder: Path) -> None:
    entries = _dumped(offline, data_folder, "--indexes", "--from", 20)
    by_file = {each["file"]: each for each in entries}
    assert by_file[f"{SECOND}.index"]["offset"] == 29
    assert by_file[f"{SECOND}.timeindex"] == {
        "log": "orders-0",
        "file": f"{SECOND}.timeindex",
        "timestamp": START + 29,
        "offset": 29,
    }
    assert by_file[f"{SECOND}.txnindex"]["producer_id"] == 7
    assert "index: offset 29, position" in offline("log", "dump", data_folder, "-i").stdout


def test_dump_shows_damage_and_goes_on(offline: Run, data_folder: Path) -> None:
    _flip(f"{FIRST}.log", 70)(data_folder / "orders-0")
    result = offline("log", "dump", data_folder, "--json")
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == 6
    assert lines[0]["damage"] == "the CRC32C does not match"
    assert lines[1]["damage"] is None
    _cut(f"{SECOND}.log", 3)(data_folder / "orders-0")
    assert "DAMAGED" in offline("log", "dump", data_folder, "-r").stdout.splitlines()[-1]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_old_formats(offline: Run, tmp_path: Path, magic: int, codec: Codec) -> None:
    folder = tmp_path / "old-0"
    folder.mkdir()
    records = [Record(offset, START + offset, b"k", b"v%d" % offset) for offset in range(4)]
    later = [Record(offset, START + offset, None, None) for offset in range(4, 6)]
    (folder / f"{FIRST}.log").write_bytes(
        build_message_set(records, magic, codec) + build_message_set(later, magic)
    )
    assert offline("log", "verify", folder, "--deep").exit_code == 0
    dumped = _dumped(offline, folder, "--records")
    assert [each["offset"] for each in dumped] == list(range(6))
    assert [each["value"] for each in dumped] == ["v0", "v1", "v2", "v3", None, None]
    assert dumped[1]["timestamp"] == (START + 1 if magic else -1)
    assert {each["magic"] for each in _dumped(offline, folder)} == {magic}
    _flip(f"{FIRST}.log", -1)(folder)
    assert offline("log", "verify", folder).exit_code == 1


def test_markers(offline: Run, tmp_path: Path) -> None:
    folder = tmp_path / "tx-0"
    folder.mkdir()
    markers = [
        build_end_of_transaction(
            committed=committed,
            producer_id=5,
            producer_epoch=1,
            coordinator_epoch=2,
            timestamp=START,
            base_offset=offset,
        )
        for offset, committed in enumerate((True, False))
    ]
    (folder / f"{FIRST}.log").write_bytes(b"".join(markers))
    assert [each["control"] for each in _dumped(offline, folder, "-r")] == ["commit", "abort"]
    assert [each["control"] for each in _dumped(offline, folder)] == [True, True]
    assert "control: abort" in offline("log", "dump", folder, "-r").stdout


def test_scrub_reads_closed_segments(offline: Run, data_folder: Path) -> None:
    sound = offline("log", "scrub", data_folder)
    assert sound.exit_code == 0
    assert "1 closed segment read" in sound.stdout
    first = data_folder / "orders-0" / f"{FIRST}.log"
    second = data_folder / "orders-0" / f"{SECOND}.log"
    # A flipped byte in what takes appends is recovery's business.
    _flip_byte(second, HEADER_SIZE + 3)
    assert offline("log", "scrub", data_folder).exit_code == 0
    _flip_byte(first, HEADER_SIZE + 3)
    damaged = offline("log", "scrub", data_folder, "--rate", "1000", "--json")
    assert damaged.exit_code == 1
    document = json.loads(damaged.stdout)
    assert document["sound"] is False
    assert document["damage"] == [
        {
            "log": "orders-0",
            "file": first.name,
            "position": 0,
            "offset": 0,
            "reason": "the CRC32C does not match",
        }
    ]
    told = offline("log", "scrub", data_folder)
    assert told.exit_code == 1
    assert f"orders-0/{first.name} at 0: offset 0, the CRC32C does not match" in told.stdout


def test_scrub_leaves_word_for_the_broker_that_is_started_next(
    offline: Run, data_folder: Path
) -> None:
    (data_folder / "meta.properties").write_text("version=1\n")
    log = data_folder / "orders-0" / f"{FIRST}.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    before = sorted(path.name for path in (data_folder / "orders-0").iterdir())
    assert offline("log", "scrub", data_folder / "orders-0").exit_code == 1
    assert (data_folder / ".damaged-logs").read_text() == "orders-0\n"
    assert sorted(path.name for path in (data_folder / "orders-0").iterdir()) == before


def test_scrub_names_a_missing_segment(offline: Run, data_folder: Path) -> None:
    folder = data_folder / "orders-0"
    _write_segment(folder, 40, [Codec.NONE])
    result = offline("log", "scrub", data_folder)
    assert result.exit_code == 1
    assert "no segment holds the offsets 30 to 39" in result.stdout


def _flip_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x5A
    path.write_bytes(data)


def test_nothing_to_look_at(offline: Run, tmp_path: Path) -> None:
    for command in ("dump", "verify"):
        result = offline("log", command, tmp_path / "absent")
        assert result.exit_code == 1
        assert "there is no " in result.stderr
        result = offline("log", command, tmp_path)
        assert result.exit_code == 1
        assert "holds no logs" in result.stderr
    other = tmp_path / "notes.txt"
    other.write_text("x")
    assert "is no segment" in offline("log", "dump", other).stderr
