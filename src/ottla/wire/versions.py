"""Which version of each API to speak: the newest that both sides know.

Kafka's brokers say in ApiVersions what they offer. A client from KIP-511 on asks in the newest
version it knows; a broker that does not know that version answers with error 35 in the layout of
version 0, from which the range it does know can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ottla.protocol.apis import ApiKey, api_name
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersion
from ottla.wire.errors import UnsupportedByBroker

# Versions that are marked as not yet stable in Kafka 4.3: a broker offers them only when it is told
# to, and their layout may still change.
_NEWEST_STABLE: Final[Mapping[int, int]] = {ApiKey.INIT_PRODUCER_ID: 5}

# From these versions on a broker answers before it throttles (KIP-219), so that the client has to
# keep quiet by itself; older ones hold the answer back. APIs not listed never held it back.
_CLIENT_THROTTLES_SINCE: Final[Mapping[int, int]] = {
    ApiKey.PRODUCE: 6,
    ApiKey.FETCH: 8,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 6,
    ApiKey.OFFSET_COMMIT: 4,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.HEARTBEAT: 2,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.DESCRIBE_GROUPS: 2,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.DELETE_TOPICS: 2,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.DESCRIBE_ACLS: 1,
    ApiKey.CREATE_ACLS: 1,
    ApiKey.DELETE_ACLS: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 1,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.DELETE_GROUPS: 1,
}


def client_throttles(api_key: int, version: int) -> bool:
    """Whether a throttle time in an answer of this version is the client's to keep."""
    return version >= _CLIENT_THROTTLES_SINCE.get(api_key, 0)


class BrokerVersions:
    """What one broker offers, as its ApiVersions answer says."""

    __slots__ = ("_address", "_chosen", "ranges")

    def __init__(self, address: str, offered: Iterable[ApiVersion]) -> None:
        self._address = address
        self.ranges: dict[int, tuple[int, int]] = {
            each.api_key: (each.min_version, each.max_version) for each in offered
        }
        self._chosen: dict[type[Message], int] = {}

    def offers(self, request: type[Message], version: int = 0) -> bool:
        """Whether the API can be used here in `version` or a newer one."""
        try:
            return self.choose(request) >= version
        except UnsupportedByBroker:
            return False

    def choose(self, request: type[Message], at_most: int | None = None) -> int:
        """The newest common version, of those up to `at_most` where it is given.

        A version that is not stable is chosen only if `at_most` names it.
        """
        if at_most is None:
            version = self._chosen.get(request)
            if version is None:
                stable = _NEWEST_STABLE.get(int(request.api_key), request.versions[1])
                version = self._newest_common(request, min(stable, request.versions[1]))
                self._chosen[request] = version
            return version
        return self._newest_common(request, min(at_most, request.versions[1]))

    def _newest_common(self, request: type[Message], ceiling: int) -> int:
        api_key = int(request.api_key)
        lowest, highest = self.ranges.get(api_key, (0, -1))
        version = min(ceiling, highest)
        if version < max(lowest, request.versions[0]):
            offered = f"v{lowest} to v{highest}" if highest >= 0 else "in no version"
            wanted = f"v{request.versions[0]} to v{ceiling}"
            raise UnsupportedByBroker(self._address, api_name(api_key), wanted, offered)
        return version
