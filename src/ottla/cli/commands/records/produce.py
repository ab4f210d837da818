"""`ottla produce`: standard input becomes records."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import HEADER_NOT_UTF_8, INTERRUPTED, Failure, Misuse
from ottla.cli.interrupts import Interrupts
from ottla.cli.options import DEFAULT_SERVER, Server, Topic, check_new_name
from ottla.cli.output import note, plural, write_line
from ottla.cli.progress import Progress
from ottla.cli.records.input_blocks import Block, input_size, split_input

if TYPE_CHECKING:
    from ottla.cli.records.lines import RecordLines
    from ottla.cli.records.writer import RecordWriter

# Records from which on columns pay: importing what makes them takes as long as sending so many. For a
# file that is as large, they pay from the start.
COLUMNS_FROM = 60_000
COLUMNS_FROM_BYTES = 8 * 1024 * 1024
COLUMNS_OF_AT_LEAST = 200  # records at once
# Of a file so large more is won by waiting for the compiled kernels (half a second, if they are in the
# cache) than by encoding without them meanwhile.
KERNELS_FROM_BYTES = 16 * 1024 * 1024
LARGEST_COLUMNS = 256 * 1024 * 1024  # bytes; lines that make more go one by one


class Acks(enum.StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


class CodecName(enum.StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    topic: Topic,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="TEXT", help="The key of every record.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            metavar="TEXT",
            help="What stands between key and value in each line, as ':' or '\\t'.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header of every record; repeatable."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Else the key decides."),
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json", help="Each line is a JSON object, as `ottla consume --json` prints."
        ),
    ] = False,
    repartition: Annotated[
        bool,
        typer.Option("--repartition", help="Ignore the partitions that --json input names."),
    ] = False,
    delimiter: Annotated[
        str,
        typer.Option(
            "--delimiter",
            "-D",
            metavar="TEXT",
            help="What ends a record; '' makes the whole input one record.",
        ),
    ] = "\\n",
    null_marker: Annotated[
        str | None,
        typer.Option("--null-marker", metavar="TEXT", help="This text stands for null."),
    ] = None,
    codec: Annotated[
        CodecName, typer.Option("--codec", "-z", help="How batches are compressed.")
    ] = CodecName.NONE,
    acks: Annotated[
        Acks,
        typer.Option("--acks", help="Who must have a record: nobody, the leader, all in sync."),
    ] = Acks.ALL,
    report: Annotated[
        bool,
        typer.Option("--report", help="Print a JSON object for each record: where it went."),
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Send records read from standard input, one from each line.

    \b
    echo hello | ottla produce greetings
    printf 'a:1\\nb:2\\n' | ottla produce orders --key-separator :
    ottla produce orders --json < orders.jsonl
    ottla consume orders --json | ottla produce copy --json --repartition
    """
    from ottla.cli.records.lines import RecordLines
    from ottla.cli.records.text import parse_header, unescape
    from ottla.cli.records.writer import RecordWriter

    check_new_name(topic)
    if key is not None and key_separator is not None:
        raise Misuse("--key and --key-separator exclude each other")
    if json_lines and (key is not None or key_separator is not None or null_marker is not None):
        raise Misuse("with --json the key and nulls come from the input; leave --key… away")
    if key_separator == "":
        raise Misuse("--key-separator cannot be empty")
    ending = unescape(delimiter, "--delimiter")
    marker = None if null_marker is None else null_marker.encode("utf-8", "surrogateescape")
    lines = RecordLines(
        json=json_lines,
        repartition=repartition,
        key=None if key is None else key.encode("utf-8", "surrogateescape"),
        separator=None if key_separator is None else unescape(key_separator, "--key-separator"),
        separator_shown=key_separator or "",
        null_marker=marker,
        headers=tuple(parse_header(text) for text in header or ()),
        partition=partition,
    )
    interactive = sys.stdin.isatty()
    writer = RecordWriter(server, topic, acks=acks.value, codec=codec.value)
    if report:
        writer.on_delivered = _report
    if interactive:
        note(f"Each line becomes a record of {topic}; Ctrl-D ends.")
    size = None if interactive else input_size()
    interrupts = Interrupts()
    try:
        with (
            interrupts,
            Progress(f"to {topic}", size, wanted=not interactive, in_bytes=True) as bar,
        ):
            first = 1
            columns_from = None if interactive or report else _columns_from(size)
            if columns_from is not None and size is not None and size >= KERNELS_FROM_BYTES:
                from ottla.record.columns.kernels.readiness import load_compiled

                load_compiled()
            for block in split_input(ending, interrupts):
                _send(writer, lines, first, block, columns_from)
                if interactive:
                    writer.flush()  # so that a refusal is told where it happened
                    sys.stdout.flush()
                first += block.count
                bar.advance(block.size)
            writer.flush()
    except Failure as failure:
        _give_up(writer, failure)
        raise
    except KeyboardInterrupt:
        _end_early(writer, topic, patient=not interrupts.repeated)
        raise typer.Exit(INTERRUPTED) from None
    if sys.stderr.isatty():
        note(f"{plural(writer.delivered, 'record')} sent to {topic}")


def _columns_from(size: int | None) -> int:
    return 0 if size is not None and size >= COLUMNS_FROM_BYTES else COLUMNS_FROM


def _send(
    writer: RecordWriter,
    lines: RecordLines,
    first: int,
    block: Block,
    columns_from: int | None,
) -> None:
    """Send the records of lines, of which the first has this number."""
    if (
        columns_from is not None
        and block.count >= COLUMNS_OF_AT_LEAST
        and first + block.count > columns_from
        and block.size <= LARGEST_COLUMNS
    ):
        try:
            records, failure = lines.columns(first, block)
        except UnicodeEncodeError:
            raise Failure(HEADER_NOT_UTF_8) from None
        if records is not None:
            writer.write(records)
        if failure is not None:
            writer.flush()
            raise failure
        return
    for number, piece in enumerate(block.pieces, start=first):
        try:
            record = lines.record(number, piece)
        except Failure:
            writer.flush()
            raise
        if record is not None:
            writer.send(*record)


def _give_up(writer: RecordWriter, failure: Failure) -> None:
    writer.abandon()
    if writer.delivered:
        verb = "was" if writer.delivered == 1 else "were"
        failure.message += f" ({plural(writer.delivered, 'record')} before it {verb} sent)"


def _end_early(writer: RecordWriter, topic: str, *, patient: bool) -> None:
    """End after Ctrl-C. Records that were read are sent before, unless it was pressed again (then
    `patient` is false, or the wait is interrupted)."""
    try:
        if patient:
            writer.flush()
    except Failure as failure:
        _give_up(writer, failure)
        raise
    except KeyboardInterrupt:
        pass  # then not
    writer.abandon()
    missing = writer.given - writer.delivered
    left = f"; {missing} more were read, and the broker has not acknowledged them"
    note(f"{plural(writer.delivered, 'record')} sent to {topic}{left if missing else ''}")


def _report(partition: int, offset: int | None, timestamp: int) -> None:
    shown = "null" if offset is None else str(offset)
    write_line(f'{{"partition":{partition},"offset":{shown},"timestamp":{timestamp}}}')
