"""ZooKeeperStore: addresses, who may do what, and the sentences for what cannot work."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from ottla.cluster import layout
from ottla.cluster.store import ChangeKind, Create, Delete, Ok, Set, StoreError, StoreUnavailable
from ottla.cluster.zookeeper import (
    Address,
    Credentials,
    Scheme,
    Tls,
    ZooKeeperStore,
    parse_address,
)
from ottla.testing import free_port
from ottla.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperMissing, ZooKeeperProcess
from ottla.testing.zookeeper import server_class_path as class_path

pytest.importorskip("pyspark", reason="PySpark, whose jars hold a ZooKeeper, is not installed")
pytestmark = pytest.mark.xdist_group("zookeeper")


@contextlib.asynccontextmanager
async def open_store(address: str, **options: Any) -> AsyncIterator[ZooKeeperStore]:
    store = ZooKeeperStore(address, **options)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def failure_of(address: str, **options: Any) -> str:
    """The sentence with which a start fails."""

    async def run() -> str:
        with pytest.raises(StoreError) as caught:
            async with open_store(address, **options):
                pass
        return str(caught.value)

    return asyncio.run(run())


# Addresses


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("localhost", (("localhost", 2181),), ""),
        ("a:1,b:2 , c", (("a", 1), ("b", 2), ("c", 2181)), ""),
        ("a:1/", (("a", 1),), ""),
        ("a:1,b:2/kafka/one", (("a", 1), ("b", 2)), "/kafka/one"),
        ("[::1]:7,[fe80::1]/x", (("::1", 7), ("fe80::1", 2181)), "/x"),
    ],
)
def test_an_address_is_read(text: str, servers: tuple[tuple[str, int], ...], chroot: str) -> None:
    address = parse_address(text)
    assert address == Address(servers, chroot)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        " /a ",
        "a:",
        "a:b",
        "a:0",
        "a:70000",
        "a,,b",
        "[::1",
        "[::1]x",
        "a//b",
        "a/b/../c",
        "a/zookeeper",
    ],
)
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ZooKeeper"):
        ZooKeeperStore(text)


def test_the_root_of_a_zookeeper_hides_what_is_its_own(tmp_path: Path) -> None:
    async def run(address: str) -> None:
        async with open_store(address) as store:
            watch = store.watch("/")
            assert await store.children("/") == []
            assert await store.multi([Create("/a"), Create("/b", b"", ephemeral=True)]) == Ok(
                (0, 0)
            )
            assert await store.children("/") == ["a", "b"]
            await store.sync()
            assert [(await anext(watch)).path for _ in range(2)] == ["/a", "/b"]

    with ZooKeeperProcess(tmp_path / "zookeeper") as server:
        asyncio.run(run(server.address))


def test_a_missing_chroot_is_made_and_an_existing_one_kept(chroot: str) -> None:
    async def run() -> None:
        async with open_store(f"{chroot}/some/where") as store:
            await store.multi([Create("/a")])
        async with open_store(f"{chroot}/some") as store:
            assert await store.children("/where") == ["a"]

    asyncio.run(run())


def test_a_path_among_the_nodes_of_a_cluster_is_refused(chroot: str) -> None:
    inside = ("/brokers/topics", "/brokers", "/config/topics/x", "/controller")

    async def open_all(*addresses: str) -> None:
        for address in addresses:
            async with open_store(address) as store:
                await store.multi([Create(layout.REVISION)])

    # As long as there is no cluster the names mean nothing.
    asyncio.run(open_all(f"{chroot}/a/config", f"{chroot}/a", f"{chroot}/a/other"))
    for path in inside:
        said = failure_of(f"{chroot}/a{path}")
        assert "is inside of the cluster at" in said
        assert said.endswith("choose another path")
    # What was there before stays usable.
    asyncio.run(open_all(f"{chroot}/a/config"))


def test_watches_do_not_tell_of_the_neighbours(chroot: str) -> None:
    async def run() -> None:
        async with open_store(f"{chroot}/a") as store, open_store(f"{chroot}/ab") as other:
            watch = store.watch("/")
            await store.sync()
            await other.multi([Create("/x")])
            await store.multi([Create("/y")])
            change = await anext(watch)
            assert (change.path, change.kind) == ("/y", ChangeKind.CREATED)

    asyncio.run(run())


def test_transaction_numbers_of_nodes_are_those_of_zookeeper(chroot: str) -> None:
    async def run() -> None:
        async with open_store(chroot) as store:
            await store.multi([Create("/a", b"1", ephemeral=True)])
            await store.multi([Set("/a", b"2")])
            node = await store.get("/a")
            client = KazooClient(hosts=store.address.hosts)
            await asyncio.to_thread(client.start)
            _, stat = await asyncio.to_thread(client.get, f"{store.address.chroot}/a")
            await asyncio.to_thread(client.stop)
            client.close()
            assert node == (b"2", stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)
            assert stat.czxid < stat.mzxid
            assert stat.ephemeralOwner == store.session_id != 0

    asyncio.run(run())


def test_the_session_timeout_is_what_the_server_allows(chroot: str) -> None:
    async def run() -> None:
        store = ZooKeeperStore(chroot, session_timeout=1000)
        assert store.session_timeout == 1000
        await store.start()
        assert store.session_timeout == 60, "the server's maximum"
        await store.close()

    asyncio.run(run())


def test_a_change_that_zookeeper_would_not_take_is_not_sent(chroot: str) -> None:
    async def run() -> None:
        async with open_store(chroot) as store:
            events = store.session_events()
            half = bytes(500_000)
            with pytest.raises(StoreError, match=r"1\d{6} bytes is too large .*jute.maxbuffer"):
                await store.multi([Create("/a", half), Create("/b", half)])
            assert await store.children("/") == []
            assert isinstance(await store.multi([Create("/a", half)]), Ok)
            events.close()
            assert [event async for event in events] == [], "the connection has stood"

    asyncio.run(run())


def test_kazoo_is_loaded_when_a_store_starts() -> None:
    program = (
        "import sys, ottla.cluster.zookeeper as z; z.ZooKeeperStore('127.0.0.1/a');"
        "sys.exit('kazoo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# What cannot work


def test_nobody_answers() -> None:
    port = free_port()
    said = failure_of(f"127.0.0.1:{port}/a", start_timeout=3)
    assert said.startswith(f"no ZooKeeper answers at 127.0.0.1:{port} within 3 s"), said
    assert "refused" in said


def test_without_a_descriptor_for_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("ottla.cluster.zookeeper.session._Handler.create_socket_pair", refused)
    assert failure_of("127.0.0.1:1") == "cannot connect to ZooKeeper: Too many open files"


def test_a_name_that_nobody_knows() -> None:
    said = failure_of("no-such-host.invalid", start_timeout=3)
    assert said.startswith("no ZooKeeper answers at no-such-host.invalid:2181"), said
    assert "no-such-host.invalid" in said.partition("(")[2], said


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_answers(greeting: bytes) -> None:
    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(greeting)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreError) as caught:
            await ZooKeeperStore(f"127.0.0.1:{port}", start_timeout=0.5).start()
        assert str(caught.value) == (
            f"cannot connect to ZooKeeper: 127.0.0.1:{port}: what answers there is not a ZooKeeper"
        )
        server.close()

    asyncio.run(run())


@pytest.mark.long
def test_an_ensemble_that_has_no_majority(tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path)
    alone = ensemble.servers[0]
    (alone.folder / "data").mkdir(parents=True)
    (alone.folder / "data" / "myid").write_text("1\n")
    alone.spawn()
    try:
        while "not currently serving" not in (_said(alone) or ""):
            assert alone.running
        said = failure_of(alone.address, start_timeout=0.5)
    finally:
        alone.kill()
    assert said.endswith("it serves nobody at present; its ensemble has no majority"), said


def _said(server: ZooKeeperProcess) -> str | None:
    from ottla.testing.zookeeper import four_letter_word

    return four_letter_word(server.host, server.port, b"srvr")


def test_without_pyspark_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.testing.zookeeper.find_spec", lambda _: None)
    with pytest.raises(ZooKeeperMissing, match=r"pip install 'ottla\[spark\]'.*--zookeeper"):
        class_path()


# Who may do what

DIGEST = Credentials(Scheme.DIGEST, "ottla", "secret")


def test_nodes_of_a_digest_user_are_closed_to_others(chroot: str) -> None:
    async def run() -> None:
        async with open_store(f"{chroot}/mine", credentials=DIGEST) as store:
            assert await store.multi([Create("/a", b"1")]) == Ok((0,))
            assert await store.multi([Set("/a", b"2", 0)]) == Ok((1,))
            async with open_store(f"{chroot}/mine", credentials=DIGEST) as again:
                assert await again.get("/a") is not None
        async with open_store(chroot) as stranger:
            with pytest.raises(StoreError, match="without a user and password") as caught:
                await stranger.get("/mine/a")
            assert not isinstance(caught.value, StoreUnavailable), "trying again does not help"
            with pytest.raises(StoreError, match="/mine/a"):
                await stranger.get_many(["/mine/a"])
            with pytest.raises(StoreError, match="/mine/a"):
                await stranger.multi([Create("/b"), Set("/mine/a", b"3")])
            with pytest.raises(StoreError, match="/mine"):
                await stranger.multi([Delete("/mine/a")])
            assert await stranger.get("/b") is None
        wrong = Credentials(Scheme.DIGEST, "ottla", "wrong")
        with pytest.raises(StoreError, match="digest user 'ottla'"):
            async with open_store(f"{chroot}/mine/below", credentials=wrong):
                pass
        assert "secret" not in repr(DIGEST)

    asyncio.run(run())


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    folder = tmp_path_factory.mktemp("sasl")
    (folder / "jaas.conf").write_text(
        "Server { org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        '  user_ottla="secret"; };\n'
    )
    with ZooKeeperProcess(
        folder / "zookeeper",
        settings={
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        },
        secure=True,
        java_options=[f"-Djava.security.auth.login.config={folder / 'jaas.conf'}"],
    ) as server:
        yield server


def test_a_sasl_user_owns_its_nodes(sasl_server: ZooKeeperProcess) -> None:
    credentials = Credentials(Scheme.SASL, "ottla", "secret")

    async def run() -> None:
        async with open_store(f"{sasl_server.address}/mine", credentials=credentials) as store:
            assert await store.multi([Create("/a")]) == Ok((0,))
            # A connection that broke is authenticated anew.
            assert store._session is not None
            events = store.session_events()
            store._session.drop_connection()
            assert [(await anext(events)).value for _ in range(2)] == ["suspended", "connected"]
            assert await store.multi([Set("/a", b"1", 0)]) == Ok((1,))
        async with open_store(sasl_server.address) as stranger:
            with pytest.raises(StoreError, match="without a user and password"):
                await stranger.get("/mine/a")

    asyncio.run(run())


@pytest.mark.parametrize("user", ["ottla", "nobody"])
def test_a_wrong_password_is_told_at_once(sasl_server: ZooKeeperProcess, user: str) -> None:
    said = failure_of(
        sasl_server.address, credentials=Credentials(Scheme.SASL, user, "wrong"), start_timeout=100
    )
    assert said == (
        f"cannot connect to ZooKeeper: {sasl_server.address}: it refuses the user and password"
    )


def test_sasl_needs_a_package(monkeypatch: pytest.MonkeyPatch, chroot: str) -> None:
    monkeypatch.setattr("ottla.cluster.zookeeper.store.find_spec", lambda _: None)
    said = failure_of(chroot, credentials=Credentials(Scheme.SASL, "a", "b"))
    assert "pip install 'ottla[zookeeper-sasl]'" in said


# TLS


@pytest.fixture(scope="module")
def tls_address(
    tmp_path_factory: pytest.TempPathFactory, certificates: Any
) -> Iterator[Callable[[str], str]]:
    """Addresses of a server's port for TLS, which asks for certificates."""
    port = free_port()
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": certificates.path("server.p12"),
        "ssl.keyStore.password": "changeit",
        "ssl.trustStore.location": certificates.path("ca.pem"),
    }
    folder = tmp_path_factory.mktemp("tls")
    with ZooKeeperProcess(folder, settings=settings, secure=True):
        yield lambda host: f"{host}:{port}/tls"


