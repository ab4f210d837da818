"""The producer: records and tables to topics.

batches.py      record batches on their way, and the queue of a partition
accumulator.py  the buffer, bounded in bytes
sender.py       from the buffer to the brokers, retries included
identity.py     the producer's id and the numbers of its batches;  transactions.py  transactions
partitioners.py, murmur2.py   which partition a record goes to
tables.py       which column of a table is what
core.py         all of it together;  asynchronous.py, blocking.py  what users see
"""

from ottla.client.producer.asynchronous import AsyncProducer
from ottla.client.producer.batches import Delivery
from ottla.client.producer.blocking import Producer
from ottla.client.producer.core import Written
from ottla.client.producer.errors import InvalidTransactionState, TransactionFailed
from ottla.client.producer.transactions import GroupMember, PreparedTransaction

__all__ = [
    "AsyncProducer",
    "Delivery",
    "GroupMember",
    "InvalidTransactionState",
    "PreparedTransaction",
    "Producer",
    "TransactionFailed",
    "Written",
]
