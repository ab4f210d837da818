"""SaslHandshake: the client of a SASL listener says by which mechanism it will authenticate.

- A mechanism that is not offered is answered with those that are, and the connection is closed.
- ILLEGAL_SASL_STATE on a listener without SASL.
- On a connection that is authenticated it begins a new authentication (KIP-368).

Versions:
  v0  the messages of the mechanism follow bare, each with its length before it, and are answered so
      (clients older than Kafka 1.0); a refusal has no message, the connection is closed
  v1  they come in SaslAuthenticate requests
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.server.api import Outcome, Request, handles


@handles(SaslHandshakeRequest, versions=(0, 1))
def sasl_handshake(request: Request[SaslHandshakeRequest]) -> Outcome:
    authentication = request.connection.authentication
    if authentication is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return authentication.handshake(request.message.mechanism, bare=request.version == 0)
