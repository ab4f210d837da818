"""`ottla sql`: queries over topics, on Spark."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.addresses import check_servers
from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import (
    DEFAULT_SERVER,
    Server,
    check_new_name,
    connect,
    parse_assignments,
)
from ottla.cli.output import note
from ottla.cli.records.positions import EARLIEST, parse_position
from ottla.cli.spark.sessions import (
    Master,
    SourceOptions,
    SparkSettings,
    check_source,
    in_program,
    spark_session,
)
from ottla.cli.sql import warm
from ottla.cli.sql.asking import Asking, check_text
from ottla.cli.sql.output import Form, room_for_a_table, tell_misfits, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.cli.cluster.admin import Cluster
    from ottla.cli.records.positions import Position
    from ottla.pipeline.sql.tables import Bounds, TopicTables


def sql(
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help="A query in Spark's SQL; without one, a prompt.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TOPIC|DIR",
            help="Write the rows to a topic, or as Parquet to a folder (with a / in its name).",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="At most N rows.")
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="One JSON object for each row.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV, with a header.")] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="Where topics begin; as `ottla consume` has it."
        ),
    ] = "earliest",
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="WHERE", help="Where they end.", show_default="the end as of now"
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where --follow --to remembers how far it is.",
            show_default="one for each query and target",
        ),
    ] = None,
    master: Master = None,
    conf: SparkSettings = None,
    option: SourceOptions = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Query topics as tables. The fields of JSON values are columns.

    \b
    ottla sql "SELECT page, count(*) AS hits FROM weblogs GROUP BY page ORDER BY hits DESC"
    ottla sql "SELECT * FROM orders WHERE amount > 100" --from -15m --json
    ottla sql "SELECT key, value FROM weblogs WHERE status >= 500" --follow --to errors
    ottla sql 'SELECT * FROM `web.logs`' --to ./weblogs
    ottla sql
    """
    from ottla.pipeline.sql.targets import is_folder, write_rows_to

    form = _form(json_lines, csv)
    begin = parse_position(start, "--from")
    end = None if until is None else parse_position(until, "--until")
    if follow and end is not None:
        raise Misuse("--follow never ends and --until does; give one of them")
    if to is not None and (json_lines or csv):
        raise Misuse("--json and --csv are for standard output; leave them away with --to")
    if to is not None and query is None:
        raise Misuse("--to needs a query")
    if follow and to is not None and limit is not None:
        raise Misuse("--follow --to goes on for ever; leave --limit away")
    if checkpoint is not None and not (follow and to is not None):
        raise Misuse("--checkpoint is for --follow --to")
    if to is not None and not is_folder(to):
        check_new_name(to)
    options = {"kafka.bootstrap.servers": server, **parse_assignments(option or [], "--option")}
    settings = warm.query_settings(parse_assignments(conf or [], "--conf"))
    ready = master is None and not in_program() and warm.is_wanted()
    plain = begin == EARLIEST and end is None and not (option or follow or to)
    if query is not None and ready and plain:
        check_servers(server)
        question = warm.Question(query, options, form=form.value, limit=limit, only_topics=not conf)
        if warm.answer_if_there(settings, question) is not None:
            return
    if query is not None and not in_program():
        _check_query(query, settings, master, conf)
    cluster = connect(server)
    if to is not None and not is_folder(to):
        cluster.describe_topics([to])  # tells at once if it is not there
    bounds = None if begin == EARLIEST and end is None else _bounds(cluster, begin, end, follow)
    _check(cluster, query, options, master, conf, given=bool(option))
    asking = Asking(settings, options, bounds, form, limit) if ready else None
    if query is None:
        from ottla.cli.sql.prompt import Prompt

        own = partial(_own_tables, master, conf, options, bounds)
        Prompt(own, asking, cluster, form, limit).run()
        return
    job = follow and to is not None  # which may go on for days
    if asking is not None and not job and asking.can_answer(query):
        asking.answer(query, follow=follow, to=to)
        return
    with _own_tables(master, conf, options, bounds, query) as tables:
        rows = tables.query(query, follow=follow)
        for remark in tables.remarks():
            note(remark)
        if follow:
            place = checkpoint or _checkpoint(query, to, options)
            _follow(rows, to, options, place, form, limit)
        elif to is not None:
            write_rows_to(rows if limit is None else rows.limit(limit), to, options)
            tell_misfits(tables)
        elif rows.columns:
            write_rows(rows, form, limit, done=partial(tell_misfits, tables))


