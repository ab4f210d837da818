"""How the commands of `ottla cluster` find their cluster: in a folder, or by --server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import SERVER_VARIABLE, connect, parse_assignments

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster
    from ottla.testing.cluster import LocalCluster


def _folder(text: str | Path) -> Path:
    """The folder that --data names. Misuse for an empty name, such as that of a shell's variable that
    is not set: pathlib would take it for "."."""
    if not str(text):
        raise Misuse("--data takes a folder, and it is empty")
    folder = Path(text)
    if folder.exists() and not folder.is_dir():
        raise Misuse(f"--data takes a folder, and {folder} is none")
    return folder


Data = Annotated[
    Path,
    typer.Option("--data", "-d", metavar="DIR", help="The cluster's folder.", parser=_folder),
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
DEFAULT_DATA = Path("cluster")


@contextmanager
def failures_reported() -> Iterator[None]:
    from ottla.testing.cluster import ClusterError

    try:
        yield
    except ClusterError as error:
        raise Failure(str(error)) from error


def local_cluster(
    folder: Path,
    *,
    brokers: int | None = None,
    base_port: int | None = None,
    zookeeper: str | None = None,
    settings: list[str] | None = None,
    racks: list[str] | None = None,
) -> LocalCluster:
    # Here and not above: --help needs none of it.
    from ottla.testing.cluster import BASE_PORT, LocalCluster

    return LocalCluster(
        folder,
        brokers=brokers,
        base_port=BASE_PORT if base_port is None else base_port,
        zookeeper=zookeeper,
        settings=parse_assignments(settings or (), "--set"),
        racks=racks or (),
    )


def chosen(context: typer.Context, data: Path, server: str | None) -> Cluster:
    """The cluster that --data or --server names."""
    return servers(data, chosen_server(context, server))


def chosen_server(context: typer.Context, server: str | None) -> str | None:
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


def servers(folder: Path, server: str | None) -> Cluster:
    """The brokers that --server names, or those of the cluster in the folder."""
    if server is not None:
        return connect(server)
    with failures_reported():
        return connect(local_cluster(folder).bootstrap)
