"""AlterClientQuotas: how much users, client ids and addresses may use (KIP-546).

- All changes of one entity are made, or none; the controller makes them.

Versions: v1 flexible
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityDataResponse,
    EntryDataRequest,
    EntryDataResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.portions import PORTION
from ottla.server.turns import Turns


@handles(AlterClientQuotasRequest, versions=(0, 1), by_controller=True)
async def alter_client_quotas(
    request: Request[AlterClientQuotasRequest],
) -> AlterClientQuotasResponse:
    from ottla.cluster.decisions.quotas import QuotaChange  # not at the start of a broker

    turns = Turns()
    response = AlterClientQuotasResponse()
    entries = request.message.entries
    for first in range(0, len(entries), PORTION):
        some = entries[first : first + PORTION]
        changes = [
            QuotaChange(
                [(one.entity_type, one.entity_name) for one in each.entity],
                [(one.key, None if one.remove else one.value) for one in each.ops],
            )
            for each in some
        ]
        errors: Sequence[ProtocolError | None]
        try:
            errors = await request.broker.controller.alter_quotas(
                changes, validate_only=request.message.validate_only
            )
        except ProtocolError as error:
            errors = [error.with_traceback(None)] * len(changes)
        response.entries += map(_answer, some, errors)
        await turns.pause()
    return response


def _answer(entry: EntryDataRequest, error: ProtocolError | None) -> EntryDataResponse:
    return EntryDataResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error_message(error),
        entity=[
            EntityDataResponse(entity_type=one.entity_type, entity_name=one.entity_name)
            for one in entry.entity
        ],
    )
