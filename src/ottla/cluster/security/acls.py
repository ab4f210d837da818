"""Access control lists: who may do what to which resources, as Kafka has them. No I/O.

An entry allows or denies an operation to a principal from a host, on resources whose name is given or
begins in a given way. The numbers are those of the wire.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource

CLUSTER_NAME: Final = "kafka-cluster"  # the only resource of its kind
ANYTHING: Final = "*"  # a literal name that stands for every name, and for every host


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of an access control list."""

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
        text = json.dumps(list(self.stored().values()))
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def stored(self) -> dict[str, str]:
        """The entry as the metadata holds it, all of it text."""
        return {
            "resource": str(self.resource),
            "name": self.name,
            "pattern": str(self.pattern),
            "principal": self.principal,
            "host": self.host,
            "operation": str(self.operation),
            "permission": str(self.permission),
        }

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
    pattern: int = AclPattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = AclPermission.ANY

    def takes(self, acl: Acl) -> bool:
        return (
            self.resource in (AclResource.ANY, acl.resource)
            and self._takes_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
        )

    def _takes_name(self, acl: Acl) -> bool:
        if self.pattern not in (AclPattern.ANY, AclPattern.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern != AclPattern.MATCH:
            return self.name == acl.name
        if acl.pattern == AclPattern.LITERAL:
            return acl.name in (self.name, ANYTHING)
        return self.name.startswith(acl.name)
