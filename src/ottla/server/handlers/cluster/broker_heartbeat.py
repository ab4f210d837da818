"""BrokerHeartbeat: a broker asks the controller to stop in good order, or whether it is fenced.

- `want_shut_down`: its leaders move to other brokers, it leaves the in-sync sets, and it may stop; it
  keeps what only it can lead.
- That a broker is alive is told by its session with the store, not by this request.
- Answered by the controller alone; others say NOT_CONTROLLER.

Versions:
  v0
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from ottla.server.api import Request, handles


@handles(BrokerHeartbeatRequest, versions=(0, 0))
async def broker_heartbeat(request: Request[BrokerHeartbeatRequest]) -> BrokerHeartbeatResponse:
    message = request.message
    broker = request.broker
    response = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False)
    try:
        if message.want_shut_down:
            await broker.controller.shut_down_broker(message.broker_id, message.broker_epoch)
            response.should_shut_down = True
            return response
        known = broker.controller.image.brokers.get(message.broker_id)
        response.is_fenced = known is None or known.epoch != message.broker_epoch
        if known is not None and response.is_fenced:
            response.error_code = ErrorCode.STALE_BROKER_EPOCH
    except ProtocolError as error:
        response.error_code = error.code
    return response
