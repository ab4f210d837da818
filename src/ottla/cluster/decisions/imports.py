"""Topics whose logs were made elsewhere become known: all of a request, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.cluster.decisions.configs import ConfigRules
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import Partition, ResourceType, Topic
from ottla.cluster.names import check_topic_name, is_internal
from ottla.protocol.errors import ErrorCode, ProtocolError


@dataclass(frozen=True, slots=True)
class ImportedTopic:
    """A topic as its logs say: its id, and for each partition a leader epoch above all in its log."""

    name: str
    topic_id: bytes
    leader_epochs: Sequence[int]
    config: Mapping[str, str]


def check_import(draft: Draft, topics: Sequence[ImportedTopic], rules: ConfigRules) -> None:
    """ProtocolError says why these topics cannot be."""
    ids: dict[bytes, str] = {topic.topic_id: topic.name for topic in draft.topics.values()}
    for topic in topics:
        check_topic_name(topic.name)
        if topic.name in draft.topics:
            raise ProtocolError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists."
            )
        other = draft.collides_with(topic.name)
        if other is not None:
            raise ProtocolError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{topic.name}' would collide with topic '{other}' in the names of metrics.",
            )
        if topic.topic_id in ids:
            raise ProtocolError(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                f"Topic '{topic.name}' has the id of topic '{ids[topic.topic_id]}'.",
            )
        ids[topic.topic_id] = topic.name
        if topic.config:
            rules.check((ResourceType.TOPIC, topic.name), topic.config, topic.config.keys())


def import_topics(
    draft: Draft,
    topics: Sequence[ImportedTopic],
    broker_id: int,
    free_producer_id: int,
    rules: ConfigRules,
) -> None:
    """Adds the topics, each partition of which is on one broker only. No producer id below
    `free_producer_id` is given to anybody from now on: the logs may know it."""
    check_import(draft, topics, rules)
    alone = (broker_id,)
    draft.put_topics(
        Topic(
            topic.name,
            topic.topic_id,
            tuple(
                # Leader epochs are stored as what they are above the base.
                Partition(index, alone, alone, broker_id, max(epoch, draft.leader_epoch_base))
                for index, epoch in enumerate(topic.leader_epochs)
            ),
            is_internal(topic.name),
        )
        for topic in topics
    )
    for topic in topics:
        if topic.config:
            draft.set_config((ResourceType.TOPIC, topic.name), topic.config)
    draft.next_producer_id = max(draft.next_producer_id, free_producer_id)
