"""Logs on disk and topics in the metadata store that do not fit together, sorted out at the start.

A broker that is killed between the deletion of a topic in the store and the renaming of its folders
leaves logs that no topic owns. So does a store that was lost, or restored from an old copy; then the
logs are all that is left of somebody's records. From here the two look alike, so nothing is ever
deleted: such logs are *strays*, renamed to `…-stray` as Kafka does, out of the way and kept until
their owner removes them. Should the topic be known again, by its id, the stray gets its name back.

A stray keeps what is deleted elsewhere: its topic's records, and single ones that were erased from the
other replicas. Whoever must not keep them says how long a stray may stay (`log.stray.retention.ms`). The
time counts from when a broker with that setting first saw it, which a file in its folder tells. By
default nothing goes: a store that was restored from an old copy makes strays of logs that somebody wants
back.

A data folder says in `meta.properties` which cluster its logs belong to. Where that is another one
than the store's, or where it was never said and some logs are unknown, the store is the stranger:
then everything stays as it is, so that putting the right store back mends it all.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.logfiles.names import DAMAGED_SUFFIX, PARTITION_METADATA, SET_ASIDE_AT
from ottla.server.upkeep.periodic import now_ms
from ottla.storage.checkpoints import read_partition_metadata
from ottla.storage.errors import CorruptCheckpoint, StorageError
from ottla.storage.folders import deleted_folder_name, parse_stray_name

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage
    from ottla.server.broker import Broker
    from ottla.storage.folders import DataFolder, Key
    from ottla.storage.logs import Logs

log = logging.getLogger("ottla.strays")


def set_strays_aside(logs: Logs, image: ClusterImage, node_id: int) -> None:
    """Sets strays aside, after the logs were opened and before anybody uses them. Blocks: it reads and
    renames."""
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
                    "%s, kept until somebody removes them or log.stray.retention.ms has passed: "
                    "folder=%s count=%d %s",
                    what, folder.path, len(names), _some(names),
                )  # fmt: skip


async def remove_old_strays(broker: Broker) -> None:
    """Removes strays whose time is over, at intervals, as long as the broker runs."""
    seconds = broker.config.log_retention_check_interval_ms / 1000
    keep_ms = broker.config.log_stray_retention_ms
    while True:
        await broker.loop.run_in_executor(
            broker.threads, expire, broker.logs, broker.image.cluster_id, keep_ms, now_ms()
        )
        await asyncio.sleep(seconds)


def expire(logs: Logs, cluster_id: str, keep_ms: int, now: int) -> None:
    """Remove the strays that were seen longer than so many milliseconds ago. Not from a folder of
    another cluster: there the store is the stranger. Blocks."""
    for folder in logs.folders:
        if folder.offline is not None or folder.cluster_id != cluster_id:
            continue
        for name in list(folder.strays):
            try:
                if now - _seen_at(folder, name, now) >= keep_ms:
                    _remove(folder, name)
                    log.warning("log that was set aside is removed: %s/%s", folder.path, name)
            except FileNotFoundError:
                if name in folder.strays:
                    folder.strays.remove(name)  # by hand
            except OSError as error:
                log.warning("log that was set aside: %s/%s %s", folder.path, name, error)


def _remove(folder: DataFolder, name: str) -> None:
    """Removes a stray for good. It is renamed first: if the removal is interrupted, the next start goes
    on with it."""
    renamed = f"{folder.path}/{deleted_folder_name(name)}"
    folder.files.rename(f"{folder.path}/{name}", renamed)
    folder.strays.remove(name)
    folder.files.fsync_folder(folder.path)
    folder.files.remove_tree(renamed)


def _seen_at(folder: DataFolder, name: str, now: int) -> int:
    """When a stray was first seen: now, if nothing tells, or if that lies in the future."""
    path = f"{folder.path}/{name}/{SET_ASIDE_AT}"
    if folder.files.exists(path):
        noted = folder.files.read_file(path)
        if noted.isdigit() and int(noted) <= now:
            return int(noted)
    folder.files.replace_file(path, b"%d" % now)
    return now


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
        # First: should it be set aside once more, it is kept as long as any other.
        with suppress(FileNotFoundError):
            folder.files.unlink(f"{folder.path}/{name}/{SET_ASIDE_AT}")
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
