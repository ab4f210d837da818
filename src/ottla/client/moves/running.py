"""Carrying out a plan of moves, a few partitions at a time, and telling what was copied so far.

The moves are the brokers' own (reassignments): whoever carries out a plan may die, the moves that have
begun come to their end without it. A limit that was set for the plan is lifted at its end. If the plan
is interrupted, the limit stays with the moves that go on, and is lifted at the end of the next plan,
unless they are still under way then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ottla.client.admin.client import Admin
from ottla.client.admin.configs import Resource
from ottla.client.admin.topics import PartitionDescription
from ottla.client.errors import BrokerError, Failures, OttlaError, TopicNotFound
from ottla.client.moves.plan import BrokerRoom, Move, NoPlan, PlacedPartition
from ottla.client.positions import TopicPartition
from ottla.protocol.errors import ErrorCode

# Partitions that are on their way at the same time.
AT_ONCE = 10
_LOOK_SECONDS = 0.2
# For how long a controller that was elected meanwhile may tell of where partitions were before.
_SETTLE_SECONDS = 15.0
# Tries to see all partitions while others end, or begin, moves.
_PLACEMENT_TRIES = 50
_SAMPLE_SECONDS = 2.0
_SIDES = ("leader", "follower")
_RATES = [f"{side}.replication.throttled.rate" for side in _SIDES]
_NAMED = [f"{side}.replication.throttled.replicas" for side in _SIDES]


class MovesFailed(OttlaError):
    """A plan that was begun did not come to its end: some of it was moved elsewhere, or back."""

    def __init__(self, message: str, limited: Sequence[int] = ()) -> None:
        """`limited`: brokers that still have the rates of the plan, as `carry_out` returns them."""
        super().__init__(message)
        self.limited = limited


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """How far a plan has come."""

    moves_done: int
    moves: int
    bytes_done: int
    bytes: int
    rate: float  # bytes a second since it began

    @property
    def seconds_left(self) -> float | None:
        left = self.bytes - self.bytes_done
        return left / self.rate if self.rate > 0 and left > 0 else None


def survey(
    admin: Admin, *, seconds: float = _SAMPLE_SECONDS
) -> tuple[list[PlacedPartition], list[BrokerRoom]]:
    """What there is: partitions with their sizes, and what came in during some seconds; brokers with
    their racks and the room on their disks. 0 seconds: traffic is not looked at."""
    sizes, rooms = _sizes(admin)
    began = time.monotonic()
    traffic: dict[TopicPartition, float] = {}
    if seconds > 0:
        time.sleep(seconds)
        later, _ = _sizes(admin)
        passed = time.monotonic() - began
        traffic = {
            each: max(0, size - sizes.get(each, size)) / passed for each, size in later.items()
        }
        sizes = later
    placed, leaderless = _placement(admin)
    partitions = [
        PlacedPartition(
            each, replicas, sizes.get(each, 0), traffic.get(each, 0.0), each not in leaderless
        )
        for each, replicas in placed.items()
    ]
    cluster = admin.describe_cluster()
    brokers = [BrokerRoom(node.id, node.rack, rooms.get(node.id)) for node in cluster.brokers]
    brokers += [BrokerRoom(node.id, node.rack, is_away=True) for node in cluster.away]
    return partitions, brokers


def _placement(admin: Admin) -> tuple[dict[TopicPartition, tuple[int, ...]], set[TopicPartition]]:
    """Where partitions lie, and which have no leader; one that is being moved counts as where it goes.

    Both are asked of the controller, and only taken together if no move began or ended in between. A
    partition whose move has just ended would else count as one with the replicas of before as well,
    and a plan would keep so many.
    """
    moves = _leaving(admin)
    for _ in range(_PLACEMENT_TRIES):
        partitions = _partitions(admin)
        before, moves = moves, _leaving(admin)
        if before == moves:
            placed = {
                each: tuple(one for one in found.replicas if one not in moves.get(each, ()))
                for each, found in partitions.items()
            }
            return placed, {each for each, found in partitions.items() if found.leader is None}
    raise MovesFailed("somebody else moves many partitions; wait until that has come to its end")


def _partitions(admin: Admin) -> dict[TopicPartition, PartitionDescription]:
    """As the controller knows them: other brokers hear of changes later."""
    return {
        TopicPartition(topic.name, each.partition): each
        for topic in admin.list_topics(internal=True, from_controller=True)
        for each in topic.partitions
    }


def _leaving(admin: Admin) -> dict[TopicPartition, tuple[int, ...]]:
    return {each.partition: each.removing for each in admin.list_reassignments()}


def _sizes(admin: Admin) -> tuple[dict[TopicPartition, int], dict[int, int]]:
    """Bytes of each partition, and the room of each broker. (A replica on its way has less.)"""
    sizes: dict[TopicPartition, int] = {}
    rooms: dict[int, int] = {}
    for folder in admin.describe_log_folders():
        # Folders on one disk count its room once. One that failed has none.
        if folder.is_offline:
            rooms.setdefault(folder.broker, 0)
        elif folder.usable_bytes is not None:
            rooms[folder.broker] = max(rooms.get(folder.broker, 0), folder.usable_bytes)
        for each in folder.replicas:
            sizes[each.partition] = max(sizes.get(each.partition, 0), each.size)
    return sizes, rooms


def carry_out(
    admin: Admin,
    moves: Sequence[Move],
    *,
    throttle: int | None = None,
    at_once: int = AT_ONCE,
    tell: Callable[[MoveProgress], None] = lambda _: None,
) -> list[int]:
    """Does all of it; returns when the last has come to its end. `throttle`: bytes a second for each
    broker, as leader and as follower. What a broker refuses is raised; what has begun goes on. The
    brokers that are returned were away when limits were lifted, and still have their rates, which are
    for no replica any more. NoPlan, and nothing is moved, if a part of the plan would be refused when
    its turn came. MovesFailed if partitions lie elsewhere in the end than the plan wanted."""
    _check(admin, moves)
    left: list[int] = []
    with _throttled(admin, moves, throttle, left):
        _carry_out(admin, moves, at_once, tell)
    lift_left_limits(admin)
    there, elsewhere = _ends(admin, moves)
    # Those whose order changed lead now.
    wanted = [each.partition for each in there if each.before[0] != each.after[0]]
    if wanted:
        _elect(admin, wanted)
    if elsewhere:
        raise MovesFailed(
            f"{len(elsewhere)} partitions are not where the plan wanted them "
            f"({elsewhere[0].partition}, …): somebody moved them meanwhile",
            left,
        )
    return left


def _check(admin: Admin, moves: Sequence[Move]) -> None:
    """NoPlan if something is wrong with any of the moves: they begin a few at a time, and half of a plan
    is worse than none."""
    named: set[TopicPartition] = set()
    needed: dict[int, int] = {}
    for move in moves:
        if move.partition in named:
            raise NoPlan(f"the plan names {move.partition} twice")
        named.add(move.partition)
        if not move.after:
            raise NoPlan(f"the plan leaves {move.partition} without a replica")
        for broker in move.adding:
            needed[broker] = needed.get(broker, 0) + move.size
    missing = sorted(needed.keys() - {each.id for each in admin.describe_cluster().brokers})
    if missing:
        raise NoPlan(f"broker {missing[0]}, to which the plan moves partitions, is not there")
    _, rooms = _sizes(admin)
    for broker, size in sorted(needed.items()):
        if size > rooms.get(broker, size):
            raise NoPlan(
                f"broker {broker} has room for {rooms[broker]} bytes, and the plan wants {size} of it"
            )


def _elect(admin: Admin, partitions: Sequence[TopicPartition]) -> None:
    """Has preferred leaders elected; one that died meanwhile leads when it is back."""
    try:
        admin.elect_leaders(partitions)
    except OttlaError as error:
        errors = error.exceptions if isinstance(error, Failures) else (error,)
        codes = {each.code if isinstance(each, BrokerError) else None for each in errors}
        if codes != {ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}:
            raise


def _carry_out(
    admin: Admin, moves: Sequence[Move], at_once: int, tell: Callable[[MoveProgress], None]
) -> None:
    began = time.monotonic()
    waiting = list(moves)
    under_way: dict[TopicPartition, Move] = {}
    done: list[Move] = []
    total = sum(each.bytes for each in moves)
    while waiting or under_way:
        begin = waiting[: at_once - len(under_way)]
        del waiting[: len(begin)]
        if begin:
            under_way.update((each.partition, each) for each in _begin(admin, begin))
        moving = {each.partition for each in admin.list_reassignments()}
        done += [under_way.pop(each) for each in list(under_way) if each not in moving]
        copied = sum(each.bytes for each in done) + _copied(admin, under_way)
        passed = time.monotonic() - began
        tell(
            MoveProgress(
                len(done), len(moves), copied, total, copied / passed if passed > 0 else 0.0
            )
        )
        if under_way:
            time.sleep(_LOOK_SECONDS)


def _begin(admin: Admin, moves: Sequence[Move]) -> Sequence[Move]:
    """Begins moves; returns those whose partitions were not deleted since the plan was made."""
    try:
        admin.alter_reassignments({each.partition: each.after for each in moves})
    except OttlaError:
        # Some may have been deleted since the plan was made; any other refusal comes again.
        there = _partitions(admin)
        left = [each for each in moves if each.partition in there]
        if len(left) == len(moves):
            raise
        return _begin(admin, left) if left else []
    return moves


def _copied(admin: Admin, under_way: Mapping[TopicPartition, Move]) -> int:
    """Bytes that the new replicas of these have by now."""
    targets = {broker for move in under_way.values() for broker in move.adding}
    if not targets:
        return 0
    try:
        folders = admin.describe_log_folders(targets)
    except OttlaError:
        return 0  # one of them is away; its move waits for it
    return sum(
        min(each.size, under_way[each.partition].size)
        for folder in folders
        for each in folder.replicas
        if each.partition in under_way and folder.broker in under_way[each.partition].adding
    )


def _ends(admin: Admin, moves: Sequence[Move]) -> tuple[list[Move], list[Move]]:
    """The moves whose partitions are where they were to be, and those whose are not: somebody may have
    moved them elsewhere, or cancelled a move. Partitions that were deleted meanwhile are neither."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        found = _partitions(admin)
        there: list[Move] = []
        elsewhere: list[Move] = []
        for each in moves:
            partition = found.get(each.partition)
            if partition is not None:
                is_there = set(partition.replicas) == set(each.after)
                (there if is_there else elsewhere).append(each)
        if not elsewhere or time.monotonic() > deadline:
            return there, elsewhere
        time.sleep(_LOOK_SECONDS)


