"""Batches written as they are, by the plain builder and one Produce request each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from ottla.client.cluster import Cluster, LeaderOf
from ottla.client.configuration.clients import AdminSettings, read_settings
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.record.batch import Record, build_batch

# A minute ago: brokers refuse times far ahead, and delete what is old.
NOW = int(time.time() * 1000) - 60_000


def values(*texts: str, at: int = NOW) -> list[Record]:
    """Records of these values, a millisecond apart, with their number as the key."""
    return [
        Record(index, at + index, b"%d" % index, text.encode()) for index, text in enumerate(texts)
    ]


def write(bootstrap: str, topic: str, partition: int, batches: Iterable[bytes]) -> list[int]:
    """Append batches to a partition; gives the offset of each."""

    async def send() -> list[int]:
        offsets = []
        async with Cluster(read_settings(AdminSettings, bootstrap, {})) as cluster:
            info = await cluster.topic(topic, wait=True)
            for batch in batches:
                data = PartitionProduceData(index=partition, records=batch)
                request = ProduceRequest(
                    acks=-1,
                    timeout_ms=10_000,
                    topic_data=[
                        TopicProduceData(name=topic, topic_id=info.topic_id, partition_data=[data])
                    ],
                )
                answer = await cluster.ask(
                    request, ProduceResponse, at=LeaderOf(topic, partition), failing=_error
                )
                (told,) = answer.responses[0].partition_responses
                assert told.error_code == 0, told
                offsets.append(told.base_offset)
        return offsets

    return asyncio.run(send())


def _error(answer: ProduceResponse) -> int:
    """So that a partition that was only just made is tried again."""
    return answer.responses[0].partition_responses[0].error_code


def write_values(bootstrap: str, topic: str, partition: int, *texts: str, codec: int = 0) -> None:
    write(bootstrap, topic, partition, [build_batch(values(*texts), codec=codec)])
