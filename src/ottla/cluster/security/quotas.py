"""Quotas of clients: whom they are for, what they limit, and which of them counts. No I/O.

An entity is a user, a client id, or both; None in the place of a name is everybody who has none of their
own. Addresses ("ip") have quotas of their own kind. The names are Kafka's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

OF_CLIENTS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
OF_ADDRESSES: Final = (CONNECTION_CREATION_RATE,)
# Those that are whole numbers.
WHOLE: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)

# The types of an entity with their names, None for the default.
Entity = Mapping[str, str | None]


def entity_key(entity: Entity) -> str:
    """The name of an entity's node."""
    return json.dumps(dict(sorted(entity.items())), separators=(",", ":"), ensure_ascii=False)


def entity_of(key: str) -> dict[str, str | None]:
    """The entity whose node has this name."""
    return dict(json.loads(key))


def candidates(user: str, client_id: str) -> Iterator[tuple[dict[str, str | None], bool, bool]]:
    """The entities whose quota a client may have, the one that counts first; and whether what is
    counted is counted for each user and for each client id."""
    yield {USER: user, CLIENT_ID: client_id}, True, True
    yield {USER: user, CLIENT_ID: None}, True, True
    yield {USER: user}, True, False
    yield {USER: None, CLIENT_ID: client_id}, True, True
    yield {USER: None, CLIENT_ID: None}, True, True
    yield {USER: None}, True, False
    yield {CLIENT_ID: client_id}, False, True
    yield {CLIENT_ID: None}, False, True
