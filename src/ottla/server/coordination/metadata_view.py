"""The cluster's image as coordinators see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.cluster.metadata import ClusterImage


class ImageView:
    """The cluster's image as coordinators see it (a `MetadataView`)."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image().version

    def topic_id(self, name: str) -> bytes | None:
        topic = self._image().topics.get(name)
        return None if topic is None else topic.topic_id

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self._image().topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def partition_count(self, name: str) -> int:
        topic = self._image().topics.get(name)
        return 0 if topic is None else len(topic.partitions)

    def racks(self, name: str, partition: int) -> frozenset[str]:
        image = self._image()
        state = image.partition(name, partition)
        if state is None:
            return frozenset()
        nodes = (image.brokers.get(replica) for replica in state.replicas)
        return frozenset(node.rack for node in nodes if node is not None and node.rack is not None)

    def topic_names(self) -> Iterable[str]:
        return self._image().topics
