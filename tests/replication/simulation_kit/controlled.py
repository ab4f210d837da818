"""A simulated cluster in which each broker may be the controller: the real membership, candidacy,
controller and followed stream of each broker (`ottla.cluster`), over a store that loses answers, lags,
breaks off and ends sessions (`store_kit`).

What must hold beside the promises of `world` and those of `metadata` for each change in the store:

- a broker that leads in an epoch is the one that the store names for it;
- no broker's image goes back;
- once the cluster is healed, one controller is in office, all brokers are part of the cluster, all
  images are what the store holds, and all partitions have leaders.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

from store_kit.ensemble import Commit, Ensemble, EnsembleStore
from store_kit.faulty import Faults, FaultyStore

from ottla import turns
from ottla.cluster import layout, store
from ottla.cluster.controller import Controller as RealController
from ottla.cluster.decisions.configs import full_change
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.decisions.moves import WantedMove
from ottla.cluster.decisions.partitions import IsrResult, WantedIsr
from ottla.cluster.decisions.topics import NewTopic
from ottla.cluster.draft import Draft
from ottla.cluster.membership import membership
from ottla.cluster.membership.membership import Membership
from ottla.cluster.metadata import (
    ClusterImage,
    Endpoint,
    ImageDelta,
    RegisteredBroker,
    ResourceType,
)
from ottla.cluster.store import Set, Store, StoreError
from ottla.protocol.errors import ErrorCode, ProtocolError
from simulation_kit.broker import Broker, Life
from simulation_kit.loop import ProcessLoop
from simulation_kit.metadata import MetadataChecks, image_in
from simulation_kit.names import TOPIC
from simulation_kit.world import READS, SESSION_MS, Broken, Controller, World

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

CLUSTER = "simulated"
SETTING = "some.setting"
# Topics that clients ask for.
MOST_MADE = 3
OTHER = "payments"
# How bad the connections to the store are.
FAULTS = (
    Faults(),
    Faults(lost_before=0.05, lost_after=0.05, lost_late=0.05, unavailable=0.02),
    Faults(lost_before=0.1, lost_after=0.3, lost_late=0.2, unavailable=0.05),
)
# A broker that could not start is started again after so long.
RESTART_MS = 300


class AnyRules:
    """All settings are fine."""

    def check(self, resource: object, config: object, altered: object) -> None:
        pass

    def is_list(self, resource_type: object, name: str) -> bool:
        return False

    def list_default(self, resource_type: object, name: str) -> str | None:
        return None


class MemberLife(Life):
    """One life of a broker that is a member of its cluster as a real one is."""

    world: ControlledWorld

    def __init__(self, broker: Broker, lost_data: bool) -> None:
        self.membership: Membership | None = None
        super().__init__(broker, lost_data)
        self.loop = ProcessLoop(self)
        self.world.former.append(self)

    @property
    def epoch(self) -> int:
        return -1 if self.membership is None else self.membership.epoch

    @epoch.setter
    def epoch(self, _: int) -> None:
        """It is the membership that knows it."""

    @property
    def may_follow(self) -> bool:
        return self.membership is not None and self.membership.is_member

    @property
    def controller(self) -> RealController | None:
        """The controller here, if it is in office as far as is known here."""
        return None if self.membership is None or self.ended else self.membership.controller

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if not self.ended:
            self.loop.create_task(work)

    # Coming -------------------------------------------------------------------------------------

    def register(self) -> None:
        self.membership = Membership(self.id, self._connect, self._make_controller, reconnects=True)
        self.spawn(self._join(self.membership))
        chance = self.world.storing
        if self.lost_data and chance.random() < 0.4:
            # The worst moment: the cluster does not know yet what was lost.
            self.world.after(chance.randint(0, 200), self._lose_session_early)

    def _lose_session_early(self) -> None:
        if not self.ended and not self.world.is_healing:
            self.world.office.expire(self)

    def _connect(self) -> Store:
        return self.world.office.connect(self)

    def _make_controller(self, session: Store) -> RealController:
        made = RealController(
            session, self.id, AnyRules(), {}, random=random.Random(self.world.seed)
        )
        made.default_policy = ElectionPolicy(min_isr=self.world.min_isr)
        return made

    async def _join(self, member: Membership) -> None:
        endpoint = Endpoint("PLAINTEXT", "host", self.id, "PLAINTEXT")
        broker = RegisteredBroker(
            self.id,
            -1,
            None,
            (endpoint,),
            f"disk {self.id}.{self.broker.disks}",
            min_isr=self.world.min_isr,
        )
        try:
            await member.open()
            await member.join(broker, self.lost_data)
        except StoreError as error:
            self.world.note(f"broker {self.id} does not start: {error}")
            self.world.cannot_start(self)
            return
        self.world.note(
            f"broker {self.id} is a member, epoch {member.epoch}, lost {self.lost_data}"
        )
        self.broker.taken_in()
        self.take(member.image)
        member.follower.subscribe(self._changed)
        member.on_registered = self._follow_or_not

    def _changed(self, old: ClusterImage, new: ClusterImage, _delta: ImageDelta) -> None:
        if self.ended:
            return
        if new.version < old.version or new.controller_epoch < old.controller_epoch:
            self.world.broken(
                f"the image of broker {self.id} goes back from version {old.version} of controller "
                f"epoch {old.controller_epoch} to {new.version} of {new.controller_epoch}"
            )
        self.take(new)
        if old.brokers.get(self.id) != new.brokers.get(self.id):
            self._follow_or_not()

    def _follow_or_not(self) -> None:
        """This broker was taken in, or fenced: whom to follow depends on it."""
        for partition in list(self.partitions.values()):
            self.role_changed(partition)

    # Others -------------------------------------------------------------------------------------

    def refused(self, dead: MemberLife, *, is_certain: bool) -> None:
        """A connection to another broker was refused, as server/replication/liveness.py has it."""
        self.spawn(self._act_on_refusal(dead, is_certain))

    async def _act_on_refusal(self, dead: MemberLife, is_certain: bool) -> None:
        member = self.membership
        if member is None or not member.follower.is_open:
            return
        known = member.image.brokers.get(dead.id)
        controller = member.controller
        if controller is not None:
            if known is not None and known.epoch == dead.epoch:
                await controller.fence_broker(dead.id, known.epoch)
            return
        node = await member.store.get(layout.CONTROLLER)
        if node is None or layout.decode_controller(node) != dead.id:
            return
        if is_certain and self.world.brokers[dead.id].life is not None:
            return  # by now somebody answers there
        member.replace_controller(node)

    async def alter_isr(self, asker: MemberLife, epoch: int, wanted: WantedIsr) -> IsrResult:
        """As the controller, if this is its broker."""
        controller = self.controller
        if controller is None:
            raise ProtocolError(ErrorCode.NOT_CONTROLLER)
        (result,) = await controller.alter_isr(asker.id, epoch, [wanted])
        return result


class Connection:
    """How long things take between a broker's process and the store."""

    def __init__(self, life: MemberLife) -> None:
        self._life = life
        self._world = life.world

    def _delay(self) -> int:
        chance = self._world.storing
        return chance.randint(0, 3) if chance.random() < 0.97 else chance.randint(20, 120)

    def at_servers(self, do: Callable[[], None]) -> None:
        self._world.after(self._delay(), do)

    def at_owner(self, do: Callable[[], None], *, caught_up: bool) -> None:
        silence = self._world.office.silence(self._life.id) if caught_up else 0
        self._life.after(silence + self._delay(), do)

    def at_end(self, do: Callable[[], None]) -> None:
        self._world.after(SESSION_MS, do)


