"""Decisions about access control lists. What is refused, and how, is Kafka's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.cluster.draft import Draft
from ottla.cluster.metadata import ResourceType
from ottla.cluster.security.acls import CLUSTER_NAME, Acl
from ottla.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from ottla.protocol.errors import ErrorCode, ProtocolError

_RESOURCES = frozenset(AclResource) - {AclResource.ANY}
_OPERATIONS = frozenset(AclOperation) - {AclOperation.ANY}


def create_acls(draft: Draft, wanted: Sequence[Acl]) -> list[ProtocolError | None]:
    """Adds entries; what is there already stays. The error of each, in order."""
    results: list[ProtocolError | None] = []
    for acl in wanted:
        error = fault_of(acl)
        results.append(error)
        if error is None:
            draft.set_config((ResourceType.ACL, acl.key), acl.stored())
    return results


def delete_acls(draft: Draft, entries: Iterable[Acl]) -> None:
    """Deletes entries; those that are not there are no mistake."""
    for acl in entries:
        draft.set_config((ResourceType.ACL, acl.key), {})


def fault_of(acl: Acl) -> ProtocolError | None:
    """Why an entry cannot be made."""
    if acl.resource not in _RESOURCES:
        why = "Invalid resource type"
    elif acl.pattern not in (AclPattern.LITERAL, AclPattern.PREFIXED):
        why = "Invalid resource pattern type"
    elif acl.operation not in _OPERATIONS:
        why = "Invalid operation"
    elif acl.permission not in (AclPermission.DENY, AclPermission.ALLOW):
        why = "Invalid permission type"
    elif not acl.name:
        why = "Invalid empty resource name"
    elif acl.resource == AclResource.CLUSTER and acl.name != CLUSTER_NAME:
        why = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not all(acl.principal.partition(":")):
        why = f"Could not parse principal from `{acl.principal}`, it must be Type:name"
    elif not acl.host:
        why = "Invalid empty host"
    else:
        return None
    return ProtocolError(ErrorCode.INVALID_REQUEST, why)
