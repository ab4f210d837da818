"""The names of a log's folder and of the files in it. They are Kafka's."""

from __future__ import annotations

import re
import uuid

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
SEGMENT_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)
# After the others, on files that are on their way out or in.
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"

# In a data folder, for all its logs.
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"  # high watermarks
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
SEALED_SEGMENTS_CHECKPOINT = "sealed-segments-checkpoint"
DELETIONS_CHECKPOINT = "deleted-records-checkpoint"  # Ottla's: how far the snapshots of logs go
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
FOLDER_IDENTITY = "meta.properties"
DAMAGED_LOGS = ".damaged-logs"  # Ottla's: logs that a scrub found damaged, one to a line
FOLDER_LOCK = ".lock"
# In the folder of one log.
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
DELETIONS_SNAPSHOT = "deleted-records-snapshot"
SET_ASIDE_AT = "set-aside-at"  # Ottla's, of a stray: when it was first seen, in milliseconds
SET_ASIDE_START = "set-aside-log-start"  # Ottla's, likewise: the offset that its log starts at

# After the name of a log's folder and a unique number: deleted, on its way into this data folder, set
# aside because nobody knows its topic, set aside because it is damaged (Ottla's).
DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"
DAMAGED_SUFFIX = "-damaged-stray"
# Kafka's own log of metadata: nobody's topic.
KAFKA_METADATA = "__cluster_metadata-0"
LONGEST_NAME = 255

# A partition's number as it is written, and in no other way: `orders-00` is somebody else's.
_LOG_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})", re.ASCII)
_SET_ASIDE = re.compile(rf"(.+)\.[0-9a-f]{{32}}{STRAY_SUFFIX}", re.ASCII)
_LARGEST_PARTITION = 2**31 - 1
_DIGITS = 20


def parse_folder_name(name: str) -> tuple[str, int] | None:
    """Topic and partition of a log's folder, `topic-N`; None if it is something else."""
    match = _LOG_FOLDER.fullmatch(name)
    if match is None:
        return None
    partition = int(match[2])
    return (match[1], partition) if partition <= _LARGEST_PARTITION else None


def marked_folder_name(name: str, suffix: str) -> str:
    """A new name for the folder of a log, `topic-N.<uuid>` and the suffix; the topic is cut where the
    whole would be too long for a file system."""
    ending = f".{uuid.uuid4().hex}{suffix}"
    return name[: LONGEST_NAME - len(ending)] + ending


def name_before_set_aside(name: str) -> str | None:
    """The name of a folder before it was set aside; None if it was not, or if the name was cut."""
    match = _SET_ASIDE.fullmatch(name)
    return None if match is None or len(name) == LONGEST_NAME else match[1]


def segment_name(base_offset: int) -> str:
    """The file name of a segment, without a suffix: its base offset in 20 digits."""
    return f"{base_offset:020d}"


def base_offset_of(name: str) -> int | None:
    """The offset that a file name begins with; None if it begins otherwise."""
    digits = name[:_DIGITS]
    if len(name) > _DIGITS and name[_DIGITS] == "." and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def offset_in(name: str, suffix: str) -> int | None:
    """The offset in a file name that is nothing but an offset and this suffix; None if it is another
    name. (Files on their way out or in have one suffix more.)"""
    base_offset = base_offset_of(name)
    return base_offset if base_offset is not None and name[_DIGITS:] == suffix else None
