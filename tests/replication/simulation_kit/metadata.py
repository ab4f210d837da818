"""What must hold of the metadata in the store, whoever writes it: looked at with each change.

- Controller epochs rise by one, and only the session that holds the office writes metadata, in the epoch
  of its office.
- The registration of a broker is deleted by itself, by the controller, or with its session.
- The epochs of a partition never go back. Another state has a higher partition epoch, another leader a
  higher leader epoch; a leader is in sync, and had all that was committed before it was elected.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ottla.cluster import layout
from ottla.cluster.decisions.moves import is_moving
from ottla.cluster.metadata import NO_LEADER, ClusterImage
from ottla.cluster.metadata import Partition as PartitionState
from simulation_kit.names import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from store_kit.ensemble import Commit

    from ottla.cluster.embedded.tree import Tree
    from ottla.cluster.store import Node

# Nodes of sessions, which are no metadata.
_OF_SESSIONS = layout.BROKERS + "/"


def image_in(tree: Tree) -> ClusterImage:
    """The image that a tree holds, read in one piece."""

    def folder(path: str) -> list[tuple[str, Node]]:
        return [(name, tree.nodes[f"{path}/{name}"]) for name in tree.children(path) or ()]

    single = {
        path: tree.nodes[path]
        for path in (
            layout.CLUSTER_ID,
            layout.CONTROLLER,
            layout.CONTROLLER_EPOCH,
            layout.FEATURES,
            layout.LEADER_EPOCH_BASE,
            layout.PRODUCER_IDS,
            layout.REVISION,
            layout.SECRET,
        )
        if path in tree.nodes
    }
    topics = folder(layout.TOPICS)
    chunks = {
        path: tree.nodes.get(path)
        for name, node in topics
        for path in layout.chunks_wanted(name, node.value)
    }
    configs = [
        ((kind, layout.config_name(name)), node)
        for kind, path in layout.CONFIG_FOLDERS.items()
        for name, node in folder(path)
    ]
    registrations = [(int(name), node) for name, node in folder(layout.REGISTRATIONS)]
    return layout.decode_image(single, registrations, topics, configs, chunks)


class MetadataChecks:
    """See the module. `broken` is told what does not hold."""

    def __init__(self, tree: Tree, broken: Callable[[str], None]) -> None:
        self._tree = tree
        self._broken = broken
        self._transaction = -1
        self._image = image_in(tree)
        # (partition, leader epoch) -> who leads in it.
        self.leaders: dict[tuple[tuple[str, int], int], int] = {}
        self.writes = 0  # of controllers

    @property
    def image(self) -> ClusterImage:
        """What the store holds."""
        if self._transaction != self._tree.transaction:
            self._transaction = self._tree.transaction
            self._image = image_in(self._tree)
        return self._image

    def look(self, made: Commit, owner: int | None) -> None:
        """At a change that was just made; `owner` is the broker whose session made it."""
        nodes = self._tree.nodes
        holder = nodes.get(layout.CONTROLLER)
        in_office = holder is not None and holder.owner == made.session
        is_written = False
        for path, after in made.after.items():
            before = made.before[path]
            if path == layout.CONTROLLER:
                continue
            if not path.startswith(_OF_SESSIONS):
                is_written = True
            elif (
                after is None
                and before is not None
                and before.owner != made.session
                and not in_office
                and path != layout.broker_path(-1 if owner is None else owner)
            ):
                self._broken(f"broker {owner} deletes {path} and is not the controller")
        if is_written:
            self._look_at_write(made, owner, in_office)

    def _look_at_write(self, made: Commit, owner: int | None, in_office: bool) -> None:
        self.writes += 1
        nodes = self._tree.nodes
        epoch = nodes[layout.CONTROLLER_EPOCH]
        said = json.loads(nodes[layout.REVISION].value)["controller_epoch"]
        if not in_office or said != epoch.version:
            self._broken(
                f"broker {owner} writes metadata in controller epoch {said}, and the epoch is "
                f"{epoch.version}" + ("" if in_office else ", of another controller")
            )
        if int(epoch.value) != epoch.version:
            self._broken(f"controller epoch {epoch.value!r} is the {epoch.version}th")
        before, after = self._image, self.image
        for name, topic in after.topics.items():
            if name not in before.topics:
                for new in topic.partitions:
                    self.leaders[(name, new.index), new.leader_epoch] = new.leader
            elif topic is not before.topics[name]:
                for old, new in zip(before.topics[name].partitions, topic.partitions, strict=True):
                    if old != new:
                        self._look_at_partition((name, new.index), old, new)

    def _look_at_partition(
        self, key: tuple[str, int], old: PartitionState, new: PartitionState
    ) -> None:
        where = (
            f"{name_of(key)} was led by {old.leader} of {old.isr} in epoch {old.leader_epoch}, and is "
            f"by {new.leader} of {new.isr} in epoch {new.leader_epoch}"
        )
        if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
            self._broken(f"epochs do not rise: {where}")
        if new.leader == NO_LEADER:
            return
        if new.leader not in new.isr or not {*new.isr} <= {*new.replicas}:
            self._broken(f"the leader is not in sync: {where}")
        if self.leaders.setdefault((key, new.leader_epoch), new.leader) != new.leader:
            self._broken(f"two leaders in one epoch: {where}")
        # Who led last is the best that is left where all others may lack something. A move may end in
        # the write in which its last new replica joins, and that one lead; it may also begin in it.
        entitled = {*old.isr, *old.elr, old.last_known_leader, old.leader}
        several_changes = new.partition_epoch > old.partition_epoch + 1
        was_moved = is_moving(old) or (several_changes and new.replicas != old.replicas)
        if new.leader not in entitled and not was_moved:
            self._broken(f"who leads may lack what is committed: {where}")
