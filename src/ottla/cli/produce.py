"""`ottla produce`: standard input becomes records."""

from __future__ import annotations

import enum
import os
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import INTERRUPTED, Failure, Misuse
from ottla.cli.options import DEFAULT_SERVER, Server, Topic, check_new_name
from ottla.cli.output import note, plural, write_line
from ottla.cli.progress import Progress

if TYPE_CHECKING:
    from ottla.cli.record_text import OutgoingRecord

READ_SIZE = 256 * 1024


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


def split_input(delimiter: bytes) -> Iterator[bytes]:
    """Pieces of standard input as they come; an empty delimiter makes the whole input one piece.

    What follows the last delimiter counts only when it is not empty, as in text files.
    """
    source = sys.stdin.buffer
    if not delimiter:
        yield source.read()
        return
    # read1 hands over what is there, so that a slow writer's lines are not held back.
    read = getattr(source, "read1", source.read)
    pending: list[bytes] = []
    while chunk := read(READ_SIZE):
        if len(delimiter) == 1 and delimiter not in chunk:
            pending.append(chunk)  # joined once the piece ends: a huge one is not copied each time
            continue
        pieces = b"".join([*pending, chunk]).split(delimiter)
        pending = [pieces.pop()]
        yield from pieces
    rest = b"".join(pending)
    if rest:
        yield rest


def _input_size() -> int | None:
    """How much there is to read, where that is known: a file, not a pipe."""
    try:
        status = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


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
    from ottla.cli.record_text import OutgoingRecord, parse_header, record_from_json, unescape
    from ottla.cli.record_writer import RecordWriter

    check_new_name(topic)
    if key is not None and key_separator is not None:
        raise Misuse("--key and --key-separator exclude each other")
    if json_lines and (key is not None or key_separator is not None or null_marker is not None):
        raise Misuse("with --json the key and nulls come from the input; leave --key… away")
    if key_separator == "":
        raise Misuse("--key-separator cannot be empty")
    ending = unescape(delimiter, "--delimiter")
    separator = None if key_separator is None else unescape(key_separator, "--key-separator")
    marker = None if null_marker is None else null_marker.encode("utf-8", "surrogateescape")
    fixed_key = None if key is None else key.encode("utf-8", "surrogateescape")
    headers = tuple(parse_header(text) for text in header or ())

    def parse(number: int, piece: bytes) -> OutgoingRecord | None:
        if json_lines:
            if not piece.strip():
                return None
            record = record_from_json(piece, f"line {number}")
            return record._replace(
                headers=record.headers + headers,
                partition=None if repartition else record.partition,
            )
        record_key, value = fixed_key, piece
        if separator is not None:
            record_key, found, value = piece.partition(separator)
            if not found:
                raise Failure(f"line {number} has no key separator '{key_separator}'")
        return OutgoingRecord(
            None if record_key == marker else record_key,
            None if value == marker else value,
            headers,
        )

    interactive = sys.stdin.isatty()
    writer = RecordWriter(server, topic, acks=acks.value, codec=codec.value)
    if report:
        writer.on_delivered = _report
    if interactive:
        note(f"Each line becomes a record of {topic}; Ctrl-D ends.")
    size = None if interactive else _input_size()
    try:
        with Progress(f"to {topic}", size, wanted=not interactive, in_bytes=True) as progress:
            for number, piece in enumerate(split_input(ending), start=1):
                record = parse(number, piece)
                if record is not None:
                    writer.send(
                        record.key,
                        record.value,
                        record.headers,
                        record.partition if partition is None else partition,
                        record.timestamp,
                    )
                    if interactive:
                        writer.flush()  # so that a refusal is told where it happened
                        sys.stdout.flush()
                progress.advance(len(piece) + len(ending))
            writer.flush()
    except Failure as failure:
        _give_up(writer.delivered, failure)
        writer.abandon()
        raise
    except KeyboardInterrupt:
        # What was read is the user's; it is sent before the command ends.
        writer.flush()
        raise typer.Exit(INTERRUPTED) from None
    if sys.stderr.isatty():
        note(f"{plural(writer.delivered, 'record')} sent to {topic}")


def _give_up(delivered: int, failure: Failure) -> None:
    if delivered:
        verb = "was" if delivered == 1 else "were"
        failure.message += f" ({plural(delivered, 'record')} before it {verb} sent)"


def _report(partition: int, offset: int | None, timestamp: int) -> None:
    shown = "null" if offset is None else str(offset)
    write_line(f'{{"partition":{partition},"offset":{shown},"timestamp":{timestamp}}}')
