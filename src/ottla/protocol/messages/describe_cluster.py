"""DescribeCluster: the cluster's id, controller and brokers."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class DescribeClusterRequest(
    Message, api_key=ApiKey.DESCRIBE_CLUSTER, versions=(0, 2), flexible_since=0
):
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Int8 = field(default=1, since=1)
    include_fenced_brokers: Bool = field(default=False, since=2)


class DescribeClusterBroker(Part):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Bool = field(default=False, since=2)


class DescribeClusterResponse(
    Message, api_key=ApiKey.DESCRIBE_CLUSTER, versions=(0, 2), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Int8 = field(default=1, since=1)
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = EMPTY
    cluster_authorized_operations: Int32 = -2147483648
