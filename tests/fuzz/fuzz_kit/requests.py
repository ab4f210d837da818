"""Random requests, made from the declarations of the messages, with values that mean something here.

A request of nothing but noise is turned away at the door. These get in: they name topics that
exist, partitions that are there, positions near the ends, settings by their names; and now and then
something else in each place.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fuzz_kit.batches import any_records, fitting
from ottla.protocol.message import Message, Part
from ottla.protocol.schema import Kind, Slot, slots_of

_LETTERS = "abcdefghijklmnopqrstuvwxyz.-_0123456789 /\0äß水🦋"
_CONFIGS = (
    "retention.ms", "cleanup.policy", "compression.type", "max.message.bytes", "segment.bytes",
    "min.insync.replicas", "message.timestamp.type", "flush.messages", "message.max.bytes",
    "num.partitions", "log.retention.ms", "leader.replication.throttled.replicas", "no.such", "",
)  # fmt: skip
_CONFIG_VALUES = (
    "1", "0", "-1", "1000", "100000", "compact", "delete", "compact,delete", "gzip", "producer",
    "zstd", "LogAppendTime", "CreateTime", "", "x" * 200, "9" * 40, "-9223372036854775809", "true",
    "*", "0:1,1:0", None,
)  # fmt: skip


_GROUPS = ("group-0", "group-1", "group-2")
_TRANSACTIONS = ("transaction-0", "transaction-1")
_TEXTS: dict[str, tuple[str | None, ...]] = {
    "transactional_id": (*_TRANSACTIONS, *_TRANSACTIONS, ""),
    "transactional_ids": _TRANSACTIONS,
    "v3_and_below_transactional_id": _TRANSACTIONS,
    "group_id": _GROUPS,
    "group_ids": _GROUPS,
    "groups": _GROUPS,
    "groups_names": _GROUPS,
    "member_id": ("", "", "member-0"),
    "group_instance_id": ("instance-0", "instance-1"),
    "protocol_type": ("consumer",),
    "protocol_name": ("range", "sticky"),
    "states_filter": ("Stable", "Empty", "Dead"),
    "key": (*_GROUPS, *_TRANSACTIONS),
    "coordinator_keys": (*_GROUPS, *_TRANSACTIONS),
}


class World:
    """What there is in the broker that the requests go to."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        # Names that requests read from and write to; those that may be altered and deleted.
        self.topics: dict[str, bytes] = {}
        self.victims: list[str] = []
        self.session: Callable[[], tuple[int, int]] = lambda: (0, 0)


