"""AllocateProducerIds: a broker asks the controller for a block of producer ids."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    Int16,
    Int32,
    Int64,
    Message,
)


class AllocateProducerIdsRequest(
    Message, api_key=ApiKey.ALLOCATE_PRODUCER_IDS, versions=(0, 0), flexible_since=0
):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(
    Message, api_key=ApiKey.ALLOCATE_PRODUCER_IDS, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0
