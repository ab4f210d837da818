"""Ottla: an event streaming platform in Python that speaks Kafka's wire protocol.

The clients are imported when they are first named: the broker needs none of what they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.version import __version__ as __version__

if TYPE_CHECKING:
    from ottla.client.admin.client import Admin as Admin
    from ottla.client.admin.client import AsyncAdmin as AsyncAdmin
    from ottla.client.consumer import AsyncConsumer as AsyncConsumer
    from ottla.client.consumer import Consumer as Consumer
    from ottla.client.producer import AsyncProducer as AsyncProducer
    from ottla.client.producer import Producer as Producer

_HOMES = {
    "Admin": "ottla.client.admin.client",
    "AsyncAdmin": "ottla.client.admin.client",
    "AsyncConsumer": "ottla.client.consumer",
    "AsyncProducer": "ottla.client.producer",
    "Consumer": "ottla.client.consumer",
    "Producer": "ottla.client.producer",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ottla' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
