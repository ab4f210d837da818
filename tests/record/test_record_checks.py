"""What is inside of a produced batch: Kafka's answers to crafted batches, and the two walks beside each
other."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from record_kit.crafted_batches import CASES, HOUR, Codec, batch, build, crafted, good, record
from record_kit.guarded import Guarded
from record_kit.kafkas_answers import expected, kafkas_answers

from ottla.record.batch import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    CODEC_MASK,
    HEADER_SIZE,
    RECORD_COUNT,
    Record,
    build_batch,
    check_produced,
    read_header_fields,
    records,
)
from ottla.record.compression.codecs import compress, decompress
from ottla.record.errors import (
    InvalidBatch,
    InvalidRecord,
    InvalidRecords,
    InvalidTimestamps,
    TooLarge,
    WrongTimestampType,
)
from ottla.record.validation import checking, plain_walk
from ottla.record.validation.checking import check_records
from ottla.record.validation.findings import (
    MISFIT_BITS,
    MOST_MISFITS,
    NUMBERS,
    Fault,
    Misfit,
    Rules,
    Walked,
)
from ottla.record.validation.machine_code import CompiledWalk
from ottla.record.validation.readiness import Readiness, readiness

KAFKA = kafkas_answers()
# Of the server's own, where it comes before the records or after them.
ELSEWHERE = {"transactional_without_producer", "two_batches", "magic_3", "batch_length_one_more"}


@pytest.fixture(scope="module")
def compiled() -> CompiledWalk:
    found = readiness.load()
    assert found is not None
    return found


@pytest.fixture(params=["plain", "compiled", "thread"])
def check(
    request: pytest.FixtureRequest, compiled: CompiledWalk, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """`check_records` by each of its ways."""
    if request.param == "plain":
        monkeypatch.setattr(readiness, "compiled", None)
        return check_records
    if request.param == "compiled":
        return check_records
    return lambda *arguments: check_records(*arguments, in_thread=True)


NOW = 1_700_000_000_000


def rules_of(topic: str) -> Rules:
    narrow = topic == "narrow_times"
    return Rules(
        keys_required=topic == "compacted",
        checks_times=topic != "append_time",
        before_max_ms=HOUR if narrow else 2**63 - 1,
        after_max_ms=HOUR,
    )


def judged(check: Callable[..., int], crafted: bytes, rules: Rules, now: int) -> dict[str, Any]:
    view = memoryview(bytearray(crafted))
    try:
        check(view, check_produced(view), rules, now)
    except WrongTimestampType:
        return {"error": "INVALID_TIMESTAMP"}
    except InvalidTimestamps as error:
        return {"error": "INVALID_TIMESTAMP", "records": [index for index, _ in error.records]}
    except InvalidRecords as error:
        return {"error": "INVALID_RECORD", "records": [index for index, _ in error.records]}
    except InvalidBatch as error:
        return {
            "error": "INVALID_RECORD" if isinstance(error, InvalidRecord) else "CORRUPT_MESSAGE"
        }
    return {"error": "NONE"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
def test_crafted_batches_get_kafkas_answer(name: str, check: Callable[..., int]) -> None:
    now = time.time_ns() // 1_000_000
    wrong = []
    for place in crafted():
        if place[0] != name:
            continue
        _, codec, topic = place
        wanted = expected(place, KAFKA[place])
        answer = judged(check, build(name, codec, now), rules_of(topic), now)
        if answer != {key: wanted[key] for key in wanted if key != "stored"}:
            wrong.append((codec.name, topic, answer, wanted))
    assert not wrong


def test_every_crafted_batch_was_shown_to_kafka() -> None:
    assert set(KAFKA) == set(crafted())


# The two walks beside each other -----------------------------------------------------------------


def interpreted_walk(
    data: bytes, at: int, count: int, base_timestamp: int, rules: Rules, now: int
) -> Walked:
    """The kernel as it stands, not compiled, with its accesses checked."""
    import numpy as np

    from ottla.record.validation import kernel

    told = [at, len(data), count, base_timestamp, now, *rules, MOST_MISFITS]
    numbers = [np.int64(number) for number in told] + [np.int64(0)] * (NUMBERS - len(told))
    misfits: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # times wrap
        kernel.walk(Guarded(data), numbers, misfits)
    fault, place, max_timestamp, misfit_count = (int(number) for number in numbers[10:14])
    named = [divmod(int(each), 1 << MISFIT_BITS) for each in misfits.values()]
    return Walked(fault, place, max_timestamp, named, misfit_count)


def payloads() -> Iterator[tuple[str, bytes, int, int]]:
    """The records of all crafted batches, as far as they can be unpacked: name, bytes, count, time."""
    for name in CASES:
        for codec in CASES[name].codecs:
            crafted = build(name, codec, NOW)
            fields = read_header_fields(crafted)
            if fields[ATTRIBUTES] & CODEC_MASK != codec or (
                codec and codec != CASES[name].codecs[0]
            ):
                continue
            try:
                data = decompress(codec, crafted[HEADER_SIZE:], 1 << 20)
            except InvalidBatch:
                continue
            yield name, data, fields[RECORD_COUNT], fields[BASE_TIMESTAMP]


def changed(data: bytes, randomness: random.Random) -> bytes:
    """Some bytes other than they were, cut or added."""
    copy = bytearray(data)
    for _ in range(randomness.choice((1, 1, 2, 5))):
        match randomness.randrange(4):
            case 0 if copy:
                del copy[randomness.randrange(len(copy))]
            case 1:
                copy.insert(randomness.randint(0, len(copy)), randomness.randrange(256))
            case _ if copy:
                at = randomness.randrange(min(len(copy), 200))
                copy[at] = randomness.choice((0, 1, 2, 0x7F, 0x80, 0xFF, randomness.randrange(256)))
    return bytes(copy)


RULES = [
    Rules(),
    Rules(True, True, HOUR, HOUR),
    Rules(False, True, 2**63 - 1, HOUR),
]


@pytest.mark.parametrize("seed", range(8))
def test_both_walks_find_the_same(compiled: CompiledWalk, seed: int) -> None:
    randomness = random.Random(seed)
    for name, data, count, base_timestamp in payloads():
        for attempt in range(1 if len(data) > 10_000 else 12):
            tried = data if attempt == 0 else changed(data, randomness)
            rules = randomness.choice(RULES)
            arguments = (tried, 0, count, base_timestamp, rules, NOW)
            walked = plain_walk.walk(*arguments)
            assert compiled.walk(*arguments) == walked, (name, tried)
            writable = memoryview(bytearray(b"before" + tried))
            assert compiled.walk(writable, 6, *arguments[2:]) == walked, (name, tried)
            if len(tried) < 1000:
                assert interpreted_walk(*arguments) == walked, (name, tried)
            if not walked.fault:
                assert_readable(tried, count)


def assert_readable(data: bytes, count: int) -> None:
    """What passes the walk is read by the reader, and the other way round."""
    whole = batch([data], 0, count=count)
    assert [each.offset for each in records(whole)] == list(range(count))


def test_many_misfits_are_all_named_up_to_a_limit(compiled: CompiledWalk) -> None:
    keyless = b"".join(record(index, key=None) for index in range(MOST_MISFITS + 5))
    for count in (1, 64, 65, MOST_MISFITS, MOST_MISFITS + 5):
        data = keyless[: sum(len(record(index, key=None)) for index in range(count))]
        walked = compiled.walk(data, 0, count, 0, Rules(keys_required=True), NOW)
        assert walked == plain_walk.walk(data, 0, count, 0, Rules(keys_required=True), NOW)
        assert walked.misfit_count == count
        named = min(count, MOST_MISFITS)
        assert walked.misfits == [(index, Misfit.NO_KEY) for index in range(named)]


def test_errors_name_records_and_reasons(check: Callable[..., int]) -> None:
    mixed = [record(0), record(1, key=None), record(2, -2 * HOUR), record(3)]
    view = memoryview(bytearray(batch(mixed, NOW)))
    fields = check_produced(view)
    with pytest.raises(InvalidRecords, match="1 records may not") as keyless:
        check(view, fields, Rules(keys_required=True), NOW)
    assert [index for index, _ in keyless.value.records] == [1]
    with pytest.raises(InvalidTimestamps) as both:
        check(view, fields, Rules(True, True, HOUR, HOUR), NOW)
    assert [index for index, _ in both.value.records] == [1, 2]
    assert "key" in both.value.records[0][1]
    assert "timestamp" in both.value.records[1][1]
    view = memoryview(bytearray(batch([*good(2), record(2, length=9)], NOW)))
    fields = check_produced(view)
    with pytest.raises(InvalidRecord, match="record 2: its length"):
        check(view, fields, Rules(), NOW)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_record_that_is_too_old_is_refused_wherever_it_stands(
    check: Callable[..., int], codec: Codec
) -> None:
    times = [1000, 400, 2000, -1]
    old = [Record(offset, at, None, b"value") for offset, at in enumerate(times)]
    view = memoryview(bytearray(build_batch(old, codec=codec)))
    fields = check_produced(view)
    assert check(view, fields, Rules(False, True, 600), 1000) == 2000
    with pytest.raises(InvalidTimestamps) as refused:
        check(view, fields, Rules(False, True, 600), 1001)
    assert [index for index, _ in refused.value.records] == [1]


def test_largest_time_is_that_of_the_records(check: Callable[..., int]) -> None:
    view = memoryview(bytearray(batch([record(0, 5), record(1, -3)], 1000, max_timestamp=70_000)))
    assert check(view, check_produced(view), Rules(), NOW) == 1005


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_decompression_is_bounded(check: Callable[..., int], codec: Codec) -> None:
    """A batch of some kilobytes that unfolds to many megabytes takes no memory for that."""
    bomb = build_batch([Record(0, 0, b"key", bytes(4_000_000))], codec=codec)
    assert len(bomb) < 250_000
    view = memoryview(bytearray(bomb))
    assert check(view, check_produced(view), Rules(), NOW, 5_000_000) == 0
    with pytest.raises(TooLarge):
        check(view, check_produced(view), Rules(), NOW, 3_000_000)


def test_garbage_in_a_codec_is_not_worth_sending_again(check: Callable[..., int]) -> None:
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        packed = compress(codec, b"".join(good()))
        garbage = batch(good(), 0, codec, mangle=lambda _, packed=packed: packed[:-3])  # type: ignore[misc]
        view = memoryview(bytearray(garbage))
        with pytest.raises(InvalidRecord):
            check(view, check_produced(view), Rules(), NOW)


def test_threads_do_not_disturb_each_other(compiled: CompiledWalk) -> None:
    """Each has numbers of its own: brokers of one process check at the same time."""
    now = NOW
    views = [memoryview(bytearray(batch(good(1 + index), now + index))) for index in range(4)]
    wrong: list[object] = []

    def check(index: int) -> None:
        view = views[index]
        fields = check_produced(view)
        for _ in range(5000):
            found = check_records(view, fields, Rules(), now, in_thread=index % 2 == 0)
            if found != now + index:
                wrong.append(found)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=check, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


# How the compiled walk comes to a process ------------------------------------------------------------


def test_enough_records_bring_the_compiled_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Readiness()
    monkeypatch.setattr(checking, "readiness", own)
    monkeypatch.setattr("ottla.record.validation.readiness.WORTH_LOADING", 100)
    view = memoryview(bytearray(batch(good(60), 0)))
    fields = check_produced(view)
    check_records(view, fields, Rules(), NOW)
    assert not own._is_asked_for
    check_records(view, fields, Rules(), NOW)
    assert own._is_asked_for
    assert own.load() is own.compiled is not None


def test_no_compiled_walk_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_KERNELS", "off")
    own = Readiness()
    assert own.load() is None


@pytest.mark.long
def test_a_damaged_file_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_CACHE_DIR", str(tmp_path))
    assert Readiness().load() is not None
    (kept,) = (tmp_path / "validation").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-100] + bytes(100))
    found = Readiness().load()
    assert found is not None
    data = b"".join(good())
    assert found.walk(data, 0, 3, 0, Rules(), NOW).fault == Fault.NONE
    assert len(kept.read_bytes()) == len(whole)
    assert kept.read_bytes()[-100:] != bytes(100)


def test_checks_bring_nothing_heavy_into_a_process() -> None:
    """Neither numba nor what it stands on: a broker has 50 MB, they would add 130."""
    program = """
import sys
from ottla.record.batch import Record, build_batch, check_produced
from ottla.record.validation.checking import Rules, check_records
from ottla.record.validation.readiness import readiness
assert "ctypes" not in sys.modules
assert readiness.load() is not None
view = memoryview(bytearray(build_batch([Record(i, 0, b"k", b"v") for i in range(100)])))
check_records(view, check_produced(view), Rules(), 0)
print(*{"numba", "numpy", "llvmlite", "pyarrow"} & set(sys.modules))
"""
    readiness.load()  # so that it is in the cache
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert found.stdout.strip() == ""
