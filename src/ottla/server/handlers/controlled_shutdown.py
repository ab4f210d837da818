"""ControlledShutdown: a broker is about to stop; its leaders move to other brokers first.

The answer names the partitions that only this broker can lead. By the controller alone.

Versions:
  v2  the broker's epoch
  v3  flexible
"""

from __future__ import annotations

from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from ottla.server.api import Request, handles


@handles(ControlledShutdownRequest, versions=(2, 3))
async def controlled_shutdown(
    request: Request[ControlledShutdownRequest],
) -> ControlledShutdownResponse:
    message = request.message
    try:
        remaining = await request.broker.controller.shut_down_broker(
            message.broker_id, message.broker_epoch
        )
    except ProtocolError as error:
        return ControlledShutdownResponse(error_code=error.code)
    return ControlledShutdownResponse(
        remaining_partitions=[
            RemainingPartition(topic_name=topic, partition_index=index)
            for topic, index in remaining
        ]
    )
