"""A listener for what Spark reports of all queries of a session.

It works over Connect, too, where a query that has ended can no longer be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from ottla.pipeline.spark.progress import FollowedQuery


class QueryListener(StreamingQueryListener):
    """Adds the queries that it hears of to a list, and counts what they do.

    Over Connect the start of a query is told only to those who have started it.
    """

    def __init__(self, followed: list[FollowedQuery]) -> None:
        self._followed = followed
        self._runs: dict[str, FollowedQuery] = {}

    def _of(self, run: str, name: str | None) -> FollowedQuery:
        if run not in self._runs:
            from ottla.pipeline.spark.progress import FollowedQuery

            self._runs[run] = FollowedQuery(name or f"query {run[:8]}")
            self._followed.append(self._runs[run])
        return self._runs[run]

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        self._of(str(event.runId), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._of(str(event.progress.runId), event.progress.name).take(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Does nothing: the progress that was reported before is still true."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        followed = self._runs.get(str(event.runId))
        if followed is not None:
            followed.ended.set()
