"""ZooKeeperStore when the server, the network or the process fails: on real servers.

What the interface says of lost answers must hold here as it does for the stores in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from ottla.cluster import layout
from ottla.cluster.controller import Controller
from ottla.cluster.decisions.configs import ConfigRules
from ottla.cluster.decisions.features import FeatureRange
from ottla.cluster.membership.membership import Membership
from ottla.cluster.metadata import RegisteredBroker
from ottla.cluster.store import (
    Change,
    ChangeKind,
    Create,
    Ok,
    SessionEvent,
    SessionLost,
    Set,
    StoreError,
    StoreUnavailable,
    Stream,
    Unknown,
    boottime,
)
from ottla.cluster.zookeeper import ZooKeeperStore
from ottla.cluster.zookeeper.session import AddWatch, _Handler
from ottla.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperProcess

pytest.importorskip("pyspark", reason="PySpark, whose jars hold a ZooKeeper, is not installed")
pytestmark = pytest.mark.xdist_group("zookeeper")


class Place(NamedTuple):
    """Where somebody listens."""

    host: str
    port: int


class Proxy:
    """Stands between a store and a server, and is a bad network when it is told to be.

    Each connection copies bytes both ways, unless `hold_requests` or `drop_answers` is set: then
    requests are kept back (for `release`), or answers are lost.
    """

    def __init__(self, server: ZooKeeperProcess | Place) -> None:
        self._target = server
        self._server: asyncio.Server | None = None
        self._clients: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[tuple[asyncio.StreamWriter, bytes]] = []
        self.hold_requests = False
        self.drop_answers = False
        self.swallowed = asyncio.Event()  # something was held or dropped

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def cut(self) -> None:
        """Resets the connections to the clients. Those to the server stay."""
        for client in self._clients:
            client.transport.abort()
        self._clients.clear()

    def heal(self) -> None:
        """New connections are good ones."""
        self.hold_requests = self.drop_answers = False

    async def release(self) -> None:
        """Lets go of the requests that were held, on the connections they came by."""
        self.hold_requests = False
        self.swallowed.clear()
        waiting, self._held = self._held, []
        for writer, held in waiting:
            with contextlib.suppress(ConnectionError):
                writer.write(held)
                await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.append(writer)
        try:
            back, forth = await asyncio.open_connection(self._target.host, self._target.port)
        except ConnectionError:
            writer.transport.abort()
            return
        for task in (
            asyncio.create_task(self._copy_requests(reader, forth)),
            asyncio.create_task(self._copy_answers(back, writer)),
        ):
            self._tasks.add(task)

    async def _copy_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.hold_requests:
                    self._held.append((writer, data))
                    self.swallowed.set()
                    continue
                writer.write(data)
                await writer.drain()

    async def _copy_answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.drop_answers:
                    self.swallowed.set()
                    continue
                writer.write(data)
                await writer.drain()
            writer.close()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper to be killed and stopped."""
    with ZooKeeperProcess(tmp_path / "zookeeper") as server:
        yield server
        server.signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def open_store(address: str, **options: Any) -> AsyncIterator[ZooKeeperStore]:
    store = ZooKeeperStore(address, **options)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def until(stream: Stream[Any], wanted: object) -> list[Any]:
    """The events up to the wanted one."""
    seen = []
    async for event in stream:
        seen.append(event)
        if event == wanted:
            return seen
    raise AssertionError(f"{wanted} never came, only {seen}")


