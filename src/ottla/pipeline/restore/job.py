"""`ottla restore`: the rows of a table become records of a topic again.

Records get their partitions, keys, headers and timestamps back, in the order of their offsets. The table
is written piece by piece: piece N has the rows of every partition whose offsets are between N and N + 1
times `PIECE`, and is one write of the sink's with `txnVersion` N. So a restore that was interrupted goes
on where it was, and writes nothing twice. Which offsets belong to a restore is fixed when it begins (a
small file in the state folder); run again after its end, it adds what the table has got since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.client.admin.client import Admin
from ottla.client.admin.configs import Resource
from ottla.client.errors import TopicNotFound
from ottla.pipeline.archive.folder import ArchiveFolder
from ottla.pipeline.archive.job import client_options
from ottla.pipeline.durable_files import make_folder, write_whole
from ottla.pipeline.restore.tables import TableError, TableFile, table_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Offsets of a partition in one piece. Part of what `txnVersion` means, so it must not change.
PIECE: Final = 1_000_000
_RETENTION: Final = "retention.ms"
_GLOB: Final = re.compile(r"([\\{}\[\]*?])")  # what Spark takes for patterns in paths
# Spark writes three digits of a second's fraction into JSON unless it is told otherwise.
_MICROSECONDS: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

Notify = Callable[[str], None]


@dataclass(frozen=True)
class RestoreOptions:
    """What to restore, and where to."""

    servers: str
    table: Path
    topic: str
    state: Path  # a folder
    keep_partitions: bool = True  # else the key decides, as for new records
    json_values: bool = False  # values that were decoded are written as JSON
    sink: Mapping[str, str] = field(default_factory=dict)  # further options of the sink

    @property
    def name(self) -> str:
        whose = f"{self.table.resolve()}\0{self.topic}\0{self.servers}"
        return hashlib.sha256(whose.encode()).hexdigest()[:16]


@dataclass
class Rounds:
    """What has been restored to a topic, and what is being restored: kept in a file.

    Invariant: each round begins, in each partition, where the one before it ended.
    """

    path: Path
    ends: list[dict[int, int]] = field(default_factory=list)  # of each round, not included
    finished: int = 0  # rounds
    topic_id: str | None = None  # None: not known, by brokers or versions that are older than ids

    @classmethod
    def load(cls, path: Path, topic_id: str | None = None) -> Rounds:
        """What the file says, unless that is of an earlier topic of the name."""
        if not path.exists():
            return cls(path, topic_id=topic_id)
        kept = json.loads(path.read_text(encoding="utf-8"))
        known = kept.get("topic_id")
        if known is not None and topic_id is not None and known != topic_id:
            return cls(path, topic_id=topic_id)
        ends = [{int(partition): end for partition, end in each.items()} for each in kept["ends"]]
        return cls(path, ends, kept["finished"], known)

    def name(self, number: int) -> str:
        """A name for a round, by which the sink knows what of it was written.

        By the topic's id, because of another topic nothing was written; by its bounds, because a round
        of the same number has others if the file was lost and the table has grown.
        """
        if self.topic_id is None:
            return str(number)
        bounds = [sorted(self.starts(number).items()), sorted(self.ends[number].items())]
        digest = hashlib.sha256(json.dumps(bounds).encode()).hexdigest()[:16]
        return f"{number}-{self.topic_id}-{digest}"

    def begin(self, ends: Mapping[int, int]) -> int | None:
        """The number of the round to do now, an interrupted one or a new one; None: nothing is new."""
        if self.finished == len(self.ends):
            before = self.starts(self.finished)
            if self.ends and all(before.get(each, 0) >= end for each, end in ends.items()):
                return None
            self.ends.append({**self.starts(self.finished), **ends})
            self._save()
        return self.finished

    def starts(self, number: int) -> dict[int, int]:
        return self.ends[number - 1] if number else {}

    def finish(self) -> None:
        self.finished += 1
        self._save()

    def _save(self) -> None:
        make_folder(self.path.parent)
        kept = {"ends": self.ends, "finished": self.finished, "topic_id": self.topic_id}
        write_whole(self.path, json.dumps(kept))


def restore(spark: SparkSession, options: RestoreOptions, notify: Notify) -> int:
    """Write the table to the topic; how many pieces there were. Raises TableError, OttlaError."""
    with undisturbed(options.table):
        files = table_files(options.table)
        ends: dict[int, int] = {}
        for span in (file.span for file in files if file.span is not None):
            ends[span.partition] = max(ends.get(span.partition, 0), span.last + 1)
        topic_id = _make_topic(options, ends, notify)
        rounds = Rounds.load(options.state / f"restore-{options.name}.json", topic_id)
        number = rounds.begin(ends)
        if number is None:
            notify("all that the table has was restored before")
            return 0
        pieces = _pieces(files, rounds.starts(number), rounds.ends[number])
        for done, piece in enumerate(pieces):
            notify(f"piece {done + 1} of {len(pieces)}, {len(piece.files)} files")
            application = f"restore-{options.name}-{rounds.name(number)}"
            _write(
                piece.ordered(_rows(spark, piece.files, options)),
                options,
                application,
                piece.number,
            )
        rounds.finish()
    return len(pieces)


@contextmanager
def undisturbed(table: Path) -> Iterator[None]:
    """Keep an archive job from merging files during the block, if the table is one of its archives."""
    folder = ArchiveFolder(table.parent, table.name.removeprefix("+"))
    with folder.reading() if folder.own.is_dir() else nullcontext():
        yield


@dataclass(frozen=True)
class Piece:
    """Some rows of a table, which are written at once."""

    number: int
    files: list[TableFile]
    offsets: Mapping[int, range]  # by partition; empty: all rows, in any order

    def ordered(self, frame: DataFrame) -> DataFrame:
        """The piece's rows of its files: those of a partition together, in the order of offsets."""
        from pyspark.sql import functions

        if not self.offsets:
            return frame
        wanted = functions.lit(False)
        for partition, own in sorted(self.offsets.items()):
            offset = functions.col("offset").between(own.start, own.stop - 1)
            wanted = wanted | ((functions.col("partition") == partition) & offset)
        frame = frame.where(wanted).repartition(len(self.offsets), "partition")
        return frame.sortWithinPartitions("partition", "offset")


