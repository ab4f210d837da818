"""What every store promises; runs over each implementation (see conftest.py)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ottla.cluster.store import (
    Answer,
    Change,
    ChangeKind,
    Check,
    Conflict,
    Create,
    Delete,
    Ok,
    Operation,
    Refusal,
    SessionEvent,
    SessionLost,
    Set,
    Store,
    boottime,
)


async def started(stores: Any) -> Store:
    store: Store = stores.join()
    await store.start()
    return store


async def values(store: Store, path: str = "/") -> dict[str, bytes]:
    """Everything below a path."""
    found: dict[str, bytes] = {}
    for name in await store.children(path) or []:
        child = f"{path.rstrip('/')}/{name}"
        node = await store.get(child)
        assert node is not None
        found[child] = node.value
        found.update(await values(store, child))
    return found


def test_a_node_is_created_read_set_and_deleted(stores: Any) -> None:
    async def run() -> None:
        store = await started(stores)
        assert await store.get("/a") is None
        assert await store.children("/a") is None
        assert await store.children("/") == []
        assert await store.multi([Create("/a", b"one"), Create("/a/b"), Create("/a/a")]) == Ok(
            (0, 0, 0)
        )
        assert await store.children("/a") == ["a", "b"]
        first = await store.get("/a")
        assert first is not None
        assert (first.value, first.version, first.owner) == (b"one", 0, 0)
        assert first.created == first.modified
        assert await store.multi([Set("/a", b"two", 0)]) == Ok((1,))
        second = await store.get("/a")
        assert second is not None
        assert (second.value, second.version, second.created) == (b"two", 1, first.created)
        assert second.modified > first.modified
        assert await store.multi([Delete("/a/a"), Delete("/a/b", 0), Delete("/a", 1)]) == Ok(
            (-1, -1, -1)
        )
        assert await values(store) == {}
        await store.close()

    asyncio.run(run())


def test_a_node_made_again_is_another_node(stores: Any) -> None:
    async def run() -> None:
        store = await started(stores)
        await store.multi([Create("/a")])
        first = await store.get("/a")
        await store.multi([Delete("/a")])
        await store.multi([Create("/a")])
        second = await store.get("/a")
        assert first is not None
        assert second is not None
        assert second.created > first.created
        assert second.version == 0
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Create("/a"), Refusal.NODE_EXISTS),
        (Create("/x/y"), Refusal.NO_PARENT),
        (Create("/fleeting/child"), Refusal.PARENT_IS_EPHEMERAL),
        (Set("/x", b""), Refusal.NO_NODE),
        (Set("/a", b"", 7), Refusal.BAD_VERSION),
        (Delete("/x"), Refusal.NO_NODE),
        (Delete("/a"), Refusal.NOT_EMPTY),
        (Delete("/a/b", 7), Refusal.BAD_VERSION),
        (Check("/x"), Refusal.NO_NODE),
        (Check("/a", 1), Refusal.BAD_VERSION),
    ],
)
def test_one_refused_operation_undoes_the_whole_multi(
    stores: Any, operation: Operation, reason: Refusal
) -> None:
    async def run() -> None:
        store = await started(stores)
        await store.multi([Create("/a", b"a"), Create("/a/b"), Create("/fleeting", b"", True)])
        before = await values(store)
        answer = await store.multi(
            [Set("/a", b"new"), Create("/z"), Check("/a", 1), Set("/a", b"a"), operation]
            if operation == Set("/a", b"", 7)
            else [Create("/z"), Create("/z/z"), Check("/a", 0), operation, Create("/never")]
        )
        assert isinstance(answer, Conflict)
        assert answer == Conflict(4 if operation == Set("/a", b"", 7) else 3, reason)
        assert await values(store) == before
        node = await store.get("/a")
        assert node is not None
        assert node.version == 0
        await store.close()

    asyncio.run(run())


def test_operations_see_those_before_them(stores: Any) -> None:
    async def run() -> None:
        store = await started(stores)
        answer = await store.multi(
            [
                Create("/a"),
                Create("/a/b", b"1"),
                Set("/a/b", b"2", 0),
                Check("/a/b", 1),
                Delete("/a/b", 1),
                Delete("/a"),
                Create("/a", b"again"),
            ]
        )
        assert answer == Ok((0, 0, 1, 1, -1, -1, 0))
        assert await values(store) == {"/a": b"again"}
        assert await store.multi([Delete("/a"), Create("/a"), Create("/a/c")]) == Ok((-1, 0, 0))
        assert await store.multi([Delete("/a/c"), Delete("/a")]) == Ok((-1, -1))
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a\x00"])
def test_what_is_not_a_path_is_refused(stores: Any, path: str) -> None:
    async def run() -> None:
        store = await started(stores)
        with pytest.raises(ValueError, match="path"):
            await store.multi([Create(path)])
        with pytest.raises(ValueError, match="path"):
            await store.get(path)
        await store.close()

    asyncio.run(run())


def test_ephemeral_nodes_go_with_their_session(stores: Any) -> None:
    async def run() -> None:
        store, other = await started(stores), await started(stores)
        assert store.session_id != other.session_id
        await store.multi([Create("/ids")])
        await other.multi([Create("/ids/1", b"x", ephemeral=True), Create("/kept")])
        node = await store.get("/ids/1")
        assert node is not None
        assert node.owner == other.session_id
        watch = store.watch("/ids")
        await store.sync()
        await other.close()
        assert await anext(watch) == Change("/ids/1", ChangeKind.DELETED)
        assert await values(store) == {"/ids": b"", "/kept": b""}
        await store.close()

    asyncio.run(run())


def test_a_closed_session_takes_no_calls(stores: Any) -> None:
    async def run() -> None:
        store, keeper = await started(stores), await started(stores)
        events = store.session_events()
        watch = store.watch("/")
        assert store.session_state is SessionEvent.CONNECTED
        await store.close()
        assert store.session_state is SessionEvent.LOST
        assert [event async for event in events] == [SessionEvent.LOST]
        assert [change async for change in watch] == []
        with pytest.raises(SessionLost):
            await store.get("/")
        with pytest.raises(SessionLost):
            await store.multi([Create("/late")])
        assert await values(keeper) == {}
        await keeper.close()

    asyncio.run(run())


def test_a_watch_tells_of_a_subtree_in_order(stores: Any) -> None:
    async def run() -> None:
        store, other = await started(stores), await started(stores)
        watch = store.watch("/a")
        everything = store.watch("/")
        await store.sync()
        await other.multi([Create("/a"), Create("/ab"), Create("/a/b")])
        await other.multi([Set("/a/b", b"1"), Set("/ab", b"1")])
        await other.multi([Delete("/a/b")])
        await other.multi([Check("/a")])
        await other.multi([Delete("/a"), Create("/a")])
        seen = [await anext(watch) for _ in range(6)]
        assert seen == [
            Change("/a", ChangeKind.CREATED),
            Change("/a/b", ChangeKind.CREATED),
            Change("/a/b", ChangeKind.SET),
            Change("/a/b", ChangeKind.DELETED),
            Change("/a", ChangeKind.DELETED),
            Change("/a", ChangeKind.CREATED),
        ]
        assert (await anext(everything)).path == "/a"
        assert (await anext(everything)).path == "/ab"
        watch.close()
        await other.multi([Set("/a", b"unseen")])
        assert [change async for change in watch] == []
        await store.close()
        await other.close()

    asyncio.run(run())


def test_a_watch_waits_for_the_next_change(stores: Any) -> None:
    async def run() -> None:
        store = await started(stores)
        watch = store.watch("/a")
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert not waiting.done()
        await store.multi([Create("/a")])
        assert await waiting == Change("/a", ChangeKind.CREATED)
        await store.close()

    asyncio.run(run())


def test_several_nodes_are_read_at_once(stores: Any) -> None:
    async def run() -> None:
        store = await started(stores)
        await store.multi([Create("/a", b"1"), Create("/b", b"2")])
        found = await store.get_many(["/b", "/nothing", "/a"])
        assert [node and node.value for node in found] == [b"2", None, b"1"]
        await store.close()

    asyncio.run(run())


def test_after_a_sync_everything_begun_is_settled(stores: Any) -> None:
    async def run() -> None:
        store, other = await started(stores), await started(stores)
        await store.multi([Create("/a")])
        begun = [asyncio.create_task(store.multi([Create(f"/a/{i}")])) for i in range(10)]
        await asyncio.sleep(0)
        await store.sync()
        assert len(await store.children("/a") or []) == 10
        await other.sync()
        assert len(await other.children("/a") or []) == 10
        assert await asyncio.gather(*begun) == [Ok((0,))] * 10
        await store.close()
        await other.close()

    asyncio.run(run())


def test_a_multi_goes_on_without_its_caller(stores: Any) -> None:
    async def run() -> None:
        store = await started(stores)
        begun = asyncio.create_task(store.multi([Create("/a")]))
        await asyncio.sleep(0)
        begun.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begun
        await store.sync()
        assert await store.get("/a") is not None
        await store.close()

    asyncio.run(run())


def test_thousands_of_nodes_and_requests(stores: Any) -> None:
    async def run() -> None:
        store = await started(stores)
        await store.multi([Create("/a")])
        names = [f"{number:04}" for number in range(2000)]
        answers = await asyncio.gather(
            *(
                store.multi([Create(f"/a/{name}", name.encode()) for name in names[first::400]])
                for first in range(400)
            )
        )
        assert answers == [Ok((0,) * 5)] * 400
        assert await store.children("/a") == names
        found = await store.get_many([f"/a/{name}" for name in names])
        assert [node and node.value.decode() for node in found] == names
        await store.close()

    asyncio.run(run())


def test_a_large_value_comes_back_whole(stores: Any) -> None:
    async def run() -> None:
        store = await started(stores)
        value = random.Random(1).randbytes(900_000)
        assert await store.multi([Create("/large", value)]) == Ok((0,))
        node = await store.get("/large")
        assert node is not None
        assert node.value == value
        assert [node] == await store.get_many(["/large"])
        await store.close()

    asyncio.run(run())


def test_a_session_is_in_contact(stores: Any) -> None:
    async def run() -> None:
        store = await started(stores)
        before = boottime()
        await store.sync()
        assert before <= store.last_contact <= boottime()
        await store.close()

    asyncio.run(run())


def test_conditional_sets_of_many_lose_no_update(stores: Any) -> None:
    async def run() -> None:
        first = await started(stores)
        await first.multi([Create("/count", b"0")])
        sessions = [first, *[await started(stores) for _ in range(4)]]

        async def add(store: Store) -> None:
            for _ in range(10):
                while True:
                    node = await store.get("/count")
                    assert node is not None
                    value = str(int(node.value) + 1).encode()
                    if isinstance(await store.multi([Set("/count", value, node.version)]), Ok):
                        break

        await asyncio.gather(*(add(store) for store in sessions))
        node = await first.get("/count")
        assert node is not None
        assert (node.value, node.version) == (b"50", 50)
        for store in sessions:
            await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_agree_with_a_plain_model(stores: Any, seed: int) -> None:
    """The model: a dict from path to (value, version), copied for each multi."""
    chance = random.Random(seed)
    model: dict[str, tuple[bytes, int]] = {}

    def some_path() -> str:
        return "/" + "/".join(chance.choices("ab", k=chance.randint(1, 3)))

    def some_operation() -> Operation:
        path, version = some_path(), chance.choice([-1, -1, 0, 1])
        value = bytes([chance.randrange(256)])
        return chance.choices(
            [Create(path, value), Set(path, value, version), Delete(path, version), Check(path)],
            [6, 3, 2, 1],
        )[0]

    def expected(operations: list[Operation]) -> bool:
        attempt = dict(model)
        for operation in operations:
            path = operation.path
            if isinstance(operation, Create):
                parent = path.rpartition("/")[0]
                if path in attempt or (parent and parent not in attempt):
                    return False
                attempt[path] = (operation.value, 0)
                continue
            if path not in attempt or operation.version not in (-1, attempt[path][1]):
                return False
            if isinstance(operation, Set):
                attempt[path] = (operation.value, attempt[path][1] + 1)
            elif isinstance(operation, Delete):
                if any(other.startswith(path + "/") for other in attempt):
                    return False
                del attempt[path]
        model.clear()
        model.update(attempt)
        return True

    async def run() -> None:
        store = await started(stores)
        outcomes = set()
        for _ in range(150):
            operations = [some_operation() for _ in range(chance.randint(1, 3))]
            answer: Answer = await store.multi(operations)
            assert isinstance(answer, Ok) == expected(operations), (seed, operations, answer)
            outcomes.add(type(answer))
        assert outcomes == {Ok, Conflict}
        assert await values(store) == {path: value for path, (value, _) in model.items()}
        for path, (_, version) in model.items():
            node = await store.get(path)
            assert node is not None
            assert node.version == version
        await store.close()

    asyncio.run(run())
