"""The embedded store on disk: crashes, full disks, a second process, and what it costs the loop."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.store import (
    Conflict,
    Create,
    Delete,
    Ok,
    Operation,
    Refusal,
    SessionEvent,
    SessionLost,
    Set,
    StoreError,
    Unknown,
)


def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def first() -> int:
        store = EmbeddedStore(path)
        await store.start()
        await store.multi([Create("/a", b"1"), Create("/a/b", bytes(100_000)), Create("/c")])
        await store.multi([Set("/a", b"2"), Delete("/c")])
        await store.multi([Create("/ephemeral", b"", ephemeral=True)])
        node = await store.get("/ephemeral")
        assert node is not None
        await store.close()
        return node.created

    async def second(used: int) -> None:
        store = EmbeddedStore(path)
        await store.start()
        assert await store.children("/") == ["a"]
        node = await store.get("/a")
        assert node is not None
        assert (node.value, node.version) == (b"2", 1)
        assert node.created < node.modified < used
        large = await store.get("/a/b")
        assert large is not None
        assert large.value == bytes(100_000)
        await store.multi([Create("/ephemeral", b"", ephemeral=True)])
        again = await store.get("/ephemeral")
        assert again is not None
        assert again.created > used, "numbers of transactions must not come again"
        await store.close()

    asyncio.run(second(asyncio.run(first())))


def test_numbers_go_on_after_a_crash_that_followed_only_ephemeral_changes(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    program = f"""
import asyncio, os
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.store import Create
async def run():
    store = EmbeddedStore({str(path)!r})
    await store.start()
    await store.multi([Create("/me", b"", ephemeral=True)])
    print((await store.get("/me")).created, flush=True)
    os._exit(9)
asyncio.run(run())
"""
    epochs = [
        int(subprocess.run([sys.executable, "-c", program], capture_output=True).stdout)
        for _ in range(2)
    ]
    assert epochs[1] > epochs[0]


WRITER = """
import asyncio, sys
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.store import Create, Ok, Set

async def run(path):
    store = EmbeddedStore(path)
    await store.start()
    if await store.get("/count") is None:
        await store.multi([Create("/count", b"0"), Create("/left"), Create("/right")])
    async def write(lane):
        number = 0
        while True:
            node = await store.get("/count")
            number = int(node.value) + 1
            answer = await store.multi([
                Set("/count", str(number).encode(), node.version),
                Create(f"/left/{number}", bytes(number % 5000)),
                Create(f"/right/{number}", bytes(number % 3000)),
            ])
            if isinstance(answer, Ok):
                print(number, flush=True)
    await asyncio.gather(*(write(lane) for lane in range(3)))

