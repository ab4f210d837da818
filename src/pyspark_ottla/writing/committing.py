"""The driver's part in an exactly-once write: which transactions count is decided once, then they end.

commit(N) becomes the owner's one driver and looks for the last decision:

    before N    N is to be decided. All of the tasks' transactions must be open. Write the decision,
                commit them, and abort whatever else of the owner's is open: attempts that failed, lost
                a race, or belong to a run that died.
    N           was decided by a driver that did not live to see the end: commit what it listed, and
                abort what it listed as dead and all of our own.
    after N     N was dealt with long ago (Spark was made to do it again): abort all of our own.

Why nobody's work is aborted by mistake: a transaction of another run that is open before N is decided
belongs to N or to an earlier batch, as N + 1 cannot begin before; and whoever prepared it will find N
decided and abort it, too. What opens later is left to the next decision.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from ottla.client.admin.client import AsyncAdmin
from ottla.client.admin.transactions import TransactionDescription
from ottla.client.errors import (
    BrokerError,
    Failures,
    OttlaError,
    TransactionNotFound,
    Unsupported,
)
from ottla.client.loop import background_loop
from pyspark_ottla.option_names import ClientKey, client_key
from pyspark_ottla.writing import points
from pyspark_ottla.writing.attempts import OPEN, Attempt, Owner, Prepared
from pyspark_ottla.writing.decisions import Decision, Ledger
from pyspark_ottla.writing.errors import AttemptLost, BatchTorn
from pyspark_ottla.writing.options import SinkOptions

logger = logging.getLogger(__name__)

ENDS_AT_ONCE = 16  # requests to end transactions that are under way at the same time
_ABORTED: Final = ("PrepareAbort", "CompleteAbort", "PrepareEpochFence")
_MOST_LEDGERS: Final = 8

# A process of Spark's that commits may be used again. By owner and the client's options.
_ledgers: dict[tuple[str, ClientKey], Ledger] = {}
# Runs that have come to know the last decision: what a dead run left is dealt with.
_settled: set[Owner] = set()


def commit(batch: int, messages: Iterable[Prepared], options: SinkOptions) -> None:
    """Make the batch count. Raises AttemptLost, BatchTorn, Fenced, and what brokers answer."""
    messages = list(messages)
    attempts = tuple(each.attempt for each in messages if each.attempt is not None)
    if not messages or (not attempts and messages[0].owner in _settled):
        return
    background_loop().run(_commit(batch, messages[0].owner, attempts, options))


def abort(batch: int, messages: Iterable[Prepared], options: SinkOptions) -> None:
    """Make sure that nothing of this run's counts, unless the batch is decided."""
    messages = list(messages)
    if messages:
        background_loop().run(_abort(batch, messages[0].owner, options))


def is_decided(batch: int, owner: Owner, options: SinkOptions) -> bool:
    """Whether this batch of the owner's, or a later one, is known to count."""

    async def look() -> bool:
        async with _ledger(owner, options) as ledger:
            last = await ledger.last()
            return last is not None and last.batch >= batch

    return background_loop().run(look())


async def _commit(
    batch: int, owner: Owner, attempts: tuple[Attempt, ...], options: SinkOptions
) -> None:
    async with _ledger(owner, options) as ledger:
        admin = ledger.admin
        last = await ledger.open()
        if last is not None and last.batch >= batch:
            if last.batch == batch:
                await _carry_out(admin, last)
            else:
                logger.warning(
                    "batch %d of %s is not written: batch %d was, and they are written in order; "
                    "to write anew, use a new checkpoint or txnAppId",
                    batch, owner.name, last.batch,
                )  # fmt: skip
            counted = {each.transactional_id for each in last.commit}
            leftovers = await _open_transactions(admin, owner.run_prefix)
            ours = [each for name, each in leftovers.items() if name not in counted]
            await _abort_all(admin, ours)
        elif attempts:
            there = await _open_transactions(admin, owner.prefix)
            there.pop(owner.driver_id, None)
            await _check(admin, batch, attempts, there)
            dead = [each for name, each in there.items() if name not in _names(attempts)]
            decision = Decision(batch, attempts, tuple(dead))
            await ledger.decide(decision)
            await _carry_out(admin, decision)
    _settled.add(owner)


async def _abort(batch: int, owner: Owner, options: SinkOptions) -> None:
    async with _ledger(owner, options) as ledger:
        last = await ledger.open()
        if last is None or last.batch < batch:
            ours = await _open_transactions(ledger.admin, owner.run_prefix)
            await _abort_all(ledger.admin, ours.values())


