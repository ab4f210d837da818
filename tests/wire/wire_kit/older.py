"""A proxy that makes a broker look like Kafka 2.4: it clips what ApiVersions offers.

A request in a version that 2.4 did not have is a mistake of the client: it is written down in
`violations`, and the connection is closed, as that broker would do.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

from ottla.protocol.apis import ApiKey, api_name
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import frame_response, parse_request_header
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from wire_kit.proxy import Proxy, hang_up, read_frame, send_frame

# What Apache Kafka 2.4 offers, up to which version; what is not listed it does not have.
KAFKA_2_4 = {
    ApiKey.PRODUCE: 8,
    ApiKey.FETCH: 11,
    ApiKey.LIST_OFFSETS: 5,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 3,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.WRITE_TXN_MARKERS: 0,
    ApiKey.TXN_OFFSET_COMMIT: 2,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 1,
    ApiKey.SASL_AUTHENTICATE: 1,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.OFFSET_DELETE: 0,
}


class OlderBroker(Proxy):
    """Offers the versions of `newest`, by default those of Kafka 2.4."""

    def __init__(self, newest: dict[ApiKey, int] | None = None) -> None:
        self.newest = {int(key): version for key, version in (newest or KAFKA_2_4).items()}
        self.violations: list[str] = []
        self.used: set[tuple[str, int]] = set()  # API and version of what was asked
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        broker = self.connect(client)
        if broker is None:
            return
        handshakes: dict[int, int] = {}  # correlation id -> version of ApiVersions requests
        for serve in (self._requests, self._answers):
            threading.Thread(
                target=self._until_somebody_leaves,
                args=(serve, client, broker, handshakes),
                daemon=True,
            ).start()

    def _until_somebody_leaves(
        self,
        serve: Callable[[socket.socket, socket.socket, dict[int, int]], None],
        client: socket.socket,
        broker: socket.socket,
        handshakes: dict[int, int],
    ) -> None:
        try:
            serve(client, broker, handshakes)
        except OSError:
            pass  # one side is gone
        hang_up(client, broker)

    def _requests(
        self, client: socket.socket, broker: socket.socket, handshakes: dict[int, int]
    ) -> None:
        while (frame := read_frame(client)) is not None:
            api_key, version, correlation_id, _, _ = parse_request_header(frame)
            self.used.add((api_name(api_key), version))
            if version > self.newest.get(api_key, -1):
                if api_key == ApiKey.API_VERSIONS:
                    refusal = ApiVersionsResponse(
                        error_code=ErrorCode.UNSUPPORTED_VERSION,
                        api_keys=[
                            ApiVersion(api_key=18, max_version=self.newest[ApiKey.API_VERSIONS])
                        ],
                    )
                    client.sendall(frame_response(refusal, 0, correlation_id))
                    continue
                self.violations.append(f"{api_name(api_key)} v{version}")
                break
            if api_key == ApiKey.API_VERSIONS:
                handshakes[correlation_id] = version
            send_frame(broker, frame)

    def _answers(
        self, client: socket.socket, broker: socket.socket, handshakes: dict[int, int]
    ) -> None:
        while (frame := read_frame(broker)) is not None:
            (correlation_id,) = struct.unpack_from(">i", frame)
            version = handshakes.pop(correlation_id, None)
            if version is None:
                send_frame(client, frame)
                continue
            answer, _ = ApiVersionsResponse.decode(frame, 4, version)
            answer.api_keys = [
                ApiVersion(
                    api_key=each.api_key,
                    min_version=each.min_version,
                    max_version=min(each.max_version, self.newest[each.api_key]),
                )
                for each in answer.api_keys
                if self.newest.get(each.api_key, -1) >= each.min_version
            ]
            answer.supported_features, answer.finalized_features = [], []
            client.sendall(frame_response(answer, version, correlation_id))
