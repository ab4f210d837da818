"""Brokers that come and go, and the blocks of producer ids they take."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.cluster.draft import Draft
from ottla.cluster.metadata import Broker
from ottla.protocol.errors import ErrorCode, ProtocolError

PRODUCER_IDS_PER_BLOCK: Final = 1000
_LARGEST_PRODUCER_ID: Final = 2**63 - 1


class ProducerIdBlock(NamedTuple):
    """Producer ids that nobody else has or will get: `first` and the `size - 1` after it."""

    first: int
    size: int


def register_broker(draft: Draft, broker: Broker) -> None:
    """Adds a broker, in place of an earlier registration of the same id."""
    if broker.id < 0:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"A broker's id cannot be {broker.id}.")
    if not broker.endpoints:
        raise ProtocolError(
            ErrorCode.INVALID_REGISTRATION, f"Broker {broker.id} has no endpoint to be reached at."
        )
    draft.put_broker(broker)


def unregister_broker(draft: Draft, broker_id: int) -> None:
    """Takes a broker out."""
    if broker_id not in draft.brokers:
        raise ProtocolError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {broker_id} in the cluster."
        )
    draft.remove_broker(broker_id)


def allocate_producer_ids(draft: Draft) -> ProducerIdBlock:
    """The next block. It counts as used from now on, whatever becomes of the one who asked."""
    first = draft.next_producer_id
    if first > _LARGEST_PRODUCER_ID - PRODUCER_IDS_PER_BLOCK:
        raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "There are no producer ids left.")
    draft.next_producer_id = first + PRODUCER_IDS_PER_BLOCK
    return ProducerIdBlock(first, PRODUCER_IDS_PER_BLOCK)
