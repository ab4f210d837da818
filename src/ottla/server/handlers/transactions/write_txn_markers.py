"""WriteTxnMarkers: a transaction's outcome, from its coordinator (or an operator who ends a hanging
transaction) to the leaders of its partitions.

- Each partition is answered alone. A marker with an older epoch than the producer's last batch, or
  from a coordinator that was replaced, is refused.
- A repeated marker is written again; it ends nothing the second time.

Versions:
  v1  flexible
  v2  the transaction protocol: from 2 on a marker has a higher epoch than what it ends, so one with
      the producer's current epoch comes too late
"""

from __future__ import annotations

import asyncio
from functools import partial

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.replication.partition import Role
from ottla.server.api import Outcome, Request, handles
from ottla.server.coordination.markers import Marker, append_marker
from ottla.server.failures import error_code
from ottla.server.turns import Steps


@handles(WriteTxnMarkersRequest, versions=(0, 2))
def write_txn_markers(request: Request[WriteTxnMarkersRequest]) -> Steps[Outcome]:
    return _Writing(request).run()


class _Writing:
    """One request; answered when the last of its markers is written."""

    def __init__(self, request: Request[WriteTxnMarkersRequest]) -> None:
        self._broker = request.broker
        self._message = request.message
        self._response = WriteTxnMarkersResponse(markers=[])
        self._open = 1  # markers not finished yet, and this very walk over the request
        self._later: asyncio.Future[Message] | None = None

    def run(self) -> Steps[Outcome]:
        for each in self._message.markers:
            marker = Marker(
                each.producer_id,
                each.producer_epoch,
                each.transaction_result,
                each.coordinator_epoch,
                each.transaction_version,
            )
            written = WritableTxnMarkerResult(producer_id=each.producer_id)
            self._response.markers.append(written)
            for topic in each.topics:
                of_topic = WritableTxnMarkerTopicResult(name=topic.name)
                written.topics.append(of_topic)
                for index in topic.partition_indexes:
                    of_topic.partitions.append(self._begin(topic.name, index, marker))
                    yield
                yield
            yield
        self._open -= 1
        if not self._open:
            return self._response
        self._later = self._broker.loop.create_future()
        return self._later

    def _begin(self, topic: str, index: int, marker: Marker) -> WritableTxnMarkerPartitionResult:
        result = WritableTxnMarkerPartitionResult(partition_index=index)
        target = self._broker.partitions.get(topic, index)
        if target is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif target.role is not Role.LEADER:
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            self._open += 1
            append_marker(self._broker, target, marker, partial(self._done, result))
        return result

    def _done(self, result: WritableTxnMarkerPartitionResult, error: Exception | None) -> None:
        if error is not None:
            result.error_code = error_code(error)
        self._open -= 1
        if not self._open and self._later is not None and not self._later.done():
            self._later.set_result(self._response)