def test_a_session_outlives_the_kill_of_its_server(victim: ZooKeeperProcess) -> None:
    async def run() -> None:
        async with (
            open_store(f"{victim.address}/c", session_timeout=30) as store,
            open_store(f"{victim.address}/c", session_timeout=30) as other,
        ):
            await store.multi([Create("/a"), Create("/me", b"", ephemeral=True)])
            watch, events = store.watch("/"), store.session_events()
            others_events = other.session_events()
            await store.sync()
            session = store.session_id
            await asyncio.to_thread(victim.kill)
            assert await until(events, SessionEvent.SUSPENDED) == [SessionEvent.SUSPENDED]
            assert store.session_state is SessionEvent.SUSPENDED
            # What is asked meanwhile waits for the server.
            waiting = asyncio.create_task(store.multi([Set("/a", b"after", 0)]))
            reading = asyncio.create_task(store.get("/a"))
            await until(others_events, SessionEvent.SUSPENDED)
            await asyncio.to_thread(victim.start)
            await until(events, SessionEvent.CONNECTED)
            assert await waiting == Ok((1,))
            node = await reading
            assert node is not None
            assert node.value == b"after"
            assert store.session_id == session
            me = await store.get("/me")
            assert me is not None
            assert me.owner == session
            # The watch stands again, and has said that something may be missing.
            changes = await until(watch, Change("/a", ChangeKind.SET))
            assert changes[0] == Change("/", ChangeKind.RESYNC)
            await until(others_events, SessionEvent.CONNECTED)
            await other.multi([Create("/later")])
            await until(watch, Change("/later", ChangeKind.CREATED))

    asyncio.run(run())


def stop(server: ZooKeeperProcess) -> None:
    """Stops all threads of a server. The signal alone is on its way when `signal` returns."""
    server.signal(signal.SIGSTOP)
    deadline = time.monotonic() + 30
    for task in Path(f"/proc/{server.pid}/task").glob("*/stat"):
        while task.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_stopped_server_is_noticed_even_while_requests_go_out(victim: ZooKeeperProcess) -> None:
    async def run() -> None:
        async with open_store(f"{victim.address}/c", session_timeout=9) as store:
            await store.multi([Create("/a", b"0")])
            events = store.session_events()
            stop(victim)
            stopped = boottime()
            change = asyncio.create_task(store.multi([Set("/a", b"1", 0)]))
            suspended = asyncio.create_task(until(events, SessionEvent.SUSPENDED))
            reads = []
            while not suspended.done():
                reads.append(asyncio.create_task(store.get("/a")))
                await asyncio.wait([suspended], timeout=0.2)
            assert isinstance(await change, Unknown)
            assert store.last_contact < stopped, "nobody has answered since"
            victim.signal(signal.SIGCONT)
            await until(events, SessionEvent.CONNECTED)
            assert store.last_contact > stopped
            await store.sync()
            settled = await store.get("/a")
            assert settled is not None
            for outcome in await asyncio.gather(*reads, return_exceptions=True):
                assert outcome is not None
                assert isinstance(outcome, StoreUnavailable | tuple), outcome
            await store.sync()
            assert await store.get("/a") == settled, "nothing comes later"

    asyncio.run(run())


def test_an_expired_session_is_lost_and_stays_so(chroot: str) -> None:
    async def run() -> None:
        async with open_store(chroot) as store, open_store(chroot) as other:
            await store.multi([Create("/me", b"", ephemeral=True)])
            events, watch = store.session_events(), store.watch("/")
            others = other.watch("/me")
            await store.sync()
            await other.sync()
            session = store._session
            assert session is not None
            thief = KazooClient(
                hosts=store.address.hosts, timeout=6.0, client_id=session._client.client_id
            )
            await asyncio.to_thread(thief.start)
            await asyncio.to_thread(thief.stop)
            await asyncio.to_thread(thief.close)
            assert (await until(events, SessionEvent.LOST))[-1] is SessionEvent.LOST
            assert events.closed
            assert [change async for change in watch if change.kind is not ChangeKind.RESYNC] in (
                [],
                [Change("/me", ChangeKind.DELETED)],
            )
            assert await anext(others) == Change("/me", ChangeKind.DELETED)
            with pytest.raises(SessionLost):
                await store.get("/me")
            with pytest.raises(SessionLost):
                await store.multi([Create("/never")])
            with pytest.raises(SessionLost):
                store.watch("/")
            # kazoo has not begun another session: its thread is at its end.
            assert await asyncio.to_thread(session.connection.connection_stopped.wait, 30)
            assert store.session_state is SessionEvent.LOST

    asyncio.run(run())


