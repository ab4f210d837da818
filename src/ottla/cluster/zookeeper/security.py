"""How a broker proves to ZooKeeper who it is, and how ZooKeeper does to the broker."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Scheme(enum.Enum):
    """How a name and a password are shown to the server."""

    # ZooKeeper asks nobody whether a digest is right: who gives another finds nodes closed to it.
    DIGEST = "digest"
    # SASL DIGEST-MD5: the server knows its users, and refuses the others.
    SASL = "sasl"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are. With these, nodes that we make are open to nobody else."""

    scheme: Scheme
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How connections are encrypted. All of these are paths of PEM files."""

    ca: str | None = None  # the system's authorities otherwise
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True  # that the server's certificate is signed by an authority
    check_hostname: bool = True
