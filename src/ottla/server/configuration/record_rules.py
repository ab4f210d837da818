"""What a topic's settings ask of each record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.record.validation.findings import Rules
from ottla.storage.config import LONG_MAX

if TYPE_CHECKING:
    from ottla.storage.config import LogConfig


def record_rules(config: LogConfig) -> Rules:
    return Rules(
        keys_required=config.compacts,
        checks_times=not config.stamps_append_time,
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
    )


def needs_checks(config: LogConfig) -> bool:
    """Whether records have to be looked at even if producers are trusted: compaction needs keys,
    recompression records that can be read, and a limit of age the time of each record."""
    return (
        config.compacts
        or config.compression_type != "producer"
        or (config.message_timestamp_before_max_ms != LONG_MAX and not config.stamps_append_time)
    )