class Office(Controller):
    """Stands where `world` has its own controller: what it is asked for goes to the broker whose
    controller is in office, as far as the one who asks knows."""

    def __init__(self, world: ControlledWorld, brokers: list[int]) -> None:
        self._away_until = 0
        super().__init__(world, brokers)
        self.world: ControlledWorld = world
        # Small, so that most changes are written in several steps.
        self.ensemble = Ensemble(1 if world.seed % 3 else 1 << 20)
        self._found(self.image)
        self.checks = MetadataChecks(self.ensemble.tree, world.broken)
        self.ensemble.on_commit = self._committed
        # Session -> the life whose it is.
        self.lives: dict[int, MemberLife] = {}
        self.stores: list[FaultyStore] = []
        self.faults = FAULTS[world.seed % 2]
        # Kill a controller after so many of its writes.
        self.writes_to_live: int | None = None
        self.killed_in_office = 0
        self.made = 0  # topics that were asked for
        self.topics_acked: list[str] = []
        self.set_acked: dict[str, int] = {}

    def _found(self, wanted: ClusterImage) -> None:
        """Puts a cluster into the store in which nobody is in office."""
        ensemble = self.ensemble
        ensemble.commit(0, layout.skeleton(CLUSTER, {}, "founded", bytes(32)))
        draft = Draft(image_in(ensemble.tree))
        draft.put_topics(wanted.topics.values())
        made = layout.operations_of(draft)
        ensemble.commit(0, [*made, Set(layout.REVISION, layout.encode_revision(0, "topics"), 0)])

    # What `world` asks for ----------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        """What the store holds."""
        return self.checks.image if hasattr(self, "checks") else self._first

    @image.setter
    def image(self, image: ClusterImage) -> None:
        self._first = image

    @property
    def away_until(self) -> int:
        return self._away_until

    @away_until.setter
    def away_until(self, when: int) -> None:
        """The process of the controller stands still."""
        self._away_until = when
        holder = self.holder if hasattr(self, "lives") else None
        if holder is not None and when > self.world.now and not holder.is_paused:
            self.world.stand_still(holder, when - self.world.now)

    @property
    def holder(self) -> MemberLife | None:
        """The life whose session holds the office, as the store knows it."""
        node = self.ensemble.tree.nodes.get(layout.CONTROLLER)
        life = None if node is None else self.lives.get(node.owner)
        return None if life is None or life.ended else life

    def gone(self, life: Life) -> None:
        """A process has ended, or was out of touch for too long."""
        assert isinstance(life, MemberLife)
        if life.ended and self.world.chance.random() < 0.5:
            self.suspect(life, is_certain=True)
            self.world.after(SESSION_MS, lambda: self.expire(life))
        else:
            self.expire(life)

    def expire(self, life: MemberLife) -> None:
        for session, owner in self.lives.items():
            if owner is life and session in self.ensemble.sessions:
                self.world.note(f"the session of broker {life.id} expires")
                self.ensemble.expire(session)

    def suspect(self, dead: MemberLife, *, is_certain: bool) -> None:
        """All others find that a broker's port refuses connections."""
        for broker_id in self.world.brokers:
            if broker_id != dead.id:
                self.world.tell(
                    broker_id, lambda life: _member(life).refused(dead, is_certain=is_certain)
                )

    def move(self, index: int, replicas: tuple[int, ...] | None) -> None:
        asked = [each for each in self.world.members() if each.controller is not None]
        if asked:
            life = self.world.chance.choice(asked)
            self.world.tell(life.id, lambda here: self._move(_member(here), index, replicas))

    def _move(self, life: MemberLife, index: int, replicas: tuple[int, ...] | None) -> None:
        controller = life.controller
        if controller is None or self.world.is_healing:
            return

        async def decide() -> None:
            (result,) = await controller.alter_moves([WantedMove(TOPIC, index, replicas)])
            refused = f", refused: {result.error}" if result.error is not None else ""
            self.world.note(f"partition {index} is to have {replicas}{refused}")
            self.world.moves += result.error is None

        life.spawn(decide())

    def change(self, number: int) -> None:
        """Somebody makes a topic, or changes a setting."""
        asked = [each for each in self.world.members() if each.controller is not None]
        if not asked or self.world.is_healing:
            return
        life = self.world.storing.choice(asked)
        makes_topic = self.made < MOST_MADE and self.world.storing.random() < 0.3
        self.made += makes_topic

        def ask(here: Life) -> None:
            controller = _member(here).controller
            if controller is not None:
                work = self._make_topic if makes_topic else self._set
                _member(here).spawn(work(controller, number))

        self.world.tell(life.id, ask)

    async def _make_topic(self, controller: RealController, number: int) -> None:
        name = f"made-{number}"
        (result,) = await controller.create_topics([NewTopic(name, 1, 2)])
        if result.error is None:
            self.topics_acked.append(name)
        elif result.error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            self.world.broken(f"{name} is said to exist, and was asked for once")

    async def _set(self, controller: RealController, number: int) -> None:
        group = f"group-{number % 4}"
        wanted = full_change(ResourceType.GROUP, group, [(SETTING, str(number))])
        (result,) = await controller.alter_configs([wanted], incremental=False)
        if result.error is None:
            self.set_acked[group] = max(number, self.set_acked.get(group, 0))

    def check_acknowledged(self) -> None:
        """What clients were told that it is done."""
        for name in self.topics_acked:
            if name not in self.image.topics:
                self.world.broken(f"the making of {name} was acknowledged, and it is not there")
        for group, number in self.set_acked.items():
            # An older change may have come later.
            if SETTING not in self.image.config(ResourceType.GROUP, group):
                self.world.broken(f"{number} was set for {group}, and nothing is")

    def alter_isr(
        self, life: Life, wanted: WantedIsr, answered: Callable[[IsrResult | ProtocolError], None]
    ) -> None:
        asker = _member(life)
        assert asker.image is not None
        controller_id = asker.image.controller_id
        epoch = asker.epoch
        if controller_id < 0:
            return

        def ask(other: Life) -> None:
            decider = _member(other)

            async def decide() -> None:
                before = self._isr(wanted)
                result: IsrResult | ProtocolError
                try:
                    result = await decider.alter_isr(asker, epoch, wanted)
                except ProtocolError as error:
                    result = error
                self._answer(decider, asker, result, answered)
                if isinstance(result, IsrResult):
                    self.world.set_changed(result, set(self._isr(wanted)) - set(before))

            decider.spawn(decide())

        joining = {member for member, _ in wanted.isr} - set(self._isr(wanted))
        later = 400 if self.world.restart_before_join(joining) else 0
        if controller_id == asker.id:
            asker.after(later, lambda: ask(asker))
        else:
            self.world.after(later, lambda: self.world.send(asker.id, controller_id, ask))

    def _answer(
        self,
        decider: MemberLife,
        asker: MemberLife,
        result: IsrResult | ProtocolError,
        answered: Callable[[IsrResult | ProtocolError], None],
    ) -> None:
        def take(here: Life) -> None:
            if here is asker:
                answered(result)

        if decider is asker:
            take(asker)
        else:
            self.world.send(decider.id, asker.id, take)

    # The store ----------------------------------------------------------------------------------

    def connect(self, life: MemberLife) -> Store:
        chance = random.Random(self.world.storing.random())
        inner = EnsembleStore(self.ensemble, Connection(life), chance, SESSION_MS / 1000)
        self.lives[inner.session_id] = life
        # It may begin at a server that is behind for a while.
        behind = self.world.now + self.world.storing.choice((0, 0, 250))
        if not self.world.is_healing:
            self.silent_until[life.id] = max(behind, self.silent_until.get(life.id, 0))
        faulty = FaultyStore(inner, self.world.storing.randrange(1 << 30), self.faults)
        self.stores.append(faulty)
        return faulty

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults
        for each in self.stores:
            each.faults = faults

    def cut_off(self, life: MemberLife, length: int) -> None:
        """A broker does not reach the store for a while; its session ends if that takes too long."""
        self.world.note(f"broker {life.id} does not reach the store for {length} ms")
        cut = [
            each for session, each in self._sessions_of(life) if session in self.ensemble.sessions
        ]
        for each in cut:
            each.break_connection()

        def mend() -> None:
            for each in cut:
                each.mend_connection()

        if length > SESSION_MS:
            self.world.after(SESSION_MS, lambda: None if life.ended else self.expire(life))
        life.after(length, mend)

    def mend(self) -> None:
        """The store is well again, and so are the connections to it."""
        self.set_faults(Faults())
        for life in self.world.members():
            for _, each in self._sessions_of(life):
                each.mend_connection()

    def _sessions_of(self, life: MemberLife) -> Iterator[tuple[int, EnsembleStore]]:
        for each in self.stores:
            inner = each.inner
            assert isinstance(inner, EnsembleStore)
            if self.lives[inner.session_id] is life:
                yield inner.session_id, inner

    def _committed(self, made: Commit) -> None:
        life = self.lives.get(made.session)
        before = self.checks.writes
        self.checks.look(made, None if life is None else life.id)
        if life is None or self.checks.writes == before:
            return
        revision = self.ensemble.tree.nodes[layout.REVISION].version
        self.world.note(f"controller {life.id} writes revision {revision}")
        if self.writes_to_live is not None and not life.ended and not self.world.is_healing:
            self.writes_to_live -= 1
            if self.writes_to_live <= 0:
                self.writes_to_live = None
                self.killed_in_office += 1
                self.world.after(0, lambda: self.world.kill_in_office(life))


