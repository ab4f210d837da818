"""What may be done to a resource, as the bit fields in which the protocol carries it.

Without an authorizer everybody may do everything that makes sense for the kind of resource.
"""

from __future__ import annotations

from typing import Final

from ottla.protocol.acls import AclOperation, AclResource

# The field of a response whose request did not ask.
NOT_ASKED = -(1 << 31)


# What can be done to each kind of resource.
OPERATIONS: Final = {
    AclResource.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResource.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResource.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}


def _bits(resource: AclResource) -> int:
    return sum(1 << operation for operation in OPERATIONS[resource])


TOPIC_OPERATIONS = _bits(AclResource.TOPIC)
GROUP_OPERATIONS = _bits(AclResource.GROUP)
CLUSTER_OPERATIONS = _bits(AclResource.CLUSTER)

# What those are told who ask about access control lists.
NO_AUTHORIZER = "No authorizer is configured on this broker."
