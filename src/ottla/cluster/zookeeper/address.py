"""The address of a ZooKeeper: `host:port,host:port/chroot`, as Kafka writes zookeeper.connect."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.cluster.store import check_path

DEFAULT_PORT: Final = 2181
_EXAMPLE: Final = "write it as host:port,host:port/path"


class Address(NamedTuple):
    """Where the servers are, and below which of their nodes our tree stands."""

    servers: tuple[tuple[str, int], ...]
    chroot: str  # "" for the root, otherwise "/a/b"

    @property
    def hosts(self) -> str:
        """The servers without the chroot."""
        return ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )

    def __str__(self) -> str:
        return self.hosts + self.chroot


def parse_address(text: str) -> Address:
    """ValueError, with a sentence for the user, unless the text is an address."""
    listed, slash, path = text.strip().partition("/")
    servers = tuple(_server(each.strip(), text) for each in listed.split(","))
    chroot = f"/{path}".rstrip("/") if slash else ""
    if chroot:
        try:
            check_path(chroot)
        except ValueError:
            raise ValueError(
                f"'{chroot}' cannot be the path of a node in ZooKeeper: {_EXAMPLE}"
            ) from None
        names = chroot.split("/")[1:]
        if "." in names or ".." in names or names[0] == "zookeeper":
            raise ValueError(f"'{chroot}' cannot hold a cluster: choose another path in ZooKeeper")
    return Address(servers, chroot)


def _server(server: str, text: str) -> tuple[str, int]:
    if server.startswith("["):
        host, bracket, rest = server[1:].partition("]")
        port = rest.removeprefix(":")
        well_formed = bool(bracket) and (not rest or rest.startswith(":"))
    else:
        host, _, port = server.partition(":")
        well_formed = True
    if not port and not server.endswith(":"):
        port = str(DEFAULT_PORT)
    if not well_formed or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"'{text}' is not the address of a ZooKeeper: {_EXAMPLE}")
    return host, int(port)
