"""One broker of a simulated cluster: the real partitions, followers and logs, over a disk in memory.

What the server does with sockets and timers is done here with messages and events of the world. The
decisions are the real ones: roles, in-sync sets and high watermarks in `replication.partition`, what a
follower's position counts for in `replication.positions`, what it asks for and where it cuts its log
off in `replication.following`, the log itself in `storage`.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

from replica_kit.wire import VERSION, next_request, take_answer
from storage_kit.faulty_files import Disk, FaultyFiles

from ottla.cluster.decisions.partitions import IsrResult, WantedIsr
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.record.batch import Record, build_batch, headers, records
from ottla.record.errors import InvalidBatch
from ottla.replication import positions
from ottla.replication.following import Disk as FollowersDisk
from ottla.replication.following import Done, FetchLimits, Following
from ottla.replication.partition import Partition, Role
from ottla.server.handlers.records.fetch.request import establish, named, positions_to_note
from ottla.server.sessions import FetchSessions
from ottla.server.upkeep import strays
from ottla.storage.config import LogConfig
from ottla.storage.errors import OffsetOutOfRange, StorageError
from ottla.storage.log.log import Log
from ottla.storage.logs import Logs
from simulation_kit.deleting import erase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.cluster.metadata import ClusterImage
    from ottla.server.sessions import WatchedPartition
    from ottla.storage.log.truncation import Steps
    from simulation_kit.world import World

DATA = "/data"
LAG_MS = 500
LIMITS = FetchLimits(max_wait_ms=50, backoff_ms=50, partition_max_bytes=2000)


class Broker:
    """A broker over its lives; `life` is None while its process is not running."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.id = broker_id
        # Were a log's first segment lost, and a later one not, the log would seem to start there.
        self.disk = Disk(names_in_order=True)
        self.disk.make_durable_folder(DATA)
        self.disks = 1
        self.lives = 0
        self.life: Life | None = None
        self.is_clean = True  # the last life ended in good order
        self.lost_power = False  # since the cluster last knew of it

    def start(self) -> None:
        assert self.life is None
        self.lives += 1
        self.life = self.world.LIFE(self, lost_data=self.lost_power and not self.is_clean)
        self.is_clean = False
        self.life.register()

    def taken_in(self) -> None:
        """The cluster knows of what was lost: from now on a kill loses nothing."""
        self.lost_power = False

    def stop(self) -> None:
        """In good order: everything is flushed. (Leaders are not handed over: that is for others to
        notice.)"""
        if self.life is not None:
            self.life.close()
            self.life = None
            self.is_clean = True

    def kill(self, *, power: bool, disk: bool = False) -> None:
        """`power` takes what was not flushed, `disk` everything."""
        if self.life is not None:
            self.life.ended = True
            self.life = None
        if power:
            self.disk.lose_power(self.world.chance)
            self.lost_power = True
        if disk:
            self.disk = Disk()
            self.disk.make_durable_folder(DATA)
            self.disks += 1


class SlowDisk(FollowersDisk):
    """What followers want of it takes its time, step by step, and much else may happen in between."""

    def __init__(self, life: Life) -> None:
        self._life = life
        # Of its own: the seeds that are known to find something go on finding it.
        self._chance = random.Random(life.world.seed * 100 + life.id)

    def is_slow(self, partition: Partition) -> bool:
        return self._chance.random() < 0.5

    def work(
        self,
        partition: Partition,
        steps: Steps,
        done: Done,
        *,
        appends: bool,
    ) -> None:
        life = self._life
        life.world.waits_for_disks += 1

        def go_on(error: Exception | None = None) -> None:
            if life.ended:
                return
            try:
                step = next(steps) if error is None else steps.throw(error)
            except StopIteration:
                done(None)
            except (StorageError, InvalidBatch) as failure:
                done(failure)
            else:
                life.after(self._chance.choice((0, 3, 30, 300)), lambda: take(step))

        def take(step: Callable[[], None]) -> None:
            if life.ended:
                return
            try:
                step()
            except StorageError as error:
                go_on(error)
            else:
                # The loop comes to know of it a moment later.
                life.after(self._chance.choice((0, 1, 20)), go_on)

        go_on()


