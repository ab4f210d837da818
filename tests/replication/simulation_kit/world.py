"""A cluster of brokers under faults, seeded: the same seed is the same history.

Time is the world's own, in milliseconds; everything that happens is an event in one queue. Messages
between brokers are delayed, lost, doubled and reordered, and links break for a while. Processes are
killed, machines lose power (and with it what was not flushed) or get an empty disk, processes stand
still and go on, sessions with the store end while the process goes on. Partitions are moved from broker
to broker meanwhile, moves are taken back and replaced by others.

What must hold, whatever happens:

- one life of one broker leads in each leader epoch;
- what was once below a high watermark at some leader is there for ever, the same at the same offset,
  and replicas agree below their high watermarks;
- what was acknowledged with acks=all is there, at its offset, once the cluster is healed, as long as
  fewer than `min.insync.replicas` brokers lost unflushed records before they were in sync again;
- no client is told that less is committed than it was told before;
- a broker that a partition was moved away from has no log of it any more, once the cluster is healed;
- moves come to their end once the cluster is healed;
- a single record whose deletion was acknowledged is hidden on every replica then, what a replica hides
  is what the marks in its log say, and it can be erased everywhere.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from ottla.cluster.decisions import brokers as broker_decisions
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.decisions.moves import WantedMove, alter_moves, end_moves
from ottla.cluster.decisions.moves import is_moving as is_being_moved
from ottla.cluster.decisions.partitions import IsrResult, WantedIsr, alter_isr
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import ClusterImage, Endpoint, RegisteredBroker, Topic
from ottla.cluster.metadata import Partition as PartitionState
from ottla.cluster.names import is_internal
from ottla.protocol.errors import ProtocolError
from ottla.record.offset_set import OffsetSet
from ottla.replication.partition import Partition, Role
from ottla.storage.log.deletions import marks_from
from simulation_kit.broker import Broker, Life, committed_values
from simulation_kit.deleting import delete, erase, marked_in
from simulation_kit.names import TOPIC, name_of
from simulation_kit.reading import Reader

if TYPE_CHECKING:
    from ottla.storage.log.log import Log
    from simulation_kit.coordination import Coordination

START = 1_700_000_000_000
SESSION_MS = 1000
# Questions of a client in each step.
READS = 3


class Broken(AssertionError):
    """A promise was broken; the message ends with the history. As with AnomalyFound in the tests on
    processes, `rerun_except` in pyproject.toml keeps it from being tried again."""


class Controller:
    """The controller's decisions over a store that loses nothing. It may be slow, and away."""

    def __init__(self, world: World, brokers: list[int]) -> None:
        self.world = world
        self.image = ClusterImage("simulated", version=0)
        self.epochs = 0
        self.away_until = 0
        # Brokers that hear nothing of the controller, and until when.
        self.silent_until: dict[int, int] = {}
        self.sessions: dict[int, Life] = {}
        draft = Draft(self.image)
        for name, level in world.FEATURES.items():
            draft.set_feature(name, level)
        placed = 0
        for name, partitions in world.topics.items():
            states = []
            for index in range(partitions):
                replicas = tuple(brokers[(placed + each) % len(brokers)] for each in range(3))
                states.append(PartitionState(index, replicas, replicas, -1))
                placed += 1
            topic_id = name.ljust(16).encode()[:16]
            draft.put_topics([Topic(name, topic_id, tuple(states), is_internal(name))])
        self.image, _ = draft.finish(1)

    def policy_of(self, _topic: str) -> ElectionPolicy:
        return ElectionPolicy(min_isr=self.world.min_isr)

    def _when_here(self, do: Callable[[], None]) -> None:
        delay = max(0, self.away_until - self.world.now) + self.world.chance.randint(0, 20)
        self.world.after(delay, do)

    def _decide(self, decide: Callable[[Draft], object]) -> object:
        draft = Draft(self.image)
        result = decide(draft)
        if draft.is_changed:
            self.image, _ = draft.finish(self.image.version + 1)
            image = self.image
            for broker_id in self.world.brokers:
                self.world.tell(broker_id, lambda life: life.learn(image), self.silence(broker_id))
        return result

    def silence(self, broker_id: int) -> int:
        """How long news of the controller take to reach a broker, beside the usual delay."""
        return max(0, self.silent_until.get(broker_id, 0) - self.world.now)

    def register(self, life: Life) -> None:
        self.epochs += 1
        epoch = life.epoch = self.epochs

        def take_in() -> None:
            if life.epoch != epoch or life.ended:
                return
            self.sessions[life.id] = life
            endpoint = Endpoint("PLAINTEXT", "host", 1, "PLAINTEXT")
            member = RegisteredBroker(
                life.id, epoch, None, (endpoint,), f"disk {life.id}.{life.broker.disks}"
            )
            self.world.note(f"broker {life.id} is taken in, epoch {epoch}, lost {life.lost_data}")
            life.broker.taken_in()

            def decide(draft: Draft) -> None:
                broker_decisions.take_in(
                    draft, member, lost_data=life.lost_data, policy_of=self.policy_of
                )
                end_moves(draft, list(draft.topics.values()), self.policy_of)

            self._decide(decide)

        self._when_here(take_in)

    def gone(self, life: Life) -> None:
        """Its session is over: it has ended, or was out of touch for too long."""

        def fence() -> None:
            member = self.image.brokers.get(life.id)
            if member is not None and member.epoch == life.epoch and self.is_over(life):
                self.world.note(f"broker {life.id} of epoch {life.epoch} is fenced")

                def decide(draft: Draft) -> None:
                    broker_decisions.fence(draft, life.id, policy_of=self.policy_of)
                    end_moves(draft, list(draft.topics.values()), self.policy_of)

                self._decide(decide)
                life.lose_session()

        self._when_here(fence)

    def is_over(self, life: Life) -> bool:
        return self.sessions.get(life.id) is life

    def move(self, index: int, replicas: tuple[int, ...] | None) -> None:
        """Somebody asks for a move of a partition, or takes it back (None)."""

        def decide() -> None:
            if self.world.is_healing:
                return
            (result,) = self._decide(  # type: ignore[misc]
                lambda draft: alter_moves(
                    draft, [WantedMove(TOPIC, index, replicas)], self.policy_of
                )
            )
            state = self.image.topics[TOPIC].partitions[index]
            refused = f", refused: {result.error}" if result.error is not None else ""
            self.world.note(f"partition {index} is to have {replicas}{refused}: {state}")
            self.world.moves += result.error is None

        self._when_here(decide)

    def alter_isr(
        self, life: Life, wanted: WantedIsr, answered: Callable[[IsrResult | ProtocolError], None]
    ) -> None:
        if self.world.is_lost(life.id, -1):
            return
        epoch = life.epoch

        def decide() -> None:
            before = self._isr(wanted)
            try:
                (result,) = self._decide(  # type: ignore[misc]
                    lambda draft: alter_isr(draft, life.id, epoch, [wanted], self.policy_of)
                )
            except ProtocolError as error:
                result = error
            self.world.tell(
                life.id,
                lambda here: answered(result) if here is life else None,
                self.silence(life.id),
            )
            if isinstance(result, IsrResult):
                self.world.set_changed(result, set(self._isr(wanted)) - set(before))

        joining = {member for member, _ in wanted.isr} - set(self._isr(wanted))
        if self.world.restart_before_join(joining):
            self.world.after(400, lambda: self._when_here(decide))
        else:
            self._when_here(decide)
        if self.world.chance.random() < 0.1:  # the request arrives twice
            self.world.after(self.world.chance.randint(1, 3000), lambda: self._when_here(decide))

    def _isr(self, wanted: WantedIsr) -> tuple[int, ...]:
        return self.image.topics_by_id[wanted.topic_id].partitions[wanted.index].isr


