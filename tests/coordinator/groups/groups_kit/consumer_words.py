"""The words of the new consumer group protocol in scenarios.

    a: beat topics=t -> NONE A epoch=2 [t:0,1,2]
    a: beat id=A epoch=2 -> NONE A epoch=2
    a: groups -> g:NONE Stable epoch=2 target=2 uniform A@2 t [t:0,1,2] -> [t:0,1,2]

`beat` is a ConsumerGroupHeartbeat; without an epoch it joins. `holds` is what the member says it holds,
`-` for nothing. `groups` is ConsumerGroupDescribe. A classic member of such a group joins with
`protocols=range:@t,u`, which is a subscription to t and u, in bytes as consumers write them, and
`range:@t/0,1` says besides that it holds t:0 and t:1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import MalformedMessage
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsRequest,
)
from ottla.protocol.records.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)

SUBSCRIPTION_VERSION = 1


def subscription(text: str) -> bytes:
    """`@t,u/0` -> a subscription to t and u by a member that holds u:0."""
    topics, owned = [], []
    for part in text.split(";"):
        name, _, partitions = part.partition("/")
        topics.append(name)
        if partitions:
            owned.append(
                ConsumerProtocolSubscriptionTopicPartition(
                    topic=name, partitions=[int(each) for each in partitions.split(",")]
                )
            )
    message = ConsumerProtocolSubscription(topics=topics, owned_partitions=owned)
    return SUBSCRIPTION_VERSION.to_bytes(2, "big") + message.encode(SUBSCRIPTION_VERSION)


def assignment(data: bytes) -> str:
    """What a classic member was assigned; as text if it is none of a consumer."""
    try:
        version = int.from_bytes(data[:2], "big")
        if len(data) < 6 or version > 3:
            return data.decode()
        message, _ = ConsumerProtocolAssignment.decode(data, 2, version)
    except (MalformedMessage, UnicodeDecodeError):
        return data.decode(errors="replace")
    return (
        "["
        + " ".join(
            sorted(
                f"{each.topic}:{','.join(map(str, sorted(each.partitions)))}"
                for each in message.assigned_partitions
            )
        )
        + "]"
    )


def assignment_partitions(data: bytes) -> Iterator[tuple[str, int]]:
    """Topics and partitions that a classic member was assigned."""
    if data:
        message, _ = ConsumerProtocolAssignment.decode(data, 2, int.from_bytes(data[:2], "big"))
        for each in message.assigned_partitions:
            for partition in each.partitions:
                yield each.topic, partition


def held(text: str, topic_id: Callable[[str], bytes]) -> list[TopicPartitionsRequest]:
    """`t:0,1;u:0`, or `-`."""
    if text in ("-", ""):
        return []
    return [
        TopicPartitionsRequest(
            topic_id=topic_id(topic), partitions=[int(each) for each in indexes.split(",")]
        )
        for topic, _, indexes in (each.partition(":") for each in text.split(";"))
    ]


def assigned(partitions: list[object], name: Callable[[object], str]) -> str:
    words = sorted(
        f"{name(each)}:{','.join(map(str, sorted(each.partitions)))}" for each in partitions
    )
    return f"[{' '.join(words)}]"


def heartbeat_words(
    answer: ConsumerGroupHeartbeatResponse,
    member: Callable[[str], str],
    topic: Callable[[bytes], str],
) -> Iterator[str]:
    yield ErrorCode(answer.error_code).name
    if answer.error_code:
        return
    yield member(answer.member_id or "")
    yield f"epoch={answer.member_epoch}"
    if answer.heartbeat_interval_ms not in (0, 5000):
        yield f"interval={answer.heartbeat_interval_ms}"
    if answer.assignment is not None:
        yield assigned(answer.assignment.topic_partitions, lambda each: topic(each.topic_id))


def description_words(
    answer: ConsumerGroupDescribeResponse,
    group_name: Callable[[str], str],
    member: Callable[[str], str],
) -> Iterator[str]:
    for each in sorted(answer.groups, key=lambda group: group.group_id):
        yield f"{group_name(each.group_id)}:{ErrorCode(each.error_code).name}"
        if each.error_code:
            continue
        yield f"{each.group_state} epoch={each.group_epoch} target={each.assignment_epoch}"
        yield each.assignor_name
        if each.authorized_operations != -(2**31):
            yield f"operations={each.authorized_operations}"
        yield from sorted(_member_words(each, member))


def _member_words(group: object, name: Callable[[str], str]) -> Iterator[str]:
    for each in group.members:
        words = [f"| {name(each.member_id)}@{each.member_epoch}"]
        if each.instance_id is not None:
            words.append(f"instance={each.instance_id}")
        if each.rack_id is not None:
            words.append(f"rack={each.rack_id}")
        words.append(f"{each.client_id}{each.client_host}")
        words.append(",".join(sorted(each.subscribed_topic_names)) or "-")
        if each.subscribed_topic_regex:
            words.append(f"/{each.subscribed_topic_regex}/")
        words.append("classic" if each.member_type == 0 else "consumer")
        words.append(assigned(each.assignment.topic_partitions, lambda part: part.topic_name))
        words.append("->")
        words.append(
            assigned(each.target_assignment.topic_partitions, lambda part: part.topic_name)
        )
        yield " ".join(words)


def heartbeat(
    group_id: str,
    member_id: str,
    epoch: int,
    topics: list[str] | None,
    pattern: str | None,
    partitions: list[TopicPartitionsRequest] | None,
    **more: object,
) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        subscribed_topic_names=topics,
        subscribed_topic_regex=pattern,
        topic_partitions=partitions,
        **more,
    )
