"""The next step of one member from what it has to what it is to have.

Members go at their own pace; nobody waits for all others. What makes it safe is that a partition is
given to a member only when nobody else holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from ottla.coordinator.groups.assignors import Partitions
from ottla.coordinator.groups.consumer.member import (
    ConsumerMember,
    MemberState,
    Owned,
    owns_any,
)
from ottla.protocol.errors import ErrorCode, ProtocolError


class Target(NamedTuple):
    """What a member is to have in the end."""

    epoch: int
    partitions: Partitions


def reconcile(
    member: ConsumerMember,
    target: Target,
    subscribed: Container[bytes],
    is_owned: Callable[[bytes, int], bool],
    owned: Mapping[bytes, frozenset[int]] | None,
    *,
    subscription_changed: bool,
) -> ConsumerMember:
    """The member after its next step; itself if there is none (now).

    `subscribed` are the ids of the topics that it subscribes to, `is_owned` tells whether anybody
    holds a partition, `owned` is what the member says it holds (None: it does not say).
    Raises ProtocolError if it has to start again.
    """
    match member.state:
        case MemberState.STABLE:
            if member.epoch != target.epoch:
                return _next(member, target, subscribed, is_owned, owned, member.epoch)
            return _unsubscribed(member, subscribed, owned) if subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS:
            if not owns_any(owned, member.revoking):
                return _next(member, target, subscribed, is_owned, owned, member.epoch)
            return _unsubscribed(member, subscribed, owned) if subscription_changed else member
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(member, target, subscribed, is_owned, owned, member.epoch)
        case MemberState.UNKNOWN:
            if owned is None or owned:
                raise ProtocolError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The state of this member cannot be read: give up all partitions and join again.",
                )
            return _next(member, target, subscribed, is_owned, owned, target.epoch)


def _unsubscribed(
    member: ConsumerMember,
    subscribed: Container[bytes],
    owned: Mapping[bytes, frozenset[int]] | None,
) -> ConsumerMember:
    """Take away what it no longer subscribes to, before there is a new target."""
    dropped = {
        topic_id: partitions
        for topic_id, partitions in member.assigned.items()
        if topic_id not in subscribed
    }
    if not dropped:
        return member
    assigned = {
        topic_id: partitions
        for topic_id, partitions in member.assigned.items()
        if topic_id not in dropped
    }
    revoking = dict(member.revoking)
    for topic_id, partitions in dropped.items():
        revoking[topic_id] = {**revoking.get(topic_id, {}), **partitions}
    if owns_any(owned, revoking):
        return member.moved_to(member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    return member.moved_to(member.epoch, member.state, assigned, member.revoking)


def _next(
    member: ConsumerMember,
    target: Target,
    subscribed: Container[bytes],
    is_owned: Callable[[bytes, int], bool],
    owned: Mapping[bytes, frozenset[int]] | None,
    epoch: int,
) -> ConsumerMember:
    kept: dict[bytes, Mapping[int, int]] = {}
    given_up: dict[bytes, Mapping[int, int]] = {}
    new: dict[bytes, list[int]] = {}
    held_by_others = False
    for topic_id in target.partitions.keys() | member.assigned.keys():
        wanted = target.partitions.get(topic_id, frozenset())
        if topic_id not in subscribed:
            wanted = frozenset()
        current = member.assigned.get(topic_id, {})
        keeps = {each: since for each, since in current.items() if each in wanted}
        if keeps:
            kept[topic_id] = keeps
        if len(keeps) < len(current):
            given_up[topic_id] = {
                each: since for each, since in current.items() if each not in wanted
            }
        own = member.revoking.get(topic_id, {})
        for partition in wanted - keeps.keys():
            if is_owned(topic_id, partition) and partition not in own:
                held_by_others = True
            else:
                new.setdefault(topic_id, []).append(partition)
    if given_up and owns_any(owned, given_up):
        return member.moved_to(epoch, MemberState.UNREVOKED_PARTITIONS, kept, given_up)
    state = MemberState.UNRELEASED_PARTITIONS if held_by_others else MemberState.STABLE
    return member.moved_to(target.epoch, state, _with(kept, new, target.epoch))


def _with(kept: Owned, new: Mapping[bytes, list[int]], epoch: int) -> Owned:
    if not new:
        return kept
    together = dict(kept)
    for topic_id, partitions in new.items():
        together[topic_id] = {**kept.get(topic_id, {}), **dict.fromkeys(partitions, epoch)}
    return together