def _member(life: Life) -> MemberLife:
    assert isinstance(life, MemberLife)
    return life


class ControlledWorld(World):
    LIFE: ClassVar[type[Life]] = MemberLife
    topics: ClassVar[dict[str, int]] = {TOPIC: 2, OTHER: 2}

    def __init__(self, seed: int, **options: Any) -> None:
        # Of its own, so that the store's delays change nothing else.
        self.storing = random.Random(seed)
        self.failure: BaseException | None = None
        # Kept to the end: what is left of a process that has ended must not run when it is collected.
        self.former: list[Life] = []
        self.suspicions = 0
        super().__init__(seed, **options)

    def make_controller(self, brokers: list[int]) -> Controller:
        self.office = Office(self, brokers)
        return self.office

    def members(self) -> list[MemberLife]:
        """The lives that there are now."""
        return [_member(each.life) for each in self.brokers.values() if each.life is not None]

    def broken(self, what: str) -> None:
        try:
            super().broken(what)
        except Broken as error:
            # Whoever catches everything catches this, too.
            self.failure = self.failure or error
            raise

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure
        super().check()

    def led(self, life: Life, partition: Partition) -> None:
        super().led(life, partition)
        key = (partition.topic, partition.index)
        named = self.office.checks.leaders.get((key, partition.leader_epoch))
        if named != life.id:
            self.broken(
                f"broker {life.id} leads {key} in epoch {partition.leader_epoch}, and the store "
                f"names {named}"
            )

    # Faults -------------------------------------------------------------------------------------

    def cannot_start(self, life: MemberLife) -> None:
        """The process ends by itself, and is started again."""
        broker = life.broker
        if broker.life is not life:
            return
        broker.kill(power=False)
        self.office.expire(life)
        self.after(RESTART_MS, lambda: None if broker.life else broker.start())

    def kill_in_office(self, life: MemberLife) -> None:
        if life.broker.life is life and not self.is_healing:
            self.note(f"broker {life.id} is killed while it writes as controller")
            self._end(life.broker, power=False)

    def faults(self) -> None:
        chance = self.storing
        if chance.random() < 0.5:
            super().faults()
            return
        holder = self.office.holder
        lives = self.members()
        if not lives:
            return
        life = chance.choice(lives) if holder is None or chance.random() < 0.4 else holder
        match chance.randrange(6):
            case 0:
                self.stand_still(life, chance.choice((30, 300, 900)))
            case 1:
                # It may be standing still in the middle of something, and goes on believing.
                if chance.random() < 0.7:
                    self.stand_still(life, chance.choice((100, 300, 900)))
                self.note(f"broker {life.id} is taken for dead")
                self.suspicions += 1
                self.office.suspect(life, is_certain=False)
                other = chance.choice(lives)
                if other is not life and chance.random() < 0.5:
                    # Also by a controller that was replaced, and does not know.
                    went_on = max(0, life.paused_until - self.now) + chance.randint(0, 20)
                    self.after(went_on, lambda: self._suspect(other))
            case 2:
                self.office.cut_off(life, chance.choice((20, 200, 600, 1500)))
            case 3:
                self.office.writes_to_live = chance.randint(1, 6)
            case 4:
                faults = chance.choice(FAULTS)
                self.note(f"the store's answers get lost: {faults}")
                self.office.set_faults(faults)
            case 5:
                self.note(f"the session of broker {life.id} is ended by the store")
                self.office.expire(life)

    def _suspect(self, life: MemberLife) -> None:
        if not self.is_healing:
            self.note(f"broker {life.id} is taken for dead, too")
            self.office.suspect(life, is_certain=False)

    def stand_still(self, life: Life, length: int) -> None:
        if life.is_paused:
            return
        super().stand_still(life, length)
        if length > SESSION_MS:
            self.after(SESSION_MS, lambda: self._expire_paused(_member(life)))

    def _expire_paused(self, life: MemberLife) -> None:
        if life.is_paused:
            self.office.expire(life)

    # In the end ---------------------------------------------------------------------------------

    def end(self) -> None:
        """All processes end, and nothing of them is left."""
        for life in self.former:
            life.ended = True
            _member(life).loop.close()

    def heal(self) -> None:
        self.office.writes_to_live = None
        self.office.mend()
        super().heal()
        self._check_metadata()
        self.office.check_acknowledged()

    def _has_healed(self) -> bool:
        lives = self.members()
        return (
            len(lives) == len(self.brokers)
            and all(each.membership is not None and each.membership.is_member for each in lives)
            and sum(1 for each in lives if each.controller is not None) == 1
            and super()._has_healed()
        )

    def _check_metadata(self) -> None:
        # Somebody may have stood for office a moment ago.
        for _ in range(50):
            if self._has_healed() and self._difference() is None:
                return
            self.run(200)
        self.broken(self._difference() or "the cluster does not stay healed")

    def _difference(self) -> str | None:
        """Who has another image than the store."""
        image = self.office.image
        for life in self.members():
            assert life.membership is not None
            if life.membership.image != image:
                return f"broker {life.id} has another image than the store"
            if life.controller is not None and life.controller.image != image:
                return f"controller {life.id} has another image than the store"
        return None


