"""The runtime of the coordinators: what their state machines ask for is done here.

A coordinator's state lives in the partitions of an internal topic, one shard (a state machine without
I/O, see `ottla.coordinator.shard`) for each. A shard is loaded when it is first asked for: its
partition is read from start to end and every record replayed. From then on each request runs on the
loop: the shard answers with effects, the records are appended and replayed, and once they are committed
the answers are sent and whatever follows is done. No answer leaves before everything that the shard knew
when it was given is committed, so what may still be lost with this leader is visible to nobody. Shards
are loaded and unloaded with the leadership of their partitions.

Commits of offsets are gathered: those that arrive in one turn of the loop are appended as one batch, and
answered then. Whatever else concerns their shard is preceded by that append, so nobody can tell but by
the clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from ottla.coordinator.shard import Effects, Instant, Replayed, Shard, Ticket
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.record.batch import BatchHeader, headers, records
from ottla.record.errors import InvalidBatch, Truncated
from ottla.record.pairs import build_pairs
from ottla.replication.partition import Role
from ottla.server.api import Later
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.turns import Steps
from ottla.storage.errors import OutOfResources, RecordTooLarge, StorageError
from ottla.storage.log.append import read_marker
from ottla.storage.log.producer_state import Origin

if TYPE_CHECKING:
    from ottla.protocol.message import Message
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker

log = logging.getLogger("ottla.coordinators")
limited_log = LimitedLog(log)

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

# Bytes of an internal partition that are read and replayed before the loop gets its turn.
LOAD_BYTES = 128 << 10
# Records that are gathered into one batch; a commit of many partitions may go beyond it.
GATHERED_RECORDS = 500

Refusal = Callable[[ErrorCode], "Message"]


def java_hash(text: str) -> int:
    """Java's String.hashCode, by which Kafka finds the partition of a group or a transactional id."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        value = (31 * value + (encoded[at] << 8) + encoded[at + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


# Names up to this length are remembered: a client may ask for many of 32 kB.
_LONGEST_REMEMBERED: Final = 255


def partition_for(key: str, partitions: int) -> int:
    find = _remembered if len(key) <= _LONGEST_REMEMBERED else _partition_for
    return find(key, partitions)


def _partition_for(key: str, partitions: int) -> int:
    value = java_hash(key)
    # The one number that has no positive twin counts as 0.
    return (0 if value == -(1 << 31) else abs(value)) % partitions


# Groups and transactions that are busy are asked for again and again.
_remembered = lru_cache(4096)(_partition_for)


class _Phase(Enum):
    LOADING = auto()
    SERVING = auto()
    FAILED = auto()


_SERVING: Final = _Phase.SERVING
_new_tuple = tuple.__new__  # a named tuple without the detour through its Python constructor


class _Waiting(Later):
    """A request that a shard has been given and has not answered."""

    __slots__ = ("future", "refusal", "response")

    def __init__(self, refusal: Refusal) -> None:
        super().__init__()
        self.refusal = refusal
        self.response: Message | None = None
        self.future: asyncio.Future[Message] | None = None

    def answer(self, response: Message) -> None:
        self.response = response
        if self.future is not None:
            # Done before its time: the connection was closed meanwhile.
            if not self.future.done():
                self.future.set_result(response)
        elif self.done is not None:
            self.done(response)


class Gathered(Protocol):
    """What a request wants to be written with what others want, and whoever waits for that."""

    @property
    def records(self) -> list[tuple[bytes, bytes | None]]: ...

    def settle(self, code: ErrorCode) -> None:
        """Called with the outcome. NONE: the records are committed. Else they are not, or it is not
        known, and this is what the client should see. It may be called again; the first time counts."""


