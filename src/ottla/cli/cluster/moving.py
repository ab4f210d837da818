"""Plans of moves, as commands show and carry them out: the plan first, then how far it has come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failures import Failure
from ottla.cli.output import human_size, note, on_terminal, plural, write_line, write_table

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster
    from ottla.client.moves.plan import BrokerRoom, Move, PlacedPartition
    from ottla.client.moves.running import MoveProgress

_SHOWN_MOVES = 20
_PLANS = 3  # in all, where somebody else moves the same partitions

Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        min=1,
        help="What each broker may copy in a second; unset: as much as it can.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and move nothing.")]
# What is to be moved, from what there is.
Planner = Callable[["Sequence[PlacedPartition]", "Sequence[BrokerRoom]"], "list[Move]"]


@contextmanager
def only_mover(cluster: Cluster) -> Iterator[None]:
    """Hold the lock for moves of a cluster on this machine, so that no other command moves partitions
    in it meanwhile. The lock is in the folder of such a cluster, as are its brokers' data."""
    from ottla.testing.cluster import ClusterError, LocalCluster

    with cluster.failures_reported():
        folders = cluster.admin.describe_log_folders()
    with ExitStack() as held:
        try:
            for each in folders:
                local = LocalCluster(Path(each.path).parent)
                server = local.state.brokers.get(each.broker) if local.exists else None
                if server is not None and server.running:
                    held.enter_context(local.moving())
                    break
        except ClusterError as error:
            raise Failure(str(error)) from error
        yield


def survey(cluster: Cluster, *, seconds: float) -> tuple[list[PlacedPartition], list[BrokerRoom]]:
    from ottla.client.moves import running

    with cluster.failures_reported():
        return running.survey(cluster.admin, seconds=seconds)


def planned(
    planner: Planner, partitions: Sequence[PlacedPartition], brokers: Sequence[BrokerRoom]
) -> list[Move]:
    from ottla.client.moves.plan import NoPlan

    try:
        return planner(partitions, brokers)
    except NoPlan as error:
        raise Failure(f"nothing is moved: {error}") from error


def show(
    moves: Sequence[Move], partitions: Sequence[PlacedPartition], brokers: Sequence[BrokerRoom]
) -> None:
    """What will be moved, and what each broker has before and after."""
    from ottla.client.moves.plan import shares

    copied = [each for each in moves if each.adding]
    size = human_size(sum(each.bytes for each in moves))
    write_line(
        f"{plural(len(moves), 'partition')} to change, {len(copied)} of them copied "
        f"({size} in all), the others only get another leader or fewer replicas"
    )
    write_table(
        ("partition", "from", "to", "bytes"),
        [
            (str(each.partition), _listed(each.before), _listed(each.after), each.bytes)
            for each in moves[:_SHOWN_MOVES]
        ],
    )
    if len(moves) > _SHOWN_MOVES:
        write_line(f"… and {len(moves) - _SHOWN_MOVES} more")
    # Also those that are away, and hold something before or afterwards.
    holders = {one for each in moves for one in (*each.before, *each.after)}
    holders |= {one for each in partitions for one in each.replicas}
    numbers = sorted({each.id for each in brokers if not each.is_away} | holders)
    before, after = shares(partitions, [], numbers), shares(partitions, moves, numbers)
    write_table(
        ("broker", "replicas", "after", "leaders", "after", "bytes", "after"),
        [
            (
                broker,
                had[0], after[broker][0],
                had[1], after[broker][1],
                human_size(had[2]), human_size(after[broker][2]),
            )
            for broker, had in before.items()
        ],
    )  # fmt: skip


def confirm(question: str, *, yes: bool, refusal: str = "nothing was moved") -> None:
    """Asks on a terminal, unless told not to."""
    asked = not yes and sys.stdin.isatty() and on_terminal()
    if asked and not typer.confirm(question):
        raise Failure(refusal)


def carry_out(
    cluster: Cluster,
    moves: Sequence[Move],
    throttle: int | None,
    planner: Planner,
    removed: int | None = None,
) -> None:
    """Carry the moves out, with progress on standard error. What somebody else has moved meanwhile is
    planned anew. `removed`: a broker that will be taken out afterwards."""
    for plans_left in reversed(range(_PLANS)):
        problem = _carry_out(cluster, moves, throttle, removed)
        if problem is None:
            return
        if not plans_left:
            raise Failure(f"{problem}; try again when nobody else moves partitions")
        note(f"{problem}; planning again for what is left")
        moves = planned(planner, *survey(cluster, seconds=0.0))
        if not moves:
            return


def _carry_out(
    cluster: Cluster, moves: Sequence[Move], throttle: int | None, removed: int | None
) -> str | None:
    """Carry the moves out once. Returns why some partitions do not lie where they were planned to, or
    None if all do."""
    from ottla.client.moves import running

    shown = ""

    def tell(progress: MoveProgress) -> None:
        nonlocal shown
        line = _progress(progress)
        if line != shown:
            shown = line
            note(line)

    try:
        with cluster.failures_reported():
            problem = None
            left: Sequence[int]
            try:
                left = running.carry_out(cluster.admin, moves, throttle=throttle, tell=tell)
            except running.MovesFailed as error:
                left, problem = error.limited, str(error)
        for broker in left:
            if broker == removed:
                continue  # it does not come back
            note(
                f"broker {broker} is away, and keeps a limit that is for no replica any more: when it "
                f"is back, `ottla config unset broker {broker} leader.replication.throttled.rate "
                "follower.replication.throttled.rate` lifts it"
            )
        return problem
    except KeyboardInterrupt:
        raise _interrupted(throttle) from None


def _interrupted(throttle: int | None) -> Failure:
    limited = "" if throttle is None else " (no faster than --throttle says)"
    return Failure(
        f"interrupted: the moves that have begun go on by themselves{limited}, the others were not "
        "begun; the same command plans what is left"
    )


def await_departures(cluster: Cluster, broker: int, throttle: int | None) -> None:
    """Wait for the moves away from a broker that an interrupted command has begun: plans count them as
    done."""
    from ottla.client.moves import running

    last_reported = 0

    def report(left: int) -> None:
        nonlocal last_reported
        if left != last_reported:
            last_reported = left
            note(f"{plural(left, 'partition')} on the way from broker {broker} already")

    try:
        with cluster.failures_reported():
            running.await_departures(cluster.admin, broker, throttle=throttle, tell=report)
    except KeyboardInterrupt:
        raise _interrupted(throttle) from None


def lift_left_limits(cluster: Cluster) -> None:
    """Remove the limits on replication that interrupted moves have left, if nothing is being moved."""
    from ottla.client.moves import running

    with cluster.failures_reported():
        if running.lift_left_limits(cluster.admin):
            note("lifted the limit that interrupted moves had left")


def _progress(progress: MoveProgress) -> str:
    line = f"{progress.moves_done} of {progress.moves} done"
    if progress.bytes:
        line += (
            f", {human_size(progress.bytes_done)} of {human_size(progress.bytes)}"
            f", {human_size(int(progress.rate))}/s"
        )
        left = progress.seconds_left
        if left is not None:
            line += f", {int(left) // 60}:{int(left) % 60:02d} left"
    return line


def document(moves: Sequence[Move], *, moved: bool) -> dict[str, Any]:
    return {
        "moved": moved,
        "bytes": sum(each.bytes for each in moves),
        "moves": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "from": list(each.before),
                "to": list(each.after),
                "bytes": each.bytes,
            }
            for each in moves
        ],
    }


def _listed(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))
