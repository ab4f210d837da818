"""Decisions about quotas. What is refused, and how, is Kafka's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from ottla.cluster.draft import Draft
from ottla.cluster.metadata import ResourceType
from ottla.cluster.security.quotas import (
    ENTITY_TYPES,
    IP,
    OF_ADDRESSES,
    OF_CLIENTS,
    WHOLE,
    Entity,
    entity_key,
)
from ottla.protocol.errors import ErrorCode, ProtocolError


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """What is to become of an entity's quotas: a number, or None for none."""

    entity: Sequence[tuple[str, str | None]]
    values: Sequence[tuple[str, float | None]]


def alter_quotas(draft: Draft, changes: Sequence[QuotaChange]) -> list[ProtocolError | None]:
    """Changes the quotas of each entity, all of them or none; the error of each, in order."""
    results: list[ProtocolError | None] = []
    for change in changes:
        try:
            entity = _checked_entity(change.entity)
            _alter(draft, entity, change.values)
            results.append(None)
        except ProtocolError as error:
            results.append(error.with_traceback(None))
    return results


def _alter(draft: Draft, entity: Entity, values: Sequence[tuple[str, float | None]]) -> None:
    resource = (ResourceType.QUOTA, entity_key(entity))
    quotas = dict(draft.configs.get(resource, {}))
    known = OF_ADDRESSES if IP in entity else OF_CLIENTS
    for name, value in values:
        if name not in known:
            raise _invalid(f"Invalid configuration key {name}")
        if value is None:
            quotas.pop(name, None)
            continue
        if not isfinite(value) or value <= 0:
            raise _invalid(f"Quota {name} must be greater than 0")
        if name in WHOLE and value != int(value):
            raise _invalid(f"{name} cannot be fractional")
        quotas[name] = repr(float(value))
    draft.set_config(resource, quotas)


def _checked_entity(given: Sequence[tuple[str, str | None]]) -> Entity:
    if not given:
        raise _invalid("Invalid empty client quota entity")
    entity: dict[str, str | None] = {}
    for kind, name in given:
        if kind in entity:
            raise _invalid(f"Invalid client quota entity, duplicate entity type: {kind}")
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Invalid empty name of a {kind}")
        entity[kind] = name
    if IP in entity:
        if len(entity) > 1:
            raise _invalid(
                "Invalid quota entity combination, IP entity should not be combined with user or "
                "ClientId"
            )
        _check_address(entity[IP])
    return entity


def _check_address(address: str | None) -> None:
    import ipaddress

    try:
        if address is not None:
            ipaddress.ip_address(address)
    except ValueError:
        raise _invalid(f"{address} is not a valid IP address") from None


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)
