"""The election policy of each topic, from the settings of topics and brokers. No I/O."""

from __future__ import annotations

from typing import Final

from ottla.cluster.decisions.elections import ElectionPolicy, PolicyOf
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import ResourceType

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
MIN_ISR: Final = "min.insync.replicas"


def policies(draft: Draft, default: ElectionPolicy) -> PolicyOf:
    """The policy of every topic, as the settings in a draft have it.

    Where a topic does not set min.insync.replicas, each leader goes by its own broker's value. If those
    differ the smallest counts here: an in-sync set that is too small for the controller and large
    enough for its leader would go on committing, and a replica that left it would lack some of that.
    """
    minimums = broker_minimums(draft).values()
    if minimums:
        default = default._replace(min_isr=min(minimums))

    def policy_of(topic: str) -> ElectionPolicy:
        config = draft.configs.get((ResourceType.TOPIC, topic))
        if config is None:
            return default
        unclean, min_isr = config.get(UNCLEAN_ELECTION), config.get(MIN_ISR)
        return ElectionPolicy(
            default.min_isr if min_isr is None else int(min_isr),
            default.unclean if unclean is None else unclean.strip().lower() == "true",
        )

    return policy_of


def broker_minimums(draft: Draft) -> dict[int, int]:
    """min.insync.replicas of each broker, for topics that do not set it.

    Brokers that have not registered a value, and have none in the settings, are left out.
    """
    common = draft.configs.get((ResourceType.BROKER, ""), {})
    minimums = {}
    for broker in draft.brokers.values():
        own = draft.configs.get((ResourceType.BROKER, str(broker.id)), {})
        changed = own.get(MIN_ISR, common.get(MIN_ISR))
        if changed is not None or broker.min_isr:
            minimums[broker.id] = broker.min_isr if changed is None else int(changed)
    return minimums
