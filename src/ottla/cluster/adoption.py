"""A single node's metadata become those of a cluster: from its embedded store into ZooKeeper.

Topics keep their ids, partitions and epochs, settings and features stay what they are, and producer ids
go on where they were: so the logs on disk fit as before, and no client notices but by the address. The
node itself registers anew when it starts.

The revision is what makes a cluster exist in a store (loading.py), and it is written last. So an
adoption that is broken off leaves nothing that a broker would take for a cluster, and is done again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from ottla.cluster import layout
from ottla.cluster.controller import SECRET_BYTES
from ottla.cluster.draft import Draft
from ottla.cluster.loading import load_image
from ottla.cluster.metadata import ClusterImage
from ottla.cluster.store import (
    Check,
    Conflict,
    Delete,
    Operation,
    Set,
    Store,
    StoreError,
    Unknown,
    in_parts,
)

# Deeper ones first.
_FOLDERS: Final = (
    *layout.CONFIG_FOLDERS.values(),
    layout.TOPICS,
    layout.PARTITIONS,
    layout.REGISTRATIONS,
    layout.BROKERS,
)


class CannotAdopt(StoreError):
    """Why a single node cannot become a cluster, in one sentence."""


def only_broker(image: ClusterImage) -> int:
    """The number of the single node. CannotAdopt if there is more than one broker."""
    known = {*image.brokers, *image.fenced}
    known |= {
        replica
        for topic in image.topics.values()
        for partition in topic.partitions
        for replica in partition.replicas
    }
    if len(known) != 1:
        raise CannotAdopt(f"the metadata are those of {len(known)} brokers, not of a single node")
    return known.pop()


async def adopt(source: Store, target: Store) -> ClusterImage:
    """Copies what a single node's store holds into an empty one. If that has been done, nothing is."""
    image = await load_image(source)
    if image is None:
        raise CannotAdopt("there are no metadata of a single node in the data folder")
    only_broker(image)
    existing = await load_image(target)
    if existing is not None:
        if existing.cluster_id == image.cluster_id:
            return image
        raise CannotAdopt(
            f"the ZooKeeper path already has a cluster ({existing.cluster_id}); choose another path"
        )
    await _clear(target, image.cluster_id)
    mark = os.urandom(8).hex()
    secret = image.secret or os.urandom(SECRET_BYTES)
    skeleton = layout.skeleton(image.cluster_id, image.features, mark, secret)
    revision = next(each for each in skeleton if each.path == layout.REVISION)
    await _write(target, [each for each in skeleton if each is not revision])
    for part in in_parts(layout.operations_of(_draft_of(image)), target.largest_multi):
        await _write(target, part)
    await _write(target, [revision])
    return image


def _draft_of(image: ClusterImage) -> Draft:
    """A draft that makes an empty cluster into the one of the image."""
    draft = Draft(ClusterImage(image.cluster_id, features=image.features))
    draft.leader_epoch_base = image.leader_epoch_base
    draft.next_producer_id = image.next_producer_id
    draft.put_topics(image.topics.values())
    for resource, config in image.configs.items():
        draft.set_config(resource, config)
    return draft


async def _clear(target: Store, cluster_id: str) -> None:
    """Removes what an adoption of the same node left that was broken off."""
    found = await target.get(layout.CLUSTER_ID)
    if found is None:
        if await target.get("/cluster") is not None or await target.get("/brokers") is not None:
            raise CannotAdopt("the ZooKeeper path is not empty; choose another path")
        return
    if cluster_id.encode() not in found.value:
        raise CannotAdopt("the ZooKeeper path has remains of another cluster; choose another path")
    # Whoever was here before, and may still have something on the way, comes too late from now on.
    await _write(target, [Set(layout.CLUSTER_ID, found.value, found.version)])
    guard = Check(layout.CLUSTER_ID, found.version + 1)
    operations: list[Operation] = []
    for folder in _FOLDERS:
        names = await target.children(folder) or []
        operations += [Delete(f"{folder}/{name}") for name in names]
    for part in in_parts(operations, target.largest_multi):
        await _write(target, [guard, *part])
    single = (
        layout.CONTROLLER_EPOCH,
        layout.FEATURES,
        layout.PRODUCER_IDS,
        layout.LEADER_EPOCH_BASE,
        *reversed(layout.SKELETON[1:]),
    )
    if await target.get(layout.SECRET) is not None:  # older versions made none
        single = (layout.SECRET, *single)
    await _write(
        target,
        [
            *(Delete(path) for path in single),
            Delete(layout.CLUSTER_ID, found.version + 1),
            Delete(layout.SKELETON[0]),
        ],
    )


async def _write(target: Store, operations: Sequence[Operation]) -> None:
    answer = await target.multi(operations)
    if isinstance(answer, Conflict):
        raise CannotAdopt(
            "somebody else writes to the ZooKeeper path "
            f"({operations[answer.operation].path}: {answer.reason.value}); end that, and try again"
        )
    if isinstance(answer, Unknown):
        raise CannotAdopt(f"ZooKeeper gave no answer ({answer.reason}); try again")
