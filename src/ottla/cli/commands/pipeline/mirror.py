"""`ottla mirror`: topics of one cluster at another."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ottla.cli.addresses import check_servers
from ottla.cli.failures import Failure, Misuse
from ottla.cli.folders import writable_folder
from ottla.cli.options import parse_assignments
from ottla.cli.output import note
from ottla.cli.spark.jobs import PRESET, BatchRows, Every, Follow, State, check_master, connect
from ottla.cli.spark.sessions import Master, SparkSettings, spark_session


def mirror(
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="HOST:PORT", help="The cluster to read.", show_default=False
        ),
    ],
    target: Annotated[
        str,
        typer.Option("--to", metavar="HOST:PORT", help="The cluster to write.", show_default=False),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Names of topics.", show_default=False),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern", metavar="REGEX", help="All topics whose names match, new ones as well."
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            "--groups",
            metavar="REGEX",
            help="Translate the offsets of these groups, and commit them at the target.",
        ),
    ] = None,
    follow: Follow = False,
    every: Every = "1 second",
    batch: BatchRows = 1_000_000,
    state: State = None,
    source_options: Annotated[
        list[str] | None,
        typer.Option("--from-option", metavar="NAME=VALUE", help="Of the client that reads."),
    ] = None,
    target_options: Annotated[
        list[str] | None,
        typer.Option("--to-option", metavar="NAME=VALUE", help="Of the client that writes."),
    ] = None,
    master: Master = None,
    settings: SparkSettings = None,
) -> None:
    """Copy topics from one cluster to another, each record once; go on where it was.

    \b
    ottla mirror --from old:9092 --to new:9092 orders payments --groups billing --follow
    ottla mirror --from old:9092 --to new:9092 --pattern 'shop\\..*'
    """
    if bool(topics) == (pattern is not None):
        raise Misuse("name topics, or give --pattern; see `ottla mirror --help`")
    check_master(master)
    from ottla.pipeline.mirror.job import MirrorError, MirrorOptions, mirroring, state_name
    from ottla.pipeline.spark.lag import lag
    from ottla.pipeline.spark.progress import show
    from ottla.pipeline.spark.session import state_folder

    given = None if state is None else writable_folder(state, "--state")
    addresses = check_servers(source), check_servers(target)
    names = tuple(dict.fromkeys(topics or ()))
    folder = given or state_folder() / state_name(*addresses, names, pattern)
    _regex(pattern, "--pattern")
    options = MirrorOptions(
        _client(addresses[0], source_options, "--from-option"),
        _client(addresses[1], target_options, "--to-option"),
        folder.absolute(),
        names,
        pattern,
        _regex(groups, "--groups"),
        follow,
        every,
        batch_rows=batch,
    )
    admin = connect(dict(options.source), *names)
    connect(dict(options.target))
    with spark_session("mirror", master, settings, PRESET) as spark:
        try:
            with mirroring(spark, options, note) as query:
                show(
                    query,
                    what=f"mirror from {addresses[0]} to {addresses[1]}",
                    backlog=lambda: sum(lag(query, admin).values()),
                )
        except MirrorError as error:
            raise Failure(str(error)) from None


def _regex(text: str | None, option: str) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise Misuse(f"{option} takes a regular expression: {error}") from None


def _client(servers: str, options: list[str] | None, name: str) -> dict[str, str]:
    given = parse_assignments(options or [], name)
    return {
        **{key.removeprefix("kafka."): value for key, value in given.items()},
        "bootstrap.servers": servers,
    }
