"""`ottla record`: delete single records of a topic, by offset, by key or by a condition."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.deleting import Yes
from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import DEFAULT_SERVER, Json, Server, Topic, help_group
from ottla.cli.output import plural, write_document, write_line
from ottla.cli.spark import Master, SparkSettings, spark_session

if TYPE_CHECKING:
    from ottla.cli.cluster_admin import Cluster
    from ottla.record.offset_set import OffsetSet

app = help_group("Delete single records.")

_OFFSETS = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_PRESET = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}

Chosen = Mapping[int, "OffsetSet"]  # by partition


@app.command()
def delete(
    topic: Topic,
    partition: Annotated[
        int | None,
        typer.Argument(metavar="PARTITION", min=0, help="Its number.", show_default=False),
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OFFSET...", help="Offsets, or ranges as 10-19.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="All records with this key, in its place."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="All for which this holds, in its place: SQL over the topic as a table, on Spark.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many records that would be.")
    ] = False,
    yes: Yes = False,
    master: Master = None,
    conf: SparkSettings = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Delete single records, for good. All others keep their offsets.

    \b
    ottla record delete orders 0 1041
    ottla record delete orders 0 7 100-199 1041
    ottla record delete orders --key customer-42
    ottla record delete orders --where "customer = 42 AND amount < 10"
    """
    named = bool(offsets)
    if named + (key is not None) + (where is not None) != 1:
        raise Misuse("give a partition and offsets, or --key, or --where: one of them")
    if partition is not None and not named:
        raise Misuse("--key and --where look into all partitions; leave the number away")
    if (master is not None or conf) and where is None:
        raise Misuse("--master and --conf are for --where, which runs on Spark")
    from ottla.cli.cluster_admin import Cluster

    if offsets is not None and partition is not None and named:
        chosen: Chosen = {partition: _parse(offsets)}
        cluster = Cluster(server)
        _check_partition(cluster, topic, partition)
    else:
        cluster = Cluster(server)
        cluster.describe_topics([topic])  # tells at once if it is not there
        chosen = (
            _with_key(cluster, topic, key)
            if key is not None
            else _that_hold(cluster, topic, where or "", master, conf)
        )
    _delete(cluster, topic, chosen, by_search=not named, dry_run=dry_run, yes=yes, json=json)


def _parse(words: list[str]) -> OffsetSet:
    from ottla.record.offset_set import OffsetSet

    found = OffsetSet()
    for word in words:
        match = _OFFSETS.fullmatch(word)
        if match is None:
            raise Misuse(f"'{word}' is no offset; give numbers, or ranges as 10-19")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise Misuse(f"'{word}' ends before it begins")
        found.add(first, last + 1)
    return found


def _check_partition(cluster: Cluster, topic: str, partition: int) -> None:
    from ottla.cli.commands.topics import choose_partitions

    [description] = cluster.describe_topics([topic])
    choose_partitions(topic, [each.partition for each in description.partitions], [partition])


def _with_key(cluster: Cluster, topic: str, key: str) -> Chosen:
    """The records with a key, in all partitions: somebody may have put them anywhere."""
    from ottla.cli.commands.consume import find_ranges
    from ottla.cli.positions import EARLIEST
    from ottla.cli.progress import Progress
    from ottla.cli.records.reader import RecordReader
    from ottla.record.offset_set import OffsetSet

    wanted = key.encode("utf-8", "surrogateescape")
    [description] = cluster.describe_topics([topic])
    partitions = [each.partition for each in description.partitions]
    ranges = find_ranges(cluster, topic, partitions, EARLIEST, None, follow=False)
    total = sum((end or first) - first for first, end in ranges.values())
    chosen: dict[int, OffsetSet] = {}
    with (
        Progress(f"looking through {topic}", total) as progress,
        closing(RecordReader(cluster.servers, topic, waits=False)) as reader,
    ):
        for rows in reader.read(ranges):
            for record in rows:
                if record.key == wanted:
                    of_partition = chosen.setdefault(rows.partition.partition, OffsetSet())
                    of_partition.add(record.offset, record.offset + 1)
            progress.advance(len(rows))
    return chosen


def _that_hold(
    cluster: Cluster, topic: str, where: str, master: str | None, conf: list[str] | None
) -> Chosen:
    """The committed records for which a condition holds."""
    from ottla.record.offset_set import OffsetSet

    options = {
        "kafka.bootstrap.servers": cluster.servers,
        "kafka.isolation.level": "read_committed",
    }
    name = "`" + topic.replace("`", "``") + "`"
    query = f"SELECT partition, offset FROM {name} WHERE {where}"
    chosen: dict[int, OffsetSet] = {}
    with spark_session(
        "record", master, conf, _PRESET, before=lambda: _check_syntax(query)
    ) as spark:
        from ottla.cli.sql.output import tell_misfits
        from ottla.pipeline.sql.tables import TopicTables

        with closing(TopicTables(spark, options)) as tables:
            rows = tables.query(query)
            for partition, offset in rows.toLocalIterator():
                chosen.setdefault(partition, OffsetSet()).add(offset, offset + 1)
            tell_misfits(tables)
    return chosen


def _check_syntax(query: str) -> None:
    from ottla.pipeline.sql.checking import check_syntax

    check_syntax(query)


def _delete(
    cluster: Cluster,
    topic: str,
    chosen: Chosen,
    *,
    by_search: bool,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> None:
    from ottla.client.errors import BrokerError, Failures
    from ottla.client.positions import TopicPartition
    from ottla.protocol.errors import ErrorCode

    count = sum(each.count for each in chosen.values())
    records = plural(count, "record")
    if dry_run:
        _tell(topic, {index: each.count for index, each in chosen.items()}, json, "would delete")
        return
    asked = count and not yes and sys.stdin.isatty() and sys.stdout.isatty()
    if asked and not typer.confirm(f"Delete {records} of {topic} for good?"):
        raise Failure("nothing was deleted")
    deleted: dict[TopicPartition, int] = {}
    if count:
        wanted = {
            TopicPartition(topic, index): [range(a, b) for a, b in each]
            for index, each in chosen.items()
        }
        with cluster.failures_told(topic=topic):
            try:
                # What somebody else deletes while this looks for it is no mistake of the user's.
                deleted = cluster.admin.delete_records_at(wanted, skip_deleted=by_search)
            except (BrokerError, Failures) as error:
                refused = error if isinstance(error, BrokerError) else None
                if refused is not None and refused.code is ErrorCode.INVALID_REQUEST:
                    raise Failure(f"nothing was deleted: {refused.message}") from None
                raise
    _tell(topic, {each.partition: number for each, number in deleted.items()}, json, "deleted")


def _tell(topic: str, counts: Mapping[int, int], json: bool, did: str) -> None:
    total = sum(counts.values())
    if json:
        write_document(
            {
                "topic": topic,
                "deleted" if did == "deleted" else "would_delete": total,
                "partitions": {str(index): counts[index] for index in sorted(counts)},
            }
        )
    else:
        write_line(f"{did} {plural(total, 'record')} of {topic}")
