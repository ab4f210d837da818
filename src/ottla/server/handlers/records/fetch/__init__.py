"""Fetch: record batches of one or more partitions, from a position on.

- A response begins with the batch that holds the offset asked for, so a client may get a few records
  before it, and it may end inside a batch; clients expect both.
- `max_bytes` bounds the response and each partition. The first batch of the first partition that has
  any data comes whole, however large, so that a consumer always gets on. Another whose first batch does
  not fit into what is left gets nothing (from v3 on), never a part of it.
- With less than `min_bytes` to give, the request waits up to `max_wait_ms` for appends to its
  partitions; an error or a moved leader ends the wait. What no append can add to is not waited with: an
  answer that is full, or that ends where a segment ends and more is in the next one.
- read_committed readers see up to the last stable offset, with the list of the aborted transactions
  that overlap what they are sent.
- An epoch that the reader brings along is checked: it may know of a newer leader than this broker
  (UNKNOWN_LEADER_EPOCH) or of an older one (FENCED_LEADER_EPOCH), or its log may have been cut off
  after it (a diverging epoch in the answer).
- A follower serves consumers too, up to the high watermark it knows; a leader sends consumers that name
  their rack to an in-sync replica in it, if `replica.selector.class` asks for that (KIP-392).
- A consumer is not told a high watermark (-1) by a leader that does not know yet all that was committed
  before its term: it may have been told a larger one. (Kafka tells the smaller one, and keeps only
  ListOffsets from going back, KIP-207.)
- Who asks the wrong broker is told which one leads (KIP-951).
- A replica reads to the log's end, and what it asks for tells the leader what it has; a tagged field of
  Ottla's own tells what of that it has synced (`visible.when.flushed`). Its fetch waits for the log to
  grow or to begin later, a consumer's for the high watermark to move. A replica that has everything
  hears of that when the wait is over, or within half a second.
- A partition that is named several times is read once, as it is named last.
- Records that were deleted one by one are not sent, nor are the marks that say so: batches with such
  records are sent as copies without them, those without any record not at all. Where nothing else is
  left before the end, one control batch covers it, so that a consumer's position gets there. (Old
  formats know no such batch.) Replicas get the log as it is.
- Large ranges go from the page cache to the socket by `sendfile`. Data that is not in memory is
  brought there first, beside the loop, so that one reader of old data does not hold up the others.

The way of a request: it is decoded, or known from the one before it (`repeated`); `request` finds the
partitions it is about, its own or those of its session; the `Reader` looks at each of them; `Fetch`
answers, or waits for more first; `cold` brings what is not in memory, and what has to be changed before
it is sent; `response` makes the answer.

Versions:
  v0, v1  messages in format 0, v2 and v3 in format 1 (converted in a worker process); v1 throttle
  v3      max_bytes for the whole response
  v4      isolation level, last stable offset, aborted transactions; format 2
  v5      log start offset
  v6      KAFKA_STORAGE_ERROR (before: NOT_LEADER_OR_FOLLOWER)
  v7      sessions
  v9      current leader epoch
  v11     rack of the reader, preferred read replica
  v12     flexible, last fetched epoch, diverging epoch
  v13     topics by id
  v15     the replica's id and epoch in a tagged field
  v16     endpoints of new leaders in the answer
  v17     directory id, v18 high watermark (both of replicas, tagged)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.fetch import FetchRequest
from ottla.server.api import (
    LARGE_REQUEST,
    Api,
    Serve,
    decode_large,
    decode_request,
    failed,
    handles_raw,
)
from ottla.server.handlers.records.fetch.handler import Fetch
from ottla.server.handlers.records.fetch.repeated import repeatable
from ottla.server.turns import run_in_turns

if TYPE_CHECKING:
    from ottla.server.broker import Broker
    from ottla.server.network.connection import Connection


@handles_raw(FetchRequest, versions=(0, 18))
def bind(broker: Broker, _: Api) -> Serve:
    def serve(
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> None:
        if stop - at > LARGE_REQUEST:
            _serve_large(broker, connection, view[at:stop], version, correlation_id)
            return
        repeated = connection.repeated_fetch
        request = None if repeated is None else repeated.read(view, at, stop, version)
        if request is None:
            request = decode_request(FetchRequest, view, at, stop, version)
            connection.repeated_fetch = repeatable(view, at, stop, version, request)
        Fetch(broker, connection, request, version, correlation_id).start()

    return serve


def _serve_large(
    broker: Broker, connection: Connection, body: memoryview, version: int, correlation_id: int
) -> None:
    """A request that names so many partitions that it is decoded in steps."""
    steps = decode_large(FetchRequest, connection.keep(body), version)
    next(steps)
    slot = connection.reserve(exclusive=True)

    def begin(request: FetchRequest) -> None:
        fetch = Fetch(broker, connection, request, version, correlation_id)
        fetch.start_many(slot)

    def refuse(error: Exception) -> None:
        failed(connection, "FETCH", version, error)

    on_slice = broker.apis[ApiKey.FETCH].on_slice(connection)
    run_in_turns(broker.loop, steps, begin, refuse, lambda: not connection.closed, on_slice)
