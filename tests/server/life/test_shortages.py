"""What is said of full disks: once, and once when it is over."""

from __future__ import annotations

import asyncio
import errno
import logging
import os

import pytest

from ottla.server.disk import shortages
from ottla.server.disk.shortages import Shortages


def _no_room(number: int = errno.ENOSPC) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.complains
def test_each_shortage_is_told_once_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shortages, "OVER_AFTER_SECONDS", 0.02)
    caplog.set_level(logging.INFO, "ottla.disk")

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name == "ottla.disk"]
        caplog.clear()
        return lines

    async def run() -> None:
        short = Shortages(asyncio.get_running_loop())
        for partition in range(50):
            short.refused("orders", partition, "/data", _no_room())
        (line,) = told()
        assert "topic=orders partition=0 folder=/data No space left on device" in line
        short.refused("orders", 1, "/other", _no_room())
        short.refused("orders", 0, "/data", _no_room(errno.EMFILE))
        assert ["/other" in line for line in told()] == [True, False]
        lines: list[str] = []
        while len(lines) < 3:
            await asyncio.sleep(0.005)
            lines += told()
        assert all(line.startswith("no append was refused in the last") for line in lines)
        assert short._looking is None, "nothing is left to look at"
        short.refused("orders", 7, "/data", _no_room())
        (line,) = told()
        assert "partition=7" in line
        short.stop()

    asyncio.run(run())
