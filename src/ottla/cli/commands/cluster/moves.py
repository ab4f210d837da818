"""Moves of partitions between brokers: `ottla cluster rebalance` and `ottla cluster remove`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.cluster import moving
from ottla.cli.cluster.moving import DryRun, Planner, Throttle
from ottla.cli.commands.cluster.chosen import (
    DEFAULT_DATA,
    Data,
    OtherServer,
    chosen_server,
    failures_reported,
    local_cluster,
    servers,
)
from ottla.cli.deleting import Yes
from ottla.cli.options import Json
from ottla.cli.output import plural, write_document, write_line

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster

_DRAINS = 3  # attempts to leave a broker with nothing

Broker = Annotated[
    int, typer.Argument(metavar="BROKER", help="A broker's number.", show_default=False)
]


def rebalance(
    context: typer.Context,
    data: Data = DEFAULT_DATA,
    server: OtherServer = None,
    throttle: Throttle = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--sample",
            metavar="SECONDS",
            min=0,
            max=86400,
            help="For so long traffic is looked at first.",
        ),
    ] = 2.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Spread partitions and leaders evenly over the brokers, by bytes, traffic and number.

    The plan is shown first. Racks are kept apart, and no more is moved than brings the balance.

    \b
    ottla cluster rebalance --dry-run
    ottla cluster rebalance --throttle 20000000
    ottla cluster rebalance --server broker1:9092
    """
    from ottla.client.moves.plan import rebalanced

    server = chosen_server(context, server)
    with ExitStack() as held:
        if server is None:
            with failures_reported():
                held.enter_context(_moving(data, dry_run=dry_run))
        cluster = servers(data, server)
        if server is not None and not dry_run:
            held.enter_context(moving.only_mover(cluster))
        _move(cluster, rebalanced, seconds, throttle, dry_run=dry_run, yes=yes, json=json)


def remove(
    broker: Broker,
    data: Data = DEFAULT_DATA,
    throttle: Throttle = None,
    force: Annotated[
        bool, typer.Option("--force", help="Without moving anything: its replicas are given up.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Move all that a broker holds to others, stop it, and take it out of the cluster. Its files stay.

    \b
    ottla cluster remove 3
    ottla cluster remove 3 --throttle 20000000
    """
    from ottla.client.moves.plan import drained

    with failures_reported(), _moving(data, dry_run=dry_run):
        local = local_cluster(data)
        local.check_removable(broker)
        if not force:
            # Again, should something have been put there meanwhile.
            for _ in range(_DRAINS):
                if not local.replicas_of(broker):
                    break
                if not dry_run:
                    moving.await_departures(servers(data, None), broker, throttle)
                    if not local.replicas_of(broker):
                        break
                _move(
                    servers(data, None),
                    lambda partitions, brokers: drained(partitions, brokers, [broker]),
                    0.0,
                    throttle,
                    dry_run=dry_run,
                    yes=yes,
                    removed=broker,
                )
                if dry_run:
                    break
        if dry_run:
            write_line(f"broker {broker} would be removed")
            return
        if force:
            moving.confirm(f"Remove broker {broker} and give up its replicas?", yes=yes)
        files = local.remove(broker, force=force)
    write_line(f"removed broker {broker}; its files are in {files}")


@contextmanager
def _moving(folder: Path, *, dry_run: bool) -> Iterator[None]:
    """Hold the cluster's lock for moves, so that no other command moves partitions meanwhile."""
    if dry_run:
        yield
        return
    with local_cluster(folder).moving():
        yield


def _move(
    cluster: Cluster,
    planner: Planner,
    seconds: float,
    throttle: int | None,
    *,
    dry_run: bool,
    yes: bool,
    json: bool = False,
    removed: int | None = None,
) -> None:
    partitions, brokers = moving.survey(cluster, seconds=seconds)
    moves = moving.planned(planner, partitions, brokers)
    if not moves and not dry_run:
        moving.lift_left_limits(cluster)
    if not json:
        if not moves:
            write_line("nothing has to be moved")
            return
        moving.show(moves, partitions, brokers)
    if not dry_run and moves:
        moving.confirm("Move them?", yes=yes or json)
        moving.carry_out(cluster, moves, throttle, planner, removed)
    if json:
        write_document(moving.document(moves, moved=not dry_run))
    elif not dry_run:
        write_line(f"moved {plural(len(moves), 'partition')}")
