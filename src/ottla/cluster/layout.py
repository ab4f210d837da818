"""How the metadata lies in the store: paths, values, and the way from one to the other. No I/O.

The paths are those that Kafka used in ZooKeeper, where it had them. Values are JSON in UTF-8.

    /cluster/id                  {"version":"1","id":"<22 characters>"}
    /cluster/secret              {"version":1,"secret":"<32 bytes in Base64>"}: made once, the same for
                                 all brokers, and told to nobody
    /controller_epoch            a decimal number, one more with each controller that takes office;
                                 always the same as the node's version
    /metadata_revision           {"controller_epoch":N,"write":"<unlike any other>"}; its version
                                 is the version of the image
    /features                    {"features":{"<name>":<level>, …}}
    /latest_producer_id_block    {"version":1,"broker":N,"block_start":"0","block_end":"999"}
    /controller                  ephemeral: {"broker":N}, of the broker whose controller is in office
    /leader_epoch_base           a decimal number that is added to all leader epochs in the store
    /brokers/ids/N               ephemeral, written by the broker itself: {"rack":…,"folder_id":"…",
                                 "lost_data":…,"run":"…","former_runs":["…", …],
                                 "endpoints":[{"listener","host","port","protocol"}, …]}; the
                                 transaction that created it is the broker's epoch
    /brokers/registrations/N     the same once the controller has taken the broker in, with
                                 "epoch" and "state", which is "alive", "leaving" or "fenced", and
                                 without "former_runs"
    /brokers/topics/NAME         {"topic_id":"<22 characters>","partitions":[{"replicas":[…],
                                 "isr":[…],"leader":N,"leader_epoch":N,"partition_epoch":N}, …]}, in
                                 a reassignment also "adding" and "removing", and where too few are
                                 in sync "elr" and "last_known_leader"
                                 A topic with more than 64 partitions has "partition_count":N in place
                                 of "partitions", which stand in nodes of 64 each:
    /brokers/partitions/ID-K     {"partitions":[…]}: the partitions from 64 × K on of the topic with
                                 this id; entries beyond the topic's count do not exist yet
    /config/KIND/NAME            {"config":{"<name>":"<value>", …}}; KIND is topics, brokers, groups,
                                 client-metrics, users (salted passwords, as Kafka had them there),
                                 acls (one entry each) or quotas (NAME is the entity, in JSON);
                                 `<default>` stands for the name "", and what may not stand in a
                                 path is written as in a URL

One node for each topic, not for each partition: few operations read and change thousands of them. Nobody
but the controller writes them, so partitions do not compete for the node. The nodes of large topics stay
small all the same (ZooKeeper refuses a MiB), and a change of one partition writes 64 of them at most.

A change that is too large for one multi is written in several. A topic's own node is what makes it
exist: it is written after its partitions and settings, and deleted before them. So what a crash leaves
in between belongs to no topic and is deleted by the next controller.

Every change by a controller sets /metadata_revision, as its last operation, at the version it knows,
and checks /controller_epoch. So all changes stand in one line, a controller that was replaced can
change nothing, and one look at the node settles whether a change without an answer was made.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, unquote

from ottla.cluster.draft import Draft
from ottla.cluster.metadata import (
    NO_LEADER,
    ClusterImage,
    Endpoint,
    Partition,
    RegisteredBroker,
    Resource,
    ResourceType,
    Topic,
)
from ottla.cluster.names import collision_key, is_internal
from ottla.cluster.store import Create, Delete, Node, Operation, Set, StoreError
from ottla.protocol.message import uuid_from_text, uuid_text
from ottla.turns import Steps, at_once, stepwise

CLUSTER_ID: Final = "/cluster/id"
SECRET: Final = "/cluster/secret"
CONTROLLER_EPOCH: Final = "/controller_epoch"
REVISION: Final = "/metadata_revision"
FEATURES: Final = "/features"
PRODUCER_IDS: Final = "/latest_producer_id_block"
BROKERS: Final = "/brokers/ids"
REGISTRATIONS: Final = "/brokers/registrations"
CONTROLLER: Final = "/controller"
LEADER_EPOCH_BASE: Final = "/leader_epoch_base"
TOPICS: Final = "/brokers/topics"
PARTITIONS: Final = "/brokers/partitions"
# Partitions in one node at most.
CHUNK: Final = 64

CONFIG_FOLDERS: Final[Mapping[ResourceType, str]] = {
    ResourceType.TOPIC: "/config/topics",
    ResourceType.BROKER: "/config/brokers",
    ResourceType.GROUP: "/config/groups",
    ResourceType.CLIENT_METRICS: "/config/client-metrics",
    ResourceType.USER: "/config/users",
    ResourceType.ACL: "/config/acls",
    ResourceType.QUOTA: "/config/quotas",
}
_NO_CHUNKS: Final[Mapping[str, Node | None]] = {}
_DEFAULT_NAME: Final = "<default>"
_ALIVE: Final = "alive"
_LEAVING: Final = "leaving"
_FENCED: Final = "fenced"

SKELETON: Final = (
    "/cluster",
    "/brokers",
    BROKERS,
    REGISTRATIONS,
    TOPICS,
    PARTITIONS,
    "/config",
    *CONFIG_FOLDERS.values(),
)
# Of the nodes at the top: nothing else may stand below them.
OWN_NAMES: Final = frozenset(
    path.split("/")[1]
    for path in (
        *SKELETON,
        CLUSTER_ID,
        CONTROLLER_EPOCH,
        REVISION,
        FEATURES,
        PRODUCER_IDS,
        CONTROLLER,
        LEADER_EPOCH_BASE,
    )
)


class UnreadableMetadata(StoreError):
    """A value in the store is not what this layout says."""


def broker_path(broker_id: int) -> str:
    """Where a broker registers itself."""
    return f"{BROKERS}/{broker_id}"


def registration_path(broker_id: int) -> str:
    """Where a broker stands once it was taken in."""
    return f"{REGISTRATIONS}/{broker_id}"


def registered_id(name: str) -> int:
    """The broker whose node below /brokers/registrations has this name."""
    with readable(f"{REGISTRATIONS}/{name}"):
        return int(name)


def topic_path(name: str) -> str:
    """The path of a topic's node."""
    return f"{TOPICS}/{name}"


