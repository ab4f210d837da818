"""Brokers with an authorizer, and entries of access control lists."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.cluster.security.acls import Acl
from ottla.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from ottla.server.security.acl_filters import acls_of
from server_kit.broker_thread import BrokerThread
from server_kit.security import sasl_settings

Op, Kind = AclOperation, AclResource
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
ALICE, HOST = "User:alice", "10.0.0.1"


def guarded_settings(users: Mapping[str, str], **more: str) -> dict[str, str]:
    """A listener for super users, and one for these users with their passwords."""
    return {
        **sasl_settings("PLAIN", {f"user_{name}": word for name, word in users.items()}),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def entry(
    operation: AclOperation,
    name: str = "orders",
    kind: AclResource = Kind.TOPIC,
    permission: AclPermission = ALLOW,
    pattern: AclPattern = AclPattern.LITERAL,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, permission)


def grant(secured: BrokerThread, *entries: Acl) -> None:
    """These entries and no others."""
    controller = secured.broker.controller

    async def change() -> None:
        await controller.delete_acls(list(acls_of(controller.image)))
        assert not any(await controller.create_acls(entries))

    secured.run_async(change())
