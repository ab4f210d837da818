"""A proxy before a real broker that meddles with Produce: loses requests or answers, or refuses.

The broker behind it advertises the proxy's address. Requests of a connection are handled one by one, so
that answers keep their order. What happens to each Produce request is for the test to decide.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from wire_kit.proxy import Proxy, hang_up, read_frame, send_frame

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import frame_response, parse_request_header
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.record.batch import BatchHeader, read_header


class Fate(Enum):
    FORWARD = "goes through"
    LOSE_REQUEST = "never reaches the broker; the connection breaks"
    LOSE_ANSWER = "is written; the connection breaks before the answer"
    HANG = "is not answered until the proxy ends"


@dataclass(frozen=True)
class Produced:
    """A Produce request as it came: which one it is (from 0), and the headers of its batches."""

    number: int
    version: int
    batches: list[BatchHeader]


Decision = Fate | ErrorCode


class Meddler(Proxy):
    """`produced` lists the Produce requests; `decide` says what becomes of each."""

    def __init__(self) -> None:
        self.produced: list[Produced] = []
        self.decide: Callable[[Produced], Decision] = lambda _: Fate.FORWARD
        self._lock = threading.Lock()
        self._over = threading.Event()
        super().__init__()

    def begin(self, decide: Callable[[Produced], Decision]) -> None:
        """Forget what came, and decide so from now on."""
        with self._lock:
            self.produced.clear()
            self.decide = decide

    def serve(self, client: socket.socket) -> None:
        threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        broker = self.connect(client)
        if broker is None:
            return
        try:
            self._pass_on(client, broker)
        except OSError:
            pass  # one side is gone
        hang_up(client, broker)

    def _pass_on(self, client: socket.socket, broker: socket.socket) -> None:
        while (frame := read_frame(client)) is not None:
            api_key, version, correlation_id, _, at = parse_request_header(frame)
            fate: Decision = Fate.FORWARD
            answered = True
            if api_key == ApiKey.PRODUCE:
                request, _ = ProduceRequest.decode(frame, at, version)
                answered = request.acks != 0
                fate = self._decided(request, version)
            if isinstance(fate, ErrorCode):
                answer = _refusal(request, fate)
                client.sendall(frame_response(answer, version, correlation_id))
                continue
            if fate is Fate.HANG:
                self._over.wait()
                break
            if fate is Fate.LOSE_REQUEST:
                break
            send_frame(broker, frame)
            if not answered:
                continue
            answer_frame = read_frame(broker)
            if answer_frame is None or fate is Fate.LOSE_ANSWER:
                break
            send_frame(client, answer_frame)

    def _decided(self, request: ProduceRequest, version: int) -> Decision:
        batches = [
            read_header(partition.records)
            for topic in request.topic_data
            for partition in topic.partition_data
            if partition.records is not None
        ]
        with self._lock:
            produced = Produced(len(self.produced), version, batches)
            self.produced.append(produced)
            return self.decide(produced)

    def __exit__(self, *error: Any) -> None:
        self._over.set()
        super().__exit__(*error)


def _refusal(request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=each.index, error_code=code, base_offset=-1)
                    for each in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
