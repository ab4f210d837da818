"""A broker and a ZooKeeper that asks who it is: TLS, users and passwords, nodes closed to others.

The ZooKeeper is a real one with TLS and SASL switched on, and the brokers are processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ottla import Consumer, Producer
from ottla.cli.commands.administration import users
from ottla.cli.failures import Misuse
from ottla.cluster.adoption import CannotAdopt
from ottla.cluster.controller import Controller
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.security.acls import Acl
from ottla.cluster.store import StoreError
from ottla.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from ottla.server import adoption
from ottla.server.broker import METADATA_FILE, SUPPORTED_FEATURES
from ottla.server.configuration.broker_config import BrokerConfig
from ottla.server.configuration.rules import Rules
from ottla.settings import BrokerLayers, InvalidSetting
from ottla.testing import BrokerDied, BrokerProcess
from ottla.testing.cluster import LocalCluster
from ottla.testing.ports import free_ports
from ottla.testing.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.xdist_group("zookeeper")

_paths = itertools.count(1)
SECRET = "a secret: with blanks and colons"


class SecureZooKeeper:
    """A server with a port for TLS, which knows the SASL user `ottla`, and one in the clear."""

    def __init__(self, folder: Path, certificates: Any) -> None:
        (self._secure_port,) = free_ports(1)
        self.certificates = certificates
        self.folder = folder
        (folder / "jaas.conf").write_text(
            "Server { org.apache.zookeeper.server.auth.DigestLoginModule required\n"
            '  user_ottla="secret"; };\n'
        )
        self.server = ZooKeeperProcess(
            folder / "zookeeper",
            settings={
                "secureClientPort": str(self._secure_port),
                "secureClientPortAddress": "127.0.0.1",
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": certificates.path("server.p12"),
                "ssl.keyStore.password": "changeit",
                "ssl.trustStore.location": certificates.path("ca.pem"),
                "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            },
            secure=True,
            java_options=[f"-Djava.security.auth.login.config={folder / 'jaas.conf'}"],
        )
        keystore = folder / "broker.pem"
        keystore.write_text(certificates.text("client.pem") + certificates.text("client.key"))
        self.tls = {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": certificates.path("ca.pem"),
            "zookeeper.ssl.keystore.location": str(keystore),
        }

    def address(self, host: str = "localhost") -> str:
        """Of its secure port, with a path that no other test uses."""
        return f"{host}:{self._secure_port}/tests/{next(_paths)}"

    def auth(self, line: str, scheme: str = "digest") -> dict[str, str]:
        """Settings with a user and a password."""
        path = self.folder / f"auth-{next(_paths)}"
        path.touch(mode=0o600)
        path.write_text(line)
        return {"zookeeper.auth.file": str(path), "zookeeper.auth.scheme": scheme}


@pytest.fixture(scope="module")
def zookeeper(
    tmp_path_factory: pytest.TempPathFactory, certificates: Any
) -> Iterator[SecureZooKeeper]:
    if find_spec("pyspark") is None:
        pytest.skip("PySpark, whose jars hold a ZooKeeper, is not installed")
    secure = SecureZooKeeper(tmp_path_factory.mktemp("secure"), certificates)
    with secure.server:
        yield secure


def broker(folder: Path, address: str, *settings: Mapping[str, str]) -> BrokerProcess:
    merged = {"zookeeper.connect": address, "offsets.topic.replication.factor": "1"}
    merged["zookeeper.connection.timeout.ms"] = "5000"
    for each in settings:
        merged.update(each)
    return BrokerProcess(folder / "data", settings=merged)


def refusal(folder: Path, address: str, *settings: Mapping[str, str]) -> str:
    """The sentence with which a broker does not start; nothing is left in its folder."""
    process = broker(folder, address, *settings)
    with pytest.raises(BrokerDied):
        process.start()
    said = process.log_text()
    assert "Traceback" not in said, said
    assert not [path for path in process.data.rglob("*") if path.is_file()]
    return said


def nodes(zookeeper: SecureZooKeeper, path: str, digest: str | None = None) -> dict[str, set[str]]:
    """Whom the nodes at and below a path are open to, asked in the clear by a digest user or by nobody
    in particular. Nobody, if they are closed to who asks."""
    client = KazooClient(hosts=zookeeper.server.address)
    client.start()
    if digest is not None:
        client.add_auth("digest", digest)
    found: dict[str, set[str]] = {}
    waiting = [path]
    try:
        while waiting:
            node = waiting.pop()
            found[node] = set()
            with contextlib.suppress(NoAuthError):
                acls, _ = client.get_acls(node)
                found[node] = {f"{each.id.scheme}:{each.id.id}" for each in acls}
                waiting += [f"{node}/{name}" for name in client.get_children(node)]
    finally:
        client.stop()
        client.close()
    return found


@pytest.mark.parametrize("scheme", ["digest", "sasl"])
def test_a_broker_with_tls_and_a_user(
    zookeeper: SecureZooKeeper, tmp_path: Path, scheme: str
) -> None:
    address = zookeeper.address()
    password = "secret" if scheme == "sasl" else SECRET
    auth = zookeeper.auth(f"ottla:{password}\n", scheme)
    process = broker(tmp_path, address, zookeeper.tls, auth)
    with process:
        with Producer(process.bootstrap) as producer:
            producer.send("topic", b"value")
            producer.flush(60)
        with Consumer(process.bootstrap) as consumer:
            assert consumer.read("topic", columns=["value"]).num_rows == 1
        listed = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
        assert password not in listed
        path = "/" + address.partition("/")[2]
        assert nodes(zookeeper, path) == {path: set()}, "closed, and what is below is not told"
        if scheme == "digest":
            open_to = nodes(zookeeper, path, f"ottla:{password}")
            assert f"{path}/brokers/topics/topic" in open_to
            ((user,),) = {tuple(users) for users in open_to.values()}
            assert user.startswith("digest:ottla:")
        # Who does not say the same is not let in.
        stranger = refusal(tmp_path / "stranger", address, zookeeper.tls, {"node.id": "2"})
        assert "does not let anybody without a user and password read or change" in stranger
        if scheme == "digest":
            wrong = refusal(
                tmp_path / "wrong",
                address,
                zookeeper.tls,
                zookeeper.auth("ottla:wrong"),
                {"node.id": "2"},
            )
            assert "does not let the digest user 'ottla' read or change" in wrong
            assert "wrong" not in wrong.replace(str(tmp_path / "wrong"), "")
    assert password not in process.log_text()
    assert "can be read by others" not in process.log_text()


def test_the_first_user_is_closed_to_others(zookeeper: SecureZooKeeper, tmp_path: Path) -> None:
    # Who could write these nodes would choose the password of the brokers.
    address = zookeeper.address()
    settings = {"zookeeper.connect": address, **zookeeper.tls, **zookeeper.auth(f"ottla:{SECRET}")}
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    password = tmp_path / "password"
    password.write_text("of the brokers")
    users.set_password("broker", password_file=password, config=file)
    path = "/" + address.partition("/")[2]
    assert nodes(zookeeper, path) == {path: set()}
    open_to = nodes(zookeeper, path, f"ottla:{SECRET}")
    assert any("broker" in node.rpartition("/")[2] for node in open_to)
    ((user,),) = {tuple(each) for each in open_to.values()}
    assert user.startswith("digest:ottla:")


def test_a_node_is_adopted_with_the_credentials_of_the_brokers(tmp_path: Path) -> None:
    file = tmp_path / "auth"
    file.touch(mode=0o600)
    file.write_text(f"ottla:{SECRET}")
    settings = {"zookeeper.auth.file": str(file), "log.retention.hours": "1"}
    store: Any = adoption._target("localhost:2181/path", settings)
    assert store._credentials.user == "ottla"
    assert store._closes_nodes
    with pytest.raises(StoreError, match="cannot be read"):
        adoption._target("localhost:2181/path", {"zookeeper.auth.file": str(tmp_path / "none")})


def test_a_node_with_access_control_is_not_adopted_without_it(tmp_path: Path) -> None:
    async def add_entry() -> None:
        store = EmbeddedStore(tmp_path / METADATA_FILE)
        await store.start()
        controller = Controller(store, 1, Rules(BrokerConfig), SUPPORTED_FEATURES)
        await controller.open()
        entry = Acl(
            AclResource.TOPIC, "orders", AclPattern.LITERAL, "User:a", "*", AclOperation.READ,
            AclPermission.ALLOW,
        )  # fmt: skip
        assert await controller.create_acls([entry]) == [None]
        await controller.close()
        await store.close()

    asyncio.run(add_entry())
    with pytest.raises(CannotAdopt, match="which nobody would heed"):
        adoption.adopt_folders([str(tmp_path)], "127.0.0.1:1/path")
    assert (tmp_path / METADATA_FILE).exists()
    # With an authorizer the entries are no obstacle, and the next one is found: no broker was ever here.
    settings = {"authorizer.class.name": "any", "zookeeper.connection.timeout.ms": "1"}
    with pytest.raises(CannotAdopt, match="those of 0 brokers"):
        adoption.adopt_folders([str(tmp_path)], "127.0.0.1:1/path", settings)


def test_a_file_of_settings_must_name_a_zookeeper(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.retention.hours=1\n")
    (password := tmp_path / "password").write_text("secret")
    with pytest.raises(Misuse, match=r"has no zookeeper\.connect"):
        users.set_password("broker", password_file=password, config=file)
    with pytest.raises(Misuse, match="take either"):
        users.set_password("broker", password_file=password, config=file, data=tmp_path)


def test_a_wrong_password_is_refused_by_the_server(
    zookeeper: SecureZooKeeper, tmp_path: Path
) -> None:
    auth = zookeeper.auth("ottla:not the password", "sasl")
    said = refusal(tmp_path, zookeeper.address(), zookeeper.tls, auth)
    assert "it refuses the user and password" in said
    assert "not the password" not in said


def test_nodes_are_open_if_so_asked(zookeeper: SecureZooKeeper, tmp_path: Path) -> None:
    address = zookeeper.address()
    auth = zookeeper.auth("ottla:secret")
    with broker(tmp_path, address, zookeeper.tls, auth, {"zookeeper.set.acl": "false"}):
        acls = nodes(zookeeper, "/" + address.partition("/")[2])
    assert len(acls) > 5
    assert {tuple(each) for each in acls.values()} == {("world:anyone",)}


@pytest.mark.parametrize(
    ("host", "changed", "words"),
    [
        ("localhost", {"zookeeper.ssl.truststore.location": "other-ca.pem"}, "verify failed"),
        ("127.0.0.1", {}, "is not valid for '127.0.0.1'"),
        ("localhost", {"zookeeper.ssl.client.enable": "false"}, "no ZooKeeper answers"),
    ],
)
def test_a_foreign_certificate_is_refused(
    zookeeper: SecureZooKeeper, tmp_path: Path, host: str, changed: dict[str, str], words: str
) -> None:
    settings = {
        name: zookeeper.certificates.path(value) if value.endswith(".pem") else value
        for name, value in changed.items()
    }
    said = refusal(tmp_path, zookeeper.address(host), zookeeper.tls, settings)
    assert words in said, said


def test_the_status_of_a_cluster_asks_in_tls(zookeeper: SecureZooKeeper, tmp_path: Path) -> None:
    address = zookeeper.address()
    # Settings are read as brokers read them: there "True" is true.
    settings = {
        **zookeeper.tls,
        "zookeeper.ssl.client.enable": "True",
        "offsets.topic.replication.factor": "1",
    }
    with LocalCluster(
        tmp_path / "cluster", brokers=1, base_port=None, zookeeper=address, settings=settings
    ) as cluster:
        status = cluster.status()
        assert (status.servers[0].state, status.zookeeper_problem) == ("standalone", None)
        zookeeper.server.signal(signal.SIGSTOP)
        try:
            told = cluster.status().zookeeper_problem
        finally:
            zookeeper.server.signal(signal.SIGCONT)
        assert told is not None
        assert "does not answer" in told


def test_any_host_name_will_do_if_so_asked(zookeeper: SecureZooKeeper, tmp_path: Path) -> None:
    anybody = {"zookeeper.ssl.endpoint.identification.algorithm": ""}
    with broker(tmp_path, zookeeper.address("127.0.0.1"), zookeeper.tls, anybody) as process:
        assert process.running


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("zookeeper.ssl.truststore.location", None, "cannot be read: No such file"),
        ("zookeeper.ssl.truststore.location", "nonsense", "is not a PEM file with certificates"),
        ("zookeeper.ssl.keystore.location", "nonsense", "is not a PEM file with a certificate and"),
        ("zookeeper.auth.file", None, "cannot be read: No such file"),
        ("zookeeper.auth.file", "", "must have one line, USER:PASSWORD"),
        ("zookeeper.auth.file", "nocolon", "must have one line, USER:PASSWORD"),
        ("zookeeper.auth.file", "user:a\nuser:b", "must have one line, USER:PASSWORD"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: str | None, sentence: str
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    said = refusal(
        tmp_path, "localhost:1/a", {"zookeeper.ssl.client.enable": "true", name: str(file)}
    )
    assert f"ottla: {name}={file}" in said, said
    assert sentence in said, said


def test_an_encrypted_key_and_its_password(tmp_path: Path, certificates: Any) -> None:
    from ottla.cluster.store import StoreError
    from ottla.server.configuration.zookeeper_access import zookeeper_store

    keystore = tmp_path / "key.pem"
    keystore.write_text(certificates.text("client.pem") + certificates.text("client-encrypted.key"))

    def store(**more: str) -> object:
        static = {
            "zookeeper.connect": "localhost/a",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.keystore.location": str(keystore),
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        return zookeeper_store(BrokerConfig(BrokerLayers(static=static)))

    assert store(zookeeper_ssl_keystore_password="changeit")
    for more in ({}, {"zookeeper_ssl_keystore_password": "wrong"}):
        with pytest.raises(StoreError, match=r"keystore\.password does not open its key") as caught:
            store(**more)
        assert "wrong" not in str(caught.value)


def test_a_password_is_never_shown() -> None:
    static = {"zookeeper.ssl.keystore.password": SECRET}
    config = BrokerConfig(BrokerLayers(static=static))
    assert SECRET not in repr(config.describe())


def test_an_acl_needs_somebody_to_be_for() -> None:
    layers = BrokerLayers(static={"zookeeper.connect": "a/b", "zookeeper.set.acl": "true"})
    with pytest.raises(InvalidSetting, match=r"must be false unless zookeeper\.auth\.file names"):
        BrokerConfig(layers)


def test_a_password_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from ottla.server.configuration.zookeeper_access import zookeeper_store

    file = tmp_path / "auth"
    file.write_text(f"ottla:{SECRET}\n")
    static = {"zookeeper.connect": "localhost/a", "zookeeper.auth.file": str(file)}
    for mode, words in ((0o600, ""), (0o644, "can be read by others than its owner")):
        os.chmod(file, mode)
        caplog.clear()
        zookeeper_store(BrokerConfig(BrokerLayers(static=static)))
        assert words in caplog.text
        assert bool(words) == bool(caplog.text)
        assert SECRET not in caplog.text
