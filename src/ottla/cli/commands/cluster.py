"""`ottla cluster`: a cluster on this machine, of several brokers and a ZooKeeper, in one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ottla.cli.cluster import moving
from ottla.cli.cluster.moving import DryRun, Planner, Throttle
from ottla.cli.deleting import Yes
from ottla.cli.failures import Failure, Misuse
from ottla.cli.folders import local_folder
from ottla.cli.options import SERVER_VARIABLE, Json, connect, help_group, parse_assignments
from ottla.cli.output import plural, write_document, write_line, write_table

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster
    from ottla.client.admin.cluster import Feature
    from ottla.testing.cluster import ClusterState, ClusterStatus, LocalCluster

app = help_group(
    "Run a cluster on this machine: several brokers and a ZooKeeper, all in one folder."
)

_SHOWN_PARTITIONS = 10  # of those that are in trouble
_DRAINS = 3  # attempts to leave a broker with nothing

Data = Annotated[
    Path,
    typer.Option("--data", "-d", metavar="DIR", help="The cluster's folder.", file_okay=False),
]
Broker = Annotated[
    int, typer.Argument(metavar="BROKER", help="A broker's number.", show_default=False)
]
OtherServer = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        metavar="HOST:PORT",
        envvar=SERVER_VARIABLE,
        help="A broker of any cluster, in place of the one in --data.",
        show_default=False,
    ),
]
BasePort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=2,
        max=65535,
        help="The first broker's port; the others have the next, ZooKeeper the one before.",
        show_default="9092",
    ),
]
ZooKeeper = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,…/PATH",
        help="A ZooKeeper that runs already; else one is started, from PySpark's jars.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-S", metavar="NAME=VALUE", help="A setting of all brokers; repeat for more."
    ),
]
ShowOnly = Annotated[bool, typer.Option("--dry-run", help="Show it, and change nothing.")]
DEFAULT_DATA = Path("cluster")


@contextmanager
def _failures_told() -> Iterator[None]:
    from ottla.testing.cluster import ClusterError

    try:
        yield
    except ClusterError as error:
        raise Failure(str(error)) from error


def _cluster(
    folder: Path,
    *,
    brokers: int | None = None,
    base_port: int | None = None,
    zookeeper: str | None = None,
    settings: list[str] | None = None,
) -> LocalCluster:
    # Here and not above: --help needs none of it.
    from ottla.testing.cluster import BASE_PORT, LocalCluster

    return LocalCluster(
        folder,
        brokers=brokers,
        base_port=BASE_PORT if base_port is None else base_port,
        zookeeper=zookeeper,
        settings=parse_assignments(settings or (), "--set"),
    )


@app.command()
def start(
    data: Data = DEFAULT_DATA,
    brokers: Annotated[
        int | None,
        typer.Option("--brokers", "-b", metavar="N", min=1, help="How many; 3 in a new cluster."),
    ] = None,
    base_port: BasePort = None,
    zookeeper: ZooKeeper = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Start a cluster, or whatever of it does not run.

    \b
    ottla cluster start
    ottla cluster start --brokers 5 --base-port 19092 --data /var/tmp/five
    ottla cluster start --zookeeper zk1:2181,zk2:2181,zk3:2181/ottla
    """
    cluster = _cluster(
        data, brokers=brokers, base_port=base_port, zookeeper=zookeeper, settings=settings
    )
    with _failures_told():
        if cluster.exists and base_port not in (None, cluster.state.base_port):
            raise Misuse(
                f"the cluster in {data} has its ports, from {cluster.state.base_port} on; "
                "they cannot be changed"
            )
        started = cluster.start()
        state, bootstrap = cluster.state, cluster.bootstrap
    if json:
        write_document({"started": started, "bootstrap": bootstrap, "data": str(cluster.folder)})
        return
    for name in started:
        write_line(f"started {_described(state, name)}")
    if not started:
        write_line("all of it runs already")
    write_line(f"the cluster is at {bootstrap}")


@app.command()
def stop(
    brokers: Annotated[
        list[int] | None,
        typer.Argument(metavar="[BROKER]...", help="Only these brokers.", show_default=False),
    ] = None,
    data: Data = DEFAULT_DATA,
    json: Json = False,
) -> None:
    """Stop brokers in good order; without naming any, the whole cluster.

    \b
    ottla cluster stop
    ottla cluster stop 2
    """
    with _failures_told():
        cluster = _cluster(data)
        stopped = cluster.stop(brokers or None)
    if json:
        write_document({"stopped": stopped})
        return
    for name in stopped:
        write_line(f"stopped {_named(name)}")
    if not stopped:
        write_line("nothing of it was running")