class _GatheredEffects:
    """Effects whose records are written with those of other requests."""

    __slots__ = ("_answer", "_effects", "_refuse", "records")

    def __init__(
        self,
        effects: Effects,
        answer: Callable[[Effects], None],
        refuse: Callable[[Effects, ErrorCode], None],
    ) -> None:
        assert effects.then is None
        assert effects.failed is None
        assert effects.producer is None
        self._effects = effects
        self._answer = answer
        self._refuse = refuse
        self.records = effects.records

    def settle(self, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self._answer(self._effects)
        else:
            self._refuse(self._effects, code)


class _AskedAll(Generic[T]):
    """The answers of all shards of this broker, and whether what they rest on is committed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        respond: Callable[[list[T]], Message],
        refusal: Refusal,
    ) -> None:
        self._loop = loop
        self._respond = respond
        self._refusal = refusal
        # By the index of the shard.
        self.answers: dict[int, T] = {}
        # Shards that knew something that was not committed; and those that are still to be asked.
        self.open = 1
        self._failed: ErrorCode | None = None
        self._future: asyncio.Future[Message] | None = None

    def settled(self, index: int, code: ErrorCode) -> None:
        """What a shard knew is committed, or will not be, or that takes long (and then once more)."""
        if code is ErrorCode.NOT_COORDINATOR:
            self.answers.pop(index, None)
        elif code is not ErrorCode.NONE and self._failed is None:
            self._failed = code
        self.open -= 1
        self._look()

    def outcome(self) -> Message | asyncio.Future[Message]:
        """The answer, once all shards were asked; a future if it has to wait."""
        self.open -= 1
        if self._failed is None and self.open:
            self._future = self._loop.create_future()
            return self._future
        return self._response()

    def _look(self) -> None:
        future = self._future
        if future is not None and not future.done() and (self._failed is not None or not self.open):
            future.set_result(self._response())

    def _response(self) -> Message:
        if self._failed is not None:
            return self._refusal(self._failed)
        return self._respond(list(self.answers.values()))


class HeldShard(Generic[S]):
    """A shard that this broker holds, with its partition and its alarm. All but the shard is for its
    coordinators."""

    __slots__ = (
        "alarm",
        "alarm_at",
        "gathered",
        "gathered_records",
        "leader_epoch",
        "partition",
        "phase",
        "shard",
    )

    def __init__(self, shard: S, partition: Partition) -> None:
        self.shard = shard
        self.partition = partition
        # The term in which it was loaded.
        self.leader_epoch = partition.leader_epoch
        self.phase = _Phase.LOADING
        self.alarm: asyncio.TimerHandle | None = None
        self.alarm_at = 0
        # What commits want done; empty again at the end of each turn of the loop.
        self.gathered: list[Gathered] = []
        self.gathered_records = 0


class Coordinators(Generic[S]):
    """The shards of one internal topic that this broker leads."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        make: Callable[[int], S],
        on_unload: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_unload` is told the index of a shard that is no longer held here."""
        self._broker = broker
        self._on_unload = on_unload
        self._loop = broker.loop
        self._make = make
        self.topic = topic
        self._held: dict[int, HeldShard[S]] = {}
        self._waiting: dict[Ticket, _Waiting] = {}
        self._last_ticket = 0
        # Those for which something was gathered in this turn of the loop.
        self._awaiting_append: list[HeldShard[S]] = []

    # Asking -------------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int | None:
        """The partition that a group or transactional id belongs to; None without the topic."""
        partitions = self._broker.partitions.by_name.get(self.topic)
        return partition_for(key, len(partitions)) if partitions else None

    def submit(
        self, key: str, call: Callable[[S, Ticket, Instant], Effects], refusal: Refusal
    ) -> Message | asyncio.Future[Message]:
        """Let the shard of a key handle a request. The answer itself when it is there at once."""
        index = self.partition_for(key)
        if index is None:
            return refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self.submit_to(index, call, refusal)

    def submit_to(
        self, index: int, call: Callable[[S, Ticket, Instant], Effects], refusal: Refusal
    ) -> Message | asyncio.Future[Message]:
        try:
            held = self._serving(index)
        except ProtocolError as error:
            return refusal(error.code)
        ticket, waiting = self._wait(refusal)
        self._run(held, call(held.shard, ticket, instant()))
        if waiting.response is not None:
            return waiting.response
        waiting.future = self._loop.create_future()
        return waiting.future

    def submit_gathered(
        self, key: str, call: Callable[[S, Ticket, Instant], Effects], refusal: Refusal
    ) -> Message | Later:
        """As `submit`; if the shard says so of its effects, they are done with those of others. The
        call must not depend on records of gathered effects: it is made before they are replayed."""
        index = self.partition_for(key)
        if index is None:
            return refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        try:
            held = self._serving(index, settled=False)
        except ProtocolError as error:
            return refusal(error.code)
        ticket, waiting = self._wait(refusal)
        effects = call(held.shard, ticket, instant())
        if not effects.can_be_gathered:
            self._append_gathered(held)
            self._run(held, effects)
        else:
            self.gather(held, _GatheredEffects(effects, self._answer, self._refuse_answers))
        return waiting if waiting.response is None else waiting.response

    def serving(self, key: str) -> HeldShard[S] | None:
        """The shard of a key, if it is ready to be asked; asking for it does not load it. What is
        gathered for it is not in it yet."""
        partitions = self._broker.partitions.by_name.get(self.topic)
        if not partitions:
            return None
        held = self._held.get(partition_for(key, len(partitions)))
        return held if held is not None and held.phase is _SERVING else None

    def gather(self, held: HeldShard[S], wanted: Gathered) -> None:
        """Have this written with what others want; its shard must allow that of such records."""
        if not held.gathered:
            if not self._awaiting_append:
                # Before anything that arrives later is looked at.
                self._loop.call_soon(self._append_all_gathered)
            self._awaiting_append.append(held)
        held.gathered.append(wanted)
        held.gathered_records += len(wanted.records)
        if held.gathered_records >= GATHERED_RECORDS:
            self._append_gathered(held)

    def _wait(self, refusal: Refusal) -> tuple[Ticket, _Waiting]:
        self._last_ticket += 1
        waiting = self._waiting[self._last_ticket] = _Waiting(refusal)
        return self._last_ticket, waiting

    def ask_all(
        self,
        question: Callable[[S, Instant], T],
        respond: Callable[[list[T]], Message],
        refusal: Refusal,
    ) -> Steps[Message | asyncio.Future[Message]]:
        """A question that changes nothing, to one shard here after the other; refused while one is
        loading. As any other answer, this one leaves once all that the shards knew is committed; one
        that is lost meanwhile has its answer left out, for another broker has it now."""
        asked = _AskedAll(self._loop, respond, refusal)
        for partition in self._broker.partitions.by_name.get(self.topic, ()):
            if partition.role is not Role.LEADER:
                continue
            try:
                held = self._serving(partition.index)
            except ProtocolError as error:
                return refusal(error.code)
            asked.answers[partition.index] = question(held.shard, instant())
            if not self._is_settled(held):
                asked.open += 1
                self._once_settled(held, partial(asked.settled, partition.index))
            yield
        return asked.outcome()

    def serving_shards(self) -> list[S]:
        """Those that are loaded; asking for them loads none. They may know what is not committed yet:
        for figures of this broker, not for answers to clients."""
        for held in self._held.values():
            self._append_gathered(held)
        return [held.shard for held in self._held.values() if held.phase is _Phase.SERVING]

    def apply_to_all(self, event: Callable[[S, Instant], Effects]) -> None:
        """Tell every loaded shard of an event (topics changed), and do what follows from it."""
        for held in list(self._held.values()):
            if held.phase is _Phase.SERVING:
                self._append_gathered(held)
                self._run(held, event(held.shard, instant()))

    def reconfigure(self, settings: object) -> None:
        """Give every shard the broker's changed settings, also those that are being loaded."""
        for held in list(self._held.values()):
            self._append_gathered(held)
            effects = held.shard.reconfigured(settings)
            if held.phase is _Phase.SERVING:
                self._run(held, effects)

    def act(self, index: int, event: Callable[[S, Instant], Effects]) -> None:
        """Tell one shard of an event (a marker was written, an answer came in), and do what follows."""
        held = self._held.get(index)
        if held is not None and held.phase is _Phase.SERVING:
            self._append_gathered(held)
            self._run(held, event(held.shard, instant()))

    def marker_written(
        self, index: int, producer_id: int, producer_epoch: int, committed: bool
    ) -> None:
        """Replay the end of a transaction that was appended to a partition of this topic."""
        held = self._held.get(index)
        if held is not None and held.phase is _Phase.SERVING:
            self._append_gathered(held)
            held.shard.replay_marker(producer_id, producer_epoch, committed)

    # Loading ------------------------------------------------------------------------------------

    def follow_leader(self, partition: Partition) -> None:
        """The leader of a partition of this topic changed, or its term: the shard is loaded by the
        new leader, and by nobody else."""
        held = self._held.get(partition.index)
        is_led = partition.role is Role.LEADER
        if held is not None and (not is_led or held.leader_epoch != partition.leader_epoch):
            self.unload(partition.index)
            held = None
        if held is None and is_led and self._broker.is_serving:
            self._begin(partition)

    def load_all(self) -> None:
        """Begin to load every shard that this broker leads (at the start, if the topic is there)."""
        for partition in self._broker.partitions.by_name.get(self.topic, ()):
            if partition.role is Role.LEADER and partition.index not in self._held:
                self._begin(partition)

    def _serving(self, index: int, *, settled: bool = True) -> HeldShard[S]:
        """The shard, ready to be asked; unless told otherwise, after what was gathered for it."""
        held = self._held.get(index)
        if held is None:
            partition = self._broker.partitions.get(self.topic, index)
            if partition is None:
                raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if partition.role is not Role.LEADER:
                raise ProtocolError(ErrorCode.NOT_COORDINATOR)
            held = self._begin(partition)
        if held.phase is _Phase.LOADING:
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if held.phase is _Phase.FAILED:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if settled and held.gathered:
            self._append_gathered(held)
        return held

    def _begin(self, partition: Partition) -> HeldShard[S]:
        held = self._held[partition.index] = HeldShard(self._make(partition.index), partition)
        try:
            empty = partition.log.log_start_offset == partition.log.log_end_offset
        except StorageError as error:
            self._fail(held, error)
            return held
        if empty:
            # A new topic: nothing to wait for.
            self._serve(held)
        else:
            self._broker.spawn(self._load(held), f"load of {self.topic}-{partition.index}")
        return held

    async def _load(self, held: HeldShard[S]) -> None:
        partition = held.partition
        try:
            store = partition.log
            offset = store.log_start_offset
            while offset < store.log_end_offset:
                piece = store.read(offset, LOAD_BYTES, store.log_end_offset)
                if piece is None:
                    break
                data = await self._broker.reads.read(piece)
                offset = self._replay(held.shard, data, offset)
            if self._held.get(partition.index) is held:
                self._serve(held)
        except (StorageError, InvalidBatch, OSError) as error:
            self._fail(held, error)
        except Exception as error:
            log.error("replay failed", exc_info=error)
            self._fail(held, error)

    def _replay(self, shard: S, data: bytes, offset: int) -> int:
        """Replay the whole batches in the data; the offset after the last of them."""
        view = memoryview(data)
        try:
            for at, header in headers(data):
                self._replay_batch(shard, view[at : at + header.size], header)
                offset = header.last_offset + 1
        except Truncated:
            # The last batch goes on after what was read: it comes whole with the next piece.
            pass
        return offset

    def _replay_batch(self, shard: S, batch: memoryview, header: BatchHeader) -> None:
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None:
                shard.replay_marker(header.producer_id, header.producer_epoch, marker.committed)
            return
        producer = (-1, -1)
        if header.is_transactional:
            producer = header.producer_id, header.producer_epoch
        for record in records(batch):
            if record.key is not None:
                shard.replay(
                    Replayed(record.key, record.value, record.offset, record.timestamp, *producer)
                )

    def _serve(self, held: HeldShard[S]) -> None:
        held.phase = _Phase.SERVING
        self._run(held, held.shard.loaded(instant()))

    def _fail(self, held: HeldShard[S], error: Exception) -> None:
        held.phase = _Phase.FAILED
        if isinstance(error, OutOfResources) and self._held.get(held.partition.index) is held:
            # Nothing is wrong with the log: the next request begins anew.
            self._held.pop(held.partition.index, None)
        limited_log.error(
            "coordinator not available: topic=%s partition=%d %s",
            self.topic, held.partition.index, error,
        )  # fmt: skip

    def unload(self, index: int) -> None:
        """Give a shard up: its partition is led elsewhere, or its topic was deleted."""
        held = self._held.pop(index, None)
        if held is None:
            return
        gathered, held.gathered, held.gathered_records = held.gathered, [], 0
        for each in gathered:
            each.settle(ErrorCode.NOT_COORDINATOR)
        if held.alarm is not None:
            held.alarm.cancel()
        self._on_unload(index)
        if held.phase is _Phase.SERVING:
            self._answer(held.shard.unloaded())

    # Doing --------------------------------------------------------------------------------------

    def _run(self, held: HeldShard[S], effects: Effects) -> None:
        """Append and replay; once that is committed, answer and do whatever follows from it."""
        following: Effects | None = effects
        while following is not None:
            current, following = following, None
            if current.records:
                code = self._append(held, current.records, current.producer)
                if code is not None:
                    following = self._refuse(current, code)
                    continue
            if not self._is_settled(held):
                self._finish_later(held, current)
                break
            self._answer(current)
            if current.then is not None:
                following = current.then()
        self._set_alarm(held)

    def _is_settled(self, held: HeldShard[S]) -> bool:
        """Whether all that the shard knows is committed."""
        opened = held.partition.opened
        return opened is None or opened.high_watermark >= opened.log_end_offset

    def _finish_later(self, held: HeldShard[S], effects: Effects) -> None:
        """Answer, and do what follows, when what the shard knows now is committed."""

        def finish(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self._refuse_answers(effects, code)
                return
            self._answer(effects)
            # Not for requests that were refused meanwhile, because it took so long.
            if effects.then is not None and all(each in self._waiting for each in effects.asking):
                self._run(held, effects.then())

        if effects.answers or effects.then is not None:
            self._once_settled(held, finish)

    def _once_settled(self, held: HeldShard[S], on_outcome: Callable[[ErrorCode], None]) -> None:
        """Call with the outcome once what the shard knows now is committed or cannot be; with
        COORDINATOR_NOT_AVAILABLE if that takes long, and then again with the outcome."""
        seconds = self._broker.config.offsets_commit_timeout_ms / 1000
        # It may be committed yet; the one who asked has to find out.
        timer = self._loop.call_later(seconds, on_outcome, ErrorCode.COORDINATOR_NOT_AVAILABLE)

        def settled(code: ErrorCode) -> None:
            timer.cancel()
            is_gone = code or self._held.get(held.partition.index) is not held
            on_outcome(ErrorCode.NOT_COORDINATOR if is_gone else ErrorCode.NONE)

        held.partition.once_committed(held.partition.log.log_end_offset, settled)

    def _append_all_gathered(self) -> None:
        shards, self._awaiting_append = self._awaiting_append, []
        self._append_each(iter(shards))

    def _append_each(self, shards: Iterator[HeldShard[S]]) -> None:
        try:
            for held in shards:
                self._append_gathered(held)
        except Exception:
            # A mistake of ours that shows with one shard is not paid for by the others.
            self._loop.call_soon(self._append_each, shards)
            raise

    def _append_gathered(self, held: HeldShard[S]) -> None:
        """One append for all that was gathered. It succeeds or fails for all of them, unless only
        together they are too large."""
        gathered = held.gathered
        if not gathered:
            return
        held.gathered, held.gathered_records = [], 0
        are_many = len(gathered) > 1
        records = gathered[0].records
        if are_many:
            records = [record for each in gathered for record in each.records]
        code = self._append(held, records, None)
        if code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE and are_many:
            for each in gathered:
                self._settle(held, [each], self._append(held, each.records, None))
        else:
            self._settle(held, gathered, code)
        self._set_alarm(held)

    def _settle(self, held: HeldShard[S], gathered: list[Gathered], code: ErrorCode | None) -> None:
        """Tell those who wait what became of an append."""
        if code is None and not self._is_settled(held):
            self._once_settled(held, partial(_settle_all, gathered))
        else:
            _settle_all(gathered, code or ErrorCode.NONE)

    def _append(
        self,
        held: HeldShard[S],
        records: list[tuple[bytes, bytes | None]],
        producer: tuple[int, int] | None,
    ) -> ErrorCode | None:
        """The records as one batch, then into the shard; the error for clients if that failed."""
        wall = time.time_ns() // 1_000_000
        producer_id, producer_epoch = producer or (-1, -1)
        batch, header = build_pairs(
            records, wall, producer_id, producer_epoch, transactional=producer is not None
        )
        partition = held.partition
        try:
            if partition.under_min_isr:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            offset = partition.append(batch, wall, Origin.COORDINATOR, header)[0]
        except ProtocolError:
            return ErrorCode.NOT_COORDINATOR
        except RecordTooLarge:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        except (StorageError, InvalidBatch) as error:
            limited_log.error(
                "coordinator's append failed: %s-%d %s", self.topic, partition.index, error
            )
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        replay = held.shard.replay
        for key, value in records:
            replay(_new_tuple(Replayed, (key, value, offset, wall, producer_id, producer_epoch)))
            offset += 1
        return None

    def _refuse(self, effects: Effects, code: ErrorCode) -> Effects | None:
        if effects.failed is not None:
            return effects.failed(code)
        self._refuse_answers(effects, code)
        return None

    def _refuse_answers(self, effects: Effects, code: ErrorCode) -> None:
        for ticket in (*(ticket for ticket, _ in effects.answers), *effects.asking):
            waiting = self._waiting.pop(ticket, None)
            if waiting is not None:
                waiting.answer(waiting.refusal(code))

    def _answer(self, effects: Effects) -> None:
        for ticket, response in effects.answers:
            waiting = self._waiting.pop(ticket, None)
            if waiting is not None:
                waiting.answer(response)

    def _set_alarm(self, held: HeldShard[S]) -> None:
        """Have the shard called at its next deadline."""
        deadline = held.shard.next_deadline()
        if deadline is None:
            return
        if held.alarm is not None:
            if held.alarm_at <= deadline:
                return
            held.alarm.cancel()
        held.alarm_at = deadline
        delay = max(0.0, deadline / 1000 - time.monotonic())
        held.alarm = self._loop.call_later(delay, self._alarm_rang, held)

    def _alarm_rang(self, held: HeldShard[S]) -> None:
        held.alarm = None
        if held.phase is _Phase.SERVING and self._held.get(held.partition.index) is held:
            self._append_gathered(held)
            self._run(held, held.shard.tick(instant()))


def _settle_all(gathered: list[Gathered], code: ErrorCode) -> None:
    for each in gathered:
        each.settle(code)


def instant() -> Instant:
    return _new_tuple(Instant, (time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000))
