"""UnregisterBroker: remove a broker from the cluster for good."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    Int16,
    Int32,
    Message,
    String,
)


class UnregisterBrokerRequest(
    Message, api_key=ApiKey.UNREGISTER_BROKER, versions=(0, 0), flexible_since=0
):
    broker_id: Int32 = 0


class UnregisterBrokerResponse(
    Message, api_key=ApiKey.UNREGISTER_BROKER, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
