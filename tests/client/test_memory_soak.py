"""Very much is read: the reader's memory stays where it was after the first few batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ottla import Admin, Producer
from ottla.testing import BrokerProcess

READER = Path(__file__).resolve().parent / "soak_kit" / "reading.py"
RECORDS = int(os.environ.get("SOAK_RECORDS", "100_000_000"))
PIECE = 500_000  # records of a table that is written
PARTITIONS = 4
VALUE = 100  # bytes
# Bytes. The first run of 100 million held 773 to 1,012 MiB: this leaves room for another machine.
LIMIT = 1536 << 20


def much() -> pa.Table:
    """Values of 100 bytes that compress well: a number, and filling."""
    filling = b"ottla" * (VALUE // 5)
    content = b"".join(b"%012d" % number + filling[12:] for number in range(PIECE))
    ends = pa.py_buffer(np.arange(0, (PIECE + 1) * VALUE, VALUE, dtype=np.int32).tobytes())
    values = pa.Array.from_buffers(pa.binary(), PIECE, [None, ends, pa.py_buffer(content)])
    partitions = pa.array(np.arange(PIECE, dtype=np.int32) % PARTITIONS)
    return pa.table({"value": values, "partition": partitions})


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_is_bounded_while_very_much_is_read(tmp_path: Path) -> None:
    settings = {"log.retention.ms": "-1", "log.retention.bytes": "-1"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("much", partitions=PARTITIONS)
        options = {"compression.type": "zstd", "batch.size": 1_000_000}
        with Producer(broker.bootstrap, **options) as producer:
            table = much()
            for _ in range(0, RECORDS, PIECE):
                producer.write("much", table)
        command = [sys.executable, str(READER), broker.bootstrap, "much", str(RECORDS // 20)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [tuple(map(int, line.split())) for line in told.splitlines()]
    for records, _, resident in lines:
        print(f"{records:>12,} records read, {resident / 2**20:,.0f} MiB resident")
    records, offsets, _ = lines[-1]
    assert records == RECORDS
    each = RECORDS // PARTITIONS
    assert offsets == PARTITIONS * (each * (each - 1) // 2)  # each once
    early = max(resident for _, _, resident in lines[: len(lines) // 2])
    late = max(resident for _, _, resident in lines[len(lines) // 2 :])
    assert max(early, late) < LIMIT
    # It does not grow with what has been read.
    assert late < early * 1.25
