"""DescribeLogDirs: the data folders, the room on their disks, and the size of each log.

- A folder that failed is listed with KAFKA_STORAGE_ERROR.
- A log that is on its way to another folder is listed in both, in the new one as a future one with the
  records that it lacks.
- Logs that have not been used since the start are sized by their files, without being opened.

Versions:
  v1  throttle time
  v2  flexible
  v3  an error for the whole response
  v4  total and usable bytes of the disk
  v5  whether a folder takes no new logs (cordoned): none is
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.server.api import Request, handles
from ottla.server.turns import Turns

if TYPE_CHECKING:
    from ottla.storage.folders import DataFolder


@handles(DescribeLogDirsRequest, versions=(0, 5))
async def describe_log_dirs(request: Request[DescribeLogDirsRequest]) -> DescribeLogDirsResponse:
    broker = request.broker
    turns = Turns()
    wanted: set[tuple[str, int]] | None = None
    if request.message.topics is not None:
        wanted = set()
        for topic in request.message.topics:
            for index in topic.partitions:
                wanted.add((topic.topic, index))
                await turns.pause()
    placed: dict[DataFolder, list[tuple[str, int, int | None]]] = {
        folder: [] for folder in broker.logs.folders
    }
    for name, index in broker.logs.keys():  # noqa: SIM118 - not a mapping
        if wanted is None or (name, index) in wanted:
            partition = broker.partitions.get(name, index)
            opened = partition.opened if partition is not None else None
            folder = broker.logs.folder_of(name, index)
            placed[folder].append((name, index, None if opened is None else opened.size))
    coming: dict[DataFolder, list[tuple[str, int, int, int]]] = {}
    for (name, index), (folder, size, lag) in broker.relocations.under_way().items():
        if wanted is None or (name, index) in wanted:
            coming.setdefault(folder, []).append((name, index, size, lag))
    results = []
    for folder, logs in placed.items():
        answer = await broker.loop.run_in_executor(broker.threads, _describe, folder, logs)
        if not answer.error_code:
            _add_coming(answer, coming.get(folder, ()))
        results.append(answer)
    return DescribeLogDirsResponse(results=results)


def _add_coming(answer: DescribeLogDirsResult, coming: Iterable[tuple[str, int, int, int]]) -> None:
    topics = {each.name: each for each in answer.topics}
    for name, index, size, lag in coming:
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = DescribeLogDirsTopic(name=name, partitions=[])
            answer.topics.append(topic)
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=index, partition_size=size, offset_lag=lag, is_future_key=True
            )
        )


def _describe(folder: DataFolder, logs: list[tuple[str, int, int | None]]) -> DescribeLogDirsResult:
    """Describes the folders; runs in a thread, as it reads from the disk."""
    answer = DescribeLogDirsResult(log_dir=os.path.abspath(folder.path), topics=[])
    if folder.offline is not None:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return answer
    try:
        disk = os.statvfs(folder.path)
        answer.total_bytes = disk.f_blocks * disk.f_frsize
        answer.usable_bytes = disk.f_bavail * disk.f_frsize
        topics: dict[str, DescribeLogDirsTopic] = {}
        for topic, index, size in logs:
            if topic not in topics:
                topics[topic] = DescribeLogDirsTopic(name=topic, partitions=[])
            topics[topic].partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=_size_of(folder.log_path((topic, index)))
                    if size is None
                    else size,
                )
            )
        answer.topics = list(topics.values())
    except OSError:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        answer.topics = []
    return answer


def _size_of(path: str) -> int:
    """Bytes of the segments in a log's folder; 0 if it was deleted meanwhile."""
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.endswith(".log"))
    except FileNotFoundError:
        return 0
