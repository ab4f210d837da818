"""`ottla user`: list, set, delete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import DEFAULT_SERVER, Json, Server, connect, help_group
from ottla.cli.output import note, write_document, write_line, write_table
from ottla.protocol.scram import NUMBERS_OF_SCRAM, SCRAM_MECHANISMS

if TYPE_CHECKING:
    from ottla.cluster.decisions.users import ScramChange
    from ottla.server.configuration.broker_config import BrokerConfig

app = help_group("Manage users and their passwords (SCRAM).")

User = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", show_default=False)]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism",
        "-m",
        metavar="NAME",
        help="SCRAM-SHA-256 or SCRAM-SHA-512; repeat for more. Both, if none is named.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DIR",
        help="Write to the data folder of a broker that does not run.",
        show_default=False,
    ),
]
ZooKeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        "-z",
        metavar="HOST:PORT,…/PATH",
        help="Write to the ZooKeeper of a cluster of which no broker runs.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The brokers' settings, which say how they get to ZooKeeper (zookeeper.auth.file, …).",
        show_default=False,
    ),
]


def _chosen(mechanisms: list[str] | None) -> list[str]:
    chosen = [each.upper() for each in mechanisms or SCRAM_MECHANISMS]
    for each in chosen:
        if each not in SCRAM_MECHANISMS:
            raise Misuse(f"--mechanism takes {' or '.join(SCRAM_MECHANISMS)}, not '{each}'")
    return list(dict.fromkeys(chosen))


@app.command("list")
def list_users(server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """List the users that have passwords.

    \b
    ottla user list
    """
    cluster = connect(server)
    with cluster.failures_reported():
        found = cluster.admin.describe_scram_users()
    columns = ("user", "mechanism", "iterations")
    rows = [(each.user, each.mechanism, each.iterations) for each in found]
    if json:
        write_document([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        write_table(columns, rows)


@app.command("set")
def set_password(
    user: User,
    mechanisms: Mechanisms = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="Take the first line of a file as the password.",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
    zookeeper: ZooKeeper = None,
    config: Config = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Give a user a password, in place of an earlier one.

    It is asked for, or read from standard input or a file: never an argument, which others on the
    machine could read. What leaves this command is salted.

    \b
    ottla user set alice
    ottla user set alice < password.txt
    ottla user set broker --data ./data     (before the first start)
    ottla user set broker --config server.properties     (the same, of a cluster)
    """
    chosen = _chosen(mechanisms)
    password = _read_password(password_file)
    if data is not None or zookeeper is not None or config is not None:
        _offline([_salted(user, name, password) for name in chosen], data, zookeeper, config)
    else:
        cluster = connect(server)
        for name in chosen:
            with cluster.failures_reported():
                cluster.admin.set_scram_password(user, password, name)  # type: ignore[arg-type]
    write_line(f"user {user} has a password for {' and '.join(chosen)}")


@app.command()
def delete(
    user: User,
    mechanisms: Mechanisms = None,
    data: Data = None,
    zookeeper: ZooKeeper = None,
    config: Config = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Take a user's passwords away.

    Connections that have authenticated by them stay, until connections.max.reauth.ms.

    \b
    ottla user delete alice
    """
    wanted = None if mechanisms is None else _chosen(mechanisms)
    if data is not None or zookeeper is not None or config is not None:
        from ottla.cluster.decisions.users import ScramChange

        if wanted is None:
            raise Misuse("with --data or --zookeeper, say which passwords: --mechanism NAME")
        changes = [ScramChange(user, NUMBERS_OF_SCRAM[name]) for name in wanted]
        _offline(changes, data, zookeeper, config)
    else:
        cluster = connect(server)
        with cluster.failures_reported():
            found = [each.mechanism for each in cluster.admin.describe_scram_users([user])]
        wanted = found if wanted is None else wanted
        for name in wanted:
            with cluster.failures_reported():
                cluster.admin.delete_scram_password(user, name)  # type: ignore[arg-type]
    write_line(f"user {user} has no password for {' and '.join(wanted)}")


def _read_password(file: Path | None) -> str:
    if file is not None:
        text = file.read_text("utf-8")
    elif sys.stdin.isatty():
        text = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        text = sys.stdin.readline()
    password = text.split("\n", 1)[0].removesuffix("\r")
    if not password:
        raise Misuse("the password must not be empty")
    return str(password)


def _salted(user: str, mechanism: str, password: str) -> ScramChange:
    from ottla.cluster.decisions.users import ScramChange
    from ottla.protocol.scram import DEFAULT_ITERATIONS, new_salt, salted

    salt = new_salt()
    result = salted(mechanism, password, salt, DEFAULT_ITERATIONS)
    return ScramChange(user, NUMBERS_OF_SCRAM[mechanism], DEFAULT_ITERATIONS, salt, result)


def _offline(
    changes: list[ScramChange], data: Path | None, zookeeper: str | None, config: Path | None
) -> None:
    import asyncio

    from ottla.cluster.store import StoreError
    from ottla.server.security.offline import BrokersRun, change_users

    if data is not None and (zookeeper is not None or config is not None):
        raise Misuse("take either --data, or --zookeeper and --config")
    folder = None if data is None else str(data)
    settings = None if config is None else _settings(config, zookeeper)
    try:
        results = asyncio.run(
            change_users(changes, folder=folder, zookeeper=zookeeper, config=settings)
        )
    except BrokersRun as error:
        note(f"ottla: {error}")
        raise Failure("a broker runs there: name it by --server, without --data") from None
    except StoreError as error:
        raise Failure(f"the metadata cannot be changed: {error}") from None
    for result in results:
        if result.error is not None:
            raise Failure(f"user {result.user}: {result.error.message}")


def _settings(file: Path, zookeeper: str | None) -> BrokerConfig:
    """What the brokers are configured with."""
    from ottla.cli.commands.serve import NOT_SETTINGS
    from ottla.server.configuration.broker_config import load
    from ottla.server.configuration.sources import ConfigurationError

    assignments = [] if zookeeper is None else [f"zookeeper.connect={zookeeper}"]
    try:
        found = load(file, assignments=assignments, not_settings=NOT_SETTINGS)
    except ConfigurationError as problem:
        raise Misuse(str(problem).rstrip(".")) from None
    if found.zookeeper_connect is None:
        raise Misuse(
            f"{file} has no zookeeper.connect: name the folder of a single broker by --data"
        )
    return found
