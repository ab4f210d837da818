"""DescribeClientQuotas: which clients are held to which rates. None is: quotas cannot be set.

- The filter is checked as Kafka checks it, so that a mistake in it is told.

Versions: v1 flexible
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.failures import error_message
from ottla.server.turns import Steps

_IP = "ip"
_KINDS = frozenset({"user", "client-id", _IP})


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
    return DescribeClientQuotasResponse(error_message=None)


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
