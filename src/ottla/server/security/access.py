"""What one client may do, and the log of what it was denied."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ottla.cluster.security.acls import CLUSTER_NAME
from ottla.protocol.acls import AclOperation, AclResource
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.operations import OPERATIONS

if TYPE_CHECKING:
    from ottla.server.network.connection import Connection
    from ottla.server.security.authorizer import Authorizer

audit = LimitedLog(logging.getLogger("ottla.audit"))

# Clients choose names and ids, of up to 32 kB.
_LONGEST_SHOWN: Final = 300

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    AclResource.TOPIC,
    AclResource.GROUP,
    AclResource.CLUSTER,
    AclResource.TRANSACTIONAL_ID,
)


def shown(name: object) -> str:
    """A name as it stands in a line of the log: without line ends of its own, and not too long."""
    text = repr(name)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


class Access:
    """The authorizer's answers for one connection."""

    __slots__ = ("_authorizer", "_connection", "_host", "_principal")

    def __init__(self, authorizer: Authorizer, connection: Connection) -> None:
        self._authorizer = authorizer
        self._connection = connection
        self._principal = connection.principal
        self._host = connection.host

    def may(
        self, operation: AclOperation, resource: AclResource, name: str, *, logged: bool = True
    ) -> bool:
        """Whether the client may do this. `logged`: a denial is an answer of its own, and goes to the
        audit log; otherwise something is only left out."""
        allowed = self._authorizer.allows(self._principal, self._host, operation, resource, name)
        if not allowed and logged:
            self.log_denial(operation, resource, name)
        return allowed

    def log_denial(self, operation: AclOperation, resource: AclResource, name: str) -> None:
        # Lines are limited by what they are about, so that a flood of one kind hides no other.
        audit.warning(
            "denied: principal=%s peer=%s client=%s "
            f"operation={operation.name} resource={resource.name}:%s",
            self._principal, self._connection.address, shown(self._connection.client_id), shown(name),
        )  # fmt: skip

    def cluster(self, operation: AclOperation, *, logged: bool = True) -> bool:
        return self.may(operation, CLUSTER, CLUSTER_NAME, logged=logged)

    def some(self, operation: AclOperation, resource: AclResource) -> bool:
        """Whether there can be a resource of this kind to which it may do this."""
        return self._authorizer.allows_some(self._principal, self._host, operation, resource)

    def operations(self, resource: AclResource, name: str = CLUSTER_NAME) -> int:
        """What it may do to a resource, as a bit field."""
        among: Iterable[AclOperation] = OPERATIONS[resource]
        return self._authorizer.operations(self._principal, self._host, resource, name, among)
