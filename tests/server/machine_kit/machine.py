"""`ottla serve --brokers N` in processes of its own."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from ottla.testing import BrokerDied, BrokerProcess, answers
from ottla.testing.broker_process import START_TIMEOUT
from ottla.testing.ports import free_ports_in_a_row

POLL_INTERVAL = 0.01


class Machine(BrokerProcess):
    """`ottla serve --brokers N` as a child process."""

    def __init__(self, data: Path, count: int = 2, **options: Any) -> None:
        super().__init__(
            data, port=free_ports_in_a_row(count), arguments=["--brokers", str(count)], **options
        )
        self.count = count
        self._fixed_port = True

    @property
    def ports(self) -> list[int]:
        return [self.port + step for step in range(self.count)]

    def address_of(self, broker: int) -> str:
        """Of a broker by its number, the first being 1."""
        return f"{self.host}:{self.ports[broker - 1]}"

    def wait_until_ready(self, timeout: float = START_TIMEOUT, *, kills: bool = True) -> None:
        super().wait_until_ready(timeout, kills=kills)
        for port in self.ports:
            self.wait_for(lambda port=port: answers(self.host, port), timeout)

    def wait_for(self, condition: Any, timeout: float = START_TIMEOUT) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if not self.running or time.monotonic() > deadline:
                raise BrokerDied(self._with_log("did not do what was waited for"))
            time.sleep(POLL_INTERVAL)

    def processes(self) -> dict[int, int]:
        """The process of each broker that runs now."""
        return processes_of(self.pid)


def processes_of(supervisor: int) -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        number = re.search(r"machine\.member\x00broker-(\d+)\x00", command)
        if parent == supervisor and number:
            found[int(number[1])] = int(entry.name)
    return found


def is_gone(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
