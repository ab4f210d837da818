"""DescribeCluster: the cluster's id, its controller and its brokers.

Versions:
  v1  kind of endpoint: brokers (1) or controllers (2). This is a cluster of brokers.
  v2  brokers that are fenced (registered, and away), if asked for
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.server.api import Request, handles
from ottla.server.operations import CLUSTER_OPERATIONS, NOT_ASKED

_BROKERS = 1
_CONTROLLERS = 2


@handles(DescribeClusterRequest, versions=(0, 2))
def describe_cluster(request: Request[DescribeClusterRequest]) -> DescribeClusterResponse:
    broker, message = request.broker, request.message
    if message.endpoint_type != _BROKERS:
        known = message.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            ),
            error_message="this is a broker; ask for endpoints of type 1 (brokers)",
            endpoint_type=message.endpoint_type,
        )
    asked = message.include_cluster_authorized_operations
    listener = request.connection.listener.name
    kinds = (False, True) if message.include_fenced_brokers else (False,)
    return DescribeClusterResponse(
        cluster_id=broker.image.cluster_id,
        controller_id=broker.image.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.id, host=host, port=port, rack=node.rack, is_fenced=fenced
            )
            for fenced in kinds
            for node, host, port in broker.nodes_for(listener, fenced=fenced)
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
    )
