"""SaslAuthenticate: one message of the mechanism that SaslHandshake has agreed on.

- A refusal is answered after `connection.failed.authentication.delay.ms`, then the connection is
  closed. What is said does not tell unknown users from wrong passwords.
- ILLEGAL_SASL_STATE on a listener without SASL, and without a handshake before.

Versions: v1 how long the session lives (KIP-368); v2 flexible
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.server.api import Outcome, Request, handles


@handles(SaslAuthenticateRequest, versions=(0, 2))
def sasl_authenticate(request: Request[SaslAuthenticateRequest]) -> Outcome:
    authentication = request.connection.authentication
    if authentication is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="This listener does not ask for an authentication.",
        )
    return authentication.authenticate(request.message.auth_bytes)
