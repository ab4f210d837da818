"""AlterReplicaLogDirs: move replicas of this broker to another of its data folders.

- The answer comes when the move has begun; DescribeLogDirs shows how far it is. It outlives the broker.
- A replica that is not on this broker is REPLICA_NOT_AVAILABLE, and the folder is remembered: should it
  come, it is made there.
- A replica that lies in the folder already stays; a move of it under way is given up.

Versions:
  v2  flexible
"""

from __future__ import annotations

import os

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ottla.replication.partition import Role
from ottla.server.api import Outcome, Request, handles
from ottla.server.broker import Broker
from ottla.server.failures import error_code
from ottla.server.turns import Steps
from ottla.storage.errors import StorageError


@handles(AlterReplicaLogDirsRequest, versions=(1, 2))
def alter_replica_log_dirs(request: Request[AlterReplicaLogDirsRequest]) -> Steps[Outcome]:
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for folder in request.message.dirs:
        for topic in folder.topics:
            answer = topics.get(topic.name)
            if answer is None:
                answer = topics[topic.name] = AlterReplicaLogDirTopicResult(
                    topic_name=topic.name, partitions=[]
                )
            for index in topic.partitions:
                code = ErrorCode.NONE
                try:
                    _move(request.broker, folder.path, topic.name, index)
                except (ProtocolError, StorageError) as error:
                    code = error_code(error)
                answer.partitions.append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
                yield
            yield
    request.broker.relocations.store()
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _move(broker: Broker, path: str, topic: str, index: int) -> None:
    wanted = os.path.abspath(path)
    folder = next(
        (each for each in broker.logs.folders if os.path.abspath(each.path) == wanted), None
    )
    if folder is None or not os.path.isabs(path):
        raise ProtocolError(ErrorCode.LOG_DIR_NOT_FOUND)
    if folder.offline is not None:
        raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR)
    partition = broker.partitions.get(topic, index)
    if partition is None or partition.role is Role.ABSENT:
        broker.logs.preferred[topic, index] = folder
        raise ProtocolError(ErrorCode.REPLICA_NOT_AVAILABLE)
    partition.log  # noqa: B018 - one that was never used is made first
    broker.relocations.want(partition, folder)