def lift_left_limits(admin: Admin) -> bool:
    """Lifts the limits that interrupted plans have left, once nothing is being moved any more. Whether
    there were any. A limit for all replicas of a topic (`*`) is somebody's own, and stays."""
    if admin.list_reassignments():
        return False
    left = _limited_topics(admin)
    if left:
        _lift(admin, left, [each.id for each in admin.describe_cluster().brokers])
    return bool(left)


def _limited_topics(admin: Admin) -> list[str]:
    """The topics whose settings limit replicas by name, as plans do."""
    topics = [Resource.topic(each.name) for each in admin.list_topics(internal=True)]
    if not topics:
        return []
    return [
        topic.name
        for topic, settings in admin.describe_configs(topics, names=_NAMED).items()
        if any(":" in (each.value or "") for each in settings.values())
    ]


def await_departures(
    admin: Admin, broker: int, *, throttle: int | None = None, tell: Callable[[int], None]
) -> None:
    """Waits for the moves under way by which replicas leave a broker, which a plan counts as done:
    those of a plan that was interrupted. The limit that it left with them becomes `throttle`, or is
    lifted. `tell` is told how many are left."""
    waited = False
    while left := sum(broker in each.removing for each in admin.list_reassignments()):
        tell(left)
        if not waited and (limited := _limited_topics(admin)):
            _change_limits(admin, limited, throttle)
        waited = True
        time.sleep(_LOOK_SECONDS)
    if waited:
        lift_left_limits(admin)


