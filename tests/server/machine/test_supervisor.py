"""What the supervisor does with brokers that end at odd moments, with programs in their place."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.server.machine import supervisor
from ottla.server.machine.plan import Planned

PATIENCE = 60.0

# Ends twice before it has read all of its order, which resets the supervisor's end of the socket. The
# third time it says where it serves, as a broker does.
BROKER = """#!/bin/sh
echo begun >> {starts}
dd bs=1 count=1 of=/dev/null 2>/dev/null
[ $(wc -l < {starts}) -lt 3 ] && exit 1
cat > /dev/null &
echo '[["127.0.0.1", 9092]]' >&0
exec sleep 600
"""


class ServedBefore(asyncio.Event):
    """`ready` of a broker that has died, which tells when it serves again."""

    def __init__(self) -> None:
        super().__init__()
        super().set()
        self.again = asyncio.Event()

    def set(self) -> None:
        self.again.set()


def member_of(monkeypatch: pytest.MonkeyPatch, program: Path) -> supervisor._Member:
    monkeypatch.setattr(sys, "executable", str(program))
    stub = SimpleNamespace(stopping=asyncio.Event(), socket=None, failed=False)
    member = supervisor._Member(stub, Planned(2, {"log.dirs": "data"}))  # type: ignore[arg-type]
    member.ready = ServedBefore()
    return member


async def serves_again(member: supervisor._Member) -> None:
    keeping = asyncio.create_task(member.keep())
    assert isinstance(member.ready, ServedBefore)
    again = asyncio.create_task(member.ready.again.wait())
    await asyncio.wait({keeping, again}, timeout=PATIENCE, return_when="FIRST_COMPLETED")
    assert again.done(), "nobody started the broker again"
    member._supervisor.stopping.set()
    await member.stop()
    await keeping


@pytest.mark.complains
def test_a_broker_that_dies_before_it_has_read_its_order_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "broker"
    starts = tmp_path / "starts"
    program.write_text(BROKER.format(starts=starts))
    program.chmod(0o755)

    async def scenario() -> None:
        await serves_again(member_of(monkeypatch, program))

    asyncio.run(scenario())
    assert len(starts.read_text().splitlines()) == 3


@pytest.mark.complains
def test_a_broker_whose_process_cannot_be_made_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For want of memory, processes or descriptors; here its program is missing at first."""
    program = tmp_path / "broker"
    (tmp_path / "starts").write_text("\n\n")

    class MakeIt(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            program.write_text(BROKER.format(starts=tmp_path / "starts"))
            program.chmod(0o755)

    async def scenario() -> None:
        await serves_again(member_of(monkeypatch, program))

    handler = MakeIt()
    logging.getLogger("ottla.machine").addHandler(handler)
    try:
        with caplog.at_level(logging.ERROR, "ottla.machine"):
            asyncio.run(scenario())
    finally:
        logging.getLogger("ottla.machine").removeHandler(handler)
    assert "no process could be made for it" in caplog.text


@pytest.mark.complains
def test_a_broker_whose_process_is_made_while_all_stop_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C right after the start, or while a broker that has died is started again."""
    program = tmp_path / "broker"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    make = asyncio.create_subprocess_exec

    async def scenario() -> None:
        making, stopped = asyncio.Event(), asyncio.Event()

        async def make_slowly(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
            made.append(await make(*arguments, **options))
            making.set()
            await stopped.wait()
            return made[0]

        made: list[asyncio.subprocess.Process] = []
        monkeypatch.setattr(asyncio, "create_subprocess_exec", make_slowly)
        member = member_of(monkeypatch, program)
        keeping = asyncio.create_task(member.keep())
        await making.wait()
        member._supervisor.stopping.set()
        await member.stop()
        stopped.set()
        try:
            async with asyncio.timeout(PATIENCE):
                await keeping
        finally:
            if made[0].returncode is None:
                made[0].kill()

    asyncio.run(scenario())
