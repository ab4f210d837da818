"""InitProducerId: an identity for an idempotent producer.

- Ids come from blocks that the metadata store hands out, so none is ever given twice.
- A producer that had a gap asks again with its id and epoch; without a transactional id it simply
  gets a new identity.
- Transactional ids are refused until transactions are served.

Versions:
  v2  flexible
  v3  the producer's current id and epoch
  v4  a fenced producer is told PRODUCER_FENCED
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.server.api import Request, handles


@handles(InitProducerIdRequest, versions=(0, 5))
async def init_producer_id(request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
    message = request.message
    if message.transactional_id == "" or (message.producer_id < 0) != (message.producer_epoch < 0):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    if message.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    try:
        producer_id = await request.broker.producer_ids.next()
    except ProtocolError as error:
        return InitProducerIdResponse(error_code=error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