class Requests:
    """Makes requests of one API; the same seed makes the same ones (but for times)."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)
        self._session = (0, -1)

    def message(self, cls: type[Message], version: int) -> Message:
        self._api = cls.__name__
        self._session = self.dice.choice(((0, -1), (0, -1), (0, 0), self.world.session()))
        made = self.part(cls, version)
        assert isinstance(made, Message)
        return made

    def part(self, cls: type[Part], version: int) -> Part:
        values: dict[str, Any] = {}
        for slot in slots_of(cls):
            if not slot.present(version):
                continue
            if slot.tagged(version) and self.dice.random() < 0.6:
                continue  # the default, which is not written
            if slot.null_allowed(version) and self.dice.random() < 0.2:
                values[slot.name] = None
            else:
                values[slot.name] = self.value(slot, slot.kind, version)
        return cls(**values)

    def value(self, slot: Slot, kind: Kind, version: int) -> Any:
        if kind.name == "fixed":
            return self.number(slot.name, kind.code)
        if kind.name == "string":
            return self.text(slot.name)
        if kind.name == "records":
            return any_records(self.dice)
        if kind.name == "bytes":
            return self.dice.randbytes(self.dice.choice((0, 1, 5, 130)))
        if kind.part is not None:
            return self.part(kind.part, version)
        assert kind.element is not None
        count = self.dice.choice((0, 1, 1, 1, 2, 3))
        return [self.value(slot, kind.element, version) for _ in range(count)]

    def text(self, name: str) -> str | None:
        dice = self.dice
        chance = dice.random()
        if name == "transactional_id" and self._api == "ProduceRequest":
            return None if chance < 0.9 else dice.choice(("", *_TRANSACTIONS))
        if name in _TEXTS and chance < 0.9:
            return dice.choice(_TEXTS[name])
        if name in ("name", "configuration_keys") and "Config" in self._api and chance < 0.9:
            return dice.choice(_CONFIGS)
        if name == "value":
            return dice.choice(_CONFIG_VALUES)
        if "software" in name:
            return dice.choice(("client", "1.0", "", "-x", "a b"))
        if chance < 0.85:
            alterable = "Delete" in self._api or "Alter" in self._api or "Partitions" in self._api
            if alterable and self._api != "DeleteRecordsRequest":
                return dice.choice(self.world.victims)
            if name == "resource_name" and chance < 0.2:
                return dice.choice((str(self.world.node_id), ""))
            return dice.choice(list(self.world.topics))
        if chance < 0.88:
            return "x" * dice.choice((249, 250, 32767))
        length = dice.choice((0, 1, 3, 12, 126, 127, 128))
        return "".join(dice.choices(_LETTERS, k=length))

    def number(self, name: str, code: str) -> Any:
        dice = self.dice
        if code == "?":
            return dice.random() < (0.8 if name == "validate_only" else 0.5)
        if code == "16s":
            chance = dice.random()
            if chance < 0.85:
                return dice.choice(list(self.world.topics.values()))
            return bytes(16) if chance < 0.93 else dice.randbytes(16)
        if code == "d":
            return dice.choice((0.0, -1.5, 1e300, float("nan")))
        if name in _USUAL and dice.random() < 0.9:
            return dice.choice(_USUAL[name])
        if name == "session_id":
            return self._session[0]
        if name == "session_epoch":
            return self._session[1] + dice.choice((0, 0, 0, 1))
        if name in ("replica_id", "broker_ids", "replica_epoch"):
            return dice.choice((-1, -1, -1, self.world.node_id, 7))
        return fitting(dice, code)


_PARTITIONS = (0, 0, 0, 0, 1, 1, 2, 2, 3, -1)
_OFFSETS = (0, 0, 1, 2, 3, 5, 10, -1, -2)
_USUAL: dict[str, tuple[int, ...]] = {
    "acks": (1, 1, 1, 1, -1, -1, -1, 0, 2),
    "index": _PARTITIONS,
    "partition": _PARTITIONS,
    "partitions": _PARTITIONS,
    "partition_index": _PARTITIONS,
    "fetch_offset": _OFFSETS,
    "offset": _OFFSETS,
    "timestamp": (-1, -2, -3, -4, -5, -6, 0, 1, 2**62),
    "current_leader_epoch": (-1, -1, 0, 0, 1),
    "last_fetched_epoch": (-1, -1, 0, 0, 1),
    "leader_epoch": (-1, 0, 0, 1),
    "max_wait_ms": (0, 0, 0, 1, 600_000),
    "min_bytes": (0, 1, 1, 100, 2**31 - 1),
    "max_bytes": (0, 1, 1000, 2**31 - 1, -1),
    "partition_max_bytes": (0, 1, 1000, 2**31 - 1, -1),
    "isolation_level": (0, 1, 2),
    "num_partitions": (-1, 1, 1, 2, 0),
    "replication_factor": (-1, 1, 1, 2, 0),
    "count": (0, 1, 2, 3, 4),
    "resource_type": (2, 2, 2, 4, 8, 16, 32, 0),
    "resource_types": (2, 4, 8, 16, 32, 0),
    "config_operation": (0, 1, 2, 3, 4),
    "response_partition_limit": (0, 1, 2, 2000),
    "endpoint_type": (1, 1, 2, 0),
    "key_type": (0, 1, 2, 3),
    "max_num_offsets": (0, 1, 2, 100),
    "producer_id": (-1, 0, 0, 1, 2, 5),
    "producer_epoch": (-1, 0, 0, 0, 1, 5),
    "generation_id": (-1, 0, 1, 2),
    "generation_id_or_member_epoch": (-1, 0, 1, 2),
    "session_timeout_ms": (6000, 10_000, 45_000, 1),
    "rebalance_timeout_ms": (1, 100, -1),
    "transaction_timeout_ms": (1000, 60_000, 0),
    "committed_offset": _OFFSETS,
    "coordinator_epoch": (-1, 0, 1),
}
