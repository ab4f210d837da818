"""DeleteTopics: remove topics by name or by id."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int16,
    Int32,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class DeleteTopicState(Part):
    name: String | None = None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Message, api_key=ApiKey.DELETE_TOPICS, versions=(0, 6), flexible_since=4):
    topics: list[DeleteTopicState] = field(default=EMPTY, since=6)
    topic_names: list[String] = field(default=EMPTY, until=5, ignorable=True)
    timeout_ms: Int32 = 0


class DeletableTopicResult(Part):
    name: String | None = field(default="", nullable_since=6)
    topic_id: Uuid = field(default=ZERO_UUID, since=6, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = field(default=None, since=5, ignorable=True)


class DeleteTopicsResponse(
    Message, api_key=ApiKey.DELETE_TOPICS, versions=(0, 6), flexible_since=4
):
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    responses: list[DeletableTopicResult] = EMPTY
