"""`ottla archive`: a topic to Parquet files, a Delta table or an Iceberg table, as a streaming query.

Every micro-batch: tasks write its rows into files (archive_rows); the driver puts them in their places
(archive_folder) and, for tables, commits them to the table's own log (archive_delta, archive_iceberg);
then small files are merged. All of it is on the disk before Spark's checkpoint says that the batch is
done. A batch that a crash interrupted runs again, and finds by what is there which rows are left to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from ottla.client.admin.client import Admin
from ottla.pipeline.archive.folder import (
    ArchivedFile,
    ArchiveError,
    ArchiveFolder,
    Covered,
    CoveredByNames,
    Description,
    StagedFile,
    passed,
)
from ottla.pipeline.archive.merging import FEWEST, Exchanges, worthwhile
from ottla.pipeline.archive.rows import REPORT, Merge, Writing, merging, reported, writing
from ottla.pipeline.spark.streams import start_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Kind = Literal["parquet", "delta", "iceberg"]
_KAFKA: Final = "kafka."


@dataclass(frozen=True)
class ArchiveOptions:
    """What to archive, and how."""

    servers: str
    topic: str
    root: Path
    kind: Kind = "parquet"
    follow: bool = False  # else what there is, and then the end
    every: str = "10 seconds"  # between micro-batches, when following
    batch_rows: int = 10_000_000  # of a micro-batch, at most
    file_size: int = 128 * 1024 * 1024  # bytes, about
    fewest: int = FEWEST  # files that are worth a merge
    source: Mapping[str, str] = field(default_factory=dict)  # further options of the source

    @property
    def folder(self) -> ArchiveFolder:
        return ArchiveFolder(self.root, self.topic)

    @property
    def client(self) -> dict[str, str]:
        """The options of a client of the cluster."""
        return client_options(self.servers, self.source)


def client_options(servers: str, options: Mapping[str, str]) -> dict[str, str]:
    """The client's options among those of a source or sink: without `kafka.`."""
    own = {
        name.removeprefix(_KAFKA): value
        for name, value in options.items()
        if name.startswith(_KAFKA)
    }
    return {**own, "bootstrap.servers": servers}


class Destination(Protocol):
    """Where an archive job puts its files of rows."""

    def covered(self) -> Covered:
        """Which rows are in the archive already."""

    def publish(self, files: list[StagedFile]) -> None:
        """Put files where readers find them; durable when this returns."""

    def merges(self, files: list[StagedFile]) -> list[Merge]:
        """What is to be merged now that these have come."""

    def replace(self, merges: list[Merge], merged: list[StagedFile]) -> None:
        """Put merged files in the place of what they were made of."""

    def finish(self) -> None:
        """Finish what is still to be done when the job ends."""


class ParquetFiles:
    """Plain Parquet files in a folder, as a destination."""

    def __init__(self, options: ArchiveOptions) -> None:
        self._folder = options.folder
        self._options = options
        self._exchanges = Exchanges(self._folder)

    def covered(self) -> Covered:
        return CoveredByNames(self._folder)

    def publish(self, files: list[StagedFile]) -> None:
        self._folder.publish(files)

    def merges(self, files: list[StagedFile]) -> list[Merge]:
        self._exchanges.sweep()
        if not self._exchanges.possible:
            return []
        reached = passed(files)
        chosen: list[Merge] = []
        for date in sorted({file.date for file in files}):
            complete = [each for each in self._folder.files(date) if _is_complete(each, reached)]
            chosen += worthwhile(complete, self._options.file_size, self._options.fewest)
        return chosen

    def replace(self, merges: list[Merge], merged: list[StagedFile]) -> None:
        with self._folder.unread() as nobody_reads:
            for date in sorted({file.date for file in merged}) if nobody_reads else ():
                self._exchanges.replace(
                    date,
                    [merge for merge in merges if merge.files[0].date == date],
                    [file for file in merged if file.date == date],
                )

    def finish(self) -> None:
        self._exchanges.finish()


def _is_complete(file: ArchivedFile, reached: Mapping[int, int]) -> bool:
    """Whether all rows of a file have been archived. Files with later offsets may be those of a job
    whose checkpoint was lost, with rows missing between them and the present batch: a merged file must
    not claim those."""
    return file.name.last <= reached.get(file.name.partition, -1)


class Archiving:
    """The work on each micro-batch."""

    def __init__(self, options: ArchiveOptions, destination: Destination) -> None:
        self._options = options
        self._folder = options.folder
        self._destination = destination

    def write_batch(self, frame: DataFrame, batch: int) -> None:  # noqa: ARG002 - Spark's signature
        plan = Writing(
            self._options.topic,
            str(self._folder.staging),
            self._destination.covered(),
            self._options.file_size,
        )
        files = reported(frame.mapInArrow(writing(plan), REPORT).collect())
        self._destination.publish(files)
        merges = self._destination.merges(files)
        if merges:
            self._merge(frame.sparkSession, merges)
        # By attempts of tasks that failed, or by merges that had to wait for readers.
        for left in self._folder.staging.iterdir():
            left.unlink(missing_ok=True)

    def _merge(self, spark: SparkSession, merges: list[Merge]) -> None:
        numbers = spark.range(0, len(merges), 1, len(merges))
        merged = reported(numbers.mapInArrow(merging(self._folder, merges), REPORT).collect())
        self._destination.replace(merges, merged)


def load(spark: SparkSession, options: ArchiveOptions) -> DataFrame:
    """The rows to be archived, as a stream."""
    given = {
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(options.batch_rows),
        "startingOffsets": "earliest",
        **options.source,
        "kafka.bootstrap.servers": options.servers,
        "subscribe": options.topic,
    }
    return spark.readStream.format("ottla").options(**given).load()


@contextmanager
def archiving(spark: SparkSession, options: ArchiveOptions) -> Iterator[StreamingQuery]:
    """The query that archives; it is stopped at the end. Raises ArchiveError."""
    from pyspark.sql.pandas.types import to_arrow_schema

    with Admin(options.client) as admin:
        topic = admin.describe_topics(options.topic)[options.topic]
    frame = load(spark, options)
    description = Description(options.kind, frame.schema.json(), topic.topic_id)
    with options.folder.opened(description):
        destination = destination_of(options, to_arrow_schema(frame.schema, timezone="UTC"))
        work = Archiving(options, destination)
        query = start_batches(
            frame,
            f"archive of {options.topic}",
            options.folder.checkpoint,
            work.write_batch,
            every=options.every,
            once=not options.follow,
        )
        try:
            yield query
        finally:
            query.stop()
            destination.finish()


def destination_of(options: ArchiveOptions, rows: pa.Schema) -> Destination:
    """Where the archive's files go; ArchiveError if what it takes is not installed."""
    try:
        match options.kind:
            case "delta":
                from ottla.pipeline.archive.delta import DeltaFiles

                return DeltaFiles(options, rows)
            case "iceberg":
                from ottla.pipeline.archive.iceberg import IcebergFiles

                return IcebergFiles(options, rows)
            case "parquet":
                return ParquetFiles(options)
    except ImportError:
        raise ArchiveError(
            f"{options.kind.title()} tables need `pip install 'ottla[{options.kind}]'`"
        ) from None
