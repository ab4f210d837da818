"""What goes wrong with a write that is to happen exactly once. Spark shows the message."""

from __future__ import annotations

from pyspark_ottla.errors import SourceError


class AttemptLost(SourceError):
    """A task's transaction was over before the batch was decided: nothing of it was written."""


class BatchTorn(SourceError):
    """A transaction was aborted after the decision to commit it: rows of the batch are missing."""


class WrongLedger(SourceError):
    """The topic of decisions is not what it has to be."""