asyncio.run(run(sys.argv[1]))
"""


def test_kill_in_the_middle_of_writes_leaves_every_acknowledged_multi_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metadata.db"
    chance = random.Random(7)

    async def check(acknowledged: int) -> int:
        store = EmbeddedStore(path)
        await store.start()
        node = await store.get("/count")
        assert node is not None
        count = int(node.value)
        assert count >= acknowledged
        expected = sorted(str(number) for number in range(1, count + 1))
        assert await store.children("/left") == expected
        assert await store.children("/right") == expected
        for number in range(1, count + 1):
            left, right = await store.get_many([f"/left/{number}", f"/right/{number}"])
            assert left is not None
            assert right is not None
            assert left.value == bytes(number % 5000)
            assert left.created == right.created
        await store.close()
        return count

    count = 0
    for _ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        acknowledged = 0
        for _ in range(chance.randint(1, 120)):
            acknowledged = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        for line in writer.stdout:  # those it still told of count too
            acknowledged = int(line)
        writer.stdout.close()
        writer.wait()
        assert acknowledged > count
        count = asyncio.run(check(acknowledged))


def test_a_second_one_cannot_open_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def run() -> None:
        store = EmbeddedStore(path)
        await store.start()
        await store.multi([Create("/a")])
        intruder = EmbeddedStore(path)
        with pytest.raises(StoreError, match="another process"):
            await intruder.start()
        await store.multi([Create("/b")])
        await store.close()
        await intruder.start()  # once the first is gone it may
        assert await intruder.children("/") == ["a", "b"]
        await intruder.close()

    asyncio.run(run())


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"this is a poem, not a database\n" * 200)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="cannot open the metadata store"):
        asyncio.run(EmbeddedStore(path).start())
    assert path.read_bytes() == before
    with pytest.raises(StoreError, match="cannot open the metadata store"):
        asyncio.run(EmbeddedStore(tmp_path / "no folder" / "metadata.db").start())


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=2")
    with pytest.raises(StoreError, match="format 2"):
        asyncio.run(EmbeddedStore(path).start())


def test_a_full_disk_undoes_the_multi_and_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        await store.multi([Create("/a", b"1")])

        def limit(pages: int) -> int:
            connection = database._file.connection
            (allowed,) = connection.execute(f"PRAGMA max_page_count={pages}").fetchone()
            return int(allowed)

        database: Any = store._database
        await database.run(lambda: limit(1))  # SQLite takes what is in use as the least
        answer = await store.multi([Set("/a", b"2"), Create("/large", bytes(100_000))])
        assert isinstance(answer, Unknown)
        assert "full" in answer.reason
        await store.sync()
        assert await store.children("/") == ["a"]
        node = await store.get("/a")
        assert node is not None
        assert node.value == b"1"
        await database.run(lambda: limit(1_000_000))
        assert await store.multi([Set("/a", b"2"), Create("/large", bytes(100_000))]) == Ok((1, 0))
        await store.close()

        again = EmbeddedStore(tmp_path / "metadata.db")
        await again.start()
        assert await again.children("/") == ["a", "large"]
        await again.close()

    asyncio.run(run())


def test_after_an_io_error_nothing_is_trusted_any_more(tmp_path: Path) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        await store.multi([Create("/a", b"1")])
        events = store.session_events()
        database: Any = store._database

        def failing(staged: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        database._file.write = failing
        answers = await asyncio.gather(
            store.multi([Set("/a", b"2")]), store.multi([Set("/a", b"3")])
        )
        assert all(isinstance(answer, Unknown) for answer in answers)
        assert await anext(events) is SessionEvent.LOST
        with pytest.raises(SessionLost, match="disk I/O error"):
            await store.get("/a")
        await store.close()

        again = EmbeddedStore(tmp_path / "metadata.db")
        await again.start()
        node = await again.get("/a")
        assert node is not None
        assert node.value == b"1"
        await again.close()

    asyncio.run(run())


class SlowFile:
    """Holds every write back until it is let go, and counts them."""

    def __init__(self, store: EmbeddedStore) -> None:
        file: Any = store._database._file
        self._write = file.write
        self.gate = threading.Event()
        self.writes = 0
        file.write = self.write

    def write(self, staged: object) -> None:
        assert self.gate.wait(30)
        self.writes += 1
        self._write(staged)


def test_the_loop_goes_on_while_the_disk_is_slow(tmp_path: Path) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        slow = SlowFile(store)
        first = asyncio.create_task(store.multi([Create("/a", b"1")]))
        await asyncio.sleep(0)
        others = [asyncio.create_task(store.multi([Create(f"/a/{i}")])) for i in range(20)]
        for _ in range(50):
            await asyncio.sleep(0)
        assert await store.get("/a") is None, "what is not durable must not be seen"
        assert not first.done()
        slow.gate.set()
        assert await first == Ok((0,))
        assert await asyncio.gather(*others) == [Ok((0,))] * 20
        assert slow.writes == 2, "what waited is written together"
        await store.close()

    asyncio.run(run())


def test_what_waits_together_is_checked_one_after_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        slow = SlowFile(store)
        multis: list[list[Operation]] = [
            [Create("/a")],
            [Create("/a/b")],
            [Delete("/a")],
            [Set("/a", b"1", 0)],
            [Set("/a", b"2", 0)],
            [Delete("/a/b"), Delete("/a")],
            [Delete("/a")],
        ]
        begun = []
        for operations in multis:
            begun.append(asyncio.create_task(store.multi(operations)))
            await asyncio.sleep(0)
        slow.gate.set()
        assert await asyncio.gather(*begun) == [
            Ok((0,)),
            Ok((0,)),
            Conflict(0, Refusal.NOT_EMPTY),
            Ok((1,)),
            Conflict(0, Refusal.BAD_VERSION),
            Ok((-1, -1)),
            Conflict(0, Refusal.NO_NODE),
        ]
        assert slow.writes == 2
        assert await store.children("/") == []
        await store.close()

    asyncio.run(run())


def test_a_caller_that_gives_up_stops_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        slow = SlowFile(store)
        impatient = asyncio.create_task(store.multi([Create("/a", b"1")]))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        slow.gate.set()
        await store.sync()
        assert await store.children("/") == ["a"]
        await store.close()

    asyncio.run(run())


def test_closing_waits_for_what_was_begun(tmp_path: Path) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        other = store.join()
        await other.start()
        begun = asyncio.create_task(store.multi([Create("/a"), Create("/mine", b"", True)]))
        await asyncio.sleep(0)
        await store.close()
        assert await begun == Ok((0, 0))
        assert await other.children("/") == ["a"]
        await other.close()
        again = EmbeddedStore(tmp_path / "metadata.db")
        await again.start()
        assert await again.children("/") == ["a"]
        await again.close()

    asyncio.run(run())


def test_sqlite_is_not_loaded_by_an_import() -> None:
    program = (
        "import sys, ottla.cluster.embedded.store, ottla.cluster.controller;"
        "sys.exit('sqlite3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_an_open_store_holds_few_files_and_one_thread(tmp_path: Path) -> None:
    async def run() -> None:
        before = threading.active_count()
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        other = store.join()
        await other.start()
        assert threading.active_count() == before + 1
        await store.close()
        assert await other.children("/") == []
        await other.close()
        assert threading.active_count() == before

    asyncio.run(run())
