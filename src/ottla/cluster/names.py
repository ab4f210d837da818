"""Topic names: which are allowed, which are the broker's own, which get in each other's way."""

from __future__ import annotations

import re
from typing import Final

from ottla.protocol.errors import ErrorCode, ProtocolError

LONGEST_NAME: Final = 249  # with "-" and a partition number it still makes a file name
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
SHARE_GROUP_STATE: Final = "__share_group_state"
CLUSTER_METADATA: Final = "__cluster_metadata"  # Kafka's own log of metadata; nobody may create it

_INTERNAL: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+\Z")


def is_internal(name: str) -> bool:
    """True for the topics in which the broker keeps its own records."""
    return name in _INTERNAL


def check_topic_name(name: str) -> None:
    """INVALID_TOPIC_EXCEPTION unless a topic may have this name."""
    fault = fault_of_topic_name(name)
    if fault is not None:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)


def fault_of_topic_name(name: str) -> str | None:
    """What is wrong with a topic's name, or None."""
    if not name:
        return "A topic's name must not be empty."
    if name in (".", ".."):
        return f"A topic cannot be named '{name}'."
    if len(name) > LONGEST_NAME:
        return (
            f"The topic name '{name}' has {len(name)} characters; "
            f"at most {LONGEST_NAME} are allowed."
        )
    if _LEGAL.match(name) is None:
        return (
            f"The topic name '{name}' is not allowed: only ASCII letters and digits, "
            "'.', '_' and '-' may stand in it."
        )
    return None


def collision_key(name: str) -> str | None:
    """Topics with the same key cannot be told apart in names of metrics; None if none can collide.

    Metric names have '_' where a topic has '.', so `a.b` and `a_b` would be one.
    """
    if "." in name or "_" in name:
        return name.replace(".", "_")
    return None
