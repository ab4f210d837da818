"""OffsetCommit: store how far a group has read.

- A member names its generation (or epoch); a consumer that is in no group leaves it out, and may
  commit as long as the group has no members. Its first commit makes the group.
- Each partition has an answer of its own: topics and partitions must exist, and the metadata string is
  limited by `offset.metadata.max.bytes`.
- Of a partition that is named several times, the last offset counts; it is answered as often.
- All offsets of a request are written as one batch, with those of other requests to the same shard
  that arrive at the same moment.
- A request like the one before it on its connection is not decoded again (`repeated`).

Versions:
  v0  no generation (Kafka stored these in ZooKeeper; here they are commits like any other)
  v1  generation and member id; a timestamp for each partition (gone in v2)
  v2  a retention time (gone in v5)
  v3  throttle time
  v6  leader epochs
  v7  group.instance.id
  v8  flexible
  v9  member epochs of consumer groups; GROUP_ID_NOT_FOUND
  v10 topics by id
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.server.api import Api, Serve, handles_raw, serve_decoded
from ottla.server.handlers.groups.offset_commit.general import offset_commit
from ottla.server.handlers.groups.offset_commit.repeated import RepeatedCommits

if TYPE_CHECKING:
    from ottla.server.broker import Broker

__all__ = ["offset_commit"]


@handles_raw(OffsetCommitRequest, versions=(0, 10))
def bind(broker: Broker, api: Api) -> Serve:
    general = serve_decoded(broker, api, OffsetCommitRequest, offset_commit)
    if broker.authorizer is not None:
        # Whether a client may commit is asked for each request.
        return general
    return RepeatedCommits(broker, general).serve