def test_a_change_whose_answer_was_lost_is_found_after_a_sync(
    zookeeper: ZooKeeperProcess, chroot: str
) -> None:
    async def run() -> None:
        async with Proxy(zookeeper) as proxy:
            path = chroot.partition("/")[2]
            async with open_store(f"{proxy.address}/{path}", session_timeout=30) as store:
                await store.multi([Create("/a", b"0")])
                proxy.drop_answers = True
                change = asyncio.create_task(store.multi([Set("/a", b"1", 0)]))
                await proxy.swallowed.wait()
                proxy.heal()
                proxy.cut()
                assert isinstance(await change, Unknown)
                await store.sync()
                node = await store.get("/a")
                assert node is not None
                assert (node.value, node.version) == (b"1", 1)

    asyncio.run(run())


def test_a_change_held_up_on_its_way_does_not_come_after_a_sync(
    zookeeper: ZooKeeperProcess, chroot: str
) -> None:
    """The request arrives by the old connection, after the session has got a new one."""

    async def run() -> None:
        async with Proxy(zookeeper) as proxy:
            path = chroot.partition("/")[2]
            async with (
                open_store(f"{proxy.address}/{path}", session_timeout=30) as store,
                open_store(chroot) as other,
            ):
                await store.multi([Create("/a")])
                proxy.hold_requests = True
                change = asyncio.create_task(store.multi([Set("/a", b"0")]))
                await proxy.swallowed.wait()
                await proxy.release()
                assert await change == Ok((1,)), "on a connection that lives, it is done"
                proxy.hold_requests = True
                change = asyncio.create_task(store.multi([Set("/a", b"late")]))
                await proxy.swallowed.wait()
                proxy.heal()
                proxy.cut()
                assert isinstance(await change, Unknown)
                await store.sync()
                node = await store.get("/a")
                assert node is not None
                assert node.value == b"0"
                await proxy.release()
                await other.sync()
                await store.sync()
                assert await store.get("/a") == await other.get("/a") == node

    asyncio.run(run())


def test_a_session_goes_with_a_loop_that_hangs(chroot: str) -> None:
    """kazoo's thread could keep the session of a broker that does nothing any more."""

    async def run() -> None:
        async with open_store(chroot, session_timeout=2) as store:
            await store.multi([Create("/me", b"", ephemeral=True)])
            events = store.session_events()
            watcher = KazooClient(hosts=store.address.hosts)
            watcher.start()
            try:
                # This blocks the loop, and ends only if the server gives up the session.
                while watcher.exists(f"{store.address.chroot}/me"):
                    time.sleep(0.05)  # noqa: ASYNC251 - to hang is what is tested
            finally:
                watcher.stop()
                watcher.close()
            assert (await until(events, SessionEvent.LOST))[-1] is SessionEvent.LOST

    asyncio.run(run())


def test_a_session_of_an_idle_loop_stays(chroot: str) -> None:
    async def run() -> None:
        async with open_store(chroot, session_timeout=3) as store:
            events = store.session_events()
            begun = boottime()
            contacts: set[float] = set()
            while len(contacts) < 4 or boottime() - begun < store.session_timeout + 1:
                contacts.add(store.last_contact)
                await asyncio.sleep(0.05)
            await store.multi([Create("/a")])
            assert store.session_state is SessionEvent.CONNECTED
            events.close()
            assert [event async for event in events] == []

    asyncio.run(run())


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as servers:
        yield servers


