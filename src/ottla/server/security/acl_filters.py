"""Access control entries as requests name them and the metadata holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ottla.cluster.acls import Acl, AclFilter
from ottla.cluster.metadata import ResourceType
from ottla.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage

_FIRST_PATTERNS = 1


def acls_of(image: ClusterImage) -> Iterator[Acl]:
    """All entries."""
    for (kind, _), stored in image.configs.items():
        if kind is ResourceType.ACL:
            yield Acl.of_stored(stored)


def read_filter(given: Any, version: int) -> AclFilter | None:
    """The filter of a DescribeAcls or DeleteAcls request; None if a number in it means nothing."""
    pattern = given.pattern_type_filter if version >= _FIRST_PATTERNS else AclPattern.LITERAL
    for number, known in (
        (given.resource_type_filter, AclResource),
        (pattern, AclPattern),
        (given.operation, AclOperation),
        (given.permission_type, AclPermission),
    ):
        if number not in known.__members__.values():
            return None
    return AclFilter(
        given.resource_type_filter,
        given.resource_name_filter,
        pattern,
        given.principal_filter,
        given.host_filter,
        given.operation,
        given.permission_type,
    )