@app.command()
def kill(
    server: Annotated[
        str,
        typer.Argument(
            metavar="BROKER", help="A broker's number, or zookeeper.", show_default=False
        ),
    ],
    data: Data = DEFAULT_DATA,
) -> None:
    """Kill one process as a crash would (SIGKILL), to see what the others make of it.

    \b
    ottla cluster kill 2
    ottla cluster kill zookeeper
    """
    with _failures_told():
        _cluster(data).kill(server)
    write_line(f"killed {_named(server)}")


@app.command()
def add(data: Data = DEFAULT_DATA, json: Json = False) -> None:
    """Add a broker to the cluster and start it.

    \b
    ottla cluster add
    """
    with _failures_told():
        cluster = _cluster(data)
        number = cluster.add()
        state = cluster.state
    if json:
        write_document({"broker": number, "port": state.brokers[number].port})
    else:
        write_line(f"started {_described(state, str(number))}")
        write_line(
            "it holds nothing yet but what is created from now on: `ottla cluster rebalance` gives "
            "it its share"
        )


@app.command()
def adopt(
    node: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The data folder of a single node, which is not running.",
            exists=True,
            file_okay=False,
            show_default=False,
        ),
    ],
    data: Data = DEFAULT_DATA,
    base_port: BasePort = None,
    zookeeper: ZooKeeper = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Make a single node the first broker of a cluster. Its records stay where they are.

    Only the metadata are copied, to ZooKeeper. From then on the folder is a broker's of that cluster.
    What the node was configured with, its security above all, has to be given again by --set.

    \b
    ottla cluster adopt ./data
    ottla cluster add && ottla cluster add
    ottla topic alter --all --replication-factor 3
    """
    cluster = _cluster(data, base_port=base_port, zookeeper=zookeeper, settings=settings)
    with _failures_told():
        number = cluster.adopt(node)
        state, bootstrap = cluster.state, cluster.bootstrap
    if json:
        write_document({"broker": number, "bootstrap": bootstrap, "data": str(cluster.folder)})
        return
    write_line(f"started {_described(state, str(number))}")
    write_line(f"the cluster is at {bootstrap}")
    write_line(
        "every partition is on this one broker: `ottla cluster add` adds others, and "
        "`ottla topic alter --all --replication-factor 3` copies it to them"
    )


@app.command("import-logs")
def import_logs(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            help="The data folders (log.dirs) of one Apache Kafka broker, which is not running.",
            exists=True,
            file_okay=False,
            show_default=False,
        ),
    ],
    into: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="The data folder of a single node: a new one, or one that is not running.",
            file_okay=False,
            show_default=False,
        ),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Only this one; repeat for more."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Not this one; repeat for more."),
    ] = None,
    node_id: Annotated[
        int,
        typer.Option("--node-id", "-n", metavar="N", min=0, help="The number of a new node."),
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be taken over, and stop.")
    ] = False,
    json: Json = False,
) -> None:
    """Take the topics of a stopped Apache Kafka broker over, with their groups' offsets.

    The logs are copied into the data folder of a single node; nothing of Kafka's is changed. Topics keep
    their ids, offsets, settings and transactions. `ottla cluster adopt` makes a cluster of the node.

    \b
    ottla cluster import-logs /var/lib/kafka/data --into ./data --dry-run
    ottla cluster import-logs /disk1/kafka /disk2/kafka --into ./data --exclude old-orders
    """
    from ottla.cli.cluster import importing
    from ottla.cli.progress import Progress
    from ottla.server.importing.importing import import_logs as take_over
    from ottla.server.importing.source import CannotImport

    into = local_folder(into, "--into")
    with ExitStack() as shown:

        def begun(total: int) -> Callable[[int], None]:
            bar = Progress("copying", total, wanted=not json, in_bytes=True)
            return shown.enter_context(bar).advance

        try:
            report = take_over(
                [each.absolute() for each in sources],
                into,
                node_id=node_id,
                wanted=topics or (),
                unwanted=exclude or (),
                dry_run=dry_run,
                begun=begun,
            )
        except CannotImport as error:
            raise Failure(f"nothing was taken over: {error}") from error
    if json:
        write_document(importing.document(report, dry_run=dry_run))
    else:
        importing.show(report, into, dry_run=dry_run)


@app.command()
def rebalance(
    context: typer.Context,
    data: Data = DEFAULT_DATA,
    server: OtherServer = None,
    throttle: Throttle = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--sample", metavar="SECONDS", min=0, help="For so long traffic is looked at first."
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

    server = _chosen_server(context, server)
    with ExitStack() as held:
        if server is None:
            with _failures_told():
                held.enter_context(_moving(data, dry_run=dry_run))
        cluster = _servers(data, server)
        _move(cluster, rebalanced, seconds, throttle, dry_run=dry_run, yes=yes, json=json)


@app.command()
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

    with _failures_told(), _moving(data, dry_run=dry_run):
        local = _cluster(data)
        local.check_removable(broker)
        if not force:
            # Again, should something have been put there meanwhile.
            for _ in range(_DRAINS):
                if not local.replicas_of(broker):
                    break
                if not dry_run:
                    moving.await_departures(_servers(data, None), broker, throttle)
                    if not local.replicas_of(broker):
                        break
                _move(
                    _servers(data, None),
                    lambda partitions, brokers: drained(partitions, brokers, [broker]),
                    0.0,
                    throttle,
                    dry_run=dry_run,
                    yes=yes,
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


@app.command()
def status(data: Data = DEFAULT_DATA, json: Json = False) -> None:
    """Show what runs, who is the controller, and which partitions are in trouble.

    \b
    ottla cluster status
    """
    with _failures_told():
        found = _cluster(data).status()
    if json:
        write_document({**asdict(found), "healthy": found.healthy})
        return
    write_table(
        ("process", "address", "pid", "state", "version"),
        [
            (_named(each.name), each.address, each.pid, each.state, each.version)
            for each in found.servers
        ],
    )
    for line in _of_partitions(found):
        write_line(line)


@app.command()
def features(
    context: typer.Context,
    data: Data = DEFAULT_DATA,
    server: OtherServer = None,
    json: Json = False,
) -> None:
    """Show the levels of features: those at which the cluster works, and those its brokers support.

    \b
    ottla cluster features
    """
    found = _features(_chosen(context, data, server))
    if json:
        write_document({"features": [asdict(each) for each in found.values()]})
        return
    write_table(
        ("feature", "level", "lowest", "highest"),
        [(each.name, each.level or 0, each.lowest, each.highest) for each in found.values()],
    )
    if _raises(found):
        write_line("`ottla cluster upgrade` raises them to the highest levels")


@app.command()
def upgrade(
    context: typer.Context,
    levels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FEATURE=LEVEL]...",
            help="Only these; without any, all to the highest level that all brokers support.",
            show_default=False,
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    server: OtherServer = None,
    dry_run: ShowOnly = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Raise the levels of features, when all brokers have been brought up to date.

    No level is raised by itself. Until this is called brokers can be put back to the version before;
    those that do not support the new levels are refused afterwards.

    \b
    ottla cluster upgrade --dry-run
    ottla cluster upgrade
    ottla cluster upgrade ottla.version=1
    """
    cluster = _chosen(context, data, server)
    found = _features(cluster)
    wanted = _wanted_levels(levels) if levels else _raises(found)
    _change_levels(cluster, found, wanted, "upgrade", dry_run=dry_run, yes=yes, json=json)


