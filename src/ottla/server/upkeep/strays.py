"""Logs on disk and topics in the metadata store that do not fit together, sorted out at the start.

A broker that is killed between the deletion of a topic in the store and the renaming of its folders
leaves logs that no topic owns. So does a store that was lost, or restored from an old copy; then the
logs are all that is left of somebody's records. From here the two look alike, so nothing is ever
deleted: such logs are *strays*, renamed to `…-stray` as Kafka does, out of the way and kept until
their owner removes them. Should the topic be known again, by its id, the stray gets its name back.

A data folder says in `meta.properties` which cluster its logs belong to. Where that is another one
than the store's, or where it was never said and some logs are unknown, the store is the stranger:
then everything stays as it is, so that putting the right store back mends it all.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.logfiles.names import PARTITION_METADATA
from ottla.storage.checkpoints import read_partition_metadata
from ottla.storage.errors import CorruptCheckpoint, StorageError
from ottla.storage.folders import DAMAGED_SUFFIX, parse_stray_name

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage
    from ottla.storage.folders import DataFolder, Key
    from ottla.storage.logs import Logs

log = logging.getLogger("ottla.strays")


def sort_out(logs: Logs, image: ClusterImage, node_id: int) -> None:
    """After the logs were opened and before anybody uses them. Blocks: it reads and renames."""
    unknown: dict[DataFolder, list[Key]] = {folder: [] for folder in logs.folders}
    ids = {(each.topic, each.partition): each.topic_id for each in logs.loaded()}
    for key in logs.keys():  # noqa: SIM118 - not a mapping
        # Of a log that is not loaded the id is compared when it is: see Partitions.
        if not belongs(image, node_id, key, ids.get(key)):
            unknown[logs.folder_of(*key)].append(key)
    for folder, keys in unknown.items():
        if folder.offline is not None:
            continue
        if (folder.cluster_id is None and not keys) or (
            folder.cluster_id == image.cluster_id and not folder.directory_id
        ):
            _claim(folder, image.cluster_id, node_id)
        if folder.cluster_id == image.cluster_id:
            for key in keys:
                _set_aside(logs, folder, key)
            for name in list(folder.strays):
                _take_back(logs, image, node_id, folder, name)
        elif keys:
            _leave(folder, keys, image.cluster_id)
        damaged = [name for name in folder.strays if name.endswith(DAMAGED_SUFFIX)]
        unknown_ones = [name for name in folder.strays if name not in damaged]
        for what, names in (
            ("logs of topics that are not known", unknown_ones),
            ("damaged logs in whose place others were fetched", damaged),
        ):
            if names:
                log.warning(
                    "%s, kept until somebody removes them: folder=%s count=%d %s",
                    what, folder.path, len(names), _some(names),
                )  # fmt: skip


def belongs(image: ClusterImage, node_id: int, key: Key, topic_id: bytes | None) -> bool:
    """Whether a log is that of a replica of this broker; by its name alone if its topic's id is not
    known."""
    topic = image.topics.get(key[0])
    return (
        topic is not None
        and key[1] < len(topic.partitions)
        and node_id in topic.partitions[key[1]].replicas
        and topic_id in (None, topic.topic_id)
    )


def _claim(folder: DataFolder, cluster_id: str, node_id: int) -> None:
    try:
        folder.claim(cluster_id, node_id)
    except OSError as error:
        # Tried again at the next start; until then strays are left where they are.
        log.warning("data folder not marked as this cluster's: %s", error)


def _topic_id(folder: DataFolder, name: str) -> bytes | None:
    try:
        return read_partition_metadata(f"{folder.path}/{name}/{PARTITION_METADATA}", folder.files)
    except (OSError, CorruptCheckpoint) as error:
        log.warning("%s", error)
        return None


def _set_aside(logs: Logs, folder: DataFolder, key: Key) -> None:
    topic_id = _topic_id(folder, f"{key[0]}-{key[1]}")
    if topic_id is None:
        # No log of a broker that knows topics by their ids, or not a log at all.
        log.warning("log of an unknown topic, left as it is: topic=%s partition=%d", *key)
        return
    try:
        moved = logs.set_aside(*key)
    except StorageError as error:
        log.error("log of an unknown topic, not set aside: topic=%s partition=%d %s", *key, error)
        return
    log.warning("log of an unknown topic, set aside: topic=%s partition=%d as %s", *key, moved)


def _take_back(
    logs: Logs, image: ClusterImage, node_id: int, folder: DataFolder, name: str
) -> None:
    key = parse_stray_name(name)
    if key is None or key in logs or not belongs(image, node_id, key, None):
        return
    topic_id = _topic_id(folder, name)
    if topic_id is None or not belongs(image, node_id, key, topic_id):
        return
    try:
        logs.take_back(folder, name, *key)
    except OSError as error:
        log.error("log that was set aside is left so: folder=%s/%s %s", folder.path, name, error)
        return
    log.warning("log of a topic that is known again: topic=%s partition=%d was %s", *key, name)


def _leave(folder: DataFolder, keys: list[Key], cluster_id: str) -> None:
    owner = folder.cluster_id or "it does not say which"
    log.error(
        "logs of unknown topics, left as they are: the metadata store is that of cluster %s, the "
        "folder's logs are of another one (%s). Put the right store back, or, to have them set aside "
        "at the next start, write the cluster's id into meta.properties: folder=%s count=%d %s",
        cluster_id, owner, folder.path, len(keys), _some([f"{t}-{p}" for t, p in keys]),
    )  # fmt: skip


def _some(names: list[str]) -> str:
    """The first few names for a log line: there may be thousands."""
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
