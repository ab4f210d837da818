"""A function for `foreachBatch`, which writes each batch of a streaming query once.

Spark does not let Python sinks have the update mode of output; foreachBatch has it:

    counts.writeStream.outputMode("update").foreachBatch(
        write_batches({"kafka.bootstrap.servers": "localhost:9092", "topic": "counts"})
    )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from pyspark_ottla.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY: Final = "sql.streaming.queryId"


def write_batches(
    options: Mapping[str, object], *, application: str | None = None
) -> Callable[[DataFrame, int], None]:
    """What to give to foreachBatch: writes each batch with these options of the sink, exactly once.

    The query's id and the batch's number are its txnAppId and txnVersion. Over Spark Connect the id is
    not to be had: name the application, then, and give every query a name of its own.
    """
    clash = [name for name in options if name.lower() in ("txnappid", "txnversion")]
    if clash:
        raise OptionError(f"write_batches sets {clash[0]} itself; see application=")
    given = {name: str(value) for name, value in options.items()}

    def write(batch: DataFrame, number: int) -> None:
        writer = batch.write.format("ottla").mode("append").options(**given)
        name = application or _query_of(batch)
        writer.option("txnAppId", name).option("txnVersion", number).save()

    return write


def _query_of(batch: DataFrame) -> str:
    context = getattr(batch.sparkSession, "_sc", None)  # a session over Connect has none
    found = None if context is None else context.getLocalProperty(_QUERY)
    if not found:
        raise OptionError(
            "Spark does not tell which query this is: name it with write_batches(…, application=…)"
        )
    return str(found)
