"""A task's part in an exactly-once write: rows in a transaction that is left open.

Every attempt of a task has a transactional id of its own,

    ottla-spark/<owner>/<run>/<partition>-<attempt>-<number>

so that no two of them, dead or alive, get into each other's way. The owner is a streaming query or an
application that writes batches; the run is one start of it. Spark counts attempts anew when it repeats a
stage, and does not tell Python so: the number is the first for which no transaction is open. Ids return
with the next batch of the run, when the driver has ended the transactions of the one before.

Prepared transactions wait for the driver. Where the broker offers two-phase commit (KIP-939) they wait
for as long as it takes. Elsewhere, or if the user does not want that, the broker aborts them after
transaction.timeout.ms, which is its maximum unless the user says otherwise.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from ottla.client.admin.client import Admin
from ottla.client.admin.configs import Resource
from ottla.client.errors import (
    BrokerError,
    Failures,
    NotAuthorized,
    TransactionNotFound,
    Unsupported,
)
from ottla.client.producer import Producer
from pyspark_ottla.option_names import ClientKey, client_key
from pyspark_ottla.writing import points
from pyspark_ottla.writing.delivery import write_rows
from pyspark_ottla.writing.options import SinkOptions
from pyspark_ottla.writing.rows import RecordColumns

logger = logging.getLogger(__name__)

PREFIX: Final = "ottla-spark/"
OPEN: Final = "Ongoing"  # the state of a transaction
_MAXIMUM: Final = "transaction.max.timeout.ms"
_KAFKAS_MAXIMUM: Final = 900_000  # milliseconds: the default

# For each set of the client's options, kept between tasks: connections for questions, and after how
# many milliseconds brokers abort transactions (0: never).
_admins: dict[ClientKey, Admin] = {}
_timeouts: dict[ClientKey, int] = {}


@dataclass(frozen=True)
class Owner:
    """The query, or the job, that a write belongs to."""

    name: str  # as it stands in transactional ids and decisions
    run: str

    @property
    def prefix(self) -> str:
        """What the ids of all its transactions begin with."""
        return f"{PREFIX}{self.name}/"

    @property
    def run_prefix(self) -> str:
        return f"{self.prefix}{self.run}/"

    @property
    def driver_id(self) -> str:
        return f"{self.prefix}driver"


@dataclass(frozen=True)
class Attempt:
    """A transaction that a task has prepared."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout: int  # milliseconds; 0: none


@dataclass(frozen=True)
class Prepared(WriterCommitMessage):
    """What a task tells the driver; without an attempt if it had no rows."""

    owner: Owner
    attempt: Attempt | None = None
    rows: int = 0


def prepare(
    batches: Iterator[pa.RecordBatch],
    columns: RecordColumns,
    options: SinkOptions,
    owner: Owner,
    task: str,
) -> Prepared:
    """Write a task's rows and leave the transaction open; `task` is its partition and attempt."""
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return Prepared(owner)
    transactional_id = _free_id(f"{owner.run_prefix}{task}", options)
    producer, timeout = _initialised(transactional_id, options)
    try:
        producer.begin_transaction()
        rows = write_rows(
            producer,
            itertools.chain([first], batches),
            columns,
            before_flush=lambda: points.reached("before flush"),
        )
        prepared = producer.prepare_transaction(may_time_out=True)
        points.reached("prepared")
    finally:
        producer.close()  # aborts what is not prepared
    attempt = Attempt(transactional_id, prepared.producer_id, prepared.epoch, timeout)
    return Prepared(owner, attempt, rows)


def _admin(options: SinkOptions) -> Admin:
    key = client_key(options.client)
    if key not in _admins:
        _admins[key] = Admin(options.any_client)
    return _admins[key]


def _is_open(transactional_id: str, admin: Admin) -> bool:
    try:
        described = admin.describe_transactions(transactional_id)
    except TransactionNotFound:
        return False
    return described[transactional_id].state == OPEN


def _free_id(task: str, options: SinkOptions) -> str:
    for number in itertools.count():
        transactional_id = f"{task}-{number}"
        if not _is_open(transactional_id, _admin(options)):
            return transactional_id
    raise AssertionError("there is always one more number")


def _initialised(transactional_id: str, options: SinkOptions) -> tuple[Producer, int]:
    """A producer that may begin, and after how many milliseconds its transactions time out."""
    key = client_key(options.client)
    if key not in _timeouts and not options.two_phase_commit:
        _timeouts[key] = _longest(options)
    if _timeouts.get(key, 0) == 0:
        try:
            return _begun(transactional_id, options, 0), 0
        except (Unsupported, NotAuthorized) as error:
            _timeouts[key] = _longest(options)
            logger.info(
                "no two-phase commit (%s): transactions time out after %d ms", error, _timeouts[key]
            )
    return _begun(transactional_id, options, _timeouts[key]), _timeouts[key]


def _begun(transactional_id: str, options: SinkOptions, timeout: int) -> Producer:
    given: dict[str, object] = {
        **options.client,
        "transactional.id": transactional_id,
        "transaction.two.phase.commit.enable": timeout == 0,
    }
    if timeout:
        given["transaction.timeout.ms"] = timeout
    producer = Producer(given)
    try:
        producer.init_transactions()
    except BaseException:
        producer.close()
        raise
    return producer


def _longest(options: SinkOptions) -> int:
    """The user's timeout, or the longest that the broker allows; milliseconds."""
    if "transaction.timeout.ms" in options.client:
        return int(options.settings.transaction_timeout * 1000)
    admin = _admin(options)
    some = Resource.broker(admin.describe_cluster().brokers[0].id)
    try:
        found = admin.describe_configs(some, names=[_MAXIMUM])[some]
    except (BrokerError, Failures) as error:
        logger.info("%s is not to be had: %s", _MAXIMUM, error)
        return _KAFKAS_MAXIMUM
    setting = found.get(_MAXIMUM)
    return int(setting.value) if setting is not None and setting.value else _KAFKAS_MAXIMUM