def chunk_path(topic_id: bytes, number: int) -> str:
    """Where a large topic's partitions from 64 × `number` on are."""
    return f"{PARTITIONS}/{uuid_text(topic_id)}-{number}"


def chunk_of(name: str) -> tuple[bytes, int]:
    """The topic's id and the number in the name of a node below /brokers/partitions."""
    with readable(f"{PARTITIONS}/{name}"):
        text, _, number = name.rpartition("-")
        return uuid_from_text(text), int(number)


def chunk_paths(topic_id: bytes, partition_count: int) -> list[str]:
    """Where the partitions of a large topic are."""
    return [chunk_path(topic_id, at) for at in range((partition_count + CHUNK - 1) // CHUNK)]


def is_large(topic: Topic) -> bool:
    """Whether a topic's partitions have nodes of their own."""
    return len(topic.partitions) > CHUNK


def config_path(resource: Resource) -> str:
    """Where a resource's configuration is."""
    resource_type, name = resource
    # '<' is quoted in a name, so no name can be taken for the default.
    encoded = quote(name, safe="") if name else _DEFAULT_NAME
    if encoded in (".", ".."):
        encoded = encoded.replace(".", "%2E")
    return f"{CONFIG_FOLDERS[resource_type]}/{encoded}"


def config_name(encoded: str) -> str:
    """The name of the resource whose node has this name."""
    return "" if encoded == _DEFAULT_NAME else unquote(encoded)


def dump(value: Any) -> bytes:
    """A value as it is stored."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def encode_revision(controller_epoch: int, write: str) -> bytes:
    """The value of /metadata_revision; `write` is a mark that no other write has."""
    return dump({"controller_epoch": controller_epoch, "write": write})


def decode_mark(value: bytes) -> str:
    """The mark of the write that made this value of /metadata_revision."""
    with readable(REVISION):
        return str(json.loads(value)["write"])


def encode_topic(topic: Topic, known: dict[int, bytes], epoch_base: int = 0) -> bytes:
    """The value of a topic's node; leader epochs are stored without their common base.

    On one node nearly all topics have equal partitions, in the same tuple even. So what was encoded
    is kept in `known`, by the tuple's identity: it serves for one call, while the topics are alive.
    """
    if is_large(topic):
        topic_id = uuid_text(topic.topic_id).encode()
        return b'{"topic_id":"%b","partition_count":%d}' % (topic_id, len(topic.partitions))
    rest = known.get(id(topic.partitions))
    if rest is None:
        partitions = [_partition_fields(each, epoch_base) for each in topic.partitions]
        rest = known[id(topic.partitions)] = dump({"partitions": partitions})[1:]
    return b'{"topic_id":"%b",%b' % (uuid_text(topic.topic_id).encode(), rest)


def encode_chunk(partitions: Sequence[Partition], epoch_base: int = 0) -> bytes:
    """The value of a node with some of a large topic's partitions."""
    return dump({"partitions": [_partition_fields(each, epoch_base) for each in partitions]})


def decode_chunk(number: int, value: bytes, epoch_base: int = 0) -> tuple[Partition, ...]:
    """The partitions of such a node."""
    return _decode_partitions(json.loads(value), epoch_base, CHUNK * number)


def partition_count(value: bytes) -> int | None:
    """How many partitions a topic has in nodes of their own; None if its own node holds them."""
    if _COUNT not in value:
        return None
    count: int = json.loads(value)["partition_count"]
    return count


def chunks_wanted(name: str, value: bytes) -> list[str]:
    """The nodes that are needed beside a topic's own to read it."""
    with readable(topic_path(name)):
        count = partition_count(value)
        if count is None:
            return []
        return chunk_paths(uuid_from_text(json.loads(value)["topic_id"]), count)


def _partition_fields(partition: Partition, epoch_base: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "replicas": partition.replicas,
        "isr": partition.isr,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch - epoch_base,
        "partition_epoch": partition.partition_epoch,
    }
    if partition.adding:
        fields["adding"] = partition.adding
    if partition.removing:
        fields["removing"] = partition.removing
    if partition.elr:
        fields["elr"] = partition.elr
    if partition.last_known_leader != NO_LEADER:
        fields["last_known_leader"] = partition.last_known_leader
    return fields


_COUNT: Final = b'"partition_count"'
_BEFORE_TOPIC_ID: Final = b'{"topic_id":"'
_TOPIC_ID_AT: Final = len(_BEFORE_TOPIC_ID)
_TOPIC_ID_END: Final = _TOPIC_ID_AT + 22


def decode_topic(
    name: str,
    value: bytes,
    known: dict[bytes, tuple[Partition, ...]],
    epoch_base: int = 0,
    chunks: Mapping[str, Node | None] = _NO_CHUNKS,
) -> Topic:
    """A topic from its node, and the nodes of its partitions if it is a large one.

    Topics with equal partitions share them: `known` has those that were seen, by what follows the
    topic id in the value. That saves most of the time of a start with thousands of topics, and most
    of the memory they would take.
    """
    if _COUNT in value:
        return _decode_large(name, json.loads(value), epoch_base, chunks)
    if value.startswith(_BEFORE_TOPIC_ID):  # as encode_topic writes it
        topic_id = uuid_from_text(value[_TOPIC_ID_AT:_TOPIC_ID_END].decode())
        rest = value[_TOPIC_ID_END:]
        partitions = known.get(rest)
        if partitions is None:
            partitions = known[rest] = _decode_partitions(json.loads(value), epoch_base)
    else:
        fields = json.loads(value)
        topic_id = uuid_from_text(fields["topic_id"])
        partitions = _decode_partitions(fields, epoch_base)
    return Topic(name, topic_id, partitions, is_internal(name))


def _decode_large(
    name: str, fields: dict[str, Any], epoch_base: int, chunks: Mapping[str, Node | None]
) -> Topic:
    topic_id, count = uuid_from_text(fields["topic_id"]), int(fields["partition_count"])
    partitions: list[Partition] = []
    for number, path in enumerate(chunk_paths(topic_id, count)):
        node = chunks.get(path)
        if node is None:
            raise KeyError(path)
        partitions += decode_chunk(number, node.value, epoch_base)
        if len(partitions) < min(count, CHUNK * (number + 1)):
            raise ValueError(path)
    return Topic(name, topic_id, tuple(partitions[:count]), is_internal(name))


def _decode_partitions(
    fields: dict[str, Any], epoch_base: int, first: int = 0
) -> tuple[Partition, ...]:
    partitions = []
    for index, entry in enumerate(fields["partitions"], first):
        replicas, isr = tuple(entry["replicas"]), tuple(entry["isr"])
        if isr == replicas:  # nearly always: one tuple does for both
            isr = replicas
        partitions.append(
            Partition(
                index,
                replicas,
                isr,
                entry["leader"],
                entry["leader_epoch"] + epoch_base,
                entry["partition_epoch"],
                tuple(entry.get("adding", ())),
                tuple(entry.get("removing", ())),
                tuple(entry.get("elr", ())),
                entry.get("last_known_leader", NO_LEADER),
            )
        )
    return tuple(partitions)


def _broker_fields(broker: RegisteredBroker) -> dict[str, Any]:
    return {
        **({"machine": broker.machine} if broker.machine else {}),
        **({"min_isr": broker.min_isr} if broker.min_isr else {}),
        **({"features": broker.features} if broker.features else {}),
        **({"run": broker.run} if broker.run else {}),
        **({"former_runs": broker.former_runs} if broker.former_runs else {}),
        "rack": broker.rack,
        "folder_id": broker.folder_id,
        "endpoints": [
            {
                "listener": endpoint.listener,
                "host": endpoint.host,
                "port": endpoint.port,
                "protocol": endpoint.protocol,
            }
            for endpoint in broker.endpoints
        ],
    }


def _broker_of(
    broker_id: int, epoch: int, fields: dict[str, Any], leaving: bool = False
) -> RegisteredBroker:
    endpoints = tuple(
        Endpoint(entry["listener"], entry["host"], entry["port"], entry["protocol"])
        for entry in fields["endpoints"]
    )
    return RegisteredBroker(
        broker_id,
        epoch,
        fields["rack"],
        endpoints,
        fields.get("folder_id", ""),
        leaving,
        fields.get("machine", ""),
        fields.get("min_isr", 0),
        tuple((str(name), int(low), int(high)) for name, low, high in fields.get("features", ())),
        str(fields.get("run", "")),
        tuple(str(each) for each in fields.get("former_runs", ())),
    )


def encode_broker(broker: RegisteredBroker, lost_data: bool = False) -> bytes:
    """The value of the node by which a broker registers itself."""
    return dump({"lost_data": lost_data, **_broker_fields(broker)})


def decode_broker(broker_id: int, node: Node) -> tuple[RegisteredBroker, bool]:
    """A broker as it registered itself, and whether it says that it may have lost data."""
    with readable(broker_path(broker_id)):
        fields = json.loads(node.value)
        return _broker_of(broker_id, node.created, fields), bool(fields.get("lost_data", False))


def encode_registration(broker: RegisteredBroker, fenced: bool) -> bytes:
    """The value of the node of a broker that was taken in."""
    state = _FENCED if fenced else _LEAVING if broker.leaving else _ALIVE
    return dump({"epoch": broker.epoch, "state": state, **_broker_fields(broker)})


def decode_registration(broker_id: int, value: bytes) -> tuple[RegisteredBroker, bool]:
    """A broker that was taken in, and whether it is fenced."""
    with readable(registration_path(broker_id)):
        fields = json.loads(value)
        state = fields["state"]
        broker = _broker_of(broker_id, fields["epoch"], fields, state == _LEAVING)
        return broker, state == _FENCED


def decode_config(resource: Resource, value: bytes) -> Mapping[str, str]:
    """What is set for a resource."""
    with readable(config_path(resource)):
        config: Mapping[str, str] = json.loads(value)["config"]
        return config


def decode_features(value: bytes) -> Mapping[str, int]:
    with readable(FEATURES):
        features: Mapping[str, int] = json.loads(value)["features"]
        return features


def decode_next_producer_id(value: bytes) -> int:
    with readable(PRODUCER_IDS):
        return int(json.loads(value)["block_end"]) + 1


def encode_controller(broker_id: int) -> bytes:
    """The value of /controller."""
    return dump({"broker": broker_id})


def decode_controller(node: Node | None) -> int:
    """The broker whose controller is in office, -1 if none is."""
    if node is None:
        return -1
    with readable(CONTROLLER):
        return int(json.loads(node.value)["broker"])


@contextmanager
def readable(path: str) -> Iterator[None]:
    """UnreadableMetadata in place of what comes of a value that does not hold what it should."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableMetadata(f"the metadata store has an unreadable value at {path}") from error


def encode_producer_ids(broker_id: int, block_start: int, block_end: int) -> bytes:
    """The block of producer ids that was handed out last; `block_end` belongs to it."""
    return dump(
        {
            "version": 1,
            "broker": broker_id,
            "block_start": str(block_start),
            "block_end": str(block_end),
        }
    )


def encode_secret(secret: bytes) -> bytes:
    """The value of the node with the secret that brokers share."""
    return dump({"version": 1, "secret": base64.b64encode(secret).decode()})


def decode_secret(value: bytes) -> bytes:
    with readable(SECRET):
        return base64.b64decode(json.loads(value)["secret"], validate=True)


def skeleton(
    cluster_id: str, features: Mapping[str, int], write: str, secret: bytes
) -> list[Operation]:
    """What makes an empty store one of a cluster without topics and without a controller."""
    return [
        *(Create(path) for path in SKELETON),
        Create(CLUSTER_ID, dump({"version": "1", "id": cluster_id})),
        Create(SECRET, encode_secret(secret)),
        Create(CONTROLLER_EPOCH, b"0"),
        Create(FEATURES, dump({"features": dict(features)})),
        Create(PRODUCER_IDS, encode_producer_ids(-1, -1, -1)),
        Create(LEADER_EPOCH_BASE, b"0"),
        Create(REVISION, encode_revision(0, write)),
    ]


def _own_fields(topic: Topic) -> tuple[bytes, int]:
    """What a large topic's own node says."""
    return topic.topic_id, len(topic.partitions)


def _chunk_operations(
    before: Topic | None,
    after: Topic | None,
    epoch_base: int,
    operations: list[Operation],
    left: list[Operation],
) -> Steps[None]:
    """Adds what writes the partitions of a large topic, and what deletes those of a former one."""
    old = before.partitions if before is not None and is_large(before) else ()
    new = after.partitions if after is not None and is_large(after) else ()
    if before is not None and old and (after is None or after.topic_id != before.topic_id):
        left.extend(Delete(path) for path in chunk_paths(before.topic_id, len(old)))
        old = ()
    if after is None:
        return
    for number, path in enumerate(chunk_paths(after.topic_id, len(new))):
        yield
        part = slice(CHUNK * number, CHUNK * (number + 1))
        known, wanted = old[part], new[part]
        if not known:
            operations.append(Create(path, encode_chunk(wanted, epoch_base)))
        elif known != wanted:
            operations.append(Set(path, encode_chunk(wanted, epoch_base)))


def rewritten(topics: Iterable[Topic], epoch_base: int) -> list[Operation]:
    """What moves the partitions of large topics out of their own nodes."""
    topics = list(topics)
    operations: list[Operation] = []
    for topic in topics:
        at_once(_chunk_operations(None, topic, epoch_base, operations, []))
    operations += [
        Set(topic_path(each.name), encode_topic(each, {}, epoch_base)) for each in topics
    ]
    return operations


@stepwise
def operations_of(draft: Draft) -> Steps[list[Operation]]:
    """What a draft changes in the store, without the revision."""
    base = draft.base
    operations: list[Operation] = []
    # In this order: what a topic needs, topics that come or change, topics that go, what they leave.
    topics: list[Operation] = []
    gone: list[Operation] = []
    left: list[Operation] = []
    encoded: dict[int, bytes] = {}
    for name in draft.touched_topics:
        before, after = base.topics.get(name), draft.topics.get(name)
        if before is after:
            continue
        yield
        yield from _chunk_operations(before, after, draft.leader_epoch_base, operations, left)
        if after is None:
            gone.append(Delete(topic_path(name)))
        elif before is None:
            topics.append(
                Create(topic_path(name), encode_topic(after, encoded, draft.leader_epoch_base))
            )
        elif not (is_large(before) and is_large(after)) or _own_fields(before) != _own_fields(
            after
        ):
            topics.append(
                Set(topic_path(name), encode_topic(after, encoded, draft.leader_epoch_base))
            )
    for resource in draft.touched_configs:
        yield
        existing, wanted = base.configs.get(resource), draft.configs.get(resource)
        if wanted is not None:  # written even if it is the same: somebody wants it to be heard of
            value = dump({"config": dict(wanted)})
            path = config_path(resource)
            operations.append(Create(path, value) if existing is None else Set(path, value))
        elif existing is not None:
            left.append(Delete(config_path(resource)))
    operations += topics
    operations += gone
    operations += left
    if draft.touched_features and draft.features != base.features:
        operations.append(Set(FEATURES, dump({"features": dict(draft.features)})))
    if draft.next_producer_id != base.next_producer_id:
        value = encode_producer_ids(
            base.controller_id, base.next_producer_id, draft.next_producer_id - 1
        )
        operations.append(Set(PRODUCER_IDS, value))
    if draft.leader_epoch_base != base.leader_epoch_base:
        value = str(draft.leader_epoch_base).encode()
        operations.append(Set(LEADER_EPOCH_BASE, value))
    # After the partitions: where a change is written in several steps, a broker must not be part of
    # the cluster before what its former life led has been settled.
    for broker_id in draft.touched_brokers:
        path = registration_path(broker_id)
        is_known = broker_id in base.brokers or broker_id in base.fenced
        broker = draft.brokers.get(broker_id) or draft.fenced.get(broker_id)
        if broker is not None:
            value = encode_registration(broker, fenced=broker_id in draft.fenced)
            operations.append(Set(path, value) if is_known else Create(path, value))
        elif is_known:
            operations.append(Delete(path))
    return operations


@stepwise
def decode_image(
    single: Mapping[str, Node],
    registrations: Iterable[tuple[int, Node]],
    topics: Iterable[tuple[str, Node]],
    configs: Iterable[tuple[Resource, Node]],
    chunks: Mapping[str, Node | None] = _NO_CHUNKS,
) -> Steps[ClusterImage]:
    """The image that a store holds. `single` has the nodes that are not in a list of their own,
    `chunks` those of large topics' partitions, by their paths."""
    base_node = single.get(LEADER_EPOCH_BASE)
    with readable(LEADER_EPOCH_BASE):
        base = 0 if base_node is None else int(base_node.value)
    known: dict[bytes, tuple[Partition, ...]] = {}
    decoded: dict[str, Topic] = {}
    collisions: dict[str, tuple[str, ...]] = {}
    for name, node in topics:
        yield
        with readable(topic_path(name)):
            decoded[name] = decode_topic(name, node.value, known, base, chunks)
        key = collision_key(name)
        if key is not None:
            collisions[key] = (*collisions.get(key, ()), name)
    alive: dict[int, RegisteredBroker] = {}
    fenced: dict[int, RegisteredBroker] = {}
    for broker_id, node in registrations:
        broker, is_fenced = decode_registration(broker_id, node.value)
        (fenced if is_fenced else alive)[broker_id] = broker
    with readable(CLUSTER_ID):
        cluster_id = json.loads(single[CLUSTER_ID].value)["id"]
    with readable(CONTROLLER_EPOCH):
        controller_epoch = int(single[CONTROLLER_EPOCH].value)
    secret = single.get(SECRET)
    return ClusterImage(
        cluster_id=cluster_id,
        secret=b"" if secret is None else decode_secret(secret.value),
        controller_id=decode_controller(single.get(CONTROLLER)),
        controller_epoch=controller_epoch,
        version=single[REVISION].version,
        brokers=alive,
        fenced=fenced,
        topics=decoded,
        topics_by_id={topic.topic_id: topic for topic in decoded.values()},
        configs={resource: decode_config(resource, node.value) for resource, node in configs},
        features=decode_features(single[FEATURES].value),
        next_producer_id=decode_next_producer_id(single[PRODUCER_IDS].value),
        leader_epoch_base=base,
        collisions=collisions,
    )
