"""A broker's place in its cluster: its session with the store, its registration, its candidacy.

- `open` connects and finds the cluster in the store, or founds it.
- `join` registers the broker by an ephemeral node and waits until the controller has taken it in.
- From `open` on the broker stands for controller whenever there is none.
- A session that is lost is replaced by a new one: the broker registers anew, with a new epoch, and
  until it is taken in again it is not part of the cluster. A store that has lost the cluster, or has
  another one, is no reason to found one or to follow that: it is looked at again until the right one is
  back.

Two brokers with one id: the node of the first stands in the way of the second. Only a broker with the
same data folder takes the node over, for a folder's lock has one holder: its former life has ended. A
copy of the folder has a lock of its own. So where the node tells another address, and somebody answers
there, the session of its owner has to end first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.cluster import layout
from ottla.cluster.controller import Controller, NotElected, UnsupportedFeature
from ottla.cluster.decisions.features import fault_of_broker
from ottla.cluster.loading import ClusterGone
from ottla.cluster.membership.following import MetadataFollower
from ottla.cluster.metadata import ClusterImage, ImageDelta, RegisteredBroker
from ottla.cluster.store import (
    Conflict,
    Create,
    Delete,
    Node,
    Operation,
    SessionEvent,
    SessionLost,
    Store,
    StoreError,
    StoreUnavailable,
    boottime,
)

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
# How often the store confirms a session in which nothing is written, in each of its time-outs.
CONFIRMATIONS_PER_TIMEOUT = 3
# Attempts to take over or make the broker's node before it is told that another has it.
_REGISTRATIONS = 50
# How long a connection may take to the address of one who has this broker's id.
_PROBE_SECONDS = 1.0


class BrokerIdTaken(StoreError):
    """Another broker has registered with this id."""


class NoCluster(StoreError):
    """The store is empty, and the broker is not one to found a cluster."""


async def _answers(broker: RegisteredBroker) -> bool:
    """Whether somebody accepts connections at one of a broker's addresses."""
    for endpoint in broker.endpoints:
        try:
            connecting = asyncio.open_connection(endpoint.host, endpoint.port)
            _, writer = await asyncio.wait_for(connecting, _PROBE_SECONDS)
        except (OSError, TimeoutError):
            continue
        writer.close()
        return True
    return False