@app.command()
def downgrade(
    context: typer.Context,
    levels: Annotated[
        list[str],
        typer.Argument(
            metavar="FEATURE=LEVEL...",
            help="What is to be lowered; level 0 takes a feature out of use.",
            show_default=False,
        ),
    ],
    data: Data = DEFAULT_DATA,
    server: OtherServer = None,
    dry_run: ShowOnly = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Lower the levels of features, so that brokers of an earlier version can come back.

    Refused where an earlier version could not read what was written at the level that there is.

    \b
    ottla cluster downgrade transaction.version=1
    """
    cluster = _chosen(context, data, server)
    found = _features(cluster)
    wanted = _wanted_levels(levels)
    _change_levels(cluster, found, wanted, "safe-downgrade", dry_run=dry_run, yes=yes, json=json)


def _change_levels(
    cluster: Cluster,
    found: dict[str, Feature],
    wanted: dict[str, int],
    kind: Literal["upgrade", "safe-downgrade"],
    *,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> None:
    doing, done = ("Raise", "raised") if kind == "upgrade" else ("Lower", "lowered")
    changes = {
        name: level
        for name, level in wanted.items()
        if name not in found or (found[name].level or 0) != level
    }
    rows = [
        (name, (found[name].level or 0) if name in found else 0, level)
        for name, level in changes.items()
    ]
    if rows and not json:
        write_table(("feature", "level", "after"), rows)
    if changes:
        if not dry_run:
            moving.confirm(f"{doing} them?", yes=yes or json, refusal="nothing was changed")
        with cluster.failures_reported():
            cluster.admin.update_features(changes, kind=kind, validate_only=dry_run)
    if json:
        write_document({done: not dry_run, "levels": changes})
    elif not changes:
        write_line("every feature is at that level already")
    elif not dry_run:
        write_line(f"{done} {plural(len(changes), 'feature')}")


def _features(cluster: Cluster) -> dict[str, Feature]:
    with cluster.failures_reported():
        return cluster.admin.describe_features()


def _raises(found: dict[str, Feature]) -> dict[str, int]:
    """What can be raised, and the highest level that all brokers support."""
    return {
        each.name: each.highest
        for each in found.values()
        if each.highest is not None and each.highest > (each.level or 0)
    }


def _wanted_levels(given: list[str]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for name, text in parse_assignments(given, "FEATURE=LEVEL").items():
        if not text.isdecimal():
            raise Misuse(f"the level of {name} is a number, not '{text}'")
        wanted[name] = int(text)
    return wanted


def _chosen(context: typer.Context, data: Path, server: str | None) -> Cluster:
    """The cluster that --data or --server names."""
    return _servers(data, _chosen_server(context, server))


def _chosen_server(context: typer.Context, server: str | None) -> str | None:
    """What --server names; None if it is the cluster of --data."""
    if _is_typed(context, "data"):
        if _is_typed(context, "server"):
            raise Misuse("take either --data or --server")
        return None  # that of the environment is another cluster's
    return server


def _is_typed(context: typer.Context, parameter: str) -> bool:
    """Whether it stands on the command line: not a default, and not from the environment."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _servers(folder: Path, server: str | None) -> Cluster:
    """The brokers that --server names, or those of the cluster in the folder."""
    if server is not None:
        return connect(server)
    with _failures_told():
        return connect(_cluster(folder).bootstrap)


@contextmanager
def _moving(folder: Path, *, dry_run: bool) -> Iterator[None]:
    """For as long as partitions are moved: no other command does so in the cluster of this folder."""
    if dry_run:
        yield
        return
    with _cluster(folder).moving():
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
        moving.carry_out(cluster, moves, throttle, planner)
    if json:
        write_document(moving.document(moves, moved=not dry_run))
    elif not dry_run:
        write_line(f"moved {plural(len(moves), 'partition')}")


def _of_partitions(found: ClusterStatus) -> Iterator[str]:
    if found.partitions is None or found.offline is None or found.under_replicated is None:
        yield f"partitions: unknown, for {found.problem}"
        return
    controller = "nobody" if found.controller is None else f"broker {found.controller}"
    yield f"controller: {controller}"
    yield (
        f"{plural(found.partitions, 'partition')}, {len(found.offline)} offline, "
        f"{len(found.under_replicated)} under-replicated"
    )
    for word, names in (("offline", found.offline), ("under-replicated", found.under_replicated)):
        for name in names[:_SHOWN_PARTITIONS]:
            yield f"  {word}: {name}"
        if len(names) > _SHOWN_PARTITIONS:
            yield f"  {word}: {len(names) - _SHOWN_PARTITIONS} more"


def _named(name: str) -> str:
    return "ZooKeeper" if name == "zookeeper" else f"broker {name}"


def _described(state: ClusterState, name: str) -> str:
    server = state.zookeeper if name == "zookeeper" else state.brokers[int(name)]
    if server is None or server.process is None:
        raise Misuse(f"{_named(name)} is not of this cluster")
    return f"{_named(name)} on 127.0.0.1:{server.port} (process {server.process.pid})"
