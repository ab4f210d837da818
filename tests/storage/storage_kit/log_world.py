"""A broker's logs on a disk that fails, with a model beside them that knows what must be true.

`World` does random things to the logs of a few partitions: appends of plain, idempotent and
transactional producers, flushes in all their stages, checkpoints, retention, truncation, deleted and
recreated topics, clean shutdowns. At some call the power goes, or the process is killed. Then the
same code opens the same disk again, and `World` compares:

- what was flushed is there;
- after a kill, all that was acknowledged is there;
- what is there is what was appended, byte for byte, without a gap, and whole;
- indexes, producers, transactions, epochs and deletions fit the batches that are there.

Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ottla.logfiles.deletions import may_be_mark, take_mark
from ottla.logfiles.names import CLEAN_SHUTDOWN
from ottla.record.batch import CONTROL_BIT, check_produced, read_header, stamp
from ottla.record.deletion import build_mark
from ottla.record.offset_set import OffsetSet
from ottla.storage.config import LogConfig
from ottla.storage.errors import StorageError, TopicIdMismatch
from ottla.storage.log.append import read_marker
from ottla.storage.log.log import COORDINATOR, Log
from ottla.storage.log.producer_state import ProducerStates
from ottla.storage.logs import Job, Logs
from ottla.storage.recovery.replay import replay_batch
from storage_kit.faulty_files import Disk, FaultyFiles, PowerLoss
from storage_kit.logs import NOW, a_batch, a_marker, stored_batches
from storage_kit.memory import verify_log

DATA = "/data"
CONFIG = LogConfig(
    segment_bytes=1500,
    index_interval_bytes=200,
    segment_index_bytes=600,
    file_delete_delay_ms=0,
    flush_messages=8,
)


class Stored(NamedTuple):
    """A batch that was appended."""

    base_offset: int
    last_offset: int
    data: bytes


class Model:
    """What one partition's log must be like."""

    def __init__(self, topic_id: bytes) -> None:
        self.topic_id = topic_id
        # Every batch that was acknowledged and not truncated, also those that retention removed.
        self.batches: list[Stored] = []
        # One that was on its way when the process ended: there or not.
        self.in_flight: Stored | None = None
        # Below this offset nothing may ever be missing.
        self.flushed = 0
        # Being truncated to this offset; None if not.
        self.truncating: int | None = None
        # The log start never passes this.
        self.start = 0
        # Where the next batch goes.
        self.end = 0
        # The log, or its being deleted, lasts.
        self.synced = False
        # An fsync failed: what was acknowledged and not flushed before may be lost without a trace.
        self.sync_failed = False
        # Being deleted: there or not.
        self.deleting = False
        self.sequences: dict[int, int] = {}
        self.open_transactions: set[int] = set()


