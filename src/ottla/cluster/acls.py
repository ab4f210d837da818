"""Access control lists: who may do what to which resources, as Kafka has them. No I/O.

An entry allows or denies an operation to a principal from a host, on resources whose name is given or
begins in a given way. The numbers are those of the wire.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Final

CLUSTER_NAME: Final = "kafka-cluster"  # the only resource of its kind
ANYTHING: Final = "*"  # a literal name that stands for every name, and for every host


class AclResource(IntEnum):
    """What access is controlled to."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """How a name in an entry, or in a filter, is meant."""

    ANY = 1  # filters only: any pattern with this very name
    MATCH = 2  # filters only: every pattern that this name falls under
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry."""

    resource: int
    name: str
    pattern: int
    principal: str  # Type:name; "User:*" is everybody
    host: str
    operation: int
    permission: int

    @property
    def key(self) -> str:
        """Names the entry among all: the same for the same fields."""
        text = json.dumps([str(value) for value in asdict(self).values()])
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def stored(self) -> dict[str, str]:
        """As the metadata keeps it."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def of_stored(cls, stored: Mapping[str, str]) -> Acl:
        return cls(
            int(stored["resource"]),
            stored["name"],
            int(stored["pattern"]),
            stored["principal"],
            stored["host"],
            int(stored["operation"]),
            int(stored["permission"]),
        )


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which entries are meant; None and ANY are all."""

    resource: int = AclResource.ANY
    name: str | None = None
    pattern: int = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = Permission.ANY

    def takes(self, acl: Acl) -> bool:
        return (
            self.resource in (AclResource.ANY, acl.resource)
            and self._takes_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _takes_name(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern != Pattern.MATCH:
            return self.name == acl.name
        if acl.pattern == Pattern.LITERAL:
            return acl.name in (self.name, ANYTHING)
        return self.name.startswith(acl.name)
