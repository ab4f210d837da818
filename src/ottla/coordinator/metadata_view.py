"""What coordinators need to know of topics, without knowing the cluster's image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class MetadataView(Protocol):
    """The topics of the moment. Changes are told to each shard by `metadata_changed`."""

    def topic_id(self, name: str) -> bytes | None:
        """Its id (16 bytes), None if there is no such topic."""

    def topic_name(self, topic_id: bytes) -> str | None:
        """Its name, None if no topic has this id (any more)."""

    def partition_count(self, name: str) -> int:
        """0 if there is no such topic."""

    def racks(self, name: str, partition: int) -> frozenset[str]:
        """The racks that hold a replica of a partition."""

    def topic_names(self) -> Iterable[str]:
        """All topics, internal ones too."""

    @property
    def version(self) -> int:
        """Grows with every change of any topic."""
