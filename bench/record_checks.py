"""What it costs to look at the records of a produced batch: `python -m bench.record_checks`.

Both walks, in plain Python and compiled, over batches of several shapes, and the whole check of
compressed ones with the decompression in it; beside each the check of header and checksum, which every
batch has had. Processor time of the best of many rounds, so that other work on the machine does little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from bench.harness.batch import Shape, record_batch
from ottla.record.batch import BASE_TIMESTAMP, check_produced
from ottla.record.compression.codecs import Codec
from ottla.record.validation import plain_walk
from ottla.record.validation.checking import Rules, check_records
from ottla.record.validation.readiness import readiness

SHAPES = (
    Shape(1, 100),
    Shape(2, 100),
    Shape(10, 100),
    Shape(100, 100),
    Shape(64, 1000),
    Shape(1000, 100),
    Shape(10_000, 100),
)
ROUNDS = 30
RECORDS_IN_A_ROUND = 4000


def microseconds(work: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(times):
            work()
        best = min(best, time.process_time() - started)
    return best / times * 1e6


def main() -> None:
    started = time.perf_counter()
    compiled = readiness.load()
    if compiled is None:
        raise SystemExit("there is no compiled walk here")
    print(f"compiled walk there after {(time.perf_counter() - started) * 1e3:.1f} ms")
    rules = Rules(False, True, 2**63 - 1, 3_600_000)
    now = int(time.time() * 1000)
    print(
        f"{'batch':>18} {'header, CRC':>12} {'plain':>10} {'compiled':>10}   µs a call (ns a record)"
    )
    for shape in SHAPES:
        view = memoryview(bytearray(record_batch(shape)))
        fields = check_produced(view)
        count, base = shape.records, fields[BASE_TIMESTAMP]
        times = max(3, RECORDS_IN_A_ROUND // count)
        header = microseconds(partial(check_produced, view), times)
        where = (view, 61, count, base, rules, now)
        plain = microseconds(partial(plain_walk.walk, *where), times)
        quick = microseconds(partial(compiled.largest_time, *where), times)
        print(
            f"{shape!s:>18} {header:12.2f} {plain:10.2f} {quick:10.2f}"
            f"   ({plain * 1e3 / count:.0f} / {quick * 1e3 / count:.0f})"
        )
    for codec in Codec:
        shape = Shape(64, 1000, codec)
        view = memoryview(bytearray(record_batch(shape)))
        fields = check_produced(view)
        times = RECORDS_IN_A_ROUND // shape.records
        whole = microseconds(partial(check_records, view, fields, rules, now), times)
        print(f"{shape!s:>18} {len(view):8} bytes, the whole check {whole:8.1f} µs")


if __name__ == "__main__":
    main()
