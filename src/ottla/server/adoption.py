"""A single node's data folder becomes that of the first broker of a cluster. Nothing is copied but the
metadata, into ZooKeeper (cluster/adoption.py); the logs stay where they are, as they are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from ottla.cluster.adoption import CannotAdopt, adopt, only_broker
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.metadata import ClusterImage, ResourceType
from ottla.cluster.store import Store
from ottla.server.broker import METADATA_FILE
from ottla.server.configuration.broker_config import BrokerConfig
from ottla.settings import BrokerLayers, InvalidSetting
from ottla.storage.checkpoints import lock_folder
from ottla.storage.errors import FolderLocked
from ottla.storage.files import OS_FILES
from ottla.storage.folders import DataFolder

# What the metadata file is called afterwards: no single node begins with it again.
ADOPTED_SUFFIX: Final = ".adopted"


class Adopted(NamedTuple):
    cluster_id: str
    node_id: int
    topics: int
    partitions: int


def adopt_folders(
    log_dirs: Sequence[str], zookeeper: str, settings: Mapping[str, str] | None = None
) -> Adopted:
    """CannotAdopt, or another StoreError, says what is in the way; then nothing has changed for the
    node, and it can be tried again; if all was done, and the broker has not been started since, it is
    told once more. `settings` are those of the brokers to be: what they say of ZooKeeper counts here,
    too. Blocks."""
    first = log_dirs[0]
    path = os.path.join(first, METADATA_FILE)
    target = _target(zookeeper, settings or {})
    if not os.path.exists(path):
        _require_adopted_before(first)
        return _adopted_before(first, target)
    with _locked(log_dirs):
        image = asyncio.run(_copy(path, target, log_dirs, asks=_asks(settings)))
        for name in sorted(os.listdir(first)):
            if name == METADATA_FILE or name.startswith(f"{METADATA_FILE}-"):
                whole = os.path.join(first, name)
                os.rename(whole, whole + ADOPTED_SUFFIX)
        OS_FILES.fsync_folder(first)
    return Adopted(image.cluster_id, only_broker(image), len(image.topics), image.partition_count)


def check_adoptable(log_dirs: Sequence[str], settings: Mapping[str, str] | None = None) -> None:
    """CannotAdopt if something about the folders themselves is in the way, of all that `adopt_folders`
    looks at before ZooKeeper. A folder that was adopted before passes: only ZooKeeper knows by whom.
    Blocks."""
    path = os.path.join(log_dirs[0], METADATA_FILE)
    if not os.path.exists(path):
        _require_adopted_before(log_dirs[0])
        return
    with _locked(log_dirs):
        asyncio.run(_look(path, log_dirs, asks=_asks(settings)))


def _require_adopted_before(folder: str) -> None:
    if not os.path.exists(os.path.join(folder, METADATA_FILE) + ADOPTED_SUFFIX):
        raise CannotAdopt(f"{folder} is no data folder of a single node: it has no {METADATA_FILE}")


@contextmanager
def _locked(log_dirs: Sequence[str]) -> Iterator[None]:
    """No broker runs with these folders meanwhile."""
    locks: list[int] = []
    try:
        locks.extend(lock_folder(folder, OS_FILES) for folder in log_dirs)
        yield
    except FolderLocked as error:
        raise CannotAdopt(f"{error}; stop that broker first") from error
    finally:
        for lock in locks:
            OS_FILES.close(lock)


def _asks(settings: Mapping[str, str] | None) -> bool:
    """Whether the brokers to be have an authorizer."""
    return bool((settings or {}).get("authorizer.class.name"))


def _adopted_before(folder: str, target: Store) -> Adopted:
    """The result of an adoption that was broken off at its very end, after all was written. From the
    broker's first start on the folder is one of the cluster's like any other."""
    own = DataFolder(folder, OS_FILES)
    cluster_id = own.peek_cluster_id()
    known = asyncio.run(_found(target))
    if (
        known is None
        or known.cluster_id != cluster_id
        or own.node_id is None
        or known.brokers
        or known.fenced
    ):
        raise CannotAdopt(f"{folder} belongs to a cluster already: start it as a broker of that")
    return Adopted(known.cluster_id, own.node_id, len(known.topics), known.partition_count)


async def _found(target: Store) -> ClusterImage | None:
    await target.start()
    try:
        return await load_image(target)
    finally:
        await target.close()


def _target(zookeeper: str, settings: Mapping[str, str]) -> Store:
    """A session as the brokers will have: with their credentials, and nodes closed to others."""
    from ottla.server.configuration.zookeeper_access import zookeeper_store

    wanted = {name: text for name, text in settings.items() if name.startswith("zookeeper.")}
    try:
        config = BrokerConfig(BrokerLayers(static={**wanted, "zookeeper.connect": zookeeper}))
    except InvalidSetting as error:
        raise CannotAdopt(str(error)) from error
    return zookeeper_store(config)


async def _look(path: str, log_dirs: Sequence[str], *, asks: bool) -> None:
    source = EmbeddedStore(path)
    await source.start()
    try:
        await _check(source, log_dirs, asks=asks)
    finally:
        await source.close()


async def _check(source: Store, log_dirs: Sequence[str], *, asks: bool) -> None:
    """CannotAdopt unless the metadata in the store can become those of a cluster. `asks`: the brokers to
    be have an authorizer."""
    known = await load_image(source)
    if known is None:
        return  # said by `adopt`
    if not asks and _has_acls(known):
        raise CannotAdopt(
            "there are entries of access control, which nobody would heed: give the broker the "
            "settings of the node, authorizer.class.name and those of its listeners, by --set"
        )
    _require_all_folders(known, log_dirs)
    only_broker(known)


async def _copy(path: str, target: Store, log_dirs: Sequence[str], *, asks: bool) -> ClusterImage:
    source = EmbeddedStore(path)
    await source.start()
    try:
        await _check(source, log_dirs, asks=asks)
        await target.start()
        try:
            return await adopt(source, target)
        finally:
            await target.close()
    finally:
        await source.close()


def _require_all_folders(image: ClusterImage, log_dirs: Sequence[str]) -> None:
    """What lies in a data folder that does not come along would be made anew, without its records."""
    given = set()
    for folder in log_dirs:
        own = DataFolder(folder, OS_FILES)
        own.peek_cluster_id()
        given.add(own.directory_id)
    for broker in (*image.brokers.values(), *image.fenced.values()):
        known = {each for each in broker.folder_id.split(",") if each}
        if known - given:
            raise CannotAdopt(
                f"the node has {len(known)} data folders (log.dirs), and a broker here has one: move "
                f"all logs into {log_dirs[0]} (AlterReplicaLogDirs), and start the node once with that "
                "folder alone"
            )


def _has_acls(image: ClusterImage) -> bool:
    return any(kind is ResourceType.ACL for kind, _ in image.configs)
