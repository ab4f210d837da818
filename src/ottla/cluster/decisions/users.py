"""Decisions about users: their SCRAM credentials. The rules and messages are Kafka's.

All changes of one user in a request are made, or none; a user that is named twice for one mechanism is
refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ottla.cluster.draft import Draft
from ottla.cluster.metadata import ResourceType
from ottla.cluster.security.credentials import (
    FEWEST_ITERATIONS,
    MOST_ITERATIONS,
    NOBODY,
    SHORTEST_SALT,
    ScramCredential,
    can_be_name,
)
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.scram import SCRAM_NUMBERS


@dataclass(frozen=True, slots=True)
class ScramChange:
    """A credential to be set, or to be deleted if there is no salted password."""

    user: str
    mechanism: int
    iterations: int = 0
    salt: bytes = field(default=b"", repr=False)
    salted_password: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UserResult:
    """What became of a user."""

    user: str
    error: ProtocolError | None = None


def alter_scram(draft: Draft, changes: Sequence[ScramChange]) -> list[UserResult]:
    """Sets and deletes credentials; a result for each user, in the order of their first change."""
    by_user: dict[str, list[ScramChange]] = {}
    for change in changes:
        by_user.setdefault(change.user, []).append(change)
    results = []
    for user, wanted in by_user.items():
        try:
            _alter_user(draft, user, wanted)
            results.append(UserResult(user))
        except ProtocolError as error:
            results.append(UserResult(user, error.with_traceback(None)))
    return results


def _alter_user(draft: Draft, user: str, changes: Sequence[ScramChange]) -> None:
    if not user:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    counted = Counter(change.mechanism for change in changes)
    for mechanism, times in counted.items():
        if mechanism not in SCRAM_NUMBERS:
            raise ProtocolError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if times > 1:
            raise ProtocolError(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
    resource = (ResourceType.USER, user)
    credentials = dict(draft.configs.get(resource, {}))
    for change in changes:
        name = SCRAM_NUMBERS[change.mechanism]
        if change.salted_password is None:
            if credentials.pop(name, None) is None:
                raise ProtocolError(
                    ErrorCode.RESOURCE_NOT_FOUND,
                    "Attempt to delete a user credential that does not exist",
                )
            continue
        _check(change)
        credentials[name] = ScramCredential.of_salted(
            name, change.salted_password, change.salt, change.iterations
        ).render()
    draft.set_config(resource, credentials)


def _check(change: ScramChange) -> None:
    if change.iterations < FEWEST_ITERATIONS:
        why = "Too few iterations"
    elif change.iterations > MOST_ITERATIONS:
        why = "Too many iterations"
    elif len(change.salt) < SHORTEST_SALT:
        why = f"The salt must have at least {SHORTEST_SALT} bytes"
    elif not can_be_name(change.user):
        why = f"Username must not be {NOBODY}, nor have control characters"
    elif not change.salted_password:
        why = "The salted password must not be empty"
    else:
        return
    raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, why)