@pytest.mark.long
def test_an_ensemble_without_its_majority_and_with_it_again(ensemble: ZooKeeperEnsemble) -> None:
    async def run() -> None:
        async with open_store(f"{ensemble.address}/majority", session_timeout=4) as store:
            assert await store.multi([Create("/a", b"0")]) == Ok((0,))
            events = store.session_events()
            leader = await asyncio.to_thread(ensemble.leader)
            assert leader is not None
            follower = next(server for server in ensemble.servers if server is not leader)
            await asyncio.to_thread(ensemble.kill, [leader, follower])
            await until(events, SessionEvent.SUSPENDED)
            # Nobody answers for as long as the session would live; who waits is told so.
            assert isinstance(await store.multi([Set("/a", b"1", 0)]), Unknown)
            with pytest.raises(StoreUnavailable):
                await store.get("/a")
            await asyncio.to_thread(ensemble.start)
            # A session whose time ran out while there was no leader is revived by the next one.
            await until(events, SessionEvent.CONNECTED)
            await store.sync()
            node = await store.get("/a")
            assert node is not None
            assert node.value == b"0", "it was never sent"
            assert await store.multi([Set("/a", b"2", 0)]) == Ok((1,))

    asyncio.run(run())


@pytest.mark.long
def test_the_death_of_the_leader_loses_no_session_and_no_change(
    ensemble: ZooKeeperEnsemble,
) -> None:
    async def run() -> None:
        async with open_store(f"{ensemble.address}/leader", session_timeout=20) as store:
            await store.multi([Create("/count", b"0"), Create("/me", b"", ephemeral=True)])
            leader = await asyncio.to_thread(ensemble.leader)
            assert leader is not None
            killing = None
            version = 0
            for number in range(200):
                if number == 50:
                    killing = asyncio.create_task(asyncio.to_thread(leader.kill))
                while True:
                    try:
                        answer = await store.multi([Set("/count", b"%d" % number, version)])
                        if isinstance(answer, Unknown):
                            await store.sync()
                            node = await store.get("/count")
                            assert node is not None
                            if node.version == version:
                                continue  # it was not made, and never will be
                        else:
                            assert isinstance(answer, Ok)
                    except StoreUnavailable:
                        continue
                    version += 1
                    break
            assert killing is not None
            await killing
            node = await store.get("/count")
            assert node is not None
            assert (node.value, node.version) == (b"199", 200)
            assert await store.get("/me") is not None
        await asyncio.to_thread(ensemble.start)

    asyncio.run(run())


@pytest.mark.long
def test_a_change_held_up_does_not_come_by_another_server(ensemble: ZooKeeperEnsemble) -> None:
    """The session has moved to another server of the ensemble when the request arrives."""

    async def run() -> None:
        first, second = ensemble.servers[:2]
        async with Proxy(first) as slow, open_store(f"{second.address}/moved") as other:
            store = ZooKeeperStore(f"{slow.address}/moved", session_timeout=30)
            await store.start()
            await store.multi([Create("/a", b"0")])
            assert store._session is not None
            slow.hold_requests = True
            change = asyncio.create_task(store.multi([Set("/a", b"late")]))
            await slow.swallowed.wait()
            store._session._client.set_hosts(second.address)
            slow.cut()
            assert isinstance(await change, Unknown)
            await store.sync()
            node = await store.get("/a")
            assert node is not None
            assert node.value == b"0"
            await slow.release()
            # By the first server again: whatever the old connection brought has been done by then.
            async with open_store(f"{first.address}/moved") as witness:
                await witness.sync()
                assert await witness.get("/a") == node
            await other.sync()
            assert await other.get("/a") == node
            await store.close()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def ensemble_with_a_lonely_server(
    folder: Path,
) -> AsyncIterator[tuple[ZooKeeperEnsemble, list[Proxy]]]:
    """Three servers, of which the first follows, reaches the others by way of proxies, and goes on
    answering for 20 s when it hears nothing of them."""
    ensemble = ZooKeeperEnsemble(folder)
    lonely = ensemble.servers[0]
    async with contextlib.AsyncExitStack() as stack:
        proxies = []
        for other in ("server.2", "server.3"):
            host, quorum_port, election_port = lonely.settings[other].split(":")
            proxy = await stack.enter_async_context(Proxy(Place(host, int(quorum_port))))
            lonely.settings[other] = f"{proxy.address}:{election_port}"
            proxies.append(proxy)
        for server in ensemble.servers:
            server.settings["syncLimit"] = "40"
        try:
            await asyncio.to_thread(ensemble.start)
            if await asyncio.to_thread(ensemble.leader) is lonely:
                await asyncio.to_thread(ensemble.kill, [lonely])
                await asyncio.to_thread(ensemble.start)
            yield ensemble, proxies
        finally:
            await asyncio.to_thread(ensemble.stop)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)


