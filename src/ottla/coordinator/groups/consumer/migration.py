"""From a classic group to a consumer group, and back, while the members go on.

Upgrade: the first member that comes with the new protocol makes a classic group of consumers a
consumer group. Its other members keep speaking the classic protocol, inside the new group, until they
are restarted with the new one, one by one.

Downgrade: when the last member that speaks the new protocol goes, the group is a classic one again.

Both are one batch of records that end the group as the one kind and begin it as the other, in the
same generation, which is the group epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.coordinator.groups.assignors import Partitions
from ottla.coordinator.groups.classic.group import (
    CONSUMER,
    ClassicGroup,
    ClassicMember,
    Protocols,
    assignments_of,
)
from ottla.coordinator.groups.classic.protocol import ClassicProtocol
from ottla.coordinator.groups.consumer.group import ConsumerGroup
from ottla.coordinator.groups.consumer.hash import TopicHashes
from ottla.coordinator.groups.consumer.member import ClassicSupport, ConsumerMember
from ottla.coordinator.groups.consumer.records import (
    current_record,
    epoch_record,
    group_tombstones,
    member_record,
    target_epoch_record,
    target_record,
)
from ottla.coordinator.groups.consumer_protocol_metadata import (
    encode_assignment,
    read_assignment,
    read_subscription,
)
from ottla.coordinator.groups.records import RecordPair, group_record
from ottla.coordinator.groups.states import ClassicState
from ottla.coordinator.groups.timers import Timer
from ottla.coordinator.shard import NOTHING, Effects, Instant
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import MalformedMessage

if TYPE_CHECKING:
    from ottla.coordinator.groups.settings import GroupSettings
    from ottla.coordinator.metadata_view import MetadataView
    from ottla.protocol.records.consumer_protocol import ConsumerProtocolAssignmentTopicPartition

log = logging.getLogger("ottla.groups")


class Migration:
    def __init__(
        self,
        settings: Callable[[], GroupSettings],
        metadata: MetadataView,
        classic: ClassicProtocol,
        find_classic: Callable[[str], ClassicGroup | None],
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._hashes = TopicHashes(metadata)
        self._classic = classic
        self._find_classic = find_classic

    # Upgrade ------------------------------------------------------------------------------------

    def upgraded(self, classic: ClassicGroup) -> tuple[ConsumerGroup, list[RecordPair]]:
        """The group as it will be when the records are replayed. Raises ProtocolError."""
        self._check_upgrade(classic)
        group = ConsumerGroup(classic.group_id)
        group.epoch = group.target_epoch = classic.generation
        protocol = classic.protocol or classic.select_protocol()
        try:
            for member in classic.members.values():
                self._take_over(group, member, protocol, classic.generation)
        except MalformedMessage as error:
            raise _not_upgraded(
                f"what its members say of themselves cannot be read: {error}"
            ) from None
        group.metadata_hash = self._hashes.of_group(group.topics_by_name())
        log.info("group becomes a consumer group: group=%s", classic.group_id)
        return group, [*classic.tombstones(), *_records_of(group)]

    def _check_upgrade(self, classic: ClassicGroup) -> None:
        settings = self._settings()
        if not settings.upgrades:
            raise _not_upgraded("group.consumer.migration.policy does not allow it")
        if classic.protocol_type != CONSUMER:
            raise _not_upgraded("its members are not consumers")
        if len(classic.members) > settings.group_consumer_max_size:
            raise _not_upgraded("it has more members than group.consumer.max.size")

    def _take_over(
        self, group: ConsumerGroup, member: ClassicMember, protocol: str, generation: int
    ) -> None:
        partitions: Partitions = {}
        if member.assignment:
            assignment = read_assignment(member.assignment)
            if assignment.user_data:
                raise ProtocolError(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    "The group cannot become a consumer group: its assignor keeps data with the "
                    "assignment, which would be lost. Use one of the client's own assignors.",
                )
            partitions = self._partitions(assignment.assigned_partitions)
        metadata = member.protocols.get(protocol)
        subscription = read_subscription(
            metadata if metadata is not None else next(iter(member.protocols.values()))
        )
        group.put(
            ConsumerMember(
                member.id,
                epoch=generation,
                previous_epoch=generation,
                instance_id=member.instance_id,
                rack=subscription.rack_id or None,
                rebalance_timeout=member.rebalance_timeout,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=frozenset(subscription.topics),
                assigned={
                    topic_id: dict.fromkeys(indexes, generation)
                    for topic_id, indexes in partitions.items()
                },
                classic=ClassicSupport(member.session_timeout, tuple(member.protocols.items())),
            )
        )
        group.targets[member.id] = partitions

    def _partitions(self, named: Iterable[ConsumerProtocolAssignmentTopicPartition]) -> Partitions:
        """The partitions by the ids of their topics; topics that are gone are left out."""
        found: dict[bytes, frozenset[int]] = {}
        for each in named:
            topic_id = self._metadata.topic_id(each.topic)
            if topic_id is not None:
                found[topic_id] = frozenset(each.partitions)
        return found

    # Downgrade ----------------------------------------------------------------------------------

    def downgrades_without(self, group: ConsumerGroup, gone: list[ConsumerMember]) -> bool:
        """Whether it becomes a classic group when these members go."""
        return len(group.members) > len(gone) and self._may_downgrade(
            group, gone, len(group.members) - len(gone)
        )

    def downgrades_with(self, group: ConsumerGroup, replaced: ConsumerMember) -> bool:
        """Whether it does when this static member speaks the classic protocol from now on."""
        return not replaced.uses_classic_protocol and self._may_downgrade(
            group, [replaced], len(group.members)
        )

    def _may_downgrade(
        self, group: ConsumerGroup, without: list[ConsumerMember], size: int
    ) -> bool:
        settings = self._settings()
        return (
            group.all_use_classic_without(without)
            and settings.downgrades
            and size <= settings.group_max_size
        )

    def downgraded(
        self,
        group: ConsumerGroup,
        gone: list[ConsumerMember],
        joining: ConsumerMember | None,
        now: Instant,
        *,
        rebalance: bool,
    ) -> tuple[list[RecordPair], Callable[[], Effects]]:
        """The records that make it a classic group, and what follows when they are replayed.

        `joining` takes the place of the static member of its name; its records (and the end of the
        other's) are written before.
        """
        replaced = None if joining is None else group.static_member(joining.instance_id)
        ids = [each for each in group.members if replaced is None or each != replaced.id]
        if joining is not None:
            ids.append(joining.id)
        left_out = {member.id for member in gone}
        staying = [
            member
            for member in group.members.values()
            if member.id not in left_out and member is not replaced
        ]
        if joining is not None:
            staying.append(joining)
        classic = self._classic_twin(group, staying)
        records = group_tombstones(group.group_id, ids, group.patterns)
        records.append(group_record(classic, assignments_of(classic), now.wall))
        protocols = {member.id: member.protocols for member in classic.members.values()}
        log.info("group becomes a classic group: group=%s", group.group_id)

        def then() -> Effects:
            return self._begin(group.group_id, protocols, now, rebalance)

        return records, then

    def _classic_twin(self, group: ConsumerGroup, members: list[ConsumerMember]) -> ClassicGroup:
        classic = self._classic.new_group(group.group_id)
        classic.state = ClassicState.STABLE
        classic.generation = group.epoch
        classic.protocol_type = CONSUMER
        for member in members:
            support = member.classic
            assert support is not None
            classic.insert(
                ClassicMember(
                    member.id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout,
                    support.session_timeout,
                    dict(support.protocols),
                    Timer(lambda _: NOTHING),
                )
            )
        classic.leader = members[0].id
        classic.protocol = classic.select_protocol()
        for member in members:
            # What it holds, or may hold still, and not its target: were the group to become a
            # consumer group again before it has rebalanced, nobody else may get that.
            twin = classic.members[member.id]
            twin.assignment = encode_assignment(
                member.holdings, twin.protocols[classic.protocol], self._metadata
            )
        return classic

    def _begin(
        self, group_id: str, protocols: dict[str, Protocols], now: Instant, rebalance: bool
    ) -> Effects:
        classic = self._find_classic(group_id)
        if classic is None:
            return NOTHING
        return self._classic.taken_over(classic, protocols, now, rebalance=rebalance)


def _not_upgraded(why: str) -> ProtocolError:
    return ProtocolError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"The group is a classic one and cannot become a consumer group: {why}.",
    )


def _records_of(group: ConsumerGroup) -> list[RecordPair]:
    group_id, members = group.group_id, group.members.values()
    records = [member_record(group_id, member) for member in members]
    records.append(epoch_record(group_id, group.epoch, group.metadata_hash))
    records += [target_record(group_id, each.id, group.targets[each.id]) for each in members]
    records.append(target_epoch_record(group_id, group.target_epoch, group.target_timestamp))
    records += [current_record(group_id, member) for member in members]
    return records
