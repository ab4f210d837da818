"""Consumer groups and their offsets: the state machine behind a partition of `__consumer_offsets`."""

from ottla.coordinator.groups.group import Caller
from ottla.coordinator.groups.settings import GroupSettings
from ottla.coordinator.groups.shard import GroupShard

__all__ = ["Caller", "GroupSettings", "GroupShard"]
