"""`ottla archive` and `ottla restore`: topics to tables, and tables to topics."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.addresses import check_servers
from ottla.cli.failures import Failure, Misuse
from ottla.cli.folders import local_folder, writable_folder
from ottla.cli.options import DEFAULT_SERVER, Server, Topic, check_new_name, parse_assignments
from ottla.cli.output import note, write_line
from ottla.cli.spark.jobs import PRESET, BatchRows, Every, Follow, State, check_master, connect
from ottla.cli.spark.sessions import (
    Master,
    SourceOptions,
    SparkSettings,
    check_source,
    spark_session,
)

_SIZE = re.compile(r"(\d+) ?([kmg]?)(i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


class TableKind(enum.StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


def archive(
    topic: Topic,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Where archives are.", show_default=False)
    ],
    kind: Annotated[TableKind, typer.Option("--format", help="What to write.")] = TableKind.PARQUET,
    follow: Follow = False,
    every: Every = "10 seconds",
    file_size: Annotated[
        str,
        typer.Option("--file-size", metavar="SIZE", help="Files are merged up to about this size."),
    ] = "128M",
    batch: BatchRows = 10_000_000,
    value_format: Annotated[
        str | None,
        typer.Option(
            "--value-format", metavar="FORMAT", help="Decode values: json, avro, confluent-avro, …"
        ),
    ] = None,
    value_schema: Annotated[
        str | None, typer.Option("--value-schema", metavar="SCHEMA", help="Of the values.")
    ] = None,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Go on where records went before they were archived."),
    ] = False,
    options: SourceOptions = None,
    master: Master = None,
    settings: SparkSettings = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Write a topic to Parquet files, a Delta table or an Iceberg table in DIR/TOPIC.

    What is there is not written again: run it as often as you like, after a crash as well.

    \b
    ottla archive orders --to /data/archive
    ottla archive orders --to /data/archive --follow
    ottla archive orders --to /data/tables --format delta
    duckdb -c "select count(*) from '/data/archive/orders/**/*.parquet'"
    """
    from ottla.pipeline.archive.folder import ArchiveError
    from ottla.pipeline.archive.job import ArchiveOptions, archiving
    from ottla.pipeline.spark.lag import lag
    from ottla.pipeline.spark.progress import show

    check_master(master)
    source = parse_assignments(options or [], "--option")
    if value_format is not None:
        source["valueFormat"] = value_format
    if value_schema is not None:
        source["valueSchema"] = value_schema
    if allow_loss:
        source["failOnDataLoss"] = "false"
    folder = writable_folder(to, "--to")
    chosen = ArchiveOptions(
        check_servers(server),
        topic,
        folder,
        kind.value,
        follow=follow,
        every=every,
        batch_rows=batch,
        file_size=_bytes(file_size),
        source=source,
    )
    admin = connect(chosen.client, topic)
    check_source({"kafka.bootstrap.servers": chosen.servers, **source}, topic)
    with spark_session("archive", master, settings, PRESET) as spark:
        try:
            with archiving(spark, chosen) as query:
                show(
                    query,
                    what=f"archive of {topic}",
                    backlog=lambda: sum(lag(query, admin).values()),
                )
        except ArchiveError as error:
            raise Failure(str(error)) from None
    note(f"the archive is in {chosen.folder.rows}")


def restore(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="A folder of Parquet files, a Delta table, an Iceberg table.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option("--to", metavar="TOPIC", help="Made if it is not there.", show_default=False),
    ],
    by_key: Annotated[
        bool,
        typer.Option("--by-key", help="Spread records by their keys, not as they were spread."),
    ] = False,
    value_format: Annotated[
        str | None,
        typer.Option(
            "--value-format", metavar="json", help="Write values that were decoded, as JSON."
        ),
    ] = None,
    state: State = None,
    options: SourceOptions = None,
    master: Master = None,
    settings: SparkSettings = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Write the rows of a table to a topic, as the records they were.

    Interrupted, it goes on where it was. Run again later, it adds what the table has got since.

    \b
    ottla restore /data/archive/orders --to orders-again
    """
    check_new_name(to)
    if value_format not in (None, "json"):
        raise Misuse(f"--value-format takes json, not '{value_format}'")
    from ottla.pipeline.restore.job import RestoreOptions
    from ottla.pipeline.restore.job import restore as run
    from ottla.pipeline.restore.tables import TableError, table_files
    from ottla.pipeline.spark.session import state_folder

    rows_of = local_folder(table, "TABLE")
    kept = state_folder() if state is None else writable_folder(state, "--state")
    try:
        table_files(rows_of)  # tells at once what is wrong with it
    except TableError as error:
        raise Failure(str(error)) from None
    chosen = RestoreOptions(
        check_servers(server),
        rows_of,
        to,
        kept,
        keep_partitions=not by_key,
        json_values=value_format == "json",
        sink=parse_assignments(options or [], "--option"),
    )
    with spark_session("restore", master, settings, PRESET) as spark:
        try:
            rows = run(spark, chosen, note)
        except TableError as error:
            raise Failure(str(error)) from None
    write_line(f"topic {to} has {'nothing new' if not rows else 'the rows'} of {table}")


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise Misuse(f"--file-size takes a size such as 128M, not '{text}'")
    return int(found[1]) * _UNITS[found[2].lower()]
