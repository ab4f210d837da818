"""What the source raises. Spark shows the message in an exception of its own."""

from __future__ import annotations

from ottla.client.errors import OttlaError


class SourceError(OttlaError):
    """Whatever the source raises on purpose."""


class OptionError(SourceError, ValueError):
    """An option is unknown, missing, or has a value that cannot be used; the message names it."""


class NotOffered(SourceError, NotImplementedError):
    """Something that Spark's own Kafka source does, and this one does not do yet."""


class DataLost(SourceError):
    """What was to be read is not there (any more), and failOnDataLoss is true."""


class DamagedLog(SourceError):
    """A file of a log is not what a broker writes; the message names the file and the offset."""
