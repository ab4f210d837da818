"""What the controllers of a broker did that its operator wants to hear of: logged, and counted over all
their terms of office."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from ottla.cluster.draft import Draft

log = logging.getLogger("ottla.cluster.controller")

# Partitions that are named, each in a line of its own, of those that one change concerns.
_MOST_NAMED: Final = 100


@dataclass(slots=True)
class Tally:
    """Counts of what controllers did; they only grow."""

    # Leaders that were neither in sync nor eligible: records may be lost.
    unclean_elections: int = 0
    # Brokers that were fenced because their port refused connections.
    refused: int = 0
    # Brokers whose session ended although they did not leave in good order.
    lost_sessions: int = 0
    # Whose registrations a controller deletes, by id and epoch. Whether it was done may never be
    # answered; that they are gone tells.
    suspects: set[tuple[int, int]] = field(default_factory=set)

    def written(self, draft: Draft) -> None:
        """Counts and logs what a draft has changed, now that it was written."""
        for broker_id in draft.touched_brokers:
            before, after = draft.base.brokers.get(broker_id), draft.brokers.get(broker_id)
            if before is None or (after is not None and after.epoch == before.epoch):
                continue
            if (broker_id, before.epoch) in self.suspects:
                self.suspects.remove((broker_id, before.epoch))
                self.refused += 1
            elif after is None and not before.leaving:
                self.lost_sessions += 1
        self._tell_of_unclean(draft)

    def _tell_of_unclean(self, draft: Draft) -> None:
        unclean = draft.unclean_elections
        self.unclean_elections += len(unclean)
        for topic, before, after in unclean[:_MOST_NAMED]:
            last = before.leader if before.leader >= 0 else before.last_known_leader
            log.error(
                "unclean election: topic=%s partition=%d leader=%d epoch=%d, before it %s. The new "
                "leader was not in sync: records that were acknowledged may be lost",
                topic, before.index, after.leader, after.leader_epoch,
                f"leader={last}" if last >= 0 else "none",
            )  # fmt: skip
        if len(unclean) > _MOST_NAMED:
            log.error("unclean elections of %d more partitions", len(unclean) - _MOST_NAMED)