@pytest.mark.long
def test_a_server_that_is_cut_off_from_the_others_confirms_nothing(
    tmp_path: Path,
    rules: ConfigRules,
    features: Mapping[str, FeatureRange],
    broker: Callable[..., RegisteredBroker],
) -> None:
    """It answers, and the others end the sessions with it: a broker must not take it for the
    ensemble's word that it is a member."""

    async def run() -> None:
        async with ensemble_with_a_lonely_server(tmp_path) as (ensemble, proxies):
            lonely, other, _ = ensemble.servers
            root = "/cut-off"
            member = Membership(
                1,
                lambda: ZooKeeperStore(f"{lonely.address}{root}", session_timeout=2),
                lambda store: Controller(store, 1, rules, features),
                reconnects=False,
            )
            await member.open()
            try:
                await member.join(broker(1), False)
                async with (
                    open_store(f"{lonely.address}{root}", session_timeout=2) as silent,
                    open_store(f"{other.address}{root}", session_timeout=30) as witness,
                ):
                    assert not member.can_be_fenced
                    # Nothing is written, and yet it is confirmed again and again.
                    confirmed = member.store.last_commit
                    await eventually(lambda: member.store.last_commit > confirmed)
                    await silent.multi([Create("/silent", b"", ephemeral=True)])
                    committed = silent.last_commit
                    watch = witness.watch("/")
                    await witness.sync()
                    for proxy in proxies:
                        proxy.hold_requests = proxy.drop_answers = True
                    own, ephemeral = layout.broker_path(1), "/silent"
                    gone: dict[str, bool] = {}
                    while len(gone) < 2:
                        change = await anext(watch)
                        if change.kind is ChangeKind.DELETED and change.path in (own, ephemeral):
                            # At the moment at which somebody learns that this broker has gone.
                            gone[change.path] = member.can_be_fenced
                    assert gone[own]
                    # Who listens to the server alone would believe to be a member still.
                    seen = boottime()
                    await eventually(lambda: silent.last_contact > seen)
                    assert silent.session_state is SessionEvent.CONNECTED
                    assert silent.last_commit == committed
            finally:
                await member.close()

    asyncio.run(run())


def test_a_watch_that_was_not_taken_is_set_with_another_connection(
    chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with open_store(chroot, session_timeout=30) as store, open_store(chroot) as other:
            # A request that no server knows: it is answered with an error.
            monkeypatch.setattr(AddWatch, "type", 9999)
            watch, events = store.watch("/"), store.session_events()
            await until(events, SessionEvent.SUSPENDED)
            monkeypatch.undo()
            await until(watch, Change("/", ChangeKind.RESYNC))
            await other.multi([Create("/a")])
            await until(watch, Change("/a", ChangeKind.CREATED))

    asyncio.run(run())


def test_a_server_that_knows_no_subtree_watches_is_too_old(
    chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(AddWatch, "type", 9999)
        with pytest.raises(StoreError, match=r"too old: 3\.6 or later"):
            await ZooKeeperStore(chroot).start()

    asyncio.run(run())


def test_a_connection_to_ourselves_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client on the server's machine may be given the port that it wants to reach."""
    with socket.socket() as mirror:
        mirror.bind(("127.0.0.1", 0))
        mirror.connect(mirror.getsockname())
        assert mirror.getpeername() == mirror.getsockname()
        monkeypatch.setattr(socket, "create_connection", lambda *_: mirror)
        handler = _Handler(1)
        with pytest.raises(ConnectionRefusedError):
            handler.create_connection(mirror.getsockname(), hostname="127.0.0.1", timeout=1.0)
        assert mirror.fileno() == -1
