"""Registrations of brokers: what their nodes in the store say, and what follows from that. No I/O.

The controller reads the nodes when it takes office and whenever one has changed, and has a draft
compared with them: brokers that have registered are taken in, those that are gone are fenced. Then
leaders are elected, and moves ended, wherever that has become possible or necessary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from ottla.cluster import layout
from ottla.cluster.decisions import brokers as broker_decisions
from ottla.cluster.decisions import moves as move_decisions
from ottla.cluster.decisions import partitions as partition_decisions
from ottla.cluster.decisions.elections import PolicyOf
from ottla.cluster.decisions.policies import broker_minimums
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import RegisteredBroker
from ottla.cluster.store import Node
from ottla.protocol.errors import ProtocolError
from ottla.turns import Steps

log = logging.getLogger("ottla.cluster.controller")


class Registrations:
    """The registrations of all brokers, as the controller has last read them."""

    def __init__(self, broker_id: int, policies: Callable[[Draft], PolicyOf]) -> None:
        """`broker_id` is that of the controller's own broker, `policies` gives the election policies
        of a draft as it is at the time."""
        self._broker_id = broker_id
        self._policies = policies
        # By id: the broker, and whether it says that it may have lost data.
        self._found: dict[int, tuple[RegisteredBroker, bool]] = {}
        # Epochs by the names of nodes that say nothing.
        self._unreadable: dict[str, int] = {}
        self._minimums: Mapping[int, int] = {}  # min.insync.replicas of brokers, as last compared

    def take(self, nodes: Iterable[tuple[str, Node]]) -> None:
        """Take over what the nodes say now. One that cannot be read is an error in the log, once."""
        self._found = {}
        known, self._unreadable = self._unreadable, {}
        for name, node in nodes:
            try:
                broker_id = int(name)
                self._found[broker_id] = layout.decode_broker(broker_id, node)
            except (ValueError, layout.UnreadableMetadata) as error:
                self._unreadable[name] = node.created
                if known.get(name) != node.created:
                    path = f"{layout.BROKERS}/{name}"
                    log.error(
                        "%s is no registration of a broker, and is passed over: %s", path, error
                    )

    def settle(self, draft: Draft) -> Steps[None]:
        """Bring a draft in line with the registrations, in steps."""
        turnover = broker_decisions.Turnover(draft)
        for broker_id, broker in list(draft.brokers.items()):
            if broker_id not in self._found and self._is_only_broker(draft):
                continue  # it is about to come back, and nobody could lead meanwhile
            if self._unreadable.get(str(broker_id)) == broker.epoch:
                continue  # its session lives, whatever was written there since
            if broker_id not in self._found:
                log.warning("broker %d of epoch %d is gone", broker_id, broker.epoch)
                turnover.fence(broker_id, policy_of=self._policies(draft))
        for broker_id, (broker, lost_data) in sorted(self._found.items()):
            known = draft.brokers.get(broker_id)
            if known is None or known.epoch != broker.epoch:
                policy_of = self._policies(draft)
                _note_old_folders(draft, broker)
                try:
                    turnover.take_in(broker, lost_data=lost_data, policy_of=policy_of)
                except ProtocolError as error:
                    log.error("broker %d is not taken in: %s", broker_id, error.message)
                    if known is not None:
                        turnover.fence(broker_id, policy_of=policy_of)
        yield from turnover.settling()
        policy_of = self._policies(draft)
        self._compare_minimums(draft)
        yield from partition_decisions.follow_policies.steps(draft, draft.topics, policy_of)
        yield from broker_decisions.settle_all.steps(draft, policy_of=policy_of)
        # Of brokers that a controller of an older version has forgotten.
        yield from move_decisions.move_without_forgotten.steps(draft, policy_of)
        yield from move_decisions.end_moves.steps(draft, list(draft.topics.values()), policy_of)

    def _is_only_broker(self, draft: Draft) -> bool:
        """Whether no other broker than the controller's was ever part of the cluster."""
        return {*draft.brokers, *draft.fenced} == {self._broker_id}

    def _compare_minimums(self, draft: Draft) -> None:
        """Warns, once, if brokers differ in min.insync.replicas."""
        minimums = broker_minimums(draft)
        if minimums == self._minimums:
            return
        self._minimums = minimums
        if len(set(minimums.values())) > 1:
            log.warning(
                "brokers differ in min.insync.replicas (%s): elections go by the smallest. Set it "
                "alike on all of them, or for the cluster with `ottla config set`",
                ", ".join(f"broker {each}: {minimums[each]}" for each in sorted(minimums)),
            )


def _note_old_folders(draft: Draft, broker: RegisteredBroker) -> None:
    """Logs an error if a broker comes back with an old copy of its data folders."""
    last = draft.brokers.get(broker.id) or draft.fenced.get(broker.id)
    if last is not None and broker_decisions.has_old_folders(last, broker):
        log.error(
            "broker %d comes with an old copy of its data: its folders know nothing of its last run "
            "(%s; they know %s). It leads nothing until it has fetched what it lacks, and nothing "
            "at all of what nobody else can lead",
            broker.id, last.run, ", ".join(broker.former_runs) or "none",
        )  # fmt: skip
