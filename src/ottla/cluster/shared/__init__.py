"""The embedded store for all brokers of one machine: one process serves it over a unix socket, and each
broker has a session with it (docs/adr/0012-brokers-of-one-machine.md)."""

from ottla.cluster.shared.server import StoreServer
from ottla.cluster.shared.store import SharedStore

__all__ = ["SharedStore", "StoreServer"]
