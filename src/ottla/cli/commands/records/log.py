"""`ottla log`: look into a log's files, and check them, with no broker running."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failures import FAILED, Failure
from ottla.cli.options import Json, help_group
from ottla.cli.output import human_size, note, plural, write_document, write_line
from ottla.cli.progress import Progress
from ottla.cli.records.positions import show_time

if TYPE_CHECKING:
    from ottla.logfiles.folders import LogFolder, SegmentFiles, StoredBatch
    from ottla.record.batch import Record
    from ottla.record.offset_set import OffsetSet
    from ottla.storage.verify import Verdict

app = help_group("Look into log files and check them, without a broker.")

Where = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="A data folder, one of its topic-N folders, or a .log file.",
        show_default=False,
    ),
]


@app.command()
def dump(
    where: Where,
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Every record, not only batches.")
    ] = False,
    indexes: Annotated[
        bool, typer.Option("--indexes", "-i", help="The entries of the index files instead.")
    ] = False,
    start: Annotated[
        int, typer.Option("--from", "-o", metavar="OFFSET", min=0, help="Begin at this offset.")
    ] = 0,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", min=1, help="Stop after N lines."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on each line.")] = False,
) -> None:
    """Print what is in the files of a log: Ottla's, or those of a Kafka broker.

    \b
    ottla log dump ./data/orders-0
    ottla log dump ./data/orders-0 --records --from 1000 --count 10 --json
    ottla log dump ./data/orders-0/00000000000000000000.log --indexes
    """

    printed = 0
    damaged = False
    for folder in _find(where):
        deleted = _deleted(folder) if records else None
        for segment in folder.segments:
            if not json:
                write_line(f"{folder.name}/{segment.log.name}")
            lines = (
                _index_lines(folder, segment, start, json)
                if indexes
                else _segment_lines(folder, segment, start, deleted, json)
            )
            for line, sound in lines:
                write_line(line)
                damaged = damaged or not sound
                printed += 1
                if printed == count:
                    return
    if damaged:
        raise typer.Exit(FAILED)


def _find(where: Path) -> list[LogFolder]:
    from ottla.logfiles.folders import NotALog, find_logs

    try:
        return find_logs(where)
    except NotALog as error:
        raise Failure(str(error)) from None


def _deleted(folder: LogFolder) -> OffsetSet:
    """Offsets of records that were deleted one by one, and of the marks that say so."""
    from ottla.logfiles.deletions import deleted_offsets

    return deleted_offsets(folder)


def _segment_lines(
    folder: LogFolder, segment: SegmentFiles, start: int, deleted: OffsetSet | None, json: bool
) -> Any:
    """Lines to print, each with whether what it tells of is undamaged: of batches, or (if it is known
    which of them are deleted) of records."""
    from ottla.logfiles.folders import Damage, read_batches, read_records
    from ottla.record.errors import InvalidBatch

    try:
        for batch in read_batches(segment.log):
            if batch.header.last_offset < start:
                continue
            if deleted is None or batch.damage is not None:
                yield _batch_line(folder, segment, batch, json), batch.damage is None
                continue
            try:
                for record in read_records(batch):
                    if record.offset < start:
                        continue
                    if record.offset in deleted and not batch.header.is_control:
                        yield _deleted_line(folder, record.offset, json), True
                    else:
                        yield _record_line(folder, batch, record, json), True
            except InvalidBatch as problem:
                yield _damage_line(folder, segment, batch.position, problem.reason, json), False
    except Damage as damage:
        yield _damage_line(folder, segment, damage.position, damage.reason, json), False


def _damage_line(
    folder: LogFolder, segment: SegmentFiles, position: int, reason: str, json: bool
) -> str:
    if json:
        return _compact(
            {
                "log": folder.name,
                "file": segment.log.name,
                "position": position,
                "damage": reason,
            }
        )
    return f"  position {position}: DAMAGED, {reason}"


def _batch_line(folder: LogFolder, segment: SegmentFiles, batch: StoredBatch, json: bool) -> str:
    from ottla.record.compression.codecs import Codec

    header = batch.header
    codec = Codec(header.codec).name.lower() if header.codec in list(Codec) else str(header.codec)
    if json:
        return _compact(
            {
                "log": folder.name,
                "file": segment.log.name,
                "position": batch.position,
                "size": batch.size,
                "base_offset": header.base_offset,
                "last_offset": header.last_offset,
                "records": header.record_count,
                "magic": header.magic,
                "codec": codec,
                "leader_epoch": header.partition_leader_epoch,
                "base_timestamp": header.base_timestamp,
                "max_timestamp": header.max_timestamp,
                "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "transactional": header.is_transactional,
                "control": header.is_control,
                "crc": header.crc,
                "damage": batch.damage,
            }
        )
    parts = [
        f"  position {batch.position}:",
        f"offsets {header.base_offset}-{header.last_offset},"
        if header.last_offset != header.base_offset
        else f"offset {header.base_offset},",
        f"{plural(header.record_count, 'record')},",
        f"{batch.size} bytes,",
        f"format v{header.magic},",
        f"{codec},",
        f"epoch {header.partition_leader_epoch},",
        show_time(header.max_timestamp),
    ]
    if header.producer_id >= 0:
        parts.append(
            f"(producer {header.producer_id}, epoch {header.producer_epoch}, "
            f"sequence {header.base_sequence})"
        )
    if header.is_transactional:
        parts.append("transactional")
    if header.is_control:
        parts.append("control")
    if batch.damage is not None:
        parts.append(f"DAMAGED, {batch.damage}")
    return " ".join(parts)


def _deleted_line(folder: LogFolder, offset: int, json: bool) -> str:
    """The line of a deleted record, whose bytes may still be there."""
    if json:
        return _compact({"log": folder.name, "offset": offset, "deleted": True})
    return f"  {offset} deleted"


def _record_line(folder: LogFolder, batch: StoredBatch, record: Record, json: bool) -> str:
    from ottla.record.bytes_json import bytes_to_json

    control = _control_name(record) if batch.header.is_control else None
    if json:
        document: dict[str, Any] = {
            "log": folder.name,
            "offset": record.offset,
            "timestamp": record.timestamp,
            **bytes_to_json("key", record.key),
            **bytes_to_json("value", record.value),
            "headers": [
                {"key": name, **bytes_to_json("value", value)} for name, value in record.headers
            ],
        }
        if control is not None:
            document["control"] = control
        return _compact(document)
    if control is not None:
        return f"  {record.offset} {show_time(record.timestamp)} control: {control}"
    headers = "".join(f" {name}={_shown(value)}" for name, value in record.headers)
    return (
        f"  {record.offset} {show_time(record.timestamp)} "
        f"key={_shown(record.key)} value={_shown(record.value)}{headers}"
    )


def _control_name(record: Record) -> str:
    from ottla.record.control import control_type, read_end_of_transaction
    from ottla.record.deletion import ranges_in
    from ottla.record.errors import InvalidBatch

    try:
        marked = ranges_in(record)
        if marked is not None:
            shown = (f"{a}" if a + 1 == b else f"{a}-{b - 1}" for a, b in marked)
            return f"deletion of {', '.join(shown)}"
        marker = read_end_of_transaction(record)
        if marker is None:
            return f"type {control_type(record)}"
    except InvalidBatch as problem:
        return problem.reason
    return "commit" if marker.committed else "abort"


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        return json_module.dumps(data.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def _index_lines(folder: LogFolder, segment: SegmentFiles, start: int, json: bool) -> Any:
    from ottla.storage import verify as log_verify
    from ottla.storage.errors import CorruptFile

    readers: tuple[tuple[str, tuple[str, ...], Any], ...] = (
        (".index", ("offset", "position"), log_verify.offset_entries),
        (".timeindex", ("timestamp", "offset"), log_verify.time_entries),
        (
            ".txnindex",
            ("producer_id", "first_offset", "last_offset", "last_stable_offset"),
            log_verify.transaction_entries,
        ),
    )
    for suffix, names, read in readers:
        path = segment.sibling(suffix)
        if not path.exists():
            continue
        try:
            entries = read(segment)
        except CorruptFile as problem:
            shown = {"log": folder.name, "file": path.name, "damage": problem.reason}
            yield _compact(shown) if json else f"  {path.name}: DAMAGED, {problem.reason}", False
            continue
        for entry in entries:
            fields = dict(zip(names, entry, strict=True))
            if fields.get("offset", fields.get("last_offset", 0)) < start:
                continue
            if json:
                yield _compact({"log": folder.name, "file": path.name, **fields}), True
            else:
                values = ", ".join(f"{name} {value}" for name, value in fields.items())
                yield f"  {suffix[1:]}: {values}", True


def _compact(document: dict[str, Any]) -> str:
    return json_module.dumps(document, ensure_ascii=False, separators=(",", ":"))


@app.command()
def verify(
    where: Where,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also decompress and check every record.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a log's files: checksums, offsets, indexes, snapshots. Exit status 1 if any is wrong.

    Nothing is changed; a broker repairs what it can when it starts. While a broker runs, its \
last batch may look torn because it is just being written.

    \b
    ottla log verify ./data
    ottla log verify ./data/orders-0 --deep --json
    """
    from ottla.storage.verify import verify_checkpoints, verify_log

    folders = _find(where)
    total = sum(segment.log.stat().st_size for folder in folders for segment in folder.segments)
    verdicts = []
    with Progress(f"checking {where}", total, in_bytes=True) as progress:
        for folder in folders:
            verdict = verify_log(folder, deep=deep, advance=progress.advance)
            verdicts.append(verdict)
            # Of the many partitions of a broker most may be empty; they are only counted.
            if not json and (verdict.batches or verdict.problems or len(folders) == 1):
                _write_verdict(verdict)
    checkpoints = []
    if where.is_dir() and folders[0].path != where:
        ends = {verdict.log: verdict.end_offset for verdict in verdicts}
        checkpoints = verify_checkpoints(where, ends)
    wrong = len(checkpoints) + sum(len(verdict.problems) for verdict in verdicts)
    if json:
        write_document(
            {
                "sound": not wrong,
                "logs": [
                    {
                        **verdict._asdict(),
                        "problems": [problem._asdict() for problem in verdict.problems],
                    }
                    for verdict in verdicts
                ],
                "problems": [problem._asdict() for problem in checkpoints],
            }
        )
    else:
        for problem in checkpoints:
            write_line(f"{problem.file}: {problem.message}")
        if len(folders) > 1:
            empty = sum(not verdict.batches for verdict in verdicts)
            write_line(f"{plural(len(folders), 'log')} checked, {empty} of them empty")
    if wrong:
        if json:
            raise typer.Exit(FAILED)
        raise Failure(f"{plural(wrong, 'problem')} found in {where}")


