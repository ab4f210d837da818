"""AllocateProducerIds: a block of producer ids for a broker of the cluster. By the controller alone.

Versions:
  v0
"""

from __future__ import annotations

from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.server.api import Request, handles


@handles(AllocateProducerIdsRequest, versions=(0, 0))
async def allocate_producer_ids(
    request: Request[AllocateProducerIdsRequest],
) -> AllocateProducerIdsResponse:
    message = request.message
    try:
        block = await request.broker.controller.allocate_producer_ids(
            (message.broker_id, message.broker_epoch)
        )
    except ProtocolError as error:
        return AllocateProducerIdsResponse(error_code=error.code)
    return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.size)
