"""`ottla consume`: records go to standard output."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import DEFAULT_SERVER, Server, Topic
from ottla.cli.output import binary_output, on_terminal
from ottla.cli.positions import EARLIEST, LATEST, Kind, Position, parse_position
from ottla.cli.progress import Progress
from ottla.cli.topics import choose_partitions

if TYPE_CHECKING:
    from ottla.cli.kafka import Cluster, Record


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
    ottla consume orders --from 2026-11-15T08:30 --until -1h | wc -l
    """
    begin = parse_position(start, "--from")
    end = None if until is None else parse_position(until, "--until")
    if follow and end is not None:
        raise Misuse("--follow never ends and --until does; give one of them")
    if json_lines and (key_separator is not None or meta):
        raise Misuse("--json prints keys and all else by itself; leave the other options away")
    # Imported after the checks: mistakes are told without waiting for the client library.
    from ottla.cli.kafka import Cluster, RecordReader
    from ottla.cli.record_text import record_to_json, unescape

    ending = unescape(delimiter, "--delimiter")
    separator = None if key_separator is None else unescape(key_separator, "--key-separator")
    render = (
        (lambda record: record_to_json(record) + b"\n")
        if json_lines
        else text_renderer(separator, meta, null_marker.encode("utf-8", "surrogateescape"), ending)
    )
    cluster = Cluster(server)
    [description] = cluster.describe_topics([topic])
    existing = [each.partition for each in description.partitions]
    ranges = find_ranges(
        cluster, topic, choose_partitions(topic, existing, partition), begin, end, follow
    )
    total = None
    if not follow:
        total = sum(max(0, (stop or first) - first) for first, stop in ranges.values())
        total = total if count is None else min(count, total)
    reader = RecordReader(server, topic, waits=follow)
    output = binary_output()
    left = count
    try:
        with Progress(f"from {topic}", total, wanted=not on_terminal()) as progress:
            for records in reader.read(ranges):
                if left is not None:
                    records = records[:left]
                    left -= len(records)
                output.write(b"".join([render(record) for record in records]))
                output.flush()
                progress.advance(len(records))
                if left == 0:
                    break
    finally:
        reader.close()


def text_renderer(
    separator: bytes | None, meta: bool, null: bytes, ending: bytes
) -> Callable[[Record], bytes]:
    from ottla.cli.record_text import describe_place

    def render(record: Record) -> bytes:
        line = null if record.value is None else record.value
        if separator is not None:
            line = (null if record.key is None else record.key) + separator + line
        if meta:
            line = describe_place(record) + b"\t" + line
        return line + ending

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
