"""The cluster of a folder, its processes started, stopped and taken out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from ottla.testing.broker_process import BrokerDied, BrokerProcess
from ottla.testing.cluster.state import (
    HOST,
    ZOOKEEPER,
    ClusterError,
    ClusterState,
    ServerState,
    broker_config,
    decode,
    encode,
)
from ottla.testing.cluster.status import STATUS_TIMEOUT, ClusterStatus, status_of
from ottla.testing.ports import free_port
from ottla.testing.process_identity import ProcessIdentity, identify, send, wait_for_end
from ottla.testing.server_process import START_TIMEOUT, STOP_TIMEOUT
from ottla.testing.zookeeper import (
    ZooKeeperDied,
    ZooKeeperMissing,
    ZooKeeperProcess,
)
from ottla.version import __version__

BASE_PORT: Final = 9092
BROKERS: Final = 3
_LARGEST_PORT: Final = 65535
_CHROOT: Final = "/ottla"
_START_TIMEOUT: Final = START_TIMEOUT
_KILL_TIMEOUT: Final = 10.0
_FORGET_TIMEOUT: Final = 30.0
_FORGET_PAUSE: Final = 0.2
_NOT_REGISTERED: Final = 102  # BROKER_ID_NOT_REGISTERED
# Each of them says that a folder is a broker's.
_IN_DATA_FOLDERS: Final = ("meta.properties", "metadata.db")
# Settings in which brokers of one cluster differ, or that are the cluster's own.
_NOT_FOR_ALL: Final = ("node.id", "broker.id", "log.dir", "log.dirs", "zookeeper.connect")


class LocalCluster:
    """The cluster of a folder. Its methods block; each of them sees what others have changed."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int | None = None,
        base_port: int | None = BASE_PORT,
        zookeeper: str | None = None,
        settings: Mapping[str, str] | None = None,
        racks: Sequence[str] = (),
    ) -> None:
        """What is given besides the folder is for a cluster that is not there yet; of one that is,
        the number of brokers, the racks and the ZooKeeper must be those it has. `base_port` is the
        first broker's port, the others have the next; None takes any that are free. Brokers stand in
        `racks` in turn."""
        self.folder = folder.resolve()
        self._brokers = brokers
        self._base_port = base_port
        self._zookeeper = zookeeper
        self._settings = dict(settings or {})
        self._racks = tuple(racks)
        # Processes that this object has started, to be reaped.
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        # What is started outlives this program, unless a `with` block says how long it is needed.
        self._outlives = True

    # What there is

    @property
    def exists(self) -> bool:
        return self._state_path.exists()

    @property
    def state(self) -> ClusterState:
        """What the folder says; ClusterError if it holds no cluster."""
        try:
            document = json.loads(self._state_path.read_text())
            state = decode(document)
            if document.get("folder", own := self._identity()) != own:
                state.forget_processes()  # a copy: they are those of the folder that was copied
            return state
        except FileNotFoundError:
            raise ClusterError(
                f"there is no cluster in {self.folder}; "
                f"`ottla cluster start --data {self.folder}` makes one"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"{self._state_path} cannot be read: {error}") from error

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(f"{HOST}:{broker.port}" for broker in self.state.brokers.values())

    @property
    def _state_path(self) -> Path:
        return self.folder / "cluster.json"

    def log_path(self, broker: int) -> Path:
        return self.folder / "logs" / f"broker-{broker}.log"

    def data_path(self, broker: int) -> Path:
        own = self.folder / f"broker-{broker}"
        if not self.exists:
            return own
        server = self.state.brokers.get(broker)
        return own if server is None or server.data is None else Path(server.data)

    # Starting

    def start(self, brokers: Iterable[int] | None = None) -> list[str]:
        """Starts whatever does not run, and returns once it answers. The names of what was started.

        `brokers` names those to start; by default all.
        """
        for rack in self._racks:
            _require_rack(rack)
        with self._locked():
            if self.exists:
                state = self._checked_state()
                if self._settings:
                    self._save(state)  # remembered, whether anything is started with them or not
            else:
                state = self._new_state()
            wanted = list(state.brokers) if brokers is None else list(brokers)
            for number in wanted:
                self._require(state, number)
            self._require_free_ports(state, wanted)
            started = self._start_zookeeper(state)
            return started + self._start_brokers(state, wanted)

    def add(self, rack: str | None = None) -> int:
        """Adds a broker, which stands in this rack, and starts it. Its number."""
        if rack is not None:
            _require_rack(rack)
        with self._locked():
            state = self._checked_state()
            number = state.next_id
            port = self._port_of_new(state, number)
            state.brokers[number] = ServerState(port, rack=rack)
            state.next_id += 1
            self._require_free_ports(state, [number])
            self._save(state)
            self._start_zookeeper(state)
            self._start_brokers(state, [number])
            return number

    def adopt(self, data: Path) -> int:
        """Makes a cluster whose first broker is the single node with this data folder, and starts it.
        The broker's number. The node must have been stopped; its folder stays where it is.

        Broken off, it can be called again.
        """
        from ottla.cluster.store import StoreError
        from ottla.server.adoption import adopt_folders, check_adoptable

        data = data.resolve()
        with self._locked():
            is_new = not self.exists
            if is_new:
                # Before anything is made, or started.
                try:
                    check_adoptable([str(data)], self._settings)
                except (StoreError, OSError) as error:
                    raise ClusterError(f"{data} cannot be adopted: {error}") from error
            state = self._new_state(0) if is_new else self.state
            begun = [number for number, each in state.brokers.items() if each.data == str(data)]
            if begun and len(state.brokers) == 1:
                # It was broken off after the last step but this one.
                self._require_free_ports(state, begun)
                self._start_zookeeper(state)
                self._start_brokers(state, begun)
                return begun[0]
            if state.brokers:
                raise ClusterError(
                    f"there is a cluster in {self.folder} already: choose another --data"
                )
            self._start_zookeeper(state)
            try:
                adopted = adopt_folders([str(data)], state.zookeeper_address, state.settings)
            except (StoreError, OSError) as error:
                if is_new:
                    if state.zookeeper is not None:
                        self._end({ZOOKEEPER: state.zookeeper}, signal.SIGTERM, _KILL_TIMEOUT)
                        shutil.rmtree(self.folder / ZOOKEEPER)
                    self._state_path.unlink()
                raise ClusterError(f"{data} cannot be adopted: {error}") from error
            number = adopted.node_id
            state.brokers[number] = ServerState(self._port_of_new(state, 1), data=str(data))
            state.next_id = number + 1
            self._save(state)
            self._require_free_ports(state, [number])
            self._start_brokers(state, [number])
            return number

    def _require_own_folder(self) -> None:
        """A broker would take the folders of others in its own, `broker-N`, for logs of a topic."""
        if any((self.folder / name).exists() for name in _IN_DATA_FOLDERS):
            raise ClusterError(
                f"{self.folder} is the data folder of a broker: give the cluster a folder of its own "
                "(--data)"
            )

    def _require_common_settings(self) -> None:
        for name in _NOT_FOR_ALL:
            if name in self._settings:
                raise ClusterError(
                    f"{name} cannot be set for all brokers of a cluster: each has its own, which is "
                    "given to it"
                    if name != "zookeeper.connect"
                    else f"{name} is what --zookeeper says; it cannot be set beside that"
                )

    def _require_valid_settings(self, remembered: Mapping[str, str]) -> None:
        """ClusterError for settings with which no broker could start: they are not stored."""
        if self._settings:
            broker_config({**remembered, **self._settings})

    def _new_state(self, brokers: int | None = None) -> ClusterState:
        self._require_own_folder()
        self._require_common_settings()
        self._require_valid_settings({})
        count = BROKERS if self._brokers is None else self._brokers
        base = self._base_port
        if brokers is not None:
            count = brokers
        elif count < 1:
            raise ClusterError("a cluster has one broker at least")
        if base is not None and not 1 < base <= _LARGEST_PORT + 1 - count:
            raise ClusterError(f"{base} cannot be the first of {count} ports")
        if self._zookeeper is None:
            own = ServerState(free_port() if base is None else base - 1)
            address = f"{HOST}:{own.port}{_CHROOT}"
        else:
            own, address = None, _checked_address(self._zookeeper)
        state = ClusterState(base, address, own, count + 1, {}, self._settings)
        for number in range(1, count + 1):
            port, rack = self._port_of_new(state, number), self._rack_of(number)
            state.brokers[number] = ServerState(port, rack=rack)
        self._require_free_ports(state, state.brokers)
        self._save(state)
        return state

    def _checked_state(self) -> ClusterState:
        """What is there, unless something else was asked for."""
        self._require_common_settings()
        state = self.state
        self._require_valid_settings(state.settings)
        if self._brokers not in (None, len(state.brokers)):
            raise ClusterError(
                f"the cluster in {self.folder} has {len(state.brokers)} brokers, not "
                f"{self._brokers}; `ottla cluster add` and `remove` change that"
            )
        if self._zookeeper not in (None, state.zookeeper_address):
            if state.zookeeper is None and not self._holds_data(state):
                # No broker has ever joined it: the address was a mistake, as likely as not.
                state.zookeeper_address = _checked_address(self._zookeeper)
                self._save(state)
                return self._checked_state()
            raise ClusterError(
                f"the cluster in {self.folder} has its metadata in the ZooKeeper at "
                f"{state.zookeeper_address}; it cannot be moved to another"
            )
        racks = {number: self._rack_of(number) for number in state.brokers}
        if self._racks and racks != {number: each.rack for number, each in state.brokers.items()}:
            raise ClusterError(
                f"the brokers of the cluster in {self.folder} stand in other racks; "
                "`ottla cluster add --rack` names that of a new one"
            )
        state.settings.update(self._settings)
        return state

    def _holds_data(self, state: ClusterState) -> bool:
        """Whether a broker has said in its folder which cluster it belongs to."""
        return any((self.data_path(each) / "meta.properties").exists() for each in state.brokers)

    def _rack_of(self, number: int) -> str | None:
        """Where a broker of a new cluster stands."""
        return self._racks[(number - 1) % len(self._racks)] if self._racks else None

    def _port_of_new(self, state: ClusterState, number: int) -> int:
        used = {broker.port for broker in state.brokers.values()}
        if state.zookeeper is not None:
            used.add(state.zookeeper.port)
        if state.base_port is not None:
            port = state.base_port + number - 1
            if port > _LARGEST_PORT:
                port = state.base_port  # numbers of brokers may be as large as they like
            while port in used:
                port += 1
            if port > _LARGEST_PORT:
                raise ClusterError(f"there is no port from {state.base_port} on for another broker")
            return port
        while (port := free_port()) in used:
            pass
        return port

    def _require_free_ports(self, state: ClusterState, brokers: Iterable[int]) -> None:
        """Nothing is started if somebody else has a port that will be needed."""
        servers = [(f"broker {number}", state.brokers[number]) for number in brokers]
        if state.zookeeper is not None:
            servers.append(("ZooKeeper", state.zookeeper))
        for name, server in servers:
            if not server.running and not _is_free(server.port):
                hint = "choose another --base-port" if not self.exists else "end that first"
                raise ClusterError(
                    f"another program listens on {HOST}:{server.port}, the port for {name}: {hint}"
                )

    def _start_zookeeper(self, state: ClusterState) -> list[str]:
        if state.zookeeper is None or state.zookeeper.running:
            return []
        server = ZooKeeperProcess(self.folder / ZOOKEEPER, host=HOST, port=state.zookeeper.port)
        server.outlives = self._outlives
        try:
            server.spawn()
            self._note(state, state.zookeeper, server.process, None)
            server.wait_until_ready()
        except ZooKeeperMissing as error:
            raise ClusterError(str(error)) from error
        except ZooKeeperDied as error:
            raise ClusterError(_did_not_start(ZOOKEEPER, server.log_path)) from error
        return [ZOOKEEPER]

    def _start_brokers(self, state: ClusterState, brokers: Iterable[int]) -> list[str]:
        begun: dict[int, BrokerProcess] = {}
        plain = {name: text for name, text in state.settings.items() if not _is_secret(name)}
        arguments = self._write_secrets(state)
        for number in brokers:
            server = state.brokers[number]
            if server.running:
                continue
            broker = BrokerProcess(
                self.data_path(number),
                host=HOST,
                port=server.port,
                settings={
                    "node.id": str(number),
                    "zookeeper.connect": state.zookeeper_address,
                    **plain,
                    **({} if server.rack is None else {"broker.rack": server.rack}),
                },
                arguments=arguments,
                log_path=self.log_path(number),
            )
            broker.outlives = self._outlives
            broker.spawn()
            self._note(state, server, broker.process, __version__)
            begun[number] = broker
        problems: list[str] = []
        for number, broker in begun.items():
            try:
                # After a crash it may have gigabytes to look at, and would be killed at every start.
                broker.wait_until_ready(_START_TIMEOUT, kills=False)
            except BrokerDied:
                told = _did_not_answer if broker.running else _did_not_start
                problems.append(told(str(number), self.log_path(number)))
        if problems:
            # The others stay: what ails one is often not the matter with all.
            raise ClusterError("; ".join(problems))
        return [str(number) for number in begun]

    def _write_secrets(self, state: ClusterState) -> list[str]:
        """Write secret settings to a file: in the list of processes others could find them. Returns the
        arguments that name the file to a broker."""
        secrets = {name: text for name, text in state.settings.items() if _is_secret(name)}
        if not secrets:
            return []
        path = self.folder / "secrets.toml"
        lines = [f"{json.dumps(name)} = {json.dumps(text)}\n" for name, text in secrets.items()]
        self._replace(path, "".join(lines))
        return ["--config", str(path)]

    def _note(
        self,
        state: ClusterState,
        server: ServerState,
        process: subprocess.Popen[bytes] | None,
        version: str | None,
    ) -> None:
        """Store at once which process was started, so that it is known after a crash of this program."""
        assert process is not None
        self._children[process.pid] = process
        server.process = identify(process.pid)
        server.version = version
        self._save(state)

    # Ending

    def stop(self, brokers: Iterable[int] | None = None) -> list[str]:
        """Stops brokers in good order, and with all of them the ZooKeeper. The names of those that ran.

        A process that does not stop in time is killed.
        """
        with self._locked():
            state = self.state
            wanted = list(state.brokers if brokers is None else brokers)
            servers = {str(number): self._require(state, number) for number in wanted}
            ended = self._end(servers, signal.SIGTERM, STOP_TIMEOUT)
            if brokers is None and state.zookeeper is not None:
                ended += self._end({ZOOKEEPER: state.zookeeper}, signal.SIGTERM, _KILL_TIMEOUT)
            self._save(state)
            return ended

    def kill(self, name: int | str) -> None:
        """Ends a broker, or the ZooKeeper, as a crash would (SIGKILL)."""
        with self._locked():
            state = self.state
            if name == ZOOKEEPER:
                if state.zookeeper is None:
                    raise ClusterError(
                        f"the ZooKeeper at {state.zookeeper_address} was not started here, and is "
                        "not killed from here"
                    )
                server = state.zookeeper
            else:
                server = self._require(state, name)
            if not self._end({str(name): server}, signal.SIGKILL, _KILL_TIMEOUT):
                raise ClusterError(f"{_words(str(name))} does not run")
            self._save(state)

    def check_removable(self, broker: int) -> None:
        """ClusterError if there is no such broker, or no other."""
        state = self.state
        self._require(state, broker)
        if len(state.brokers) == 1:
            raise ClusterError(f"broker {broker} is the last of the cluster; stop it instead")

    def remove(self, broker: int, *, force: bool = False) -> Path:
        """Stops a broker and takes it out of the cluster. The folder with its data, which stays.

        ClusterError if it still holds replicas, unless forced.
        """
        with self._locked():
            state = self.state
            server = self._require(state, broker)
            self.check_removable(broker)
            if not force:
                held = self.replicas_of(broker)
                if held:
                    raise ClusterError(
                        f"broker {broker} still holds {len(held)} replicas ({held[0]}, …): move them "
                        "to others first, or give them up with --force"
                    )
            self._end({str(broker): server}, signal.SIGTERM, STOP_TIMEOUT)
            files = self.data_path(broker)
            self._save(state)
            # First, so that it can be done again if it fails: nobody else would have them forget it.
            self._unregister(broker, state)
            del state.brokers[broker]
            self._save(state)
            return files

    def _unregister(self, broker: int, state: ClusterState) -> None:
        """Unregister the broker at the others, as soon as they know that it has stopped."""
        from ottla.client.admin.client import Admin
        from ottla.client.errors import BrokerError, OttlaError

        if not any(server.running for server in state.brokers.values()):
            return  # nobody to tell
        admin = Admin(self.bootstrap, client_id="ottla-cluster")
        deadline = time.monotonic() + _FORGET_TIMEOUT
        try:
            while True:
                try:
                    admin.unregister_broker(broker)
                    return
                except BrokerError as error:
                    if error.code == _NOT_REGISTERED:
                        return
                    # It counts as running until its session has ended.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_FORGET_PAUSE)
        except OttlaError as error:
            raise ClusterError(
                f"broker {broker} was stopped, but the others still know of it: {error}; remove it "
                "once more"
            ) from error
        finally:
            admin.close()

    def _end(
        self, servers: Mapping[str, ServerState], number: signal.Signals, timeout: float
    ) -> list[str]:
        """Sends a signal to all that run, waits for their ends, and notes them."""
        signalled: dict[str, ProcessIdentity] = {}
        for name, server in servers.items():
            if server.process is not None and send(server.process, number):
                signalled[name] = server.process
        for process in signalled.values():
            if not wait_for_end(process, timeout):
                send(process, signal.SIGKILL)
                wait_for_end(process, _KILL_TIMEOUT)
            child = self._children.pop(process.pid, None)
            if child is not None:
                child.wait()
        for server in servers.values():
            server.process = None
        return list(signalled)

    # Looking

    def status(self) -> ClusterStatus:
        """Asks every process and the brokers. Changes nothing, and waits for no other command."""
        return status_of(self.state)

    def replicas_of(self, broker: int) -> list[str]:
        """The partitions, as topic-N, that have a replica on this broker."""
        from ottla.client.admin.client import Admin
        from ottla.client.errors import OttlaError

        admin = Admin(
            self.bootstrap,
            client_id="ottla-cluster",
            default_api_timeout_ms=STATUS_TIMEOUT * 1000,
            request_timeout_ms=STATUS_TIMEOUT * 1000,
        )
        try:
            # A broker that has not heard of the last moves yet would tell of what was there before.
            topics = admin.list_topics(internal=True, from_controller=True)
        except OttlaError as error:
            raise ClusterError(
                f"no broker tells what broker {broker} holds ({error}); start the cluster first, or "
                "take it out with --force"
            ) from error
        finally:
            admin.close()
        return [
            f"{topic.name}-{each.partition}"
            for topic in topics
            for each in topic.partitions
            if broker in each.replicas
        ]

    # The folder

    def _require(self, state: ClusterState, number: int | str) -> ServerState:
        server = state.brokers.get(int(number)) if str(number).isdecimal() else None
        if server is None:
            have = ", ".join(map(str, state.brokers))
            raise ClusterError(f"the cluster in {self.folder} has no broker {number}, but {have}")
        return server

    def _save(self, state: ClusterState) -> None:
        document = {**encode(state), "folder": self._identity()}
        self._replace(self._state_path, json.dumps(document, indent=2) + "\n")

    def _identity(self) -> str:
        """An identity of the folder, which stays when it is renamed, and which a copy does not have."""
        found = self.folder.stat()
        return f"{found.st_dev}:{found.st_ino}"

    def _replace(self, path: Path, text: str) -> None:
        """Replace a file as a whole: it may be read at any time. By its owner only, for it can hold
        secrets."""
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock by which one command at a time changes a cluster. A command that was to make a
        cluster, and made none, leaves no files."""
        path = self.folder / "cluster.lock"
        made_folder, made_lock = not self.folder.exists(), not path.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        with _lock(path, f"is at work on the cluster in {self.folder}"):
            try:
                yield
            finally:
                if made_lock and not self.exists:
                    path.unlink(missing_ok=True)
                    if made_folder:
                        with contextlib.suppress(OSError):  # something else is in it
                            self.folder.rmdir()

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Hold the lock by which one command at a time moves partitions by a plan: what another one
        moves meanwhile, to a broker that is about to leave perhaps, is in no plan. Starting and
        stopping goes on beside it."""
        _ = self.state  # or there is no cluster
        with _lock(self.folder / "moves.lock", f"moves partitions of the cluster in {self.folder}"):
            yield

    def __enter__(self) -> LocalCluster:
        self._outlives = False
        try:
            self.start()
        except BaseException:
            if self.exists:
                self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@contextlib.contextmanager
