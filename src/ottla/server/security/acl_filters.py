"""Access control entries as requests name them and the metadata holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ottla.cluster.metadata import ResourceType
from ottla.cluster.security.acls import Acl, AclFilter
from ottla.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage, Resource

_FIRST_PATTERNS = 1


def acls_of(image: ClusterImage) -> Iterator[Acl]:
    """All entries of the access control list."""
    for (kind, _), stored in image.configs.items():
        if kind is ResourceType.ACL:
            yield Acl.of_stored(stored)


def acls_among(image: ClusterImage, resources: Iterable[Resource]) -> Iterator[Acl]:
    """The entries among these resources that there are."""
    for resource in resources:
        stored = image.configs.get(resource)
        if resource[0] is ResourceType.ACL and stored:
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
