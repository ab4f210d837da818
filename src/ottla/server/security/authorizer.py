"""The authorizer: decides whether a principal may do something, by Kafka's rules (StandardAuthorizer).

- A super user may do everything.
- Of the entries whose resource fits (by name, by prefix, or "*"), one that denies the operation wins
  over any that allow it.
- Who may read, write, delete or alter may describe; who may alter configurations may describe them. A
  denial implies nothing.
- Without any entry for a resource, `allow.everyone.if.no.acl.found` decides; with some of which none
  fits, the answer is no.

Decisions are remembered until the entries change. No I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from ottla.cluster.security.acls import ANYTHING, Acl
from ottla.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from ottla.server.security.addresses import of_connection, plain_address

EVERYBODY: Final = "User:*"
# Decisions that are remembered at most.
_REMEMBERED: Final = 20_000
# Of names up to this length: topics have no longer ones.
_LONGEST_REMEMBERED: Final = 255

_IMPLYING: Final = {
    AclOperation.DESCRIBE: frozenset(
        {
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.ALL,
        }
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset(
        {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.ALL}
    ),
}


_NONE: Final[dict[Acl, str]] = {}


class _Entries:
    """The entries of one kind of resource."""

    __slots__ = ("_lengths", "literal", "prefixed")

    def __init__(self) -> None:
        # By name; of those of one name each stands once, with its host as it is compared.
        self.literal: dict[str, dict[Acl, str]] = {}
        self.prefixed: dict[str, dict[Acl, str]] = {}
        # Of the prefixes, and how many there are of each. A client may ask for a name of 32 kB, and for
        # many of them.
        self._lengths: Counter[int] = Counter()

    def add(self, acl: Acl) -> None:
        if acl.pattern == AclPattern.LITERAL:
            self.literal.setdefault(acl.name, {})[acl] = plain_address(acl.host)
            return
        if acl.name not in self.prefixed:
            self.prefixed[acl.name] = {}
            self._lengths[len(acl.name)] += 1
        self.prefixed[acl.name][acl] = plain_address(acl.host)

    def remove(self, acl: Acl) -> None:
        names = self.literal if acl.pattern == AclPattern.LITERAL else self.prefixed
        some = names.get(acl.name, {})
        some.pop(acl, None)
        if not some and names.pop(acl.name, None) is not None and names is self.prefixed:
            self._lengths[len(acl.name)] -= 1
            if not self._lengths[len(acl.name)]:
                del self._lengths[len(acl.name)]

    def about(self, name: str) -> Iterator[tuple[Acl, str]]:
        """The entries for a name, with their hosts."""
        yield from self.literal.get(name, _NONE).items()
        if name != ANYTHING:
            yield from self.literal.get(ANYTHING, _NONE).items()
        for length in self._lengths:
            if length <= len(name):
                yield from self.prefixed.get(name[:length], _NONE).items()

    def all(self) -> Iterator[tuple[Acl, str]]:
        for names in (self.literal, self.prefixed):
            for some in names.values():
                yield from some.items()


class Authorizer:
    """Decides whether a principal may do something to a resource."""

    def __init__(self, super_users: Collection[str] = (), *, allow_if_none: bool = False) -> None:
        self.super_users = frozenset(super_users)
        self._allow_if_none = allow_if_none
        self._entries: dict[int, _Entries] = {}
        self._remembered: dict[tuple[str, str, int, int, str], bool] = {}

    def change(self, gone: Iterable[Acl], new: Iterable[Acl]) -> None:
        """Removes the entries that are gone, and adds the new ones."""
        for acl in gone:
            if acl.resource in self._entries:
                self._entries[acl.resource].remove(acl)
        for acl in new:
            self._entries.setdefault(acl.resource, _Entries()).add(acl)
        self._remembered.clear()

    def allows(
        self, principal: str, host: str, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        """Whether the principal, from this address, may do this to the resource."""
        key = (principal, host, operation, resource, name)
        known = self._remembered.get(key)
        if known is None:
            known = self._decide(principal, of_connection(host), operation, resource, name)
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            if len(name) <= _LONGEST_REMEMBERED:
                self._remembered[key] = known
        return known

    def _decide(
        self, principal: str, host: str, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        if principal in self.super_users:
            return True
        entries = self._entries.get(resource)
        found = allowed = False
        implying = _IMPLYING.get(operation, (operation, AclOperation.ALL))
        for acl, its_host in entries.about(name) if entries is not None else ():
            found = True
            if acl.principal not in (principal, EVERYBODY) or its_host not in (host, ANYTHING):
                continue
            if acl.permission == AclPermission.DENY:
                if acl.operation in (operation, AclOperation.ALL):
                    return False
            elif acl.operation in implying:
                allowed = True
        return allowed or (not found and self._allow_if_none)

    def allows_some(
        self, principal: str, host: str, operation: AclOperation, resource: AclResource
    ) -> bool:
        """Whether there can be a resource of this kind to which the principal may do this."""
        if self.allows(principal, host, operation, resource, "hardcode"):
            return True
        entries = self._entries.get(resource)
        if entries is None:
            return False
        host = of_connection(host)
        about = [
            acl
            for acl, its_host in entries.all()
            if acl.principal in (principal, EVERYBODY)
            and its_host in (host, ANYTHING)
            and acl.operation in (operation, AclOperation.ALL)
        ]
        denied = {(acl.pattern, acl.name) for acl in about if acl.permission == AclPermission.DENY}
        if (AclPattern.LITERAL, ANYTHING) in denied:
            return False
        return any(
            acl.permission == AclPermission.ALLOW and not _is_denied(acl, denied) for acl in about
        )

    def operations(
        self,
        principal: str,
        host: str,
        resource: AclResource,
        name: str,
        among: Iterable[AclOperation],
    ) -> int:
        """Those of these operations that are allowed, as the bit field of the protocol."""
        return sum(
            1 << each for each in among if self.allows(principal, host, each, resource, name)
        )


def _is_denied(allowing: Acl, denied: Collection[tuple[int, str]]) -> bool:
    """Whether every name that this entry allows is denied by another."""
    name = allowing.name
    if allowing.pattern == AclPattern.LITERAL:
        if name == ANYTHING:
            return False
        if (AclPattern.LITERAL, name) in denied:
            return True
    return any((AclPattern.PREFIXED, name[:end]) in denied for end in range(len(name) + 1))


def parse_super_users(text: str) -> frozenset[str]:
    """super.users: principals separated by semicolons, for names may have commas."""
    return frozenset(filter(None, (part.strip() for part in text.split(";"))))
