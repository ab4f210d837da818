"""What a producer asks for that begins anew, and the answer when that takes a new producer id."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.coordinator.transactions.transaction import NOBODY, Identity
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdResponse

# The answer to a request that cannot be decided without a new producer id: submit it again with one.
PRODUCER_ID_WANTED: Final = InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Takeover(NamedTuple):
    """A producer asks for its identity (InitProducerId)."""

    transactional_id: str
    timeout_ms: int
    # The identity it believes to have, NOBODY if it starts anew.
    expected: Identity = NOBODY
    two_phase: bool = False
    # Leave a prepared transaction open, for this producer to end.
    keep_prepared: bool = False