class _Failures(logging.Handler):
    """What was caught and logged with its traceback is a failure here."""

    def __init__(self, world: ControlledWorld) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = None if record.exc_info is None else record.exc_info[1]
        if error is not None and self._world.failure is None:
            self._world.failure = error


@contextmanager
def in_time_of(world: ControlledWorld) -> Iterator[None]:
    """The cluster's code goes by the world's clocks, and takes turns after some steps."""
    steps = 0

    def clock() -> float:
        nonlocal steps
        steps += 1
        return steps * turns.SLICE_SECONDS / 20

    logger = logging.getLogger("ottla.cluster")
    handler = _Failures(world)
    level, propagates = logger.level, logger.propagate
    with ExitStack() as stack:
        stack.enter_context(patch.object(turns, "clock", clock))
        for module in (store, membership):
            stack.enter_context(patch.object(module, "boottime", lambda: world.now / 1000))
        logger.addHandler(handler)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagates


def run_controlled_seed(
    seed: int, *, steps: int = 40, brokers: int = 3, moves: float = 0.0, min_isr: int = 2
) -> ControlledWorld:
    """As `run_seed`. In two of three seeds partitions have nodes of their own, as in large topics."""
    chunk = 1 if seed % 3 else layout.CHUNK
    with patch.object(layout, "CHUNK", chunk):
        world = ControlledWorld(seed, brokers=brokers, is_moving=moves > 0, min_isr=min_isr)
        with in_time_of(world):
            try:
                _run(world, steps, moves)
            finally:
                world.end()
    return world


def _run(world: ControlledWorld, steps: int, moves: float) -> None:
    world.run(1000)
    for step in range(steps):
        for _ in range(world.chance.randint(0, 8)):
            world.produce()
        if world.chance.random() < 0.5:
            world.faults()
        for _ in range(READS):
            world.reader.ask()
        if moves and world.chance.random() < moves:
            world.move()
        if world.storing.random() < 0.3:
            world.office.change(step)
        world.run(world.chance.choice((5, 20, 100, 400)))
    world.heal()
