"""`ottla pipeline`: run pipelines on Spark, and begin new ones."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from ottla.cli.addresses import parse_servers
from ottla.cli.failures import FAILED, Failure, Misuse
from ottla.cli.folders import writable_folder
from ottla.cli.options import (
    DEFAULT_SERVER,
    Server,
    check_new_name,
    complete_topic,
    help_group,
    parse_assignments,
)
from ottla.cli.output import note, write_line
from ottla.cli.spark.sessions import Master, SparkSettings, silence_pyspark, spark_failures_reported

app = help_group("Run data pipelines on Spark.")


@app.command()
def run(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|FOLDER",
            help="A PySpark script, or the folder of a Spark Declarative Pipelines project.",
            show_default=False,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENT…]", help="For the script.", show_default=False),
    ] = None,
    full_refresh: Annotated[
        bool,
        typer.Option(
            "--full-refresh", help="Compute all tables of a project anew, from the start."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the definitions of a project.")
    ] = False,
    master: Master = None,
    conf: SparkSettings = None,
) -> None:
    """Run a pipeline: a PySpark script, or a project (made by `ottla pipeline init`).

    \b
    ottla pipeline run statistics.py -- --day 2026-11-15
    ottla pipeline run shop --master spark://cluster:7077
    """
    settings = parse_assignments(conf or [], "--conf")
    if not place.exists():
        raise Failure(f"there is no {place}")
    from ottla.pipeline.projects import Run, run_project, specification_in

    with spark_failures_reported():
        specification = specification_in(place) if place.is_dir() else None
    if specification is None and place.suffix in (".yml", ".yaml"):
        specification = place
    if specification is None and place.is_dir():
        raise Failure(
            f"{place} has no spark-pipeline.yml: name a script, or begin a project with "
            "`ottla pipeline init NAME`"
        )
    if specification is None and (full_refresh or dry_run):
        raise Misuse("--full-refresh and --dry-run are for projects, not for scripts")
    if specification is not None and arguments:
        raise Misuse(f"a project takes no arguments: {' '.join(arguments)}")
    from ottla.pipeline.spark.session import log_file, running_session

    with spark_failures_reported():
        running_session()  # tells at once if there is no PySpark
    silence_pyspark()
    log = log_file("pipeline")
    note(f"Spark's log: {log}")
    with (
        spark_failures_reported(log),
        _showing_tracebacks(place if place.is_dir() else place.parent),
    ):
        if specification is not None:
            run_project(specification, Run(master, settings, log, full_refresh, dry_run))
        else:
            from ottla.pipeline.scripts import run_script

            run_script(place, arguments or [], master, settings, log)


@contextmanager
def _showing_tracebacks(folder: Path) -> Iterator[None]:
    """What the user's own program raises is shown as Python shows it, from its own lines on."""
    from ottla.client.errors import OttlaError
    from ottla.pipeline.spark.errors import is_of_spark
    from ottla.pipeline.spark.java import JavaMissing
    from ottla.pipeline.spark.progress import QueryFailed
    from ottla.pipeline.spark.session import SparkMissing

    try:
        yield
    except (OttlaError, JavaMissing, QueryFailed, SparkMissing):
        raise
    except Exception as error:
        own = _own_lines(error.__traceback__, folder.resolve())
        if is_of_spark(error) or (own is None and not isinstance(error, SyntaxError)):
            raise
        traceback.print_exception(type(error), error, own)
        raise typer.Exit(FAILED) from None


def _own_lines(trace: TracebackType | None, folder: Path) -> TracebackType | None:
    """The part of a traceback that begins in a file of this folder."""
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve().is_relative_to(folder):
            return trace
        trace = trace.tb_next
    return None


@app.command()
def init(
    name: Annotated[
        Path, typer.Argument(metavar="NAME", help="The new folder.", show_default=False)
    ],
    topic: Annotated[
        str,
        typer.Option(
            "--topic", metavar="TOPIC", help="What it reads.", autocompletion=complete_topic
        ),
    ] = "events",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Write a small pipeline project that works, to begin with."""
    check_new_name(topic)
    parse_servers(server)  # there need be none yet
    writable_folder(name, "NAME")
    from ottla.pipeline.project_template import write_project

    with spark_failures_reported():
        for file in write_project(name, server, topic):
            write_line(str(file))
    note(f"run it with `ottla pipeline run {name}`")
