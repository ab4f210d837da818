"""Who gets which partitions: the assignors that the broker brings for the new consumer protocol.

They have the names of Kafka's, and their promises:

    uniform   no member has more work than another that could take some of it, and as little as
              possible moves. The default.
    range     of each topic a member gets a run of neighbouring partitions, the same run in all topics
              of the same size that the same members read, so that what was written with one key is
              read by one member.

An assignor is a pure function of the group: equal input, in whatever order it comes, has an equal
result. Racks are known and not looked at, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ottla.coordinator.groups.assignors.interface import Assignor, MemberSubscription, Partitions
from ottla.coordinator.groups.assignors.range import RangeAssignor
from ottla.coordinator.groups.assignors.uniform import UniformAssignor

__all__ = ["ASSIGNORS", "Assignor", "MemberSubscription", "Partitions"]

# By the name that members ask for; the first is for members that ask for none.
ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {UniformAssignor.name: UniformAssignor(), RangeAssignor.name: RangeAssignor()}
)
