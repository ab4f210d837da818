"""A network of namespaces on this machine, whose links a test can cut.

    with Network(["zookeeper", "1", "2", "3", "client"]) as network:
        with network.inside("1"): ...            # processes started here live there
        network.cut("1", "2")                    # packets from 1 to 2 vanish; those from 2 to 1 arrive
        network.heal()

Every host has a namespace with one address; a router namespace forwards between them, and a cut is a
routing rule there that drops without a word, as a broken cable does. The namespaces have no names and
nothing of them is in the namespace of the machine, so they vanish with the last process in them.
Linux only; needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN) and iproute2's `ip`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, NoReturn

import pytest

_CLONE_NEWNET: Final = 0x40000000
_NETWORK: Final = "10.213"
_ROUTER: Final = "router"


class NamespacesRefused(RuntimeError):
    """No namespaces can be made here; the message says why."""


def skip_or_fail(refusal: NamespacesRefused | str) -> NoReturn:
    """Skips a test that this machine refuses what it needs of root's rights (namespaces, mounts), unless
    REQUIRE_NAMESPACES=1 says that it must run."""
    if os.environ.get("REQUIRE_NAMESPACES") == "1":
        pytest.fail(f"REQUIRE_NAMESPACES is set, but {refusal}")
    pytest.skip(str(refusal))


class Network:
    """Belongs to the thread that made it; threads and processes started inside a host stay there."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = list(hosts)
        self._namespaces: dict[str, int] = {}
        self._cuts: set[tuple[str, str]] = set()

    def address(self, host: str) -> str:
        return f"{_NETWORK}.{self.hosts.index(host) + 1}.2"

    def __enter__(self) -> Network:
        if not sys.platform.startswith("linux"):
            raise NamespacesRefused("network namespaces are Linux's")
        if shutil.which("ip") is None:
            raise NamespacesRefused("the command `ip` (iproute2) is missing")
        try:
            for host in (_ROUTER, *self.hosts):
                self._namespaces[host] = _new_namespace()
                self._ip(host, "link", "set", "lo", "up")
            for number, host in enumerate(self.hosts, start=1):
                self._connect(host, f"{_NETWORK}.{number}", f"host{number}")
            with (
                self.inside(_ROUTER),
                open("/proc/sys/net/ipv4/ip_forward", "w") as forwarding,
            ):
                forwarding.write("1")
        except (OSError, subprocess.CalledProcessError) as error:
            self._close()
            told = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
            raise NamespacesRefused(f"no network namespace can be made here: {told}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._namespaces.clear()

    def _connect(self, host: str, prefix: str, link: str) -> None:
        other = f"/proc/{os.getpid()}/fd/{self._namespaces[host]}"
        peer = ("peer", "name", "eth0", "netns", other)
        self._ip(_ROUTER, "link", "add", link, "type", "veth", *peer)
        self._ip(_ROUTER, "address", "add", f"{prefix}.1/24", "dev", link)
        self._ip(_ROUTER, "link", "set", link, "up")
        self._ip(host, "address", "add", f"{prefix}.2/24", "dev", "eth0")
        self._ip(host, "link", "set", "eth0", "up")
        self._ip(host, "route", "add", "default", "via", f"{prefix}.1")

    def _ip(self, host: str, *words: str) -> None:
        with self.inside(host):
            subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """The calling thread is on that host."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(self._namespaces[host])
            try:
                yield
            finally:
                _enter(before)
        finally:
            os.close(before)

    # Faults

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` is lost from now on."""
        if (source, target) not in self._cuts:
            self._rule("add", source, target)
            self._cuts.add((source, target))

    def cut_both_ways(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """All links work again."""
        for source, target in self._cuts:
            self._rule("delete", source, target)
        self._cuts.clear()

    def _rule(self, verb: str, source: str, target: str) -> None:
        between = ("from", self.address(source), "to", self.address(target))
        self._ip(_ROUTER, "rule", verb, *between, "blackhole")


def _new_namespace() -> int:
    """A descriptor of a new network namespace; the calling thread stays where it is."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", _CLONE_NEWNET)
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _enter(before)
    finally:
        os.close(before)


def _enter(namespace: int) -> None:
    _call("setns", namespace, _CLONE_NEWNET)


def _call(name: str, *arguments: int) -> None:
    # Python has these calls from 3.12 on.
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
