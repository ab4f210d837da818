"""`ottla consume`: records go to standard output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.commands.administration.topics import choose_partitions
from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import DEFAULT_SERVER, Server, Topic
from ottla.cli.output import binary_output, on_terminal
from ottla.cli.progress import Progress
from ottla.cli.records.positions import EARLIEST, LATEST, Kind, Position, parse_position

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster
    from ottla.cli.records.reader import GroupReader
    from ottla.client.consumer.plain_rows import RecordList
    from ottla.record.batch import Record

    Render = Callable[[int, list[Record]], bytes]  # of a partition's number and its records


def consume(
    topic: Topic,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar="WHERE",
            help="earliest, latest, an offset, -N (N before the end), "
            "or a time: 2026-11-15T08:30, @MILLISECONDS, -15m.",
        ),
    ] = "earliest",
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="WHERE",
            help="Stop before this; the same words as for --from.",
            show_default="the end as of now",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", min=1, help="Stop after N records."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more at the end, until Ctrl-C.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="NAME",
            help="Read as a member of this group, from what it has committed on; --from says where "
            "it begins. What was printed is committed.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Only this; repeatable."),
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option("--json", help="One JSON object for each record, with key, headers, offset…"),
    ] = False,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Print the key and this before values."
        ),
    ] = None,
    meta: Annotated[
        bool,
        typer.Option(
            "--meta", "-m", help="Print partition, offset, time and headers before each, with tabs."
        ),
    ] = False,
    delimiter: Annotated[
        str,
        typer.Option("--delimiter", "-D", metavar="TEXT", help="What is printed after a record."),
    ] = "\\n",
    null_marker: Annotated[
        str, typer.Option("--null-marker", metavar="TEXT", help="Printed for null.")
    ] = "",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Print a topic's records: by default all there are now, then stop.

    \b
    ottla consume orders
    ottla consume orders --from latest --follow
    ottla consume orders --from -10 --json
    ottla consume orders --group billing --follow
    ottla consume orders --from 2026-11-15T08:30 --until -1h | wc -l
    """
    begin = parse_position(start, "--from")
    end = None if until is None else parse_position(until, "--until")
    if follow and end is not None:
        raise Misuse("--follow never ends and --until does; give one of them")
    if json_lines and (key_separator is not None or meta):
        raise Misuse("--json prints keys and all else by itself; leave the other options away")
    if group is not None:
        _check_group_options(group, begin, end, partition)
    # Imported after the checks: mistakes are told without waiting for the client library.
    from ottla.cli.cluster.admin import Cluster
    from ottla.cli.records.reader import GroupReader, RecordReader
    from ottla.cli.records.text import unescape

    ending = unescape(delimiter, "--delimiter")
    separator = None if key_separator is None else unescape(key_separator, "--key-separator")
    null = null_marker.encode("utf-8", "surrogateescape")
    render = json_renderer() if json_lines else text_renderer(separator, meta, null, ending)
    cluster = Cluster(server)
    [description] = cluster.describe_topics([topic])
    existing = [each.partition for each in description.partitions]
    if group is not None:
        found = cluster.offsets(topic, existing, LATEST)
        members = GroupReader(server, topic, group, waits=follow, start=begin.kind.value)
        with closing(members):
            ends = {index: each.offset for index, each in found.items()}
            _write(members.read(ends), render, count, Progress(f"from {topic}"), members)
        return
    ranges = find_ranges(
        cluster, topic, choose_partitions(topic, existing, partition), begin, end, follow
    )
    total = None
    if not follow:
        total = sum(max(0, (stop or first) - first) for first, stop in ranges.values())
        total = total if count is None else min(count, total)
    progress = Progress(f"from {topic}", total, wanted=not on_terminal())
    with closing(RecordReader(server, topic, waits=follow)) as reader:
        _write(reader.read(ranges), render, count, progress)


