"""SaslHandshake: agree on a SASL mechanism."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int16,
    Message,
    String,
)


class SaslHandshakeRequest(Message, api_key=ApiKey.SASL_HANDSHAKE, versions=(0, 1)):
    mechanism: String = ""


class SaslHandshakeResponse(Message, api_key=ApiKey.SASL_HANDSHAKE, versions=(0, 1)):
    error_code: Int16 = 0
    mechanisms: list[String] = EMPTY