def _lock(path: Path, what: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(f"another command {what}: wait for its end") from None
        yield


def _require_rack(rack: str) -> None:
    """ClusterError for one without a name: brokers would take it for a rack like any other."""
    if not rack.strip():
        raise ClusterError("a rack has a name: give --rack one, or leave it out")


def _checked_address(zookeeper: str) -> str:
    from ottla.cluster.zookeeper import parse_address

    try:
        parse_address(zookeeper)
    except ValueError as error:
        raise ClusterError(str(error)) from None
    return zookeeper


def _is_secret(setting: str) -> bool:
    return setting.endswith((".password", ".sasl.jaas.config", ".keystore.key"))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections that linger after the last owner's end are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _words(name: str) -> str:
    return "the ZooKeeper" if name == ZOOKEEPER else f"broker {name}"


def _did_not_start(name: str, log: Path) -> str:
    return f"{_words(name)} did not start: {_last_words(log)} (see {log})"


def _did_not_answer(name: str, log: Path) -> str:
    return (
        f"{_words(name)} has not answered within {_START_TIMEOUT:.0f} s, and goes on with its start: "
        f"{_last_words(log)} (see {log}); `ottla cluster status` shows when it is there"
    )


def _last_words(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    except FileNotFoundError:
        lines = []
    return next((line for line in reversed(lines) if line), "it said nothing").rstrip(".")
