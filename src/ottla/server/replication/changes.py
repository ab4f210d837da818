"""Changes of the metadata, wherever the controller is: on this broker, or on another.

Requests of clients that the controller has to decide are passed on to it as they are (`forward`), and
answered once this broker knows of the change, so that the client finds it made here. What the broker
wants for itself (topics made on first use, producer ids, in-sync sets) goes the same way.

A request that is passed on says by its client id whose it is, for the controller counts what each client
changes: `broker-1-controller for ["alice", "reports"]`, of the user and the client id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.cluster.decisions.partitions import IsrResult, WantedIsr
from ottla.cluster.decisions.topics import NewTopic, TopicResult
from ottla.cluster.metadata import Partition as PartitionState
from ottla.cluster.store import StoreError
from ottla.protocol.errors import ErrorCode, ProtocolError, error_code
from ottla.protocol.message import Message, Part
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionDataRequest,
    PartitionDataResponse,
    TopicDataRequest,
)
from ottla.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.server.replication.peers import CLIENT_ID
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    from ottla.cluster.controller import Controller
    from ottla.server.broker import Broker

log = logging.getLogger("ottla.controller")

A = TypeVar("A", bound=Message)

# How long a change is tried for when there is no controller, or it does not answer.
PATIENCE_SECONDS = 15.0
_RETRY_SECONDS = 0.05
PURPOSE = "controller"
_FOR = " for "
# Of a client id on the wire.
_LONGEST_CLIENT_ID = 32_000


class Client(NamedTuple):
    """Whose request it is, as quotas count."""

    user: str
    client_id: str


class Changes:
    """Puts changes to the controller. Belongs to the broker's loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def controller(self) -> Controller | None:
        """The controller, if it is on this broker."""
        return self._broker.membership.controller

    async def forward(self, message: Message, version: int, of: Client | None = None) -> Message:
        """The controller's answer to a request of a client; of this broker, if there is none."""
        name = type(message).__name__.removesuffix("Request") + "Response"
        answer_class = getattr(sys.modules[type(message).__module__], name)
        answer: Message = await self._ask(message, answer_class, version, of)
        try:
            await self._broker.membership.follower.caught_up()
        except StoreError as error:
            log.info("the change was made, and is not seen here yet: %s", error)
        return answer

    async def create_topics(
        self, topics: Sequence[NewTopic], of: Client | None = None
    ) -> list[TopicResult]:
        """Topics that this broker wants, or that it makes for a client, within the client's quota."""
        controller = self.controller
        if controller is not None:
            if of is None or self._broker.quotas is None:
                return await controller.create_topics(topics)
            from ottla.server.quotas.mutations import created_within_quota

            return await created_within_quota(self._broker, controller, topics, of)
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=each.name,
                    num_partitions=each.partitions,
                    replication_factor=each.replication_factor,
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in each.configs.items()
                    ],
                )
                for each in topics
            ],
            timeout_ms=int(PATIENCE_SECONDS * 1000),
        )
        answer = await self.forward(request, CreateTopicsRequest.versions[1], of)
        assert isinstance(answer, CreateTopicsResponse)
        return [
            TopicResult(
                each.name,
                each.topic_id,
                ProtocolError(error_code(each.error_code), each.error_message)
                if each.error_code
                else None,
            )
            for each in answer.topics
        ]

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids that nobody else ever gets."""
        controller = self.controller
        if controller is not None:
            block = await controller.allocate_producer_ids()
            return range(block.first, block.first + block.size)
        request = AllocateProducerIdsRequest(
            broker_id=self._broker.id, broker_epoch=self._broker.membership.epoch
        )
        answer = await self._ask(request, AllocateProducerIdsResponse)
        if answer.error_code:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        first = answer.producer_id_start
        return range(first, first + answer.producer_id_len)

    async def alter_isr(self, wanted: Sequence[WantedIsr]) -> list[IsrResult]:
        """In-sync sets of partitions that this broker leads. One attempt: WireError or ProtocolError
        if the controller does not answer, and then nothing is known."""
        broker = self._broker
        controller = self.controller
        if controller is not None:
            return await controller.alter_isr(broker.id, broker.membership.epoch, wanted)
        topics: dict[bytes, TopicDataRequest] = {}
        for each in wanted:
            topic = topics.setdefault(
                each.topic_id, TopicDataRequest(topic_id=each.topic_id, partitions=[])
            )
            topic.partitions.append(
                PartitionDataRequest(
                    partition_index=each.index,
                    leader_epoch=each.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=member, broker_epoch=epoch)
                        for member, epoch in each.isr
                    ],
                    partition_epoch=each.partition_epoch,
                )
            )
        request = AlterPartitionRequest(
            broker_id=broker.id,
            broker_epoch=broker.membership.epoch,
            topics=list(topics.values()),
        )
        answer = await self._ask_once(request, AlterPartitionResponse, None)
        if answer.error_code:
            raise ProtocolError(error_code(answer.error_code))
        return [
            IsrResult(
                answered.topic_id,
                each.partition_index,
                error_code(each.error_code),
                self._state(answered.topic_id, each),
            )
            for answered in answer.topics
            for each in answered.partitions
        ]

    def _state(self, topic_id: bytes, answered: PartitionDataResponse) -> PartitionState | None:
        """The partition as the controller has it now, with what an answer does not repeat. Whether it is
        being moved is left open: as long as nobody is known to be on the way in, more replicas have to
        be in sync, which is safe. The image says it in a moment."""
        topic = self._broker.image.topics_by_id.get(topic_id)
        if answered.error_code or topic is None:
            return None
        index = answered.partition_index
        if index >= len(topic.partitions):
            return None
        return PartitionState(
            index,
            topic.partitions[index].replicas,
            tuple(answered.isr),
            answered.leader_id,
            answered.leader_epoch,
            answered.partition_epoch,
        )

    async def shut_down(self) -> None:
        """This broker is about to stop: leaders move away from it. One attempt."""
        broker = self._broker
        controller = self.controller
        if controller is not None:
            await controller.shut_down_broker(broker.id, broker.membership.epoch)
            return
        request = BrokerHeartbeatRequest(
            broker_id=broker.id, broker_epoch=broker.membership.epoch, want_shut_down=True
        )
        answer = await self._ask_once(request, BrokerHeartbeatResponse, None)
        if answer.error_code:
            raise ProtocolError(error_code(answer.error_code))

    # The way ------------------------------------------------------------------------------------

    async def _ask(
        self,
        message: Message,
        answer_class: type[A],
        version: int | None = None,
        of: Client | None = None,
    ) -> A:
        """Ask until the controller answers, whoever that is by then."""
        loop = self._broker.loop
        deadline = loop.time() + PATIENCE_SECONDS
        problem: Exception = ProtocolError(ErrorCode.NOT_CONTROLLER, "There is no controller.")
        while True:
            try:
                answer = await self._ask_once(message, answer_class, version, of)
                if not says_not_controller(answer):
                    return answer
            except (WireError, ProtocolError) as error:
                problem = error
            if loop.time() > deadline:
                raise ProtocolError(ErrorCode.NOT_CONTROLLER, str(problem))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _ask_once(
        self,
        message: Message,
        answer_class: type[A],
        version: int | None,
        of: Client | None = None,
    ) -> A:
        controller_id = self._broker.image.controller_id
        if controller_id < 0 or controller_id == self._broker.id:
            raise ProtocolError(ErrorCode.NOT_CONTROLLER, "There is no controller.")
        return await self._broker.peers.request(
            controller_id,
            PURPOSE,
            message,
            answer_class,
            version=version,
            client_id=None if of is None else forwarded_id(self._broker.id, of),
        )


def says_not_controller(answer: Message) -> bool:
    """Whether the one who answered is not the controller (any more)."""
    code = ErrorCode.NOT_CONTROLLER
    if getattr(answer, "error_code", 0) == code:
        return True
    for name in type(answer).__annotations__:
        parts = getattr(answer, name, None)
        if isinstance(parts, list) and parts and isinstance(parts[0], Part):
            return getattr(parts[0], "error_code", 0) == code
    return False


def is_forwarded(client_id: str) -> bool:
    """Whether a request was passed on by another broker."""
    return client_id.startswith("broker-") and client_id.partition(_FOR)[0].endswith(PURPOSE)


def forwarded_id(broker_id: int, client: Client) -> str:
    """The client id of a request that is passed on for a client."""
    own = CLIENT_ID.format(broker_id, PURPOSE)
    whole = f"{own}{_FOR}{json.dumps(client)}"
    return whole if len(whole) <= _LONGEST_CLIENT_ID else own


def client_of(client_id: str) -> Client | None:
    """For whom a request was passed on; None if it is the broker's own."""
    _, is_for, client = client_id.partition(_FOR)
    if not is_for:
        return None
    try:
        user, its_id = json.loads(client)
    except (ValueError, TypeError):
        return None
    return Client(str(user), str(its_id))