def test_tls_with_certificates_on_both_sides(
    tls_address: Callable[[str], str], certificates: Any
) -> None:
    tls = Tls(
        ca=certificates.path("ca.pem"),
        certificate=certificates.path("client.pem"),
        key=certificates.path("client.key"),
    )

    async def run() -> None:
        async with open_store(tls_address("localhost"), tls=tls) as store:
            value = bytes(range(256)) * 2000
            assert await store.multi([Create(f"/{name}", value) for name in "a"]) == Ok((0,))
            await asyncio.gather(*(store.multi([Create(f"/a/{n}")]) for n in range(300)))
            assert store._session is not None
            events = store.session_events()
            store._session.drop_connection()
            assert [(await anext(events)).value for _ in range(2)] == ["suspended", "connected"]
            found = await store.get_many(["/a", *(f"/a/{n}" for n in range(300))])
            assert found[0] is not None
            assert found[0].value == value
            assert None not in found

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "ca", "words"),
    [
        ("localhost", "other-ca.pem", "certificate verify failed"),
        ("127.0.0.1", "ca.pem", "is not valid for '127.0.0.1'"),
    ],
)
def test_a_server_that_cannot_be_trusted_is_told_at_once(
    tls_address: Callable[[str], str], certificates: Any, host: str, ca: str, words: str
) -> None:
    tls = Tls(
        ca=certificates.path(ca),
        certificate=certificates.path("client.pem"),
        key=certificates.path("client.key"),
    )
    said = failure_of(tls_address(host), tls=tls, start_timeout=100)
    assert said.startswith(f"cannot connect to ZooKeeper: {host}:"), said
    assert words in said, said


def test_a_server_that_does_not_trust_us(
    tls_address: Callable[[str], str], certificates: Any
) -> None:
    tls = Tls(ca=certificates.path("ca.pem"))
    said = failure_of(tls_address("localhost"), tls=tls, start_timeout=3.0)
    assert said.startswith("no ZooKeeper answers at localhost:"), said
