"""WriteTxnMarkers: a transaction's outcome, from its coordinator to partition leaders."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    field,
)


class WritableTxnMarkerTopic(Part):
    name: String = ""
    partition_indexes: list[Int32] = EMPTY


class WritableTxnMarker(Part):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = EMPTY
    coordinator_epoch: Int32 = 0
    transaction_version: Int8 = field(default=0, since=2, ignorable=True)


class WriteTxnMarkersRequest(
    Message, api_key=ApiKey.WRITE_TXN_MARKERS, versions=(0, 2), flexible_since=1
):
    markers: list[WritableTxnMarker] = EMPTY


class WritableTxnMarkerPartitionResult(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Part):
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = EMPTY


class WritableTxnMarkerResult(Part):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = EMPTY


class WriteTxnMarkersResponse(
    Message, api_key=ApiKey.WRITE_TXN_MARKERS, versions=(0, 2), flexible_since=1
):
    markers: list[WritableTxnMarkerResult] = EMPTY
