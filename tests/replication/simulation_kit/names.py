"""What the simulator calls things by."""

from __future__ import annotations

TOPIC = "orders"


def name_of(key: tuple[str, int]) -> str:
    """A partition in a message."""
    topic, index = key
    return str(index) if topic == TOPIC else f"{topic}-{index}"