class World:
    # Topics with their number of partitions; producers write to the first.
    topics: ClassVar[dict[str, int]] = {TOPIC: 2}
    FEATURES: ClassVar[dict[str, int]] = {}
    LIFE: ClassVar[type[Life]] = Life

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        min_isr: int = 2,
        is_moving: bool = False,
        damage: float = 0.0,
        slow_disks: bool = False,
        deletes: bool = False,
        pauses: bool = False,
        fetch_sessions: bool = False,
    ) -> None:
        self.seed = seed
        self.fetch_sessions = fetch_sessions
        # Of its own: the seeds that are known to find something go on finding it.
        self.pausing = random.Random(seed) if pauses else None
        self.pauses = 0
        self.reader = Reader(self)
        # Of its own: the seeds that are known to find something go on finding it.
        self.deleting = random.Random(seed) if deletes else None
        self.erased = 0  # records
        self.slow_disks = slow_disks
        self.waits_for_disks = 0
        self.given_up = 0  # logs that were damaged
        # Of its own: the seeds that are known to find something go on finding it.
        self.damage = random.Random(seed) if damage else None
        self.chance = random.Random(seed)
        self.min_isr = min_isr
        self.now = START
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.history: list[str] = []
        self.cut: set[tuple[int, int]] = set()  # links that are broken, one way
        self.loss = 0.02
        self.keys = [(TOPIC, index) for index in range(self.topics[TOPIC])]
        everywhere = [
            (name, index) for name, count in self.topics.items() for index in range(count)
        ]
        # (partition, leader epoch) -> who led.
        self.leaders: dict[tuple[tuple[str, int], int], Life] = {}
        # Partition -> offset -> value: what was committed as far as some leader said.
        self.committed: dict[tuple[str, int], dict[int, bytes]] = {key: {} for key in everywhere}
        self.acked: dict[tuple[str, int], dict[int, bytes]] = {key: {} for key in self.keys}
        # Offsets of records whose deletion was acknowledged.
        self.deleted: dict[tuple[str, int], set[int]] = {key: set() for key in self.keys}
        self._checked: dict[tuple[Life, tuple[str, int]], int] = {}
        self.sent = 0
        self.is_moving = is_moving
        # Whether partitions are only moved to as many brokers as have to be in sync. With fewer, a loss
        # of power is one of records.
        self.keeps_min_isr = seed % 2 == 0
        self.is_healing = False
        self.moves = 0  # that were begun or taken back
        ids = list(range(1, brokers + 1))
        self.brokers: dict[int, Broker] = {each: Broker(self, each) for each in ids}
        self.controller = self.make_controller(ids)
        for broker in self.brokers.values():
            broker.start()

    def make_controller(self, brokers: list[int]) -> Controller:
        return Controller(self, brokers)

    def note(self, what: str) -> None:
        self.history.append(f"{self.now - START:7d} {what}")

    def coordination_of(self, life: Life) -> Coordination | None:
        """The coordinators of a broker, in a world that has some."""
        return None

    # Time and messages --------------------------------------------------------------------------

    def at(self, when: int, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, do))

    def after(self, delay: int, do: Callable[[], None]) -> None:
        self.at(self.now + delay, do)

    def is_lost(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) in self.cut or self.chance.random() < self.loss

    def send(self, sender: int, receiver: int, do: Callable[[Life], None]) -> None:
        """A message between brokers."""
        for _ in range(2 if self.chance.random() < self.loss else 1):
            if not self.is_lost(sender, receiver):
                self.tell(receiver, do)

    def tell(self, receiver: int, do: Callable[[Life], None], later: int = 0) -> None:
        """Something reaches a broker after a while, unless its process has ended by then."""
        delay = int(self.chance.expovariate(0.3)) if self.chance.random() < 0.95 else 150
        self.reach(receiver, later + delay, do)

    def reach(self, receiver: int, delay: int, do: Callable[[Life], None]) -> None:
        """The same after so long."""
        life = self.brokers[receiver].life
        if life is None:
            self.after(delay, lambda: None)
        else:
            life.after(delay, lambda: do(life))

    def run(self, milliseconds: int) -> None:
        end = self.now + milliseconds
        while self._events and self._events[0][0] <= end:
            self.now, _, do = heapq.heappop(self._events)
            do()
            self.check()
        self.now = end

    # Clients ------------------------------------------------------------------------------------

    def produce(self) -> None:
        """A producer that knows the newest leader, or a former one."""
        key = self.chance.choice(self.keys)
        self.sent += 1
        value = b"%d" % self.sent + b"x" * self.chance.randint(0, 60)
        leader = self.controller.image.topics[TOPIC].partitions[key[1]].leader
        if self.chance.random() < 0.2:
            leader = self.chance.choice(list(self.brokers))
        if leader < 0:
            return

        def acked(offset: int) -> None:
            self.acked[key][offset] = value

        self.tell(leader, lambda life: life.produce(key, value, acked))

    def delete(self) -> None:
        """Somebody deletes a record."""
        assert self.deleting is not None
        key = self.deleting.choice(self.keys)
        where = self.deleting.random()
        leader = self.controller.image.topics[TOPIC].partitions[key[1]].leader
        if leader >= 0:
            self.tell(leader, lambda life: delete(life, key, where, self.deleted[key].add))

    def leader_of(self, key: tuple[str, int]) -> int:
        """As the controller knows it; -1 without one."""
        topic, index = key
        return self.controller.image.topics[topic].partitions[index].leader

    # Faults -------------------------------------------------------------------------------------

    def pause(self) -> None:
        """A process stands still, and goes on later as if nothing had happened. What it was sent waits
        in its sockets; its session ends if that takes too long, of which it learns some time after."""
        assert self.pausing is not None
        chance = self.pausing
        broker = chance.choice(list(self.brokers.values()))
        leader = self.leader_of(chance.choice(self.keys))
        if leader >= 0 and chance.random() < 0.5:
            broker = self.brokers[leader]
        life = broker.life
        if life is None or life.is_paused:
            return
        self.stand_still(life, chance.choice((30, 300, 1500, 3000)))

    def stand_still(self, life: Life, length: int) -> None:
        self.pauses += 1
        self.note(f"broker {life.id} stands still for {length} ms")
        life.paused_until = self.now + length

        def expire() -> None:
            if life.is_paused:
                self.controller.gone(life)

        if length > SESSION_MS:
            self.after(SESSION_MS, expire)

    def faults(self) -> None:
        """One thing that goes wrong, or is mended."""
        chance = self.chance
        broker = chance.choice(list(self.brokers.values()))
        match chance.randrange(11):
            case 0 | 1:
                if broker.life is not None:
                    self.note(f"broker {broker.id} is killed")
                    self._end(broker, power=False)
            case 2:
                if broker.life is not None and self.may_lose_power(broker):
                    disk = self.is_moving and chance.random() < 0.3
                    self.note(f"broker {broker.id} loses {'its disk' if disk else 'power'}")
                    self._end(broker, power=True, disk=disk)
            case 3 | 4 | 5:
                for each in self.brokers.values():
                    if each.life is None and chance.random() < 0.7:
                        self.note(f"broker {each.id} starts")
                        each.start()
            case 6:
                other = chance.choice(list(self.brokers))
                links = [(broker.id, other), (other, broker.id)][: chance.randint(1, 2)]
                self.note(f"links break: {links}")
                self.cut.update(links)
            case 7:
                self.note("links are mended")
                self.cut.clear()
            case 8:
                if broker.life is not None:
                    self.note(f"broker {broker.id} loses its session")
                    self.controller.gone(broker.life)
            case 9:
                self.note("the controller is away")
                self.controller.away_until = self.now + chance.randint(1, 1500)
            case 10:
                self.note(f"broker {broker.id} hears nothing of the controller for a while")
                self.controller.silent_until[broker.id] = self.now + chance.randint(1, 1500)

    def move(self) -> None:
        """Somebody moves a partition, or takes the move back."""
        chance = self.chance
        index = chance.randrange(len(self.keys))
        if chance.random() < 0.25:
            self.controller.move(index, None)
            return
        count = chance.choice((2, 3, 3) if self.keeps_min_isr else (1, 2, 3, 3))
        self.controller.move(index, tuple(chance.sample(list(self.brokers), count)))

    def set_changed(self, result: IsrResult, joined: set[int]) -> None:
        """The worst moment for a failure is just after an in-sync set has changed: the leader may not
        know of it yet, and who joined may lack what others have."""
        state = result.state
        if state is None or result.error or state.leader < 0 or self.loss == 0.0:
            return
        if joined and self.chance.random() < 0.1:
            self._leave_alone(state, joined)
            return
        if self.chance.random() < 0.9:
            return
        if state.leader not in state.isr:
            self.broken(f"leader {state.leader} of partition {state.index} is not in {state.isr}")
        members = [each for each in state.isr if joined or each == state.leader]
        for broker_id in self.chance.sample(
            members, self.chance.randint(1, max(1, len(members) - 1))
        ):
            broker = self.brokers[broker_id]
            if broker.life is not None:
                power = self.chance.random() < 0.3 and self.may_lose_power(broker)
                how = "loses power" if power else "is killed"
                self.note(f"broker {broker.id} {how} as its in-sync set changes")
                self._end(broker, power=power)

    def restart_before_join(self, joining: set[int]) -> bool:
        """One that is about to join loses power, and what it had; it is back before the request is
        decided that lets it in."""
        if not joining or self.loss == 0.0 or self.chance.random() >= 0.05:
            return False
        broker = self.brokers[min(joining)]
        life = broker.life
        if life is None or not self.may_lose_power(broker):
            return False
        self.note(f"broker {broker.id} loses power before it joins")
        broker.kill(power=True)
        self.after(5, lambda: self.controller.gone(life))
        self.after(50, lambda: None if broker.life else broker.start())
        return True

    def _leave_alone(self, state: PartitionState, joined: set[int]) -> None:
        """Who has joined is cut off at once, and the leader does not hear of it; a little later all
        others are killed, so that who has joined has to lead with what it has."""
        self.note(f"{joined} joined, are cut off, and soon will be alone")
        leader = state.leader
        self.cut.update((each, leader) for each in joined)
        self.cut.update((leader, each) for each in joined)
        self.controller.silent_until[leader] = self.now + 800

        def strike() -> None:
            for broker_id in set(state.isr) - joined:
                broker = self.brokers[broker_id]
                if broker.life is not None and self.loss:
                    self.note(f"broker {broker_id} is killed")
                    self._end(broker, power=False)

        self.after(self.chance.randint(20, 600), strike)

    def _end(self, broker: Broker, *, power: bool, disk: bool = False) -> None:
        life = broker.life
        assert life is not None
        broker.kill(power=power, disk=disk)
        # A dead process is noticed at once (its port refuses), or when its session times out.
        delay = self.chance.choice((5, SESSION_MS))
        self.after(delay, lambda: self.controller.gone(life))

    def may_lose_power(self, broker: Broker) -> bool:
        """Fewer than min.insync.replicas brokers may lack records that they had acknowledged. While
        partitions are moved somebody is always behind, who never acknowledged anything: then another
        replica must have everything, and the cluster must know of all who have lost something. With a
        minimum of one nobody may: the set may shrink to the one who has lost something before it is
        known."""
        if self.is_moving:
            return (
                self.min_isr > 1
                and self.keeps_min_isr
                and not any(each.lost_power for each in self.brokers.values())
                and all(
                    {*state.isr, *state.elr} != {broker.id}
                    for topic in self.controller.image.topics.values()
                    for state in topic.partitions
                )
            )
        lacking = 1 + sum(
            1
            for each in self.brokers.values()
            if each is not broker and (each.lost_power or not self._is_in_sync(each))
        )
        return lacking < self.min_isr

    def _is_in_sync(self, broker: Broker) -> bool:
        return all(
            broker.id in each.isr
            for topic in self.controller.image.topics.values()
            for each in topic.partitions
            if broker.id in each.replicas
        )

    # What must hold -----------------------------------------------------------------------------

    def led(self, life: Life, partition: Partition) -> None:
        term = ((partition.topic, partition.index), partition.leader_epoch)
        former = self.leaders.setdefault(term, life)
        if former is not life:
            lives = f"brokers {former.id} and {life.id}"
            if former.id == life.id:
                lives = f"two lives of broker {life.id}"
            self.broken(f"{lives} lead {term[0]} in epoch {term[1]}")

    def check(self) -> None:
        for broker in self.brokers.values():
            life = broker.life
            if life is None:
                continue
            for key, partition in life.partitions.items():
                log = partition.opened
                if log is not None and partition.role is not Role.ABSENT:
                    self._check_log(life, key, partition, log)

    def _check_log(self, life: Life, key: tuple[str, int], partition: Partition, log: Log) -> None:
        place = (life, key)
        start = min(self._checked.get(place, 0), log.log_end_offset)
        if log.high_watermark <= start:
            return
        committed = self.committed[key]
        for offset, value in committed_values(log, start):
            known = committed.setdefault(offset, value)
            if known != value:
                self.broken(
                    f"broker {life.id} ({partition.role.name}, epoch {partition.leader_epoch}) has "
                    f"{value[:8]!r} at {name_of(key)}:{offset}, where {known[:8]!r} was committed"
                )
        self._checked[place] = log.high_watermark

    def heal(self) -> None:
        """Everything is mended; then all must come together."""
        self.note("the cluster heals")
        self.is_healing = True
        self.cut.clear()
        self.loss = 0.0
        self.controller.away_until = 0
        self.controller.silent_until.clear()
        for broker in self.brokers.values():
            if broker.life is None:
                broker.start()
        for _ in range(100):
            self.run(200)
            if self._has_healed():
                break
        else:
            self.broken("the cluster does not heal")
        self.run(500)
        self._check_acknowledged()

    def _has_healed(self) -> bool:
        for broker in self.brokers.values():
            image = None if broker.life is None else broker.life.image
            if image is None or image.version < self.controller.image.version:
                return False
        return all(
            self._is_whole(topic.name, state)
            for topic in self.controller.image.topics.values()
            for state in topic.partitions
        )

    def _is_whole(self, topic: str, state: PartitionState) -> bool:
        if state.leader < 0 or len(state.isr) < len(state.replicas) or is_being_moved(state):
            return False
        ends = set()
        for replica in state.replicas:
            life = self.brokers[replica].life
            if life is None or (topic, state.index) not in life.partitions:
                return False
            log = life.partitions[topic, state.index].log
            ends |= {log.log_end_offset, log.high_watermark}
        return len(ends) == 1

    def _check_acknowledged(self) -> None:
        for key in self.keys:
            for broker in self.brokers.values():
                assert broker.life is not None
                partition = broker.life.partitions.get(key)
                if partition is None or partition.role is Role.ABSENT:
                    # One that lost its topic's id with the power is left to its owner (strays.py).
                    logs = broker.life.logs
                    if key in logs and logs.get(*key).topic_id is not None:
                        self.broken(f"broker {broker.id} still has a log of partition {key[1]}")
                    continue
                log = partition.log
                self._check_deleted(broker.life, key, log)
                stored = dict(committed_values(log, log.log_start_offset))
                for offset, value in self.acked[key].items():
                    if log.deletions is not None and offset in log.deletions.invisible:
                        continue
                    if stored.get(offset) != value:
                        found = stored.get(offset, b"nothing")
                        self.broken(
                            f"{value[:8]!r} was acknowledged at {name_of(key)}:{offset}, and broker "
                            f"{broker.id} has {found[:8]!r}"
                        )

    def _check_deleted(self, life: Life, key: tuple[str, int], log: Log) -> None:
        hidden = OffsetSet() if log.deletions is None else log.deletions.invisible
        if hidden != marked_in(log):
            self.broken(f"broker {life.id} does not hide in {name_of(key)} what its marks say")
        for offset in self.deleted[key]:
            if offset not in hidden:
                self.broken(
                    f"the deletion of {name_of(key)}:{offset} was acknowledged, and broker {life.id} "
                    "knows nothing of it"
                )
        if self.deleting is None or log.deletions is None:
            return
        for _ in range(3):  # to roll, to sync, to erase
            self.erased += erase(life, log)
            log.flush(self.now)
            for job in life.logs.checkpoint(self.now):
                job.run()
                life.logs.finish(job)
        marks = {offset for offset, _ in marks_from(log.segments, log.log_start_offset)}
        for offset, _ in committed_values(log, log.log_start_offset):
            if offset in hidden and offset not in marks:
                self.broken(
                    f"broker {life.id} still has what was deleted at {name_of(key)}:{offset}"
                )

    def broken(self, what: str) -> None:
        history = "\n".join(self.history[-60:])
        raise Broken(f"seed {self.seed}: {what}\n{history}")