@app.command()
def scrub(
    where: Where,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", metavar="MIB", min=0.001, help="Read no more than so many MiB in a second."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Look for damage at rest: read every closed segment and compare its checksums. Exit status 1 if \
there is any.

    Closed segments are all but the last of each log, and never change; so this may run beside a \
broker. No log is changed. A broker does the same by itself, slowly, if log.scrub.interval.ms is set. \
While none runs, damaged logs are noted in its data folder: a broker that is started there looks at \
them at once, and fetches those with other replicas again.

    \b
    ottla log scrub ./data
    ottla log scrub ./data/orders-0 --rate 20 --json
    """
    import time

    from ottla.storage.scrub import note_damage, scrub_log

    folders = _find(where)
    noted: dict[Path, list[str]] = {}
    closed = [segment for folder in folders for segment in folder.segments[:-1]]
    total = sum(segment.log.stat().st_size for segment in closed)
    damaged = []
    with Progress(f"scrubbing {where}", total, in_bytes=True) as progress:

        def spend(count: int) -> None:
            progress.advance(count)
            if rate is not None:
                time.sleep(count / (rate * (1 << 20)))

        for folder in folders:
            for finding in scrub_log(folder, spend):
                damaged.append({"log": folder.name, **finding._asdict()})
                noted.setdefault(folder.path.resolve().parent, []).append(folder.name)
                if not json:
                    write_line(
                        f"{folder.name}/{finding.file} at {finding.position}: "
                        f"offset {finding.offset}, {finding.reason}"
                    )
    for data_folder, names in noted.items():
        try:
            note_damage(data_folder, names)
        except OSError as error:
            note(f"the damage could not be noted in {data_folder}: {error}")
    if json:
        write_document(
            {"sound": not damaged, "segments": len(closed), "bytes": total, "damage": damaged}
        )
        if damaged:
            raise typer.Exit(FAILED)
        return
    if damaged:
        raise Failure(f"{plural(len(damaged), 'damaged place')} found in {where}")
    write_line(f"{plural(len(closed), 'closed segment')} read, {human_size(total)}: no damage")


def _write_verdict(verdict: Verdict) -> None:
    reach = (
        "empty"
        if verdict.start_offset is None or verdict.end_offset is None
        else f"offsets {verdict.start_offset}-{verdict.end_offset - 1}"
    )
    write_line(
        f"{verdict.log}: {'damaged' if verdict.problems else 'sound'}, {reach}, "
        f"{plural(verdict.segments, 'segment')}, {plural(verdict.batches, 'batch')}, "
        f"{plural(verdict.records, 'record')}, {human_size(verdict.size)}"
        + (f", {verdict.deleted_on_disk} deleted but not erased" if verdict.deleted_on_disk else "")
    )
    for problem in verdict.problems:
        place = "" if problem.position is None else f" at {problem.position}"
        write_line(f"  {problem.file}{place}: {problem.message}")