def _pieces(
    files: list[TableFile], starts: Mapping[int, int], ends: Mapping[int, int]
) -> list[Piece]:
    """The pieces that have rows."""
    if not ends:
        return [Piece(0, files, {})]
    pieces = []
    for number in range(max(-(-end // PIECE) for end in ends.values())):
        offsets = {
            partition: range(
                max(number * PIECE, starts.get(partition, 0)), min((number + 1) * PIECE, end)
            )
            for partition, end in ends.items()
        }
        offsets = {partition: own for partition, own in offsets.items() if own}
        chosen = [file for file in files if _overlaps(file, offsets)]
        if chosen:
            pieces.append(Piece(number, chosen, offsets))
    return pieces


def _overlaps(file: TableFile, offsets: Mapping[int, range]) -> bool:
    if file.span is None or file.span.partition not in offsets:
        return False
    own = offsets[file.span.partition]
    return file.span.first < own.stop and file.span.last >= own.start


def _rows(spark: SparkSession, files: list[TableFile], options: RestoreOptions) -> DataFrame:
    from pyspark.sql import functions
    from pyspark.sql.types import BinaryType, StringType

    frame = spark.read.parquet(*(_GLOB.sub(r"\\\1", file.path) for file in files))
    if "value" not in frame.columns:
        raise TableError(f"{options.table} has no column value, which is what records are made of")
    if not isinstance(frame.schema["value"].dataType, BinaryType | StringType):
        if not options.json_values:
            raise TableError(
                f"the values of {options.table} were decoded when it was written, and the bytes they "
                "were are not in it; --value-format json writes them as JSON"
            )
        frame = frame.withColumn("value", functions.to_json("value", _MICROSECONDS))
    return frame


def _write(frame: DataFrame, options: RestoreOptions, application: str, version: int) -> None:
    columns = ["key", "value", "headers", "timestamp"]
    if options.keep_partitions:
        columns.append("partition")
    given: dict[str, Any] = {
        **options.sink,
        "kafka.bootstrap.servers": options.servers,
        "topic": options.topic,
        "txnAppId": application,
        "txnVersion": version,
        "includeTimestamp": "timestamp" in frame.columns,
    }
    chosen = frame.select(*(each for each in columns if each in frame.columns))
    chosen.write.format("ottla").mode("append").options(**given).save()


def _make_topic(options: RestoreOptions, ends: Mapping[int, int], notify: Notify) -> str | None:
    """Make the topic if it is not there; its id."""
    needed = max(ends, default=0) + 1
    with Admin(client_options(options.servers, options.sink)) as admin:
        try:
            topic = admin.describe_topics(options.topic)[options.topic]
        except TopicNotFound:
            # Records keep their timestamps: by the usual setting old ones would be gone at once.
            made = admin.create_topic(options.topic, needed, settings={_RETENTION: "-1"})
            return made.topic_id
        resource = Resource.topic(options.topic)
        kept = admin.describe_configs(resource, names=[_RETENTION])[resource][_RETENTION].value
    if kept != "-1":
        notify(
            f"records older than the topic keeps them will be deleted again ({_RETENTION}={kept})"
        )
    if options.keep_partitions and ends and len(topic.partitions) < needed:
        raise TableError(
            f"topic '{options.topic}' has {len(topic.partitions)} partitions, and the table has rows "
            f"of {needed}: add partitions, or spread the records by their keys (--by-key)"
        )
    return topic.topic_id
