"""The processes of a cluster on this machine: start, stop, kill, add and adopt brokers; what runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.commands.cluster.chosen import DEFAULT_DATA, Data, failures_reported, local_cluster
from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import Json
from ottla.cli.output import plural, write_document, write_line, write_table

if TYPE_CHECKING:
    from ottla.testing.cluster import ClusterState, ClusterStatus

_SHOWN_PARTITIONS = 10  # of those that are in trouble

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


def start(
    data: Data = DEFAULT_DATA,
    brokers: Annotated[
        int | None,
        typer.Option("--brokers", "-b", metavar="N", min=1, help="How many; 3 in a new cluster."),
    ] = None,
    base_port: BasePort = None,
    zookeeper: ZooKeeper = None,
    settings: Settings = None,
    racks: Annotated[
        list[str] | None,
        typer.Option(
            "--rack", metavar="NAME", help="A rack; repeat for more. Brokers stand in them in turn."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Start a cluster, or whatever of it does not run.

    \b
    ottla cluster start
    ottla cluster start --brokers 5 --base-port 19092 --data /var/tmp/five
    ottla cluster start --brokers 4 --rack east --rack west
    ottla cluster start --zookeeper zk1:2181,zk2:2181,zk3:2181/ottla
    """
    cluster = local_cluster(
        data,
        brokers=brokers,
        base_port=base_port,
        zookeeper=zookeeper,
        settings=settings,
        racks=racks,
    )
    with failures_reported():
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
    older = [number for number in state.brokers if str(number) not in started]
    if settings and older:
        write_line(
            f"remembered; {', '.join(_named(str(number)) for number in older)} ran already and "
            f"{'takes' if len(older) == 1 else 'take'} the settings at the next start "
            "(`ottla config set broker default …` changes some at once)"
        )
    write_line(f"the cluster is at {bootstrap}")


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
    with failures_reported():
        cluster = local_cluster(data)
        stopped = cluster.stop(brokers or None)
    if json:
        write_document({"stopped": stopped})
        return
    for name in stopped:
        write_line(f"stopped {_named(name)}")
    if not stopped:
        write_line("nothing of it was running")


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
    with failures_reported():
        local_cluster(data).kill(server)
    write_line(f"killed {_named(server)}")


def add(
    data: Data = DEFAULT_DATA,
    rack: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The rack in which it stands.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Add a broker to the cluster and start it.

    \b
    ottla cluster add
    ottla cluster add --rack west
    """
    with failures_reported():
        cluster = local_cluster(data)
        number = cluster.add(rack)
        state = cluster.state
    if json:
        write_document({"broker": number, "port": state.brokers[number].port})
    else:
        write_line(f"started {_described(state, str(number))}")
        write_line(
            "it holds nothing yet but what is created from now on: `ottla cluster rebalance` gives "
            "it its share"
        )


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
    cluster = local_cluster(data, base_port=base_port, zookeeper=zookeeper, settings=settings)
    with failures_reported():
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


def status(data: Data = DEFAULT_DATA, json: Json = False) -> None:
    """Show what runs, who is the controller, and which partitions are in trouble.

    \b
    ottla cluster status
    """
    with failures_reported():
        found = local_cluster(data).status()
    if json:
        write_document({**asdict(found), "healthy": found.healthy})
    else:
        _write_status(found)
    if found.zookeeper_problem is not None:
        raise Failure(found.zookeeper_problem)


def _write_status(found: ClusterStatus) -> None:
    write_table(
        ("process", "address", "pid", "state", "version"),
        [
            (_named(each.name), each.address, each.pid, each.state, each.version)
            for each in found.servers
        ],
    )
    for line in _of_partitions(found):
        write_line(line)


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
