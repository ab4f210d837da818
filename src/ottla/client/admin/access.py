"""Who may do what, and how much: ACLs, client quotas, SCRAM credentials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ottla.client.admin.base import AdminPart
from ottla.client.cluster import CONTROLLER
from ottla.client.errors import broker_error, raise_for
from ottla.client.naming import Names, names_of, several_of
from ottla.client.spreading import Outcomes, Verdict
from ottla.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityDataRequest,
    EntryDataRequest,
    OpData,
)
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.create_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
)
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from ottla.protocol.scram import (
    DEFAULT_ITERATIONS,
    NUMBERS_OF_SCRAM,
    SCRAM_NUMBERS,
    ScramMechanism,
    new_salt,
    salted,
)

__all__ = [
    "AccessAdmin",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPattern",
    "AclPermission",
    "AclResource",
    "ClientQuota",
    "QuotaEntity",
    "ScramCredential",
    "ScramMechanism",
]

# How DescribeClientQuotas matches a component.
_EXACT, _DEFAULT, _ANY_NAME = 0, 1, 2

_Filter = TypeVar("_Filter", DescribeAclsRequest, DeleteAclsFilter)


@dataclass(frozen=True, slots=True)
class Acl:
    """A rule: this principal, from this host, may (or may not) do this with that."""

    resource: AclResource
    name: str  # "*": all of the kind
    principal: str  # "User:alice", "User:*"
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    pattern: AclPattern = AclPattern.LITERAL
    host: str = "*"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs; what is left out matches all."""

    resource: AclResource = AclResource.ANY
    name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    pattern: AclPattern = AclPattern.ANY
    host: str | None = None


# Whose quota: "user", "client-id" or "ip" -> the name, None for the default of all the others.
QuotaEntity = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """The quotas of an entity, for example producer_byte_rate."""

    entity: QuotaEntity
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """That a user has a password for a mechanism; the password itself is never told."""

    user: str
    mechanism: str
    iterations: int