def _change_limits(admin: Admin, topics: Sequence[str], rate: int | None) -> None:
    """Another rate for the replicas that these topics name; None: none."""
    brokers = [each.id for each in admin.describe_cluster().brokers]
    if rate is None:
        _lift(admin, topics, brokers)
        return
    for broker in brokers:
        admin.alter_configs(Resource.broker(broker), assign=dict.fromkeys(_RATES, str(rate)))


@contextmanager
def _throttled(
    admin: Admin, moves: Sequence[Move], rate: int | None, left: list[int]
) -> Iterator[None]:
    if rate is None:
        yield
        return
    running = {each.id for each in admin.describe_cluster().brokers}
    named = {each for move in moves for each in (*move.before, *move.after)}
    brokers = sorted(named & running)  # one that is away copies nothing
    topics = sorted({move.partition.topic for move in moves})
    try:
        for broker in brokers:
            admin.alter_configs(Resource.broker(broker), assign=dict.fromkeys(_RATES, str(rate)))
        for topic in topics:
            of_topic = [move for move in moves if move.partition.topic == topic]
            pairs = (
                [(move.partition.partition, each) for move in of_topic for each in move.before],
                [(move.partition.partition, each) for move in of_topic for each in move.adding],
            )
            with suppress(TopicNotFound):  # deleted since the plan was made
                admin.alter_configs(
                    Resource.topic(topic),
                    assign={
                        name: ",".join(f"{index}:{broker}" for index, broker in some)
                        for name, some in zip(_NAMED, pairs, strict=True)
                    },
                )
        yield
    except BaseException:
        # What has begun goes on by itself, and no faster than it was to.
        if not _are_moving(admin, moves):
            _lift(admin, topics, brokers)
        raise
    left += _lift(admin, topics, brokers)


def _are_moving(admin: Admin, moves: Sequence[Move]) -> bool:
    """Whether any of these moves goes on; True as well if no broker answers."""
    wanted = {each.partition for each in moves}
    try:
        return any(each.partition in wanted for each in admin.list_reassignments())
    except OttlaError:
        return True


def _lift(admin: Admin, topics: Sequence[str], brokers: Sequence[int]) -> list[int]:
    """Removes the limits; returns the brokers that are away and so keep theirs, which have no effect
    without replicas that are named."""
    away: list[int] = []
    for topic in topics:
        with suppress(TopicNotFound):
            admin.alter_configs(Resource.topic(topic), unset=_NAMED)
    for broker in brokers:
        try:
            admin.alter_configs(Resource.broker(broker), unset=_RATES)
        except OttlaError:
            if broker in (each.id for each in admin.describe_cluster().brokers):
                raise
            away.append(broker)
    return away