class Membership:
    """One broker's membership. Belongs to the event loop it was opened on."""

    def __init__(
        self,
        broker_id: int,
        connect: Callable[[], Store],
        make_controller: Callable[[Store], Controller],
        *,
        reconnects: bool,
    ) -> None:
        """`connect` makes a session that is not started yet. `reconnects`: a lost session can be
        replaced; otherwise `on_lost` is called, and that is the end."""
        self.broker_id = broker_id
        self._connect = connect
        self._make_controller = make_controller
        self._reconnects = reconnects
        self.store = connect()
        self.follower = MetadataFollower(self.store)
        # The epoch of this broker's registration, -1 without one.
        self.epoch = -1
        # Called when the session is lost for good.
        self.on_lost: Callable[[], None] = lambda: None
        # Called when the broker knows the epoch with which it has registered again. It may have been
        # taken in before, and have counted itself none of the members until now.
        self.on_registered: Callable[[], None] = lambda: None
        # Called when the controller of this broker takes or leaves office.
        self.on_office: Callable[[], None] = lambda: None
        self._controller: Controller | None = None
        # How it registers, and whether it may have lost records of which the cluster does not know.
        self._registration: tuple[RegisteredBroker, bool] | None = None
        self._vacancy = asyncio.Event()
        # The node /controller of one whose process is known to be dead.
        self._dead_controller: Node | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: asyncio.Task[None] | None = None
        # Of those who wait for what holds with some image, or with some registration.
        self._looks: list[Callable[[], None]] = []
        self._look_again = False  # something happened since the registration was last read
        self._reconnecting: asyncio.Task[None] | None = None
        # Whether the broker registers again when it finds itself without a registration.
        self._stays = True
        self._is_closing = False

    @property
    def controller(self) -> Controller | None:
        """The controller of this broker while it is in office."""
        controller = self._controller
        return controller if controller is not None and controller.in_office else None

    @property
    def image(self) -> ClusterImage:
        return self.follower.image

    @property
    def is_member(self) -> bool:
        """Whether the controller has taken this life of the broker in, as far as is known here."""
        if not self.follower.is_open:
            return False
        taken_in = self.image.brokers.get(self.broker_id)
        return taken_in is not None and taken_in.epoch == self.epoch

    @property
    def can_be_fenced(self) -> bool:
        """Whether the cluster may have gone on without this broker: it has no session, the store has
        confirmed it nothing for so long that the session may have ended, or it has registered again
        and does not know yet what was decided meanwhile."""
        store = self.store
        timeout = store.session_timeout
        if timeout is None:
            return False
        return boottime() - store.last_commit > timeout or self.epoch < 0 or not self.is_member

    # Coming

    async def open(self, *, founds: bool = True) -> ClusterImage:
        """Connects; the image of the cluster. If the store is empty one is founded, or NoCluster
        raised."""
        await self.store.start()
        # The first image is there before anybody stands for office, unless there is no cluster.
        if await self.follower.open() is None and not founds:
            raise NoCluster("there is no cluster in the metadata store")
        await self._stand_until_answered()
        while not self.follower.is_open:
            await self.follower.open()
        self._begin()
        return self.image

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self.follower.on_controller = self._vacancy.set
        self.follower.on_registrations = self._registrations_changed
        self._tasks = [
            loop.create_task(self.follower.run(), name="metadata"),
            loop.create_task(self._candidacy(), name="candidacy"),
            loop.create_task(self._watch_session(self.store), name="session"),
        ]
        if self.store.answers_can_be_stale:
            self._tasks.append(loop.create_task(self._confirm(self.store), name="confirmation"))

    async def join(self, broker: RegisteredBroker, lost_data: bool) -> int:
        """Registers, and waits to be taken in; the broker's epoch. BrokerIdTaken if another broker
        with this id is running, UnsupportedFeature if the cluster works at levels that it has not."""
        self._require_support(broker)
        self._registration = (broker, lost_data)
        self.epoch = await self._register(broker, lost_data)
        # The levels may be raised in this moment; then no controller takes it in.
        await self.until(
            lambda: self.is_member or fault_of_broker(self.image.features, broker) is not None
        )
        self._require_support(broker)
        # The cluster knows what was lost. From here on the process goes on, and so do its logs.
        self._registration = (broker, False)
        return self.epoch

    def _require_support(self, broker: RegisteredBroker) -> None:
        fault = fault_of_broker(self.image.features, broker)
        if fault is not None:
            raise UnsupportedFeature(fault)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for an image with which the condition holds."""
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not held.done() and condition():
                held.set_result(None)

        unsubscribe = self.follower.subscribe(lambda _old, _new, _delta: look())
        self._looks.append(look)
        try:
            if not condition():
                await held
        finally:
            self._looks.remove(look)
            unsubscribe()

    async def _register(self, broker: RegisteredBroker, lost_data: bool) -> int:
        path = layout.broker_path(broker.id)
        value = layout.encode_broker(broker, lost_data)
        for _ in range(_REGISTRATIONS):
            try:
                node = await self.store.get(path)
                is_ours = node is not None and node.owner == self.store.session_id
                if node is not None and is_ours and node.value == value:
                    return node.created
                operations: list[Operation] = [Create(path, value, ephemeral=True)]
                if node is not None:
                    if not is_ours and await self._is_anothers(broker, node):
                        continue
                    operations.insert(0, Delete(path, node.version))
                answer = await self.store.multi(operations)
                if isinstance(answer, Conflict):
                    log.info("broker %d registers again: %s", broker.id, answer.reason.value)
                # Also after Unknown: what is found settles it.
                await self.store.sync()
            except StoreUnavailable as error:
                log.warning("the metadata store gives no answer: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
        raise BrokerIdTaken(f"broker {broker.id} could not register: another one keeps doing so")

    async def _is_anothers(self, broker: RegisteredBroker, node: Node) -> bool:
        """Whether a registration is of another process that may be at work. False if that is out of the
        question: with the same data folder, which has one owner. True when it has gone; BrokerIdTaken
        if it stays for longer than the session of a process that has ended."""
        other, _ = layout.decode_broker(broker.id, node)
        has_own_folder = other.folder_id == broker.folder_id
        is_here = other.endpoints == broker.endpoints  # this process listens there now
        end = boottime() + 2 * (self.store.session_timeout or 0.0)
        while True:
            answers = not is_here and await _answers(other)
            if has_own_folder and not answers:
                return False
            # A copy of the folder may be in use. With another folder, of a disk that was replaced, the
            # former process has ended if nobody answers.
            if boottime() >= end or (answers and not has_own_folder):
                where = ", ".join(f"{each.host}:{each.port}" for each in other.endpoints)
                raise BrokerIdTaken(
                    f"a broker with id {broker.id} is running at {where}, "
                    + (
                        "and this data folder is a copy of its own; give this broker an id and a "
                        "folder of its own"
                        if has_own_folder
                        else "with another data folder; give this one an id of its own (node.id)"
                    )
                )
            await asyncio.sleep(_RETRY_SECONDS)
            found = await self.store.get(layout.broker_path(broker.id))
            if found is None or found.created != node.created:
                return True

    # Going

    def leave(self) -> None:
        """Register no more if a controller fences this broker, which is about to stop."""
        self._stays = False

    async def close(self) -> None:
        """Lays down the office if it is held, and ends the session in good order."""
        self._is_closing = True
        self._stays = False
        for task in (self._looking, self._reconnecting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._controller is not None:
            await self._controller.close()
            self._controller = None
        await self.store.close()

    # The office

    def replace_controller(self, node: Node) -> None:
        """Stand for controller although this node exists: its holder is known to be dead."""
        self._dead_controller = node
        self._vacancy.set()

    def _registrations_changed(self) -> None:
        controller = self.controller
        if controller is not None:
            controller.registrations_changed()
        self._look_again = True
        if self.epoch >= 0 and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(
                self._look_at_own_registration(), name="own registration"
            )

    async def _look_at_own_registration(self) -> None:
        """Register again if a controller that took this broker for dead has deleted its registration:
        as the next life of the broker, for others may lead what it led."""
        while True:
            try:
                await self._register_if_fenced()
                return
            except SessionLost as error:
                log.info("the broker's own registration is not looked at: %s", error)
                return  # it registers with its next session
            except StoreError as error:
                # Nobody tells of it once more.
                log.warning("the broker's own registration is looked at again: %s", error)
                self._look_again = True
                await asyncio.sleep(_RETRY_SECONDS * 10)

    async def _register_if_fenced(self) -> None:
        node = None
        while self._look_again:
            self._look_again = False
            node = await self.store.get(layout.broker_path(self.broker_id))
        if self._registration is None or not self._stays:
            return
        if node is not None and self.epoch >= 0:
            return
        log.warning("broker %d was fenced, and registers again", self.broker_id)
        self.epoch = -1
        await self._register_again()

    async def _register_again(self) -> None:
        assert self._registration is not None
        # With what may have been lost, if the controller has not heard of that yet.
        self.epoch = await self._register(*self._registration)
        for look in tuple(self._looks):
            look()  # there may be no further image: this one may have been taken in already
        try:
            self.on_registered()
        except Exception:
            # As with subscribers: the session is as good as before.
            log.exception("the broker failed over its registration")

    async def _stand_until_answered(self) -> None:
        """Stands for controller, again and again while the store gives no answer."""
        while True:
            try:
                return await self._stand_for_controller()
            except StoreUnavailable as error:
                log.warning("the metadata store gives no answer: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _candidacy(self) -> None:
        self._vacancy.set()
        while True:
            await self._vacancy.wait()
            self._vacancy.clear()
            try:
                await self._stand_for_controller()
            except SessionLost:
                return
            except StoreError as error:
                log.warning("standing for controller failed: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._vacancy.set()

    async def _stand_for_controller(self) -> None:
        """Takes office if nobody holds it. If this broker's controller is in office, it is told when
        another has taken its place: nobody may ever ask it for anything again."""
        if self.controller is None:
            dead, self._dead_controller = self._dead_controller, None
        else:
            dead = None
        try:
            holder = await self.store.get(layout.CONTROLLER)
        except StoreUnavailable:
            self._vacancy.set()
            raise
        is_other = holder is not None and holder.owner != self.store.session_id
        if self.controller is not None:
            if holder is None or is_other:
                self.controller.office_may_be_lost()
            return
        if holder is not None and is_other and (dead is None or dead.created != holder.created):
            return
        if self._controller is not None:
            await self._controller.close()
            self._controller = None
        controller = self._make_controller(self.store)
        controller.on_resigned = self._resigned
        try:
            await controller.open(
                replacing=dead,
                elected=self._elected,
                known=self.image if self.follower.is_open else None,
            )
        except NotElected:
            return
        self._controller = controller
        controller.subscribe(self._publish)
        # A single broker is always its own controller: no news.
        level = logging.INFO if self._reconnects else logging.DEBUG
        log.log(level, "broker %d is the controller, epoch %d", self.broker_id, controller.epoch)
        self.on_office()

    async def _elected(self, image: ClusterImage) -> None:
        """The controller here has taken office: its image is the newest that there is. Unless the
        process stood still, and another has been elected since: then the broker knows more than it does,
        and must not go back. Topics that were made meanwhile would be gone, and their logs with them."""
        if self.follower.is_open and self.image.version > image.version:
            raise NotElected("another controller has taken office since")
        self.follower.led = True
        await self.follower.take_over(image, of_controller=True)

    def _publish(self, _old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        self.follower.publish(new, delta)

    def _resigned(self) -> None:
        self.follower.led = False
        self.follower.resync()
        self._vacancy.set()
        self.on_office()

    # The session

    async def _confirm(self, store: Store) -> None:
        """Has the store confirm now and then that the session lives, where nothing else that is
        written does: see `can_be_fenced`."""
        while True:
            interval = (store.session_timeout or 0.0) / CONFIRMATIONS_PER_TIMEOUT
            rest = interval - (boottime() - store.last_commit)
            if rest > 0:
                await asyncio.sleep(rest)
                continue
            try:
                await store.sync()
            except SessionLost:
                return
            except StoreError as error:
                log.debug("the metadata store does not confirm the session: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _watch_session(self, store: Store) -> None:
        events = store.session_events()
        if store.session_state is not SessionEvent.LOST:
            async for event in events:
                if event is SessionEvent.LOST:
                    break
        if self._is_closing:
            return
        self.epoch = -1
        self.on_lost()
        if self._reconnects:
            # Not as one of the tasks that it ends.
            self._reconnecting = asyncio.get_running_loop().create_task(
                self._reconnect(), name="reconnection"
            )

    async def _reconnect(self) -> None:
        log.warning("broker %d lost its session and connects anew", self.broker_id)
        await self._let_go()
        logged = ""
        while not self._is_closing:
            try:
                self.store = self._connect()
                await self.store.start()
                self.follower.move_to(self.store)
                await self.follower.open()
                self._begin()
                if self._registration is not None and self._stays:
                    await self._register_again()
                return
            except Exception as error:
                # Whatever it is: nobody would try again if the task ended here.
                if not isinstance(error, StoreError):
                    log.exception("no new session with the metadata store")
                elif not isinstance(error, ClusterGone) or str(error) != logged:
                    log.error("no new session with the metadata store: %s", error)
                logged = str(error)  # a cluster may be gone for hours
                await self._let_go()
                await self.store.close()  # it may live, and hold the office
                await asyncio.sleep(_RETRY_SECONDS * 10)

    async def _let_go(self) -> None:
        """Ends all that goes on in a session, in office or not."""
        ended = [*self._tasks, *([] if self._looking is None else [self._looking])]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        if self._controller is not None:
            await self._controller.close()
            self._controller = None
        self.follower.led = False
