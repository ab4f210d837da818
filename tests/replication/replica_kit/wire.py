"""What a follower asks and is answered, by way of the bytes that are sent: the short cuts are taken."""

from __future__ import annotations

from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.one_partition_fetch import read_response
from ottla.replication.following import Following
from ottla.replication.partition import Partition

VERSION = FetchRequest.versions[1]


def next_request(following: Following, broker_id: int, broker_epoch: int, now: int) -> FetchRequest:
    """The next request, as its leader reads it."""
    body, wait_ms = following.encoded(VERSION, broker_id, broker_epoch, now)
    request, _ = FetchRequest.decode(b"".join(body), 0, VERSION)
    assert request.max_wait_ms == wait_ms
    return request


def take_answer(following: Following, response: FetchResponse, now: int) -> list[Partition]:
    """The answer, as the follower's connection gives it."""
    frame = response.encode(VERSION)
    one = read_response(frame, 0)
    if one is not None:
        return following.took_one(*one, now)
    return following.answered(FetchResponse.decode(frame, 0, VERSION)[0], now)