def run_seed(
    seed: int,
    *,
    steps: int = 60,
    brokers: int = 3,
    moves: float = 0.0,
    slow_disks: bool = False,
    damage: float = 0.0,
    deletes: bool = False,
    pauses: float = 0.0,
    min_isr: int = 2,
    fetch_sessions: bool = False,
) -> World:
    """A cluster's life with faults, and its recovery; Broken if a promise was. `moves`: how probable it
    is in a step that a partition is moved; `damage`: that a log is found damaged; `pauses`: that a
    process stands still for a while. `deletes`: single records are deleted, and erased.
    `fetch_sessions`: followers tell their leaders only what changed, in the short form if they can."""
    world = World(
        seed,
        fetch_sessions=fetch_sessions,
        min_isr=min_isr,
        pauses=pauses > 0,
        brokers=brokers,
        is_moving=moves > 0,
        slow_disks=slow_disks,
        damage=damage,
        deletes=deletes,
    )
    world.run(500)
    for _ in range(steps):
        for _ in range(world.chance.randint(0, 8)):
            world.produce()
        if world.deleting is not None:
            for _ in range(world.deleting.randint(0, 3)):
                world.delete()
        if world.chance.random() < 0.5:
            world.faults()
        for _ in range(READS):
            world.reader.ask()
        if world.pausing is not None and world.pausing.random() < pauses:
            world.pause()
        if world.damage is not None and world.damage.random() < damage:
            broker = world.damage.choice(list(world.brokers.values()))
            if broker.life is not None:
                broker.life.give_log_up(world.damage.choice(world.keys))
        if moves and world.chance.random() < moves:
            world.move()
        world.run(world.chance.choice((5, 20, 100, 400)))
    world.heal()
    return world
