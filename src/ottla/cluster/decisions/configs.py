"""Change configurations: whole (AlterConfigs) or entry by entry (IncrementalAlterConfigs).

A resource is changed whole or not at all, each on its own. Which names and values are right is the
server's knowledge; it comes in as ConfigRules. The checks and their order are Kafka's: twice in the
request, kind and name of the resource, twice the same key, null values, operations on lists, values,
and last whether the resource exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ottla.cluster.draft import Draft
from ottla.cluster.metadata import CLUSTER_DEFAULT, CONFIGURABLE, Resource, ResourceType
from ottla.cluster.names import check_topic_name
from ottla.protocol.errors import ErrorCode, ProtocolError


class ConfigRules(Protocol):
    """What the server knows about configuration."""

    def check(
        self, resource: Resource, config: Mapping[str, str], altered: Collection[str]
    ) -> None:
        """ProtocolError if a resource may not have this configuration.

        `config` is all of it as it would be, `altered` the names that the request sets, takes away
        or changes. For topics the error is INVALID_CONFIG, for brokers INVALID_REQUEST.
        """

    def is_list(self, resource_type: ResourceType, name: str) -> bool:
        """True if the values of this setting are lists, to which one can append."""

    def list_default(self, resource_type: ResourceType, name: str) -> str | None:
        """The value of a list that nobody has set, comma-separated."""


class ConfigOperation(IntEnum):
    """What to do with one entry; numbers as on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One entry of an incremental change. `operation` is a number off the wire, to be checked."""

    name: str
    operation: int
    value: str | None = None


@dataclass(frozen=True, slots=True)
class AlteredResource:
    """A resource and its changes; `resource_type` is a number off the wire, to be checked.

    In a full change all entries are SETs, and what is not among them goes back to its default.
    """

    resource_type: int
    name: str
    changes: Sequence[ConfigChange]


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """What became of one resource."""

    resource_type: int
    name: str
    error: ProtocolError | None = None


def full_change(
    resource_type: int, name: str, config: Iterable[tuple[str, str | None]]
) -> AlteredResource:
    """A resource as AlterConfigs has it."""
    changes = [ConfigChange(key, ConfigOperation.SET, value) for key, value in config]
    return AlteredResource(resource_type, name, changes)


def alter_configs(
    draft: Draft,
    requested: Sequence[AlteredResource],
    rules: ConfigRules,
    *,
    incremental: bool,
    receiver: int | None = None,
) -> list[ConfigResult]:
    """One result for each part of the request, in its order.

    `receiver` is the broker that got the request; only it can tell whether a configuration of its
    own is right, so that another broker's is refused. None takes those of all registered brokers.
    """
    times = Counter((altered.resource_type, altered.name) for altered in requested)
    results: list[ConfigResult] = []
    for altered in requested:
        error: ProtocolError | None = None
        try:
            if times[altered.resource_type, altered.name] > 1:
                raise _invalid("A request may have each resource only once.")
            _alter(draft, altered, rules, incremental, receiver)
        except ProtocolError as raised:
            error = raised.with_traceback(None)
        results.append(ConfigResult(altered.resource_type, altered.name, error))
    return results


def _alter(
    draft: Draft,
    altered: AlteredResource,
    rules: ConfigRules,
    incremental: bool,
    receiver: int | None,
) -> None:
    resource_type = _checked_type(altered.resource_type)
    resource: Resource = (resource_type, altered.name)
    keys = [change.name for change in altered.changes]
    if len(set(keys)) != len(keys):
        raise _invalid("The request has a configuration key more than once.")
    for change in altered.changes:
        if change.value is None and change.operation != ConfigOperation.DELETE:
            raise _invalid(f"The value of '{change.name}' must not be null.")
    _check_name(resource, receiver)
    before = draft.configs.get(resource, {})
    after = dict(before) if incremental else {}
    for change in altered.changes:
        _apply(after, change, resource_type, rules)
    names = {*keys, *(name for name in before if name not in after)}
    rules.check(resource, after, names)
    _check_existence(draft, resource)
    # A broker's configuration is passed on even when nothing changed: files it names (keys,
    # certificates) may have, and this is how a broker is told to read them again.
    if after != before or (resource_type is ResourceType.BROKER and altered.changes):
        draft.set_config(resource, after)


def _checked_type(number: int) -> ResourceType:
    if number not in CONFIGURABLE:
        raise _invalid(f"Resource type {number} has no configuration that could be changed here.")
    return ResourceType(number)


def _check_name(resource: Resource, receiver: int | None) -> None:
    resource_type, name = resource
    if resource_type is ResourceType.TOPIC:
        if not name:
            raise _invalid("The name of the topic is missing; topics have no common default here.")
        check_topic_name(name)
    elif resource_type is ResourceType.BROKER:
        if name == CLUSTER_DEFAULT:
            return
        if not name.isascii() or not name.isdecimal():
            raise _invalid(f"A broker is named by its number, not by '{name}'.")
        if receiver is not None and int(name) != receiver:
            raise _invalid(
                f"This is broker {receiver}: send changes of broker {name} to that broker."
            )
    elif not name:
        kind = "group" if resource_type is ResourceType.GROUP else "subscription"
        raise _invalid(f"The name of the {kind} is missing.")


def _check_existence(draft: Draft, resource: Resource) -> None:
    resource_type, name = resource
    if resource_type is ResourceType.TOPIC and name not in draft.topics:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
    if resource_type is ResourceType.BROKER and name and int(name) not in draft.brokers:
        raise ProtocolError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {name} in the cluster."
        )


def _apply(
    config: dict[str, str], change: ConfigChange, resource_type: ResourceType, rules: ConfigRules
) -> None:
    name, value = change.name, change.value
    if change.operation == ConfigOperation.DELETE:
        config.pop(name, None)
        return
    assert value is not None
    if change.operation == ConfigOperation.SET:
        config[name] = value
        return
    if change.operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise _invalid(f"There is no operation {change.operation} on a configuration.")
    operation = ConfigOperation(change.operation)
    if not rules.is_list(resource_type, name):
        raise ProtocolError(
            ErrorCode.INVALID_CONFIG,
            f"{operation.name} needs a list, and '{name}' is not one.",
        )
    entries = _entries(config.get(name, rules.list_default(resource_type, name)))
    if operation is ConfigOperation.APPEND:
        entries += [entry for entry in _entries(value) if entry not in entries]
    else:
        removed = _entries(value)
        entries = [entry for entry in entries if entry not in removed]
    config[name] = ",".join(entries)


def _entries(value: str | None) -> list[str]:
    """A list's entries. Blanks around them do not count."""
    if value is None:
        return []
    stripped = (entry.strip() for entry in value.split(","))
    return list(dict.fromkeys(entry for entry in stripped if entry))


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)