def _check_group_options(
    group: str, begin: Position, end: Position | None, partition: list[int] | None
) -> None:
    if not group:
        raise Misuse("--group cannot be empty")
    if end is not None or partition:
        raise Misuse(
            "a group shares out the partitions and knows where it is; leave --until and "
            "--partition away with --group"
        )
    if begin not in (EARLIEST, LATEST):
        raise Misuse(
            "with --group, --from is earliest or latest, for what the group has not committed; "
            "`ottla group reset-offsets` moves a group"
        )


def _write(
    pieces: Iterable[RecordList],
    render: Render,
    count: int | None,
    progress: Progress,
    members: GroupReader | None = None,
) -> None:
    """Print records, `count` of them at most; what is printed is committed if a group reads."""
    output = binary_output()
    left = count
    with progress:
        for rows in pieces:
            records: list[Record] = rows if left is None else rows[:left]
            output.write(render(rows.partition.partition, records))
            output.flush()
            if members is not None:
                members.commit(rows, len(records))
            progress.advance(len(records))
            if left is not None:
                left -= len(records)
                if not left:
                    break


def json_renderer() -> Render:
    from ottla.cli.records.text import IncomingRecord, record_to_json

    def render(partition: int, records: list[Record]) -> bytes:
        return b"".join(
            [record_to_json(IncomingRecord(partition, *each)) + b"\n" for each in records]
        )

    return render


def text_renderer(separator: bytes | None, meta: bool, null: bytes, ending: bytes) -> Render:
    from ottla.cli.records.text import IncomingRecord, describe_place

    def line(partition: int, record: Record) -> bytes:
        text = null if record.value is None else record.value
        if separator is not None:
            text = (null if record.key is None else record.key) + separator + text
        if meta:
            text = describe_place(IncomingRecord(partition, *record)) + b"\t" + text
        return text + ending

    def render(partition: int, records: list[Record]) -> bytes:
        if separator is None and not meta:
            values = [null if each.value is None else each.value for each in records]
            return ending.join([*values, b""])
        return b"".join([line(partition, each) for each in records])

    return render


def find_ranges(
    cluster: Cluster,
    topic: str,
    partitions: list[int],
    begin: Position,
    end: Position | None,
    follow: bool,
) -> dict[int, tuple[int, int | None]]:
    """For each partition the first offset to read and the one to stop before (None: never)."""
    lowest = {
        index: found.offset for index, found in cluster.offsets(topic, partitions, EARLIEST).items()
    }
    highest = {
        index: found.offset for index, found in cluster.offsets(topic, partitions, LATEST).items()
    }

    def locate(position: Position) -> dict[int, int]:
        if position.kind is Kind.EARLIEST:
            return lowest
        if position.kind is Kind.LATEST:
            return highest
        if position.kind is Kind.BEFORE_END:
            return {index: highest[index] - position.number for index in partitions}
        if position.kind is Kind.TIME:
            # No record from this time on: the end, unless more is to come.
            found = cluster.offsets(topic, partitions, position)
            return {
                index: highest[index] if found[index].offset < 0 else found[index].offset
                for index in partitions
            }
        return dict.fromkeys(partitions, position.number)

    if begin.kind is Kind.OFFSET and not any(
        lowest[index] <= begin.number <= highest[index] for index in partitions
    ):
        reach = f"{min(lowest.values())} to {max(highest.values())}"
        whose = f"partition {partitions[0]}" if len(partitions) == 1 else "no partition"
        raise Failure(
            f"--from {begin.number} is outside: {whose} of '{topic}' "
            + (
                f"reaches from {reach}"
                if len(partitions) == 1
                else f"has it, they reach from {reach}"
            )
        )
    starts = locate(begin)
    ends = highest if end is None else locate(end)
    ranges: dict[int, tuple[int, int | None]] = {}
    for index in partitions:
        # An offset that other partitions have may lie outside this one.
        first = min(max(starts[index], lowest[index]), highest[index])
        ranges[index] = (first, None if follow else min(ends[index], highest[index]))
    return ranges
