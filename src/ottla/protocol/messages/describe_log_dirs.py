"""DescribeLogDirs: a broker's data folders and what lies in them."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    field,
)


class DescribableLogDirTopic(Part):
    topic: String = ""
    partitions: list[Int32] = EMPTY


class DescribeLogDirsRequest(
    Message, api_key=ApiKey.DESCRIBE_LOG_DIRS, versions=(0, 5), flexible_since=2
):
    topics: list[DescribableLogDirTopic] | None = EMPTY


class DescribeLogDirsPartition(Part):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Part):
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = EMPTY


class DescribeLogDirsResult(Part):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = EMPTY
    total_bytes: Int64 = field(default=-1, since=4, ignorable=True)
    usable_bytes: Int64 = field(default=-1, since=4, ignorable=True)
    is_cordoned: Bool = field(default=False, since=5, ignorable=True)


class DescribeLogDirsResponse(
    Message, api_key=ApiKey.DESCRIBE_LOG_DIRS, versions=(0, 5), flexible_since=2
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(default=0, since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = EMPTY
