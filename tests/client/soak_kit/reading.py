"""Reads a topic to its end as Arrow batches, and tells how much memory the process holds meanwhile.

    python reading.py BOOTSTRAP TOPIC EVERY

prints a line `records offset-sum resident` after every EVERY records and at the end; the resident set
is in bytes. Nothing else runs in this process, so what is measured is the client.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ottla import Consumer

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def main(bootstrap: str, topic: str, every: int) -> None:
    records = offsets = 0
    tell_at = every
    with Consumer(bootstrap) as consumer:
        for batch in consumer.scan(topic):
            assert isinstance(batch, pa.RecordBatch)
            records += batch.num_rows
            offsets += pc.sum(batch.column("offset")).as_py()
            if records >= tell_at:
                tell_at += every
                print(records, offsets, resident(), flush=True)
    print(records, offsets, resident(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
