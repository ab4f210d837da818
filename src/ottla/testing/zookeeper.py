"""A ZooKeeper server in a process of its own, from the jars that PySpark brings along.

    with ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper:
        store = ZooKeeperStore(f"{zookeeper.address}/some-cluster")

It is a real ZooKeeper, up in about a second, for tests and for clusters on one machine. Its port and
its data stay over `stop`, `kill` and `start`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final

from ottla.testing.ports import free_port, free_ports
from ottla.testing.server_process import START_TIMEOUT, ServerDied, ServerProcess, text_of

# What a server needs of PySpark's jars; with all of them on the class path it would start slower.
_JARS: Final = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "metrics-core",
    "snappy-java",
)
_SECURE_JARS: Final = ("netty-*", "commons-io", "commons-lang3")

_LOGGING: Final = """\
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %-5p %c{{1}} - %m%n%ex{{5}}
rootLogger.level = warn
rootLogger.appenderRefs = file
rootLogger.appenderRef.file.ref = file
"""


class ZooKeeperMissing(RuntimeError):
    """No ZooKeeper can be started here; the message says what to install."""


class ZooKeeperDied(ServerDied):
    """The server ended, or never answered; the message ends with what it logged last."""


def server_class_path(*, secure: bool = False) -> str:
    """The jars of a ZooKeeper server; ZooKeeperMissing without PySpark."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ZooKeeperMissing(
            "there is no ZooKeeper here to start: `pip install 'ottla[spark]'`, which brings one, "
            "or name one that runs with --zookeeper host:port/path"
        )
    folder = Path(found.origin).parent / "jars"
    jars: list[Path] = []
    for name in (*_JARS, *(_SECURE_JARS if secure else ())):
        matching = sorted(folder.glob(f"{name}-[0-9]*.jar" if "*" not in name else f"{name}.jar"))
        if not matching and "*" not in name and name not in _SECURE_JARS:
            raise ZooKeeperMissing(f"PySpark's jars in {folder} lack {name}, which ZooKeeper needs")
        jars += matching
    return ":".join(map(str, jars))


def four_letter_word(
    host: str, port: int, word: bytes, timeout: float = 2.0, tls: ssl.SSLContext | None = None
) -> str | None:
    """What a server answers to `ruok`, `srvr` or the like; None if nothing."""
    try:
        with contextlib.ExitStack() as open_sockets:
            connection = open_sockets.enter_context(
                socket.create_connection((host, port), timeout=timeout)
            )
            if tls is not None:
                connection = open_sockets.enter_context(
                    tls.wrap_socket(connection, server_hostname=host)
                )
            connection.sendall(word)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
    except OSError:
        return None
    return answer.decode(errors="replace")


def server_mode(
    host: str, port: int, timeout: float = 2.0, tls: ssl.SSLContext | None = None
) -> str | None:
    """standalone, leader or follower; None for a server that does not serve now."""
    for line in (four_letter_word(host, port, b"srvr", timeout, tls) or "").splitlines():
        name, _, value = line.partition(": ")
        if name == "Mode":
            return value
    return None


class ZooKeeperProcess(ServerProcess):
    """One server as a child process. Everything it writes is in `folder`."""

    kind = "ZooKeeper"
    died = ZooKeeperDied

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        secure: bool = False,
    ) -> None:
        """`settings` are lines of zoo.cfg. With `secure` it has the jars for TLS and SASL."""
        super().__init__(host, port if port is not None else free_port(host))
        self.folder = folder
        self.settings = dict(settings or {})
        self.java_options = list(java_options)
        self.secure = secure

    @property
    def log_path(self) -> Path:
        return self.folder / "zookeeper.log"

    @property
    def _output_path(self) -> Path:
        return self.folder / "zookeeper.out"

    def spawn(self) -> None:
        from ottla.pipeline.spark.java import JavaMissing, java_home

        class_path = server_class_path(secure=self.secure)
        try:
            java = java_home() / "bin" / "java"
        except JavaMissing as error:
            raise ZooKeeperMissing(
                str(error).replace("Spark needs", "the ZooKeeper of PySpark needs")
            ) from None
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_files()
        command = [
            str(java),
            "-Xmx64m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-Dzookeeper.admin.enableServer=false",
            *self.java_options,
            "-cp",
            class_path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.folder / "zoo.cfg"),
        ]
        environment = {**os.environ}
        environment.pop("JAVA_TOOL_OPTIONS", None)
        self._launch(command, self._output_path, environment)

    def make_data_folder(self) -> Path:
        """Its owner's alone, whatever the server writes there: salted passwords are among it."""
        data = self.folder / "data"
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        data.chmod(0o700)
        return data

    def _write_files(self) -> None:
        settings = {
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": self.host,
            "tickTime": "500",  # sessions from 1 s to 60 s
            "minSessionTimeout": "1000",
            "maxSessionTimeout": "60000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "autopurge.snapRetainCount": "3",
            "autopurge.purgeInterval": "1",
            **self.settings,
        }
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        self.make_data_folder()
        (self.folder / "zoo.cfg").write_text("".join(lines))
        (self.folder / "log4j2.properties").write_text(_LOGGING.format(log=self.log_path))

    def serves(self) -> bool:
        return server_mode(self.host, self.port) is not None

    def log_text(self) -> str:
        return text_of(self._output_path) + text_of(self.log_path)


class ZooKeeperEnsemble:
    """Several servers that elect a leader among them."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        host = "127.0.0.1"
        ports = free_ports(size * 3, host)
        members = {
            f"server.{number + 1}": f"{host}:{ports[size + number]}:{ports[2 * size + number]}"
            for number in range(size)
        }
        timing = {"initLimit": "20", "syncLimit": "4"}
        self.servers = [
            ZooKeeperProcess(
                folder / f"zookeeper-{number + 1}",
                host=host,
                port=ports[number],
                settings={**timing, **members},
            )
            for number in range(size)
        ]

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self, timeout: float = START_TIMEOUT) -> ZooKeeperEnsemble:
        """Starts those that do not run, and returns once all serve."""
        for number, server in enumerate(self.servers, start=1):
            if not server.running:
                (server.make_data_folder() / "myid").write_text(f"{number}\n")
                server.spawn()
        for server in self.servers:
            server.wait_until_ready(timeout)
        return self

    def leader(self) -> ZooKeeperProcess | None:
        """The server that leads now."""
        for server in self.servers:
            if server.running and server_mode(server.host, server.port) == "leader":
                return server
        return None

    def stop(self) -> None:
        for server in self.servers:
            server.signal(signal.SIGTERM)
        for server in self.servers:
            server.stop()

    def kill(self, servers: Iterable[ZooKeeperProcess]) -> None:
        for server in servers:
            server.kill()

    def __enter__(self) -> ZooKeeperEnsemble:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
