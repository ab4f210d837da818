"""AlterReplicaLogDirs: move replicas between a broker's data folders."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int16,
    Int32,
    Message,
    Part,
    String,
)


class AlterReplicaLogDirTopic(Part):
    name: String = ""
    partitions: list[Int32] = EMPTY


class AlterReplicaLogDir(Part):
    path: String = ""
    topics: list[AlterReplicaLogDirTopic] = EMPTY


class AlterReplicaLogDirsRequest(
    Message, api_key=ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(0, 2), flexible_since=2
):
    dirs: list[AlterReplicaLogDir] = EMPTY


class AlterReplicaLogDirPartitionResult(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Part):
    topic_name: String = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = EMPTY


class AlterReplicaLogDirsResponse(
    Message, api_key=ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(0, 2), flexible_since=2
):
    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = EMPTY
