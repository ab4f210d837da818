"""`ottla record`: delete single records of a topic, by offset, by key or by a condition."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.deleting import Yes
from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import DEFAULT_SERVER, Json, Server, Topic, help_group
from ottla.cli.output import note, plural, write_document, write_line
from ottla.cli.spark.sessions import Master, SparkSettings, spark_session

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster
    from ottla.client.errors import Failures
    from ottla.record.offset_set import OffsetSet

app = help_group("Delete single records.")

_OFFSETS = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_LARGEST_OFFSET = 2**63 - 1
STANDARD_INPUT = "-"
_PRESET = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}

Chosen = Mapping[int, Sequence[range]]  # by partition


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
            metavar="OFFSET...",
            help="Offsets, or ranges as 10-19; a single '-' reads them from standard input.",
            show_default=False,
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
        bool,
        typer.Option(
            "--dry-run",
            help="Only say whether it could be done, and how many records that would be.",
        ),
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
    ottla record delete orders 0 - < offsets.txt
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
    from ottla.cli.cluster.admin import Cluster

    if offsets is not None and partition is not None and named:
        chosen: Chosen = {partition: _parse(_words(offsets))}
        cluster = Cluster(server)
        _check_partition(cluster, topic, partition)
    else:
        cluster = Cluster(server)
        [before] = cluster.describe_topics([topic])  # tells at once if it is not there
        unstable = cluster.open_ranges(topic, [each.partition for each in before.partitions])
        chosen = (
            _with_key(cluster, topic, key)
            if key is not None
            else _records_where(cluster, topic, where or "", master, conf)
        )
        [after] = cluster.describe_topics([topic])
        if after.topic_id != before.topic_id:
            raise Failure(
                f"nothing was deleted: topic '{topic}' was deleted and created again meanwhile"
            )
        _tell_passed_over(topic, unstable)
    _delete(cluster, topic, chosen, by_search=not named, dry_run=dry_run, yes=yes, json=json)


def _tell_passed_over(topic: str, unstable: Mapping[int, tuple[int, int]]) -> None:
    """Say which offsets were not searched: those from the first open transaction of a partition on."""
    for index, (first, end) in sorted(unstable.items()):
        note(
            f"not looked at: offsets {first} to {end - 1} of partition {index} of {topic}, from where a "
            "transaction is open; repeat this when it has ended"
        )


def _parse(words: Iterable[str]) -> list[range]:
    """The offsets in order, each once."""
    given = []
    for word in words:
        match = _OFFSETS.fullmatch(word)
        if match is None:
            raise Misuse(f"'{word}' is no offset; give numbers, or ranges as 10-19")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise Misuse(f"'{word}' ends before it begins")
        if last > _LARGEST_OFFSET:
            raise Misuse(f"'{word}' is beyond the largest offset there can be")
        given.append((first, last + 1))
    merged: list[range] = []
    for first, end in sorted(given):
        if merged and first <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(end, merged[-1].stop))
        else:
            merged.append(range(first, end))
    return merged


def _words(given: list[str]) -> Iterable[str]:
    """The arguments; or, for a single dash, what standard input has."""
    if given != [STANDARD_INPUT]:
        return given
    try:
        words = sys.stdin.read().split()
    except UnicodeDecodeError:
        raise Misuse("standard input holds no offsets: it is not even text") from None
    if not words:
        raise Misuse("standard input holds no offsets")
    return words


def _check_partition(cluster: Cluster, topic: str, partition: int) -> None:
    from ottla.cli.commands.administration.topics import choose_partitions

    [description] = cluster.describe_topics([topic])
    choose_partitions(topic, [each.partition for each in description.partitions], [partition])


def _with_key(cluster: Cluster, topic: str, key: str) -> Chosen:
    """Find the records with a key. All partitions are searched: a producer may choose any."""
    from ottla.cli.commands.records.consume import find_ranges
    from ottla.cli.progress import Progress
    from ottla.cli.records.positions import EARLIEST
    from ottla.client.consumer.asynchronous import AsyncConsumer
    from ottla.client.consumer.searching import find_key
    from ottla.client.loop import background_loop

    wanted = key.encode("utf-8", "surrogateescape")
    [description] = cluster.describe_topics([topic])
    partitions = [each.partition for each in description.partitions]
    ranges = find_ranges(cluster, topic, partitions, EARLIEST, None, follow=False)
    total = sum((end or first) - first for first, end in ranges.values())

    async def search() -> dict[int, OffsetSet]:
        async with AsyncConsumer(
            cluster.servers, client_id="ottla-cli", isolation_level="read_committed"
        ) as consumer:
            return await find_key(consumer, topic, wanted, progress.advance)

    with (
        cluster.failures_reported(topic=topic),
        Progress(f"looking through {topic}", total) as progress,
    ):
        found = background_loop().run(search())
    return _as_ranges(found)


def _as_ranges(found: Mapping[int, OffsetSet]) -> Chosen:
    return {partition: [range(*each) for each in some] for partition, some in found.items()}


def _records_where(
    cluster: Cluster, topic: str, where: str, master: str | None, conf: list[str] | None
) -> Chosen:
    """Find the committed records for which a condition holds."""
    from ottla.record.offset_set import OffsetSet

    options = {
        "kafka.bootstrap.servers": cluster.servers,
        "kafka.isolation.level": "read_committed",
    }
    name = "`" + topic.replace("`", "``") + "`"
    # A condition and nothing else: with LIMIT or UNION after it other records would be meant. (On
    # lines of its own, for it may end with a comment.)
    query = f"SELECT partition, offset FROM {name} WHERE (\n{where}\n)"
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
    return _as_ranges(chosen)


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
    from ottla.client.errors import BrokerError, Failures, PartlyDeleted
    from ottla.client.positions import TopicPartition
    from ottla.protocol.errors import ErrorCode

    # (len() of a range knows no more than 2^63 - 1.)
    counts = {index: sum(r.stop - r.start for r in each) for index, each in chosen.items()}
    count = sum(counts.values())
    if dry_run and by_search:
        _tell(topic, counts, json, "would delete")
        return
    asked = count and not dry_run and not yes and sys.stdin.isatty() and sys.stdout.isatty()
    if asked and not typer.confirm(f"Delete {plural(count, 'record')} of {topic} for good?"):
        raise Failure("nothing was deleted")
    deleted: Mapping[TopicPartition, int] = {}
    if count:
        wanted = {TopicPartition(topic, index): each for index, each in chosen.items()}
        with cluster.failures_reported(topic=topic):
            try:
                # What somebody else deletes while this looks for it is no mistake of the user's.
                deleted = cluster.admin.delete_records_at(
                    wanted, skip_deleted=by_search, validate_only=dry_run
                )
            except PartlyDeleted as partly:
                raise Failure(
                    f"deleted {plural(partly.deleted, 'record')} of {topic}, but not all that were "
                    f"to go: {partly.message.rstrip('. ')}"
                ) from None
            except BrokerError as refused:
                if refused.code is not ErrorCode.INVALID_REQUEST:
                    raise
                raise Failure(f"nothing was deleted: {refused.message}") from None
            except Failures as several:
                raise _some_failed(several, topic) from None
    done = "would delete" if dry_run else "deleted"
    _tell(topic, {each.partition: number for each, number in deleted.items()}, json, done)


def _some_failed(several: Failures, topic: str) -> Failure:
    """The failure that says how many records were deleted, and in which partitions deleting failed."""
    gone = sum(several.results.values())
    gone += sum(getattr(each, "deleted", 0) for each in several.errors.values())
    place, error = min(several.errors.items())
    why = getattr(error, "message", None) or str(error)
    others = len(several.errors) - 1
    more = f" (and {plural(others, 'other')})" if others else ""
    return Failure(
        f"deleted {plural(gone, 'record')} of {topic}, but not all that were to go: "
        f"partition {place.partition}{more}: {why.rstrip('. ')}"
    )


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