@asynccontextmanager
async def _ledger(owner: Owner, options: SinkOptions) -> AsyncIterator[Ledger]:
    """The owner's ledger; kept for the next time if all goes well."""
    key = (owner.name, client_key(options.client))
    ledger = _ledgers.pop(key, None) or Ledger(options, owner)
    try:
        yield ledger
    except BaseException:
        await ledger.close()
        raise
    _ledgers[key] = ledger
    if len(_ledgers) > _MOST_LEDGERS:
        await _ledgers.pop(next(iter(_ledgers))).close()


# Transactions


def _names(attempts: Iterable[Attempt]) -> set[str]:
    return {each.transactional_id for each in attempts}


async def _open_transactions(admin: AsyncAdmin, prefix: str) -> dict[str, Attempt]:
    """The open transactions whose ids begin so."""
    try:
        listed = await admin.list_transactions(states=[OPEN], pattern=f"{re.escape(prefix)}.*")
    except Unsupported:
        listed = await admin.list_transactions(states=[OPEN])
    names = [each.transactional_id for each in listed]
    return await _open_among(admin, [name for name in names if name.startswith(prefix)])


async def _open_among(admin: AsyncAdmin, names: list[str]) -> dict[str, Attempt]:
    """The transactions of these ids, as far as they are open."""
    described = await _described(admin, names)
    return {
        name: Attempt(name, each.producer_id, each.producer_epoch, each.timeout_ms)
        for name, each in described.items()
        if each.state == OPEN
    }


async def _described(admin: AsyncAdmin, names: list[str]) -> Mapping[str, TransactionDescription]:
    """The transactional ids that brokers know of."""
    if not names:
        return {}
    try:
        return await admin.describe_transactions(names)
    except TransactionNotFound:
        return {}
    except Failures as failures:
        if not all(isinstance(each, TransactionNotFound) for each in failures.exceptions):
            raise
        found: Mapping[str, TransactionDescription] = failures.results
        return found


async def _check(
    admin: AsyncAdmin, batch: int, attempts: Iterable[Attempt], there: dict[str, Attempt]
) -> None:
    """Every task's transaction must be open, or the batch cannot be decided."""
    # Those of a coordinator that moves to another broker may be missing in the list.
    missing = sorted(_names(attempts) - set(there))
    there = there | await _open_among(admin, missing)
    for each in attempts:
        found = there.get(each.transactional_id)
        if found is None or (found.producer_id, found.epoch) != (each.producer_id, each.epoch):
            why = "somebody aborted it"
            if each.timeout:
                why = f"its time was over ({each.timeout / 1000:g} s), or {why}"
            raise AttemptLost(
                f"the transaction '{each.transactional_id}' was ended before batch {batch} was "
                f"decided: {why}. Nothing of the batch was written; start the query again"
            )


async def _carry_out(admin: AsyncAdmin, decision: Decision) -> None:
    """End the transactions as it was decided; again, if that was done before."""
    remaining = iter(decision.commit)
    problems: list[OttlaError] = []

    async def end_one_by_one() -> None:
        for attempt in remaining:
            try:
                await _end(admin, decision.batch, attempt)
            except OttlaError as error:
                problems.append(error)  # the others are to end all the same
            points.reached("between ends")

    await asyncio.gather(*(end_one_by_one() for _ in range(ENDS_AT_ONCE)))
    await _abort_all(admin, decision.abort)
    if problems:
        raise problems[0]


async def _end(admin: AsyncAdmin, batch: int, attempt: Attempt) -> None:
    identity = (attempt.transactional_id, attempt.producer_id, attempt.epoch)
    try:
        await admin.end_transaction(*identity, commit=True)
    except BrokerError as error:
        if await _is_lost(admin, attempt):
            raise BatchTorn(
                f"the transaction '{attempt.transactional_id}' was decided to count, as part of "
                f"batch {batch}, and was aborted before it was committed (after {attempt.timeout} ms "
                "the broker does): its rows are missing, while others of the batch may be there"
            ) from error


async def _is_lost(admin: AsyncAdmin, attempt: Attempt) -> bool:
    """Whether a transaction whose commit was refused did not happen.

    Otherwise it was committed long ago, so that its id was used again or is forgotten.
    """
    described = await _described(admin, [attempt.transactional_id])
    found = described.get(attempt.transactional_id)
    if found is None:
        return attempt.timeout > 0
    return (
        found.state in _ABORTED
        and found.producer_id == attempt.producer_id
        and found.producer_epoch <= attempt.epoch + 1  # an abort is the end of this one, or a later
    )


async def _abort_all(admin: AsyncAdmin, attempts: Iterable[Attempt]) -> None:
    turn = asyncio.Semaphore(ENDS_AT_ONCE)

    async def end(attempt: Attempt) -> None:
        async with turn:
            identity = (attempt.transactional_id, attempt.producer_id, attempt.epoch)
            try:
                await admin.end_transaction(*identity, commit=False)
            except BrokerError as error:
                logger.info("%s was over: %s", attempt.transactional_id, error)

    await asyncio.gather(*(end(each) for each in attempts))