class AccessAdmin(AdminPart):
    """The calls about access. SecurityDisabled where the broker keeps no ACLs."""

    async def describe_acls(
        self, matching: AclFilter | None = None, *, timeout: float | None = None
    ) -> list[Acl]:
        """The ACLs that match the filter; without one, all of them."""
        wanted = matching or AclFilter()
        answer = await self.cluster.ask(
            _filter(DescribeAclsRequest, wanted), DescribeAclsResponse, timeout=timeout
        )
        raise_for(answer.error_code, answer.error_message, "describing ACLs")
        return [_acl(resource, each) for resource in answer.resources for each in resource.acls]

    async def create_acls(self, acls: Acl | Iterable[Acl], *, timeout: float | None = None) -> None:
        """Add ACLs; one that is there already stays as it is."""
        wanted = several_of(acls, Acl, "acls: Acl")
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource,
                    resource_name=acl.name,
                    resource_pattern_type=acl.pattern,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                for acl in wanted
            ]
        )

        def read(answer: CreateAclsResponse) -> Iterable[Verdict[Acl, None]]:
            for acl, each in zip(wanted, answer.results, strict=False):
                yield Verdict(acl, each.error_code, None, each.error_message)

        created = await self._ask(
            request,
            CreateAclsResponse,
            read=read,
            about=lambda acl: f"the ACL of {acl.principal} on {acl.resource.name} '{acl.name}'",
            at=CONTROLLER,
            timeout=timeout,
        )
        created.all()

    async def delete_acls(
        self, filters: AclFilter | Iterable[AclFilter], *, timeout: float | None = None
    ) -> list[Acl]:
        """Remove the ACLs that match; the result is what was removed."""
        wanted = several_of(filters, AclFilter, "filters: AclFilter")
        request = DeleteAclsRequest(filters=[_filter(DeleteAclsFilter, each) for each in wanted])

        def read(answer: DeleteAclsResponse) -> Iterable[Verdict[AclFilter, list[Acl]]]:
            for one, result in zip(wanted, answer.filter_results, strict=False):
                failed = next((each for each in result.matching_acls if each.error_code), result)
                removed = [_acl(each, each) for each in result.matching_acls]
                yield Verdict(one, failed.error_code, removed, failed.error_message)

        deleted = await self._ask(
            request,
            DeleteAclsResponse,
            read=read,
            about=str,
            at=CONTROLLER,
            timeout=timeout,
        )
        return [acl for some in deleted.all().values() for acl in some]

    async def describe_quotas(
        self,
        entity: QuotaEntity | None = None,
        *,
        kinds: Names = (),
        strict: bool = False,
        timeout: float | None = None,
    ) -> list[ClientQuota]:
        """The quotas of an entity, of all entities of the kinds, or all there are.

        `strict` leaves out entities that have more parts than were asked for.
        """
        components = [
            ComponentData(
                entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
            )
            for kind, name in (entity or {}).items()
        ] + [
            ComponentData(entity_type=kind, match_type=_ANY_NAME, match=None)
            for kind in names_of(kinds, "kinds")
        ]
        answer = await self.cluster.ask(
            DescribeClientQuotasRequest(components=components, strict=strict),
            DescribeClientQuotasResponse,
            timeout=timeout,
        )
        raise_for(answer.error_code, answer.error_message, "describing quotas")
        return [
            ClientQuota(
                {each.entity_type: each.entity_name for each in entry.entity},
                {each.key: each.value for each in entry.values},
            )
            for entry in answer.entries or ()
        ]

    async def alter_quotas(
        self,
        entity: QuotaEntity,
        *,
        assign: Mapping[str, float] | None = None,
        unset: Names = (),
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Set and remove quotas of one entity."""
        operations = [OpData(key=key, value=value) for key, value in (assign or {}).items()]
        operations += [OpData(key=key, remove=True) for key in names_of(unset, "unset")]
        request = AlterClientQuotasRequest(
            entries=[
                EntryDataRequest(
                    entity=[
                        EntityDataRequest(entity_type=kind, entity_name=name)
                        for kind, name in entity.items()
                    ],
                    ops=operations,
                )
            ],
            validate_only=validate_only,
        )
        shown = ", ".join(f"{kind} {name or '(default)'}" for kind, name in entity.items())

        def read(answer: AlterClientQuotasResponse) -> Iterable[Verdict[str, None]]:
            for each in answer.entries:
                yield Verdict(shown, each.error_code, None, each.error_message)

        altered = await self._ask(
            request,
            AlterClientQuotasResponse,
            read=read,
            about=lambda entity: f"the quota of {entity}",
            at=CONTROLLER,
            timeout=timeout,
        )
        altered.all()

    async def describe_scram_users(
        self, users: Names | None = None, *, timeout: float | None = None
    ) -> list[ScramCredential]:
        """Which users (all, unless some are named) have passwords for which SCRAM mechanisms."""
        asked = (
            None if users is None else [UserName(name=name) for name in names_of(users, "users")]
        )
        answer = await self.cluster.ask(
            DescribeUserScramCredentialsRequest(users=asked),
            DescribeUserScramCredentialsResponse,
            timeout=timeout,
        )
        raise_for(answer.error_code, answer.error_message, "describing users")
        outcomes: Outcomes[str, list[ScramCredential]] = Outcomes()
        for each in answer.results:
            if each.error_code:
                outcomes.errors[each.user] = broker_error(
                    each.error_code, each.error_message, f"user '{each.user}'"
                )
                continue
            outcomes.results[each.user] = [
                ScramCredential(
                    each.user, SCRAM_NUMBERS.get(one.mechanism, "unknown"), one.iterations
                )
                for one in each.credential_infos
            ]
        return [credential for some in outcomes.all().values() for credential in some]

    async def set_scram_password(
        self,
        user: str,
        password: str,
        mechanism: ScramMechanism = "SCRAM-SHA-512",
        *,
        iterations: int = DEFAULT_ITERATIONS,
        timeout: float | None = None,
    ) -> None:
        """Give a user a password. What is sent is a salted hash of it, as the broker keeps it."""
        salt = new_salt()
        await self._alter_scram(
            AlterUserScramCredentialsRequest(
                upsertions=[
                    ScramCredentialUpsertion(
                        name=user,
                        mechanism=NUMBERS_OF_SCRAM[mechanism],
                        iterations=iterations,
                        salt=salt,
                        salted_password=salted(mechanism, password, salt, iterations),
                    )
                ]
            ),
            timeout,
        )

    async def delete_scram_password(
        self,
        user: str,
        mechanism: ScramMechanism = "SCRAM-SHA-512",
        *,
        timeout: float | None = None,
    ) -> None:
        """Take a user's password for a mechanism away."""
        deletion = ScramCredentialDeletion(name=user, mechanism=NUMBERS_OF_SCRAM[mechanism])
        await self._alter_scram(AlterUserScramCredentialsRequest(deletions=[deletion]), timeout)

    async def _alter_scram(
        self, request: AlterUserScramCredentialsRequest, timeout: float | None
    ) -> None:
        def read(answer: AlterUserScramCredentialsResponse) -> Iterable[Verdict[str, None]]:
            for each in answer.results:
                yield Verdict(each.user, each.error_code, None, each.error_message)

        altered = await self._ask(
            request,
            AlterUserScramCredentialsResponse,
            read=read,
            about=lambda user: f"user '{user}'",
            at=CONTROLLER,
            timeout=timeout,
        )
        altered.all()


def _filter(kind: type[_Filter], wanted: AclFilter) -> _Filter:
    """A filter as it stands in requests."""
    return kind(
        resource_type_filter=wanted.resource,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def _acl(
    resource: DescribeAclsResource | DeleteAclsMatchingAcl,
    entry: AclDescription | DeleteAclsMatchingAcl,
) -> Acl:
    """An ACL from an answer. A deleted one comes in one piece: it is its own resource."""
    return Acl(
        AclResource(resource.resource_type),
        resource.resource_name,
        entry.principal,
        AclOperation(entry.operation),
        AclPermission(entry.permission_type),
        AclPattern(resource.pattern_type),
        entry.host,
    )