@contextmanager
def _own_tables(
    master: str | None,
    conf: list[str] | None,
    options: Mapping[str, str],
    bounds: Bounds | None,
    query: str | None = None,
) -> Iterator[TopicTables]:
    """Tables in a Spark of this command's own."""
    syntax = None if query is None else partial(_check_syntax, query)
    with spark_session("sql", master, conf, warm.PRESET, before=syntax) as spark:
        from ottla.pipeline.sql.tables import TopicTables

        with closing(TopicTables(spark, options, bounds)) as tables:
            yield tables


def _check_query(
    query: str, settings: Mapping[str, str], master: str | None, conf: list[str] | None
) -> None:
    """Failure if the text is certainly wrong, before Spark starts, which takes a while. What only looks
    wrong is a note: Spark may accept it."""
    if master is not None and master.startswith("sc:"):
        return  # which is there already
    check_text(query, settings)
    from ottla.pipeline.sql.checking import BadQuery, check_functions, doubt

    if master is None and not conf and not _has_own_defaults():
        try:
            check_functions(query)
        except BadQuery as error:
            raise Failure(str(error)) from None
    found = doubt(query)
    if found is not None:
        note(f"the query looks wrong {found}; Spark has the last word")


def _has_own_defaults() -> bool:
    """Whether Spark has settings of the user's, which may name a catalog with functions in it."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    if not folder:
        return False
    return any(Path(folder, each).exists() for each in ("spark-defaults.conf", "hive-site.xml"))


def _check(
    cluster: Cluster,
    query: str | None,
    options: Mapping[str, str],
    master: str | None,
    conf: list[str] | None,
    *,
    given: bool,
) -> None:
    """Tell what is wrong before Spark starts, which takes a while: options (if some are given), and
    topics that are not there."""
    if given:
        check_source(options, "any")
    elsewhere = master is not None and not master.startswith("local")
    # A catalog of the user's, or a session of a program that runs this, may have other tables.
    if query is None or elsewhere or conf or in_program():
        return
    from ottla.pipeline.sql.checking import NoSuchTopic, check_topics, named_tables

    tables = named_tables(query)
    if tables:
        try:
            check_topics(tables, [each.name for each in cluster.topics()])
        except NoSuchTopic as error:
            raise Failure(str(error)) from None


def _check_syntax(query: str) -> None:
    from ottla.pipeline.sql.checking import check_syntax

    check_syntax(query)


def _form(json_lines: bool, csv: bool) -> Form:
    if json_lines and csv:
        raise Misuse("--json and --csv exclude each other; give one of them")
    return Form.JSON if json_lines else Form.CSV if csv else Form.TABLE


def _bounds(cluster: Cluster, begin: Position, end: Position | None, follow: bool) -> Bounds:
    """The options that --from and --until come to, for a topic."""
    import json

    from ottla.cli.commands.records.consume import find_ranges

    def of(topic: str) -> dict[str, str]:
        [described] = cluster.describe_topics([topic])
        partitions = [each.partition for each in described.partitions]
        ranges = find_ranges(cluster, topic, partitions, begin, end, follow)
        starts = {str(index): first for index, (first, _) in ranges.items()}
        options = {"startingOffsets": json.dumps({topic: starts})}
        if not follow:
            ends = {str(index): max(first, last or 0) for index, (first, last) in ranges.items()}
            options["endingOffsets"] = json.dumps({topic: ends})
        return options

    return of


def _checkpoint(query: str, to: str | None, options: Mapping[str, str]) -> str | None:
    """The same for the same query, target and servers: it goes on where it was stopped."""
    if to is None:
        return None
    from ottla.pipeline.spark.session import state_folder
    from ottla.pipeline.sql.targets import is_folder

    here = is_folder(to) and "://" not in to
    target = str(Path(to).resolve()) if here else to
    words = "\0".join((" ".join(query.split()), target, options["kafka.bootstrap.servers"]))
    return str(state_folder() / "sql" / hashlib.sha256(words.encode()).hexdigest()[:16])


def _follow(
    rows: DataFrame,
    to: str | None,
    options: Mapping[str, str],
    checkpoint: str | None,
    form: Form,
    limit: int | None,
) -> None:
    from ottla.pipeline.spark.progress import show
    from ottla.pipeline.sql.targets import follow_to_folder, follow_to_topic, is_folder

    if to is None or checkpoint is None:
        from ottla.cli.sql.following import print_as_they_come

        print_as_they_come(rows, form, limit, room=room_for_a_table())
        return
    if is_folder(to):
        query = follow_to_folder(rows, to, checkpoint)
    else:
        query = follow_to_topic(rows, options, to, checkpoint)
    note(f"to {to}; the place is kept in {checkpoint}")
    show(query, what=f"to {to}")
