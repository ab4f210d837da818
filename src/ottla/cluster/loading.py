"""Reads the image out of a store: on start, and whenever another has changed what we knew."""

from __future__ import annotations

import asyncio

from ottla.cluster import layout
from ottla.cluster.metadata import ClusterImage, Resource
from ottla.cluster.store import Node, Store, StoreError
from ottla.turns import in_turns

_SINGLE = (
    layout.CLUSTER_ID,
    layout.CONTROLLER,
    layout.CONTROLLER_EPOCH,
    layout.FEATURES,
    layout.LEADER_EPOCH_BASE,
    layout.PRODUCER_IDS,
    layout.REVISION,
    layout.SECRET,
)


class ClusterGone(StoreError):
    """The store no longer holds what a broker knows from it: it is empty, of another cluster, or older.

    Its files were lost, exchanged or restored. What is missing there was not deleted by anybody, so no
    broker may delete its logs for it.
    """


def require_same_cluster(known: ClusterImage, found: ClusterImage | None) -> None:
    """ClusterGone unless what was found in the store can follow on what is known from it."""
    if found is None:
        what = "has none any more"
    elif found.cluster_id != known.cluster_id:
        what = f"has cluster {found.cluster_id} instead"
    elif found.version < known.version:
        what = (
            f"has an older state of it (revision {found.version}, known was {known.version}); start "
            "the broker anew to go on with that"
        )
    else:
        return
    raise ClusterGone(
        f"this broker is of cluster {known.cluster_id}, and the metadata store {what}"
    )


async def load_image(store: Store) -> ClusterImage | None:
    """The image in a store, or None if there is no cluster in it yet.

    The nodes are read one after the other, so a change in between would give a mixture: the revision
    is looked at before and after, and all is read again if it moved.
    """
    while True:
        before = await store.get(layout.REVISION)
        if before is None:
            return None
        image: ClusterImage | None = None
        fault: layout.UnreadableMetadata | None = None
        try:
            image = await _read(store)
        except layout.UnreadableMetadata as error:
            fault = error  # or a mixture, such as a large topic without its partitions
        after = await store.get(layout.REVISION)
        if after is not None and after.version == before.version:
            if fault is not None:
                raise fault
            if image is not None and image.version == before.version:
                return image
        await asyncio.sleep(0)


async def _read(store: Store) -> ClusterImage:
    single = {
        path: node
        for path, node in zip(_SINGLE, await store.get_many(_SINGLE), strict=True)
        if node is not None
    }
    registrations = await folder(store, layout.REGISTRATIONS)
    topics = await folder(store, layout.TOPICS)
    paths = [path for name, node in topics for path in layout.chunks_wanted(name, node.value)]
    chunks = dict(zip(paths, await store.get_many(paths), strict=True)) if paths else {}
    configs: list[tuple[Resource, Node]] = []
    for resource_type, path in layout.CONFIG_FOLDERS.items():
        for name, node in await folder(store, path):
            configs.append(((resource_type, layout.config_name(name)), node))
    brokers = [(layout.registered_id(name), node) for name, node in registrations]
    return await in_turns(layout.decode_image.steps(single, brokers, topics, configs, chunks))


async def folder(store: Store, path: str) -> list[tuple[str, Node]]:
    """The children of a node with their names; one that goes away meanwhile is left out."""
    names = await store.children(path) or []
    nodes = await store.get_many([f"{path}/{name}" for name in names])
    return [(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]
