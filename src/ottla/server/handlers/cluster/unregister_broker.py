"""UnregisterBroker: the cluster forgets a broker that has left for good.

- Decided by the controller; other brokers pass the request on to it.
- A broker that is running is not forgotten: it would only register again.

Versions: only v0
"""

from __future__ import annotations

from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message


@handles(UnregisterBrokerRequest, versions=(0, 0), by_controller=True)
async def unregister_broker(request: Request[UnregisterBrokerRequest]) -> UnregisterBrokerResponse:
    response = UnregisterBrokerResponse(error_message=None)
    try:
        await request.broker.controller.unregister_broker(request.message.broker_id)
    except ProtocolError as error:
        response.error_code = error.code
        response.error_message = error_message(error)
    return response
