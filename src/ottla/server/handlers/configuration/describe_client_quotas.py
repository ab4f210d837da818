"""DescribeClientQuotas: which clients are held to which rates (KIP-546).

- The filter is checked as Kafka checks it, so that a mistake in it is told.
- A strict filter leaves out entities that have further types.

Versions: v1 flexible
"""

from __future__ import annotations

from ottla.cluster.security.quotas import Entity, entity_of
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.failures import error_message
from ottla.server.quotas.usage import quotas_of
from ottla.server.turns import Steps

_IP = "ip"
_KINDS = frozenset({"user", "client-id", _IP})
_EXACT, _ANY = 0, 2


@handles(DescribeClientQuotasRequest, versions=(0, 1))
def describe_client_quotas(request: Request[DescribeClientQuotasRequest]) -> Steps[Outcome]:
    kinds: set[str] = set()
    try:
        for component in request.message.components:
            _check(component)
            if component.entity_type in kinds:
                raise _invalid(f"The filter has the entity type {component.entity_type} twice.")
            kinds.add(component.entity_type)
            yield
        if _IP in kinds and len(kinds) > 1:
            raise _invalid(
                "A filter for addresses cannot be combined with one for users or clients."
            )
        for kind in kinds:
            if kind not in _KINDS:
                raise ProtocolError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"There are no quotas for the entity type {kind}.",
                )
    except ProtocolError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error_message(error), entries=None
        )
    entries = []
    for key, values in quotas_of(request.broker.image).items():
        yield
        entity = entity_of(key)
        if _takes(request.message, entity):
            entries.append(
                EntryData(
                    entity=[
                        EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity.items()
                    ],
                    values=[
                        ValueData(key=name, value=float(value)) for name, value in values.items()
                    ],
                )
            )
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _takes(wanted: DescribeClientQuotasRequest, entity: Entity) -> bool:
    if wanted.strict and len(entity) != len(wanted.components):
        return False
    return all(
        each.entity_type in entity
        and (
            each.match_type == _ANY
            or entity[each.entity_type] == (each.match if each.match_type == _EXACT else None)
        )
        for each in wanted.components
    )


def _check(component: ComponentData) -> None:
    if not component.entity_type:
        raise _invalid("An entity type is empty.")
    match component.match_type:
        case 0:  # exact
            if component.match is None:
                raise _invalid("An exact match needs a name.")
        case 1 | 2:  # the default, or any
            if component.match is not None:
                raise _invalid("Only an exact match has a name.")
        case unknown:
            raise _invalid(f"The match type {unknown} is unknown.")


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)
