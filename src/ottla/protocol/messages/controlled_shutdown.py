"""ControlledShutdown: a broker that is about to stop asks for its leaders to be moved away."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import EMPTY, Int16, Int32, Int64, Message, Part, String


class ControlledShutdownRequest(
    Message, api_key=ApiKey.CONTROLLED_SHUTDOWN, versions=(2, 3), flexible_since=3
):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class RemainingPartition(Part):
    topic_name: String = ""
    partition_index: Int32 = 0


class ControlledShutdownResponse(
    Message, api_key=ApiKey.CONTROLLED_SHUTDOWN, versions=(2, 3), flexible_since=3
):
    error_code: Int16 = 0
    remaining_partitions: list[RemainingPartition] = EMPTY