class Life:
    """One life of a broker's process; also the owner of its partitions."""

    def __init__(self, broker: Broker, lost_data: bool) -> None:
        self.broker = broker
        self.world = broker.world
        self.lost_data = lost_data
        self.ended = False
        self.paused_until = 0
        # Without slots nobody gets a session.
        self.sessions = FetchSessions(100 if broker.world.fetch_sessions else 0)
        self.epoch = -1
        self.image: ClusterImage | None = None
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.by_id: dict[tuple[bytes, int], Partition] = {}
        self.following: dict[int, Following] = {}
        # Followers whose logs are damaged, with the leader epoch in which they last followed.
        self.withdrawn: dict[Partition, int] = {}
        self.asking: set[int] = set()
        self.config = self.log_config()
        self.logs = Logs(
            [DATA],
            lambda _: self.config,
            files=FaultyFiles(broker.disk),
            clock=lambda: self.world.now,
            recovery_threads=1,
        )
        self.logs.open()
        self.coordination = self.world.coordination_of(self)
        self.every(LAG_MS // 2, self.look_for_lags)
        self.every(200, self.work)

    @property
    def id(self) -> int:
        return self.broker.id

    @property
    def may_follow(self) -> bool:
        """Whether leaders know this life, as far as it knows."""
        return True

    def log_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=4000, index_interval_bytes=200, min_insync_replicas=self.world.min_isr
        )

    def every(self, interval: int, do: Callable[[], None]) -> None:
        def again() -> None:
            if not self.ended:
                do()
                self.after(self.world.chance.randint(1, 2 * interval), again)

        self.after(self.world.chance.randint(1, interval), again)

    @property
    def is_paused(self) -> bool:
        return not self.ended and self.world.now < self.paused_until

    def at(self, when: int, do: Callable[[], None]) -> None:
        """Something happens in this process then, or when it goes on after a pause; not if it has ended
        by that time."""

        def happen() -> None:
            if self.is_paused:
                self.world.at(self.paused_until, happen)
            elif not self.ended:
                do()

        self.world.at(when, happen)

    def after(self, delay: int, do: Callable[[], None]) -> None:
        self.at(self.world.now + delay, do)

    def close(self) -> None:
        self.ended = True
        self.logs.close(self.epoch)

    # The cluster --------------------------------------------------------------------------------

    def register(self) -> None:
        if not self.ended:
            self.world.controller.register(self)

    def lose_session(self) -> None:
        """The store gave the session up. A process that stands still does not hear of it, and not at
        once when it goes on."""
        if self.is_paused:
            assert self.world.pausing is not None
            self.at(self.paused_until + self.world.pausing.randint(0, 400), self.session_lost)
        elif not self.ended:
            self.session_lost()

    def session_lost(self) -> None:
        """The process notices it, goes on, and registers anew."""
        self.epoch = -1
        self.lost_data = False
        self.after(self.world.chance.randint(1, 800), self.register)

    def learn(self, image: ClusterImage) -> None:
        """A newer image; states in between may have been skipped."""
        if self.ended or (self.image is not None and image.version <= self.image.version):
            return
        taken_in = image.brokers.get(self.id)
        if self.image is None and (taken_in is None or taken_in.epoch != self.epoch):
            return  # no partition is acted on before this life is part of the cluster
        self.take(image)

    def take(self, image: ClusterImage) -> None:
        """Partitions here become what an image says."""
        before, self.image = self.image, image
        if before is None:
            strays.set_strays_aside(self.logs, image, self.id)
        for topic in image.topics.values():
            for state in topic.partitions:
                key = (topic.name, state.index)
                known = self.partitions.get(key)
                if known is None:
                    partition = Partition(
                        self.id, topic.name, topic.topic_id, state, self, self.world.now
                    )
                    partition.internal = topic.internal
                    partition.configure(self.config)
                    self.partitions[key] = partition
                    self.by_id[topic.topic_id, state.index] = partition
                    self.role_changed(partition)
                else:
                    known.update(state, self.world.now)
                    if before is not None:
                        was = before.topics[topic.name].partitions[state.index]
                        if self.id in was.replicas and self.id not in state.replicas:
                            self.drop(known)

    def drop(self, partition: Partition) -> None:
        """Moved away from here."""
        if (partition.topic, partition.index) in self.logs:
            self.logs.delete(partition.topic, partition.index)

    # What partitions ask for (replication.partition.Owner) ---------------------------------------

    def load(self, partition: Partition) -> Log:
        return self.logs.get_or_create(partition.topic, partition.index, partition.topic_id)

    def appended(self, partition: Partition, size: int) -> None:
        pass  # followers ask again by themselves

    def advanced(self, partition: Partition, size: int) -> None:
        pass

    def is_alive(self, broker_id: int) -> bool:
        return self.image is not None and broker_id in self.image.brokers

    def may_be_in_sync(self, broker_id: int, broker_epoch: int) -> bool:
        known = None if self.image is None else self.image.brokers.get(broker_id)
        return known is not None and known.epoch == broker_epoch

    def role_changed(self, partition: Partition) -> None:
        if self.partitions.get((partition.topic, partition.index)) is not partition:
            return
        if partition.role is Role.LEADER:
            self.world.led(self, partition)
        follows = (
            self.may_follow and partition.role is Role.FOLLOWER and partition not in self.withdrawn
        )
        for leader, following in self.following.items():
            if leader != partition.leader or not follows:
                following.remove(partition)
        if follows and partition.leader >= 0:
            following = self.following.get(partition.leader)
            if following is None:
                leader = partition.leader
                following = self.following[leader] = Following(
                    leader,
                    LIMITS,
                    disk=SlowDisk(self) if self.world.slow_disks else None,
                    freed=lambda: self.ask(leader),
                    clock=lambda: self.world.now,
                )
            following.put(partition)
            self.ask(partition.leader)
        if self.coordination is not None:
            self.coordination.partition_changed(partition)

    def suspected(self, partition: Partition, offset: int) -> None:
        pass

    def isr_wanted(self, partition: Partition) -> None:
        if self.ended or partition.wanted_isr is None:
            return
        wanted = WantedIsr(
            partition.topic_id,
            partition.index,
            partition.leader_epoch,
            partition.partition_epoch,
            list(partition.wanted_isr.items()),
        )
        asked = partition.wanted_isr

        def answered(result: IsrResult | ProtocolError) -> None:
            if self.ended or partition.wanted_isr is not asked:
                return
            if isinstance(result, IsrResult) and result.error is ErrorCode.NONE:
                assert result.state is not None
                partition.isr_confirmed(result.state, self.world.now)
            elif isinstance(result, IsrResult):
                partition.isr_refused(result.error)

        def again() -> None:
            # No answer: nothing is known, and the question is put again.
            if partition.wanted_isr is asked:
                self.isr_wanted(partition)

        self.world.controller.alter_isr(self, wanted, answered)
        self.after(300, again)

    # Following ----------------------------------------------------------------------------------

    def ask(self, leader: int) -> None:
        """One Fetch at a time to each leader."""
        following = self.following[leader]
        if self.ended or leader in self.asking or following.is_idle:
            return
        self.asking.add(leader)
        asked_at = self.world.now
        request = next_request(following, self.id, self.epoch, self.world.now)
        is_done = False

        def answered(response: FetchResponse) -> None:
            nonlocal is_done
            if self.ended or is_done:
                return
            is_done = True
            self.asking.discard(leader)
            for lost in take_answer(following, response, self.world.now):
                self.look_up(leader, following, lost)
            self.after(self.world.chance.randint(1, 10), lambda: self.ask(leader))

        def lost() -> None:
            nonlocal is_done
            if not self.ended and not is_done:
                is_done = True
                self.asking.discard(leader)
                following.reset()
                self.ask(leader)

        self.world.send(self.id, leader, lambda life: life.serve(request, self.id, answered))
        self.at(asked_at + 200, lost)

    def look_up(self, leader: int, following: Following, partition: Partition) -> None:
        position = following.position_asked(partition)

        def ask(other: Life) -> None:
            led = other.partitions.get((partition.topic, partition.index))
            if led is not None and led.role is Role.LEADER:
                start, end = led.log.log_start_offset, led.log.log_end_offset
                other.world.send(other.id, self.id, lambda life: settle(life, start, end))

        def settle(life: Life, start: int, end: int) -> None:
            if life is self and position and following.is_current(partition, position):
                following.settle(partition, start, end, self.world.now)

        self.world.send(self.id, leader, ask)

    # Damaged logs, as server/replication/repair.py has it ------------------------------------------

    def give_log_up(self, key: tuple[str, int]) -> None:
        """The log of a follower was found damaged: it is to be fetched again."""
        partition = self.partitions.get(key)
        if (
            partition is not None
            and partition.role is Role.FOLLOWER
            and partition not in self.withdrawn
        ):
            self.withdrawn[partition] = partition.leader_epoch
            self.role_changed(partition)
            self._leave(partition)

    def _leave(self, partition: Partition) -> None:
        if self.ended or partition not in self.withdrawn or self.image is None:
            return
        state = self.image.topics[partition.topic].partitions[partition.index]
        if self.id not in state.replicas or state.leader == self.id:
            del self.withdrawn[partition]
            self.role_changed(partition)
            return
        others = [(each, -1) for each in state.isr if each != self.id]
        if (
            self.id not in (*state.isr, *state.elr)
            and state.leader_epoch > self.withdrawn[partition]
            and state.leader in state.isr
        ):
            if (
                partition.role is Role.FOLLOWER
                and partition.leader_epoch == state.leader_epoch
                and not partition.is_occupied
            ):
                self.world.note(f"broker {self.id} gives its log of {partition.index} up")
                self.world.given_up += 1
                if (partition.topic, partition.index) in self.logs:
                    self.logs.set_aside(partition.topic, partition.index, damaged=True)
                partition.forget_log()
                del self.withdrawn[partition]
                self.role_changed(partition)
                return
        elif state.leader in state.isr:
            wanted = WantedIsr(
                partition.topic_id,
                partition.index,
                state.leader_epoch,
                state.partition_epoch,
                others,
            )
            self.world.controller.alter_isr(self, wanted, lambda _: None)
        self.after(30, lambda: self._leave(partition))

    # Leading ------------------------------------------------------------------------------------

    def serve(
        self, request: FetchRequest, replica: int, answered: Callable[[FetchResponse], None]
    ) -> None:
        state = request.replica_state
        assert state is not None
        response = FetchResponse(responses=[])
        answers: dict[str | bytes, FetchableTopicResponse] = {}
        asked = named(request, VERSION)
        try:
            session, watched = establish(
                request, VERSION, asked, self.sessions, self.world.now / 1000
            )
        except ProtocolError as error:
            response.error_code = error.code
            self.world.send(self.id, replica, lambda _: answered(response))
            return
        response.session_id = 0 if session is None else session.id
        noted = {*positions_to_note(session, asked, watched, self.world.now)}
        for told in watched:
            assert isinstance(told.topic, bytes)
            of_topic = answers.get(told.topic)
            if of_topic is None:
                of_topic = FetchableTopicResponse(topic_id=told.topic, partitions=[])
                answers[told.topic] = of_topic
                response.responses.append(of_topic)
            partition = self.by_id.get((told.topic, told.index))
            if partition is not None and told in noted:
                with contextlib.suppress(ProtocolError, StorageError):  # the answer says why
                    positions.note(
                        partition, state.replica_id, state.replica_epoch, told, self.world.now
                    )
            of_topic.partitions.append(self.read(partition, told, state.replica_id))
        self.world.send(self.id, replica, lambda _: answered(response))

    def read(
        self, partition: Partition | None, told: WatchedPartition, replica: int
    ) -> PartitionData:
        answer = PartitionData(
            partition_index=told.index,
            high_watermark=-1,
            records=b"",
            aborted_transactions=None,
        )
        try:
            if partition is None:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID)
            partition.check_leader()
            if told.current_leader_epoch < partition.leader_epoch:
                raise ProtocolError(ErrorCode.FENCED_LEADER_EPOCH)
            if told.current_leader_epoch > partition.leader_epoch:
                raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH)
            if replica not in partition.followers:
                raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            log = partition.log
            if told.last_fetched_epoch >= 0:
                diverging = positions.divergence(
                    partition, told.fetch_offset, told.last_fetched_epoch
                )
                if diverging is not None:
                    found, end = diverging
                    answer.diverging_epoch = EpochEndOffset(epoch=found, end_offset=end)
                    return answer
            piece = log.read(told.fetch_offset, told.max_bytes, log.log_end_offset)
            answer.records = b"" if piece is None else piece.read()
            answer.high_watermark = log.high_watermark
            answer.log_start_offset = log.log_start_offset
        except ProtocolError as error:
            answer.error_code = error.code
        except OffsetOutOfRange:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        return answer

    def produce(self, key: tuple[str, int], value: bytes, acked: Callable[[int], None]) -> None:
        """acks=all: `acked` is told the offset once the record is committed."""
        partition = self.partitions.get(key)
        if partition is None or partition.role is not Role.LEADER or partition.under_min_isr:
            return
        record = Record(0, self.world.now, b"k", value, ())
        offset, _, _, end, is_committed = partition.append(
            bytearray(build_batch([record])), self.world.now
        )
        if is_committed:
            acked(offset)
        else:
            partition.when_committed(end, lambda code: None if code else acked(offset))

    # By the clock -------------------------------------------------------------------------------

    def look_for_lags(self) -> None:
        for partition in self.partitions.values():
            partition.drop_lagging(self.world.now, LAG_MS)

    def work(self) -> None:
        """Flushes and checkpoints, as they come."""
        chance = self.world.chance
        for key, partition in self.partitions.items():
            if partition.role is Role.ABSENT or key not in self.logs:
                continue  # moved away; one whose disk is slow comes to know of it later
            is_open = partition.opened is not None and not partition.is_being_cut
            if is_open and chance.random() < 0.3:
                assert partition.opened is not None
                try:
                    partition.opened.flush(self.world.now)
                except StorageError as error:
                    raise AssertionError(f"a flush failed: {error}") from error
        for job in self.logs.checkpoint(self.world.now) if chance.random() < 0.3 else ():
            job.run()
            self.logs.finish(job)
        if self.world.deleting is not None and self.world.deleting.random() < 0.5:
            for partition in self.partitions.values():
                if partition.opened is not None and not partition.is_being_cut:
                    self.world.erased += erase(self, partition.opened)


def committed_values(log: Log, start: int) -> list[tuple[int, bytes]]:
    """(offset, value) of what is below the high watermark, from an offset on."""
    found: list[tuple[int, bytes]] = []
    offset = start
    while offset < log.high_watermark:
        piece = log.read(offset, 1 << 20, log.high_watermark)
        if piece is None:
            break
        data = piece.read()
        for at, header in headers(data):
            found += [
                (record.offset, record.value or b"")
                for record in records(memoryview(data)[at : at + header.size])
                if start <= record.offset < log.high_watermark
            ]
            offset = header.last_offset + 1
    return found
