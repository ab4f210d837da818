"""Produce: append record batches to the logs of partitions that this broker leads.

- A batch is checked (length, magic, CRC32C, count, size, every record in it, sequence), stamped with
  its offset in place, and stored whole or not at all. Partitions of one request succeed or fail
  alone. Records that may not be in their topic are named (`record_errors`).
- acks=1 answers when the batch is in the leader's page cache, acks=all (-1) when every in-sync
  replica has it and there are at least `min.insync.replicas` of them. Either waits for the sync
  where the batch reaches `flush.messages`. acks=0 is never answered; an error then closes the
  connection, since that is the only way left to tell.
- A batch that an idempotent producer sends again is answered with its first offset.
- A transaction's first batch in a partition is written only if the transaction's coordinator knows
  the partition to be part of it (server/coordination/verification.py); from v12 on the batch makes
  it so.
- `compression.type` other than the producer's own: recompressed in a worker process.

The way of a request: `request.read` finds where the records of each partition stand, `transactions`
asks for those in which a transaction begins, `checks` says whether they may be appended,
`record_checks` looks at the records, `Partition.append` does it, `answer` writes the response,
`unfinished` holds it back as long as a disk, a worker, a replica or a flush is waited for. Requests
that name very many partitions take the same steps with the loop's turn between them (`long`). The one
short cut is `repeated`.

Versions:
  v0–v2   message sets of formats 0 and 1, converted to format 2; v1 adds throttle time, v2 the
          append time. Kafka 4 no longer takes these.
  v3      transactional id; record batches (format 2), exactly one for each partition
  v4      KAFKA_STORAGE_ERROR (before: NOT_LEADER_OR_FOLLOWER)
  v5      log start offset in the answer
  v7      Zstandard allowed
  v8      record errors and a message for each partition
  v9      flexible
  v10     the new leader in the answer when this one is not it
  v11     TRANSACTION_ABORTABLE
  v12     the second transaction protocol: partitions are added to a transaction by their batches
  v13     topics by id
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages.produce import ProduceRequest
from ottla.server.api import Api, Serve, handles_raw
from ottla.server.handlers.records.produce.handler import Produce

if TYPE_CHECKING:
    from ottla.server.broker import Broker


@handles_raw(ProduceRequest, versions=(0, 13))
def bind(broker: Broker, _: Api) -> Serve:
    return Produce(broker).serve