class World:
    """See the module's docstring."""

    def __init__(self, seed: int, partitions: int = 2) -> None:
        self.chance = random.Random(seed)
        self.disk = Disk()
        self.disk.make_durable_folder(DATA)
        self.keys = [("topic", number) for number in range(partitions)]
        self.models: dict[tuple[str, int], Model] = {}
        # A partition's former logs: a deletion that did not last brings the latest one back.
        self.former: dict[tuple[str, int], list[Model]] = {key: [] for key in self.keys}
        self.ids = 0
        self.now = NOW
        self.jobs: list[Job] = []
        self.files = FaultyFiles(self.disk)
        self.logs = self._logs()
        self.history: list[str] = []

    def _logs(self) -> Logs:
        return Logs(
            [DATA],
            lambda _: CONFIG,
            files=self.files,
            clock=lambda: self.now,
            recovery_threads=1,
        )

    # One life of the process

    def live(
        self,
        steps: int,
        *,
        power_loss_at: int = 0,
        short_writes: bool = False,
        faults: dict[int, int] | None = None,
    ) -> bool:
        """Opens the logs, does so many things, stops cleanly. False if the power went. With faults
        (error numbers for calls by their number) logs go offline and the others go on."""
        self.files = FaultyFiles(
            self.disk,
            power_loss_at=power_loss_at,
            short_writes=random.Random(self.chance.random()) if short_writes else None,
            faults=faults,
        )
        self.logs = self._logs()
        self.jobs = []
        self.history.append(f"open, power loss at {power_loss_at}, faults {faults}")
        doings = [self.logs.open, self.open_missing, *([self.step] * steps), self.stop]
        try:
            for do in doings:
                try:
                    do()
                except StorageError as error:
                    if not faults:
                        raise
                    self.history.append(str(error))
                    self._note_failed_syncs()
                    if do == self.logs.open:
                        break
        except PowerLoss:
            self.history.append("power loss")
            return False
        return True

    def _note_failed_syncs(self) -> None:
        for log in self.logs.loaded():
            model = self.models.get((log.topic, log.partition))
            if model is not None and log.offline is not None:
                model.sync_failed = True

    def open_missing(self) -> None:
        """As a server that knows which topics there are, by id."""
        for key in self.keys:
            model = self.models.get(key)
            if model is not None:
                try:
                    # One that is not known to be of this topic, see _model_of.
                    if key in self.logs and self.logs.get(*key).log_end_offset != model.end:
                        raise TopicIdMismatch(str(key), b"", model.topic_id)
                    self.logs.get_or_create(*key, model.topic_id)
                except TopicIdMismatch:
                    self.former[key].append(Model(b""))
                    self.logs.delete(*key)
                    self.logs.create(*key, model.topic_id)
            else:
                if key in self.logs:
                    self.logs.delete(*key)
                self.create(key)
            log = self.logs.get(*key)
            log.advance_high_watermark(log.log_end_offset)

    def create(self, key: tuple[str, int]) -> None:
        self.ids += 1
        topic_id = self.ids.to_bytes(16, "big")
        model = Model(topic_id)
        # Also if the process ends in the middle of it.
        self.models[key] = model
        self.logs.create(*key, topic_id)

    def stop(self) -> None:
        self.history.append("stop")
        self.note_flushed()
        logs = self.logs.loaded()
        # In one go or log by log.
        self.logs.close(threads=1, together_from=1 if self.files.calls % 2 else 64)
        for log in logs:
            model = self.models[log.topic, log.partition]
            if log.offline is None and log.recovery_point < log.log_end_offset:
                # There was no room for its flush; the next start has to look at it.
                with self.files.no_faults():
                    assert CLEAN_SHUTDOWN not in self.files.names(DATA)
            elif log.offline is None:
                ends = log.recovery_point, log.log_end_offset, model.end
                assert len(set(ends)) == 1, f"{log.name} was closed at {ends}"
                model.flushed = model.end
                # A log that nothing was ever appended to is not worth a sync.
                model.synced = model.synced or model.end > model.start
            else:
                model.sync_failed = True

    def _log(self, key: tuple[str, int]) -> Log | None:
        return next((log for log in self.logs.loaded() if (log.topic, log.partition) == key), None)

    def step(self) -> None:
        chance = self.chance.random()
        key = self.chance.choice(self.keys)
        if key not in self.models:
            self.create(key)  # it failed before
        if chance < 0.62:
            self.append(key)
        elif chance < 0.80:
            self.work()
        elif chance < 0.84:
            self.flush(key)
        elif chance < 0.88:
            self.retention()
        elif chance < 0.90:
            self.advance_start(key)
        elif chance < 0.94:
            self.truncate(key)
        elif chance < 0.955:
            self.recreate(key)
        elif chance < 0.98:
            self.now += self.chance.choice((10, 5_000, 70_000))
        else:
            self.jobs += self.logs.checkpoint(self.now)

    # Things to do

    def append(self, key: tuple[str, int]) -> None:
        model = self.models[key]
        log = self.logs.get(*key)
        producer = self.chance.randrange(-2, 4)
        value = self.chance.randbytes(self.chance.randint(0, 250))
        count = self.chance.randint(1, 3)
        origin = COORDINATOR
        if producer in model.open_transactions and self.chance.random() < 0.4:
            buffer = a_marker(producer, committed=self.chance.random() < 0.5, now=self.now)
            model.open_transactions.discard(producer)
        elif producer < 0 and self.chance.random() < 0.3 and log.log_end_offset:
            marked = self._unmarked(log)
            if marked is None:
                return
            buffer = bytearray(build_mark([marked]))
        elif producer < 0:
            buffer = a_batch(value, count=count, timestamp=self.now)
        else:
            sequence = model.sequences.get(producer, 0)
            model.sequences[producer] = sequence + count
            transactional = producer >= 2
            if transactional:
                model.open_transactions.add(producer)
            buffer = a_batch(
                value,
                count=count,
                timestamp=self.now - self.chance.randint(0, 100),
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=transactional,
            )
        # Either way that batches go; the short one is not for markers and transactions.
        if (
            len(value) % 2
            and not read_header(buffer).is_control
            and self._append_shortly(log, model, buffer)
        ):
            return
        append = log.prepare(buffer, self.ids, self.now, origin)
        stored = Stored(append.base_offset, append.last_offset, bytes(buffer))
        model.in_flight = stored
        log.write(append)
        log.commit(append)
        assert append.base_offset == model.end
        self._appended(log, model, stored)

    def _unmarked(self, log: Log) -> tuple[int, int] | None:
        """Some offsets that are not deleted yet."""
        start = self.chance.randint(log.log_start_offset, log.log_end_offset)
        end = min(start + self.chance.randint(1, 4), log.log_end_offset)
        if log.deletions is not None:
            start = log.deletions.invisible.first_out(start)
            marked = log.deletions.invisible.first_in(start, end)
            end = end if marked is None else marked
        return (start, end) if start < end else None

    def _append_shortly(self, log: Log, model: Model, buffer: bytearray) -> bool:
        stamped = bytearray(buffer)
        stamp(stamped, 0, model.end, self.ids)
        last_offset = model.end + read_header(buffer).last_offset_delta
        stored = Stored(model.end, last_offset, bytes(stamped))
        before, model.in_flight = model.in_flight, stored
        offset = log.append_simple(memoryview(buffer), check_produced(buffer), self.ids, self.now)
        model.in_flight = before
        if offset < 0:
            return False
        assert (offset, buffer) == (model.end, stamped)
        self._appended(log, model, stored)
        return True

    def _appended(self, log: Log, model: Model, stored: Stored) -> None:
        log.advance_high_watermark(log.log_end_offset)
        model.batches.append(stored)
        model.end = stored.last_offset + 1
        model.in_flight = None

    def work(self) -> None:
        """Begins jobs, or runs and finishes one that was begun before."""
        if not self.jobs or self.chance.random() < 0.3:
            self.jobs += self.logs.due(self.now)
        if self.jobs:
            job = self.jobs.pop(self.chance.randrange(len(self.jobs)))
            job.run()
            self.logs.finish(job)
            self.note_flushed()

    def note_flushed(self) -> None:
        for key, model in self.models.items():
            if (log := self._log(key)) is not None:
                if log.recovery_point > model.flushed:
                    model.synced = True
                model.flushed = max(model.flushed, log.recovery_point)

    def flush(self, key: tuple[str, int]) -> None:
        self.logs.get(*key).flush(self.now)
        self.note_flushed()

    def retention(self) -> None:
        for key, model in self.models.items():
            log = self.logs.get(*key)
            config = LogConfig(
                segment_bytes=1500,
                index_interval_bytes=200,
                segment_index_bytes=600,
                file_delete_delay_ms=0,
                flush_messages=8,
                retention_bytes=self.chance.choice((0, 1500, 4000)),
            )
            log.reconfigure(config)
            model.start = log.log_end_offset  # at most; exactly known below
        for job in self.logs.retention(self.now):
            if job is not None:
                job.run()
                self.logs.finish(job)
        for key, model in self.models.items():
            model.start = self.logs.get(*key).log_start_offset

    def advance_start(self, key: tuple[str, int]) -> None:
        log = self.logs.get(*key)
        offset = self.chance.randint(log.log_start_offset, log.log_end_offset)
        self.models[key].start = max(self.models[key].start, offset)
        log.advance_start(offset)

    def truncate(self, key: tuple[str, int]) -> None:
        model = self.models[key]
        log = self.logs.get(*key)
        offset = self.chance.randint(log.log_start_offset, log.log_end_offset)
        kept = [batch for batch in model.batches if batch.last_offset < offset]
        end = offset
        if len(kept) < len(model.batches):
            end = min(offset, model.batches[len(kept)].base_offset)
        model.flushed = min(model.flushed, end)
        model.truncating = end
        self.history.append(f"truncate {key} from {log.log_end_offset} to {offset}")
        log.truncate_to(offset, self.now)
        model.truncating = None
        if offset >= model.end:
            return
        assert log.log_end_offset == end
        model.batches = kept
        model.end = end
        model.start = min(model.start, end)
        self._forget_producers(model, log)

    def recreate(self, key: tuple[str, int]) -> None:
        self.history.append(f"delete {key}")
        model = self.models[key]
        model.deleting = True
        self.logs.delete(*key)
        del self.models[key]
        self.former[key].append(model)
        self.create(key)

    # Looking at what is there after the process ended

    def restart(self, *, power_loss: bool) -> None:
        """Opens the disk as it is now, compares, and takes over what is there."""
        if power_loss:
            self.disk.lose_power(self.chance)
        self.files = FaultyFiles(self.disk)
        self.logs = self._logs()
        self.logs.open()
        found: dict[tuple[str, int], Model] = {}
        for key in self.logs.keys():  # noqa: SIM118
            log = self.logs.get(*key)
            model = self._model_of(key, log)
            if model is not None:
                self.compare(key, log, model, power_loss)
                found[key] = model
        for key, model in self.models.items():
            if key not in found:  # or found in a state that nothing was promised of
                promised = model.synced and model.flushed and not model.deleting
                assert not promised, f"{key} is gone, {model.flushed} lost"
                assert power_loss or not model.batches or model.deleting or self.former[key]
                self.models[key] = Model(model.topic_id)
        # As it would go on: everything in memory is dropped, nothing more is written.
        for log in self.logs.loaded():
            log.close()
        for folder in self.logs.folders:
            folder.unlock()

    def _model_of(self, key: tuple[str, int], log: Log) -> Model | None:
        """Which of the partition's logs this is: the current one, or one whose deletion did not
        last."""
        current = self.models.get(key)
        if log.topic_id is None:
            # Made, and not yet synced. If the one before it was not either, it may be that one.
            assert current is None or not current.synced
            former = self.former[key]
            return None if former and not former[-1].synced else current
        if current is not None and current.topic_id == log.topic_id:
            return current
        assert any(former.topic_id == log.topic_id for former in self.former[key])
        assert current is None or not current.synced, f"{key}: a deleted log is back"
        return None

    def compare(self, key: tuple[str, int], log: Log, model: Model, power_loss: bool) -> None:
        """The recovered log against its model; the model is what is there afterwards."""
        problems = list(verify_log(log))
        assert not problems, problems
        start, end = log.log_start_offset, log.log_end_offset
        appended = list(model.batches)
        if model.in_flight is not None:
            appended.append(model.in_flight)
        assert end >= model.flushed, f"{key} ends at {end}, was flushed to {model.flushed}"
        if not power_loss and not model.sync_failed:
            acknowledged = model.end if model.truncating is None else model.truncating
            assert end >= acknowledged, f"{key} ends at {end}, acknowledged were {acknowledged}"
        # The first segment's name may be lost while a later one's is not, if nothing was flushed.
        assert start <= model.start or model.flushed <= model.start, f"{key} starts at {start}"
        survivors = [Stored(*batch) for batch in stored_batches(log)]
        expected = [b for b in appended if b.last_offset >= start and b.last_offset < end]
        assert survivors == expected, f"{key}: {_outline(survivors)} != {_outline(expected)}"
        assert end == (survivors[-1].last_offset + 1 if survivors else end)
        self._compare_producers(log, appended, survivors, model.start)
        hidden = OffsetSet()
        for each in survivors:
            if may_be_mark(read_header(each.data)):
                take_mark(hidden, each.data, read_header(each.data))
        found = OffsetSet() if log.deletions is None else log.deletions.invisible
        assert found.between(start, end) == hidden.between(start, end), f"{key}: deletions"
        # A log start that moved back finds the epochs below it forgotten.
        self._compare_epochs(log, [b for b in survivors if b.base_offset >= model.start])
        model.batches = [b for b in appended if b.last_offset < end]
        model.end = end
        model.in_flight = None
        model.truncating = None
        model.sync_failed = model.deleting = False
        model.start = max(start, model.start) if start == end else start
        model.flushed = min(model.flushed, end)
        self._forget_producers(model, log)

    def _compare_producers(
        self, log: Log, appended: list[Stored], survivors: list[Stored], start: int
    ) -> None:
        full = _replayed([b for b in appended if b.last_offset < log.log_end_offset])
        seen = _replayed(survivors)
        for producer_id, state in log.producers.producers.items():
            known = full[0].producers[producer_id]
            assert state.epoch == known.epoch
            if producer_id in seen[0].producers:
                mine = seen[0].producers[producer_id]
                assert state.last_sequence in (known.last_sequence, mine.last_sequence)
                # Nothing that is not there, and nothing forgotten that is.
                placed = {batch[:4] for batch in known.batches}
                assert {batch[:4] for batch in state.batches} <= placed, f"{state}, not {known}"
                # (A producer that was forgotten once began anew: then what was before is not sought.)
                anew = max((n for n, batch in enumerate(mine.batches) if batch[0] == 0), default=0)
                assert set(mine.batches[anew:]) <= set(state.batches), f"{state} without {mine}"
                # Where its first batch was deleted, it begins with the first that was there when the
                # log was last read for it.
                assert (
                    known.transaction_first_offset
                    <= state.transaction_first_offset
                    <= mine.transaction_first_offset
                )
        # A log start that moved back finds the producers forgotten that wrote nothing after it.
        later = _replayed([each for each in survivors if each.last_offset >= start])
        missing = set(later[0].producers) - set(log.producers.producers)
        assert not missing, f"producers {missing} are unknown"
        aborted = {
            (e.producer_id, e.last_offset)
            for s in log.segments
            for e in s.transaction_index.entries()
        }
        for producer_id, marker in seen[1]:
            assert (producer_id, marker) in aborted
        for producer_id, marker in aborted:
            assert (producer_id, marker) in full[1] or (producer_id, marker) in seen[1]

    def _compare_epochs(self, log: Log, survivors: list[Stored]) -> None:
        for batch in survivors:
            epoch = read_header(batch.data).partition_leader_epoch
            found = log.epochs.epoch_for_offset(batch.last_offset)
            assert found == epoch, f"{log}: {batch.base_offset} has epoch {epoch}, not {found}"

    def _forget_producers(self, model: Model, log: Log) -> None:
        """Producers go on where the log says that they are."""
        model.sequences = {
            producer_id: state.next_sequence
            for producer_id, state in log.producers.producers.items()
        }
        model.open_transactions = {
            producer_id for producer_id, _ in log.producers.open_transactions()
        }


def _replayed(batches: list[Stored]) -> tuple[ProducerStates, set[tuple[int, int]]]:
    """Producer state and aborted transactions (producer, marker's offset) by the batches alone."""
    producers = ProducerStates(DATA)
    aborted = set()
    for batch in batches:
        fields = read_header(batch.data)
        if fields.producer_id >= 0:
            if fields.attributes & CONTROL_BIT:
                assert read_marker(batch.data) is not None
            ended = replay_batch(producers, fields, batch.data, NOW)
            if ended is not None and ended.aborted:
                aborted.add((ended.producer_id, ended.last_offset))
    return producers, aborted


def _outline(batches: list[Stored]) -> str:
    return " ".join(f"{batch.base_offset}-{batch.last_offset}" for batch in batches)


def run_seed(seed: int, lives: int = 3, steps: int = 40) -> None:
    """Some lives on one disk, each of which ends in a power loss, a kill or a clean stop. An error
    names the seed and what was done."""
    world = World(seed)
    with client_error(world, f"seed {seed}"):
        for _ in range(lives):
            loss_at = world.chance.randint(1, 250)
            short_writes = world.chance.random() < 0.3
            clean = world.live(steps, power_loss_at=loss_at, short_writes=short_writes)
            power_loss = clean or world.chance.random() < 0.8
            world.restart(power_loss=power_loss)


def run_fault(seed: int, call: int, error: int, power_loss: bool, steps: int = 30) -> int:
    """One life in which one call fails; the number of calls in it. Afterwards everything that was
    promised is there, and everything that was acknowledged too, unless the power goes."""
    world = World(seed)
    with client_error(world, f"seed {seed}, error {error} in call {call}"):
        world.live(steps, faults={call: error} if call else {}, short_writes=True)
        calls = world.files.calls
        world.restart(power_loss=power_loss)
        # And it can be lived with.
        world.live(5)
        world.restart(power_loss=True)
    return calls


@contextmanager
def client_error(world: World, what: str) -> Iterator[None]:
    try:
        yield
    except (AssertionError, StorageError, OSError) as error:
        story = "\n".join(world.history)
        raise AssertionError(f"{what}: {error}\n{story}") from error
