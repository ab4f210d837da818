"""What a broker tells of itself, in the text format that Prometheus reads.

The hot path counts with plain integers that it mostly keeps anyway; everything else is looked up when
somebody asks. A broker may have thousands of partitions, so an answer is made in pieces, and the loop
gets its turn between them. docs/adr/0010 says why this is not a metrics library's work.

A log that nobody has used since the start is asleep and has no samples yet.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.metadata import NO_LEADER
from ottla.protocol.apis import api_name
from ottla.replication.partition import Role
from ottla.server.observability.timings import BOUNDS, TIMED_ONE_IN
from ottla.version import __version__

if TYPE_CHECKING:
    from ottla.replication.partition import Partition
    from ottla.server.api import Api
    from ottla.server.broker import Broker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Samples rendered before the loop gets its turn: about a millisecond.
SAMPLES_AT_ONCE = 500

# (labels, value). Labels are rendered: `topic="a",partition="0"`.
Sample = tuple[str, float]
# What a long count says on its way, so that the loop gets its turn.
_NOT_YET = None


class Family(NamedTuple):
    """One metric: what it is called and what it means."""

    name: str
    kind: str  # "counter" or "gauge"
    help: str
    samples: Callable[[Broker], Iterable[Sample | None]]


def label(**values: object) -> str:
    """Labels as they stand between the braces of a sample."""
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# Requests and connections --------------------------------------------------------------------


def _requests(broker: Broker) -> Iterator[Sample]:
    for api in broker.apis.values():
        if api.requests:
            yield label(api=api_name(api.key)), api.requests


def _connections(broker: Broker) -> Iterator[Sample]:
    counts = Counter({listener.name: 0 for listener in broker.reactor.listeners})
    counts.update(connection.listener.name for connection in broker.reactor.connections)
    for name, count in counts.items():
        yield label(listener=name), count


def _failed_authentications(broker: Broker) -> Iterator[Sample]:
    reactor = broker.reactor
    yield label(kind="sasl"), reactor.failed_authentications
    yield label(kind="tls"), reactor.failed_handshakes
    yield label(kind="crowded_out"), reactor.crowded_out


def _unanswered(broker: Broker) -> float:
    return sum(len(connection.slots) for connection in broker.reactor.connections)


TIMINGS_NAME = "ottla_request_handling_seconds"
TIMINGS_HELP = (
    "How long a request kept the broker's loop busy, without waiting for data, disks or other "
    f"requests. One in {TIMED_ONE_IN} is timed."
)


def timings_text(apis: Iterable[Api]) -> str:
    lines = [f"# HELP {TIMINGS_NAME} {TIMINGS_HELP}", f"# TYPE {TIMINGS_NAME} histogram"]
    for api in apis:
        timings = api.timings
        if not timings.seconds:
            continue
        labels = label(api=api_name(api.key))
        below = 0
        for bound, count in zip((*BOUNDS, "+Inf"), timings.counts, strict=True):
            below += count
            lines.append(f'{TIMINGS_NAME}_bucket{{{labels},le="{bound}"}} {below}')
        lines.append(f"{TIMINGS_NAME}_sum{{{labels}}} {timings.seconds!r}")
        lines.append(f"{TIMINGS_NAME}_count{{{labels}}} {below}")
    return "\n".join(lines) + "\n"


# Topics and partitions -----------------------------------------------------------------------


def _of_logs(measure: Callable[..., float]) -> Callable[[Broker], Iterator[Sample]]:
    def samples(broker: Broker) -> Iterator[Sample]:
        for topic, partitions in list(broker.partitions.by_name.items()):
            for partition in partitions:
                if partition.opened is not None:
                    labels = f'topic="{topic}",partition="{partition.index}"'
                    yield labels, measure(partition.opened)

    return samples


def _partitions(broker: Broker) -> Iterator[Sample]:
    for topic, partitions in list(broker.partitions.by_name.items()):
        yield label(topic=topic), len(partitions)


def _offline(broker: Broker) -> Iterator[Sample]:
    for partition in list(broker.partitions):
        if partition.is_offline:
            yield label(topic=partition.topic, partition=partition.index), 1


def _damaged(broker: Broker) -> Iterator[Sample]:
    for (topic, partition), findings in list(broker.scrubber.damaged.items()):
        yield label(topic=topic, partition=partition), len(findings)


def _unflushed(broker: Broker) -> float:
    return sum(log.appended_bytes - log.flushed_bytes for log in broker.logs.loaded())


# Replication ---------------------------------------------------------------------------------


def _led_here(
    is_counted: Callable[[Partition], bool],
) -> Callable[[Broker], Iterator[Sample | None]]:
    """The number of partitions led here of which something is true."""

    def samples(broker: Broker) -> Iterator[Sample | None]:
        count = 0
        for partitions in list(broker.partitions.by_name.values()):
            for partition in partitions:
                count += partition.role is Role.LEADER and is_counted(partition)
                yield _NOT_YET
        yield "", count

    return samples


def _is_under_replicated(partition: Partition) -> bool:
    return len(partition.isr) < len(partition.replicas) - len(partition.adding)


def _leaderless(broker: Broker) -> Iterator[Sample | None]:
    count = 0
    if broker.membership.controller is not None:
        for topic in list(broker.image.topics.values()):
            for partition in topic.partitions:
                count += partition.leader == NO_LEADER
                yield _NOT_YET
    yield "", count


def _fenced(broker: Broker) -> Iterator[Sample]:
    yield label(reason="refused"), broker.tally.refused
    yield label(reason="session"), broker.tally.lost_sessions


# Groups and transactions ---------------------------------------------------------------------


def _groups(broker: Broker) -> Iterator[Sample]:
    counts: Counter[tuple[str, str]] = Counter()
    for shard in broker.groups.serving_shards():
        counts.update((group.kind.value, group.state_name) for group in shard.groups.values())
    for (kind, state), count in counts.items():
        yield label(type=kind, state=state), count


def _committed(broker: Broker) -> Iterator[tuple[str, str, int, int]]:
    """Committed offsets by group and partition; copied, as commits may come in meanwhile."""
    for shard in broker.groups.serving_shards():
        for group in shard.offsets.group_ids():
            for topic, partitions in list(shard.offsets.of_group(group).items()):
                for index, committed in list(partitions.items()):
                    yield group, topic, index, committed.offset


def _committed_offsets(broker: Broker) -> Iterator[Sample]:
    for group, topic, index, offset in _committed(broker):
        yield label(group=group, topic=topic, partition=index), offset


def _lag(broker: Broker) -> Iterator[Sample]:
    for group, topic, index, offset in _committed(broker):
        partition = broker.partitions.get(topic, index)
        if partition is not None and partition.opened is not None:
            lag = max(0, partition.opened.high_watermark - offset)
            yield label(group=group, topic=topic, partition=index), lag


def _transactions(broker: Broker) -> Iterator[Sample]:
    counts: Counter[str] = Counter()
    for shard in broker.transactions.serving_shards():
        counts.update(each.state.name.lower() for each in shard.transactions.values())
    for state, count in counts.items():
        yield label(state=state), count


# The process ---------------------------------------------------------------------------------


def _processor_seconds(_: Broker) -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resident_bytes() -> int | None:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None  # not Linux


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


_STARTED = time.time()


def _one(measure: Callable[[Broker], float | None]) -> Callable[[Broker], Iterator[Sample]]:
    def samples(broker: Broker) -> Iterator[Sample]:
        value = measure(broker)
        if value is not None:
            yield "", value

    return samples


def _counter(name: str, what: str, measure: Callable[[Broker], float | None]) -> Family:
    """One number that only grows."""
    return Family(name, "counter", what, _one(measure))


def _gauge(name: str, what: str, measure: Callable[[Broker], float | None]) -> Family:
    """One number that grows and falls."""
    return Family(name, "gauge", what, _one(measure))


def _families() -> Iterator[Family]:
    yield Family(
        "ottla_build_info",
        "gauge",
        "Always 1; which version runs.",
        lambda _: [(label(version=__version__, python=platform.python_version()), 1)],
    )
    yield Family("ottla_requests_total", "counter", "Requests taken, by API.", _requests)
    yield _counter(
        "ottla_received_bytes_total",
        "Bytes received from clients.",
        lambda broker: broker.reactor.received_bytes,
    )
    yield _counter(
        "ottla_sent_bytes_total",
        "Bytes sent to clients.",
        lambda broker: broker.reactor.sent_bytes,
    )
    yield _counter(
        "ottla_connections_accepted_total",
        "Connections accepted.",
        lambda broker: broker.reactor.accepted,
    )
    yield _counter(
        "ottla_connections_refused_total",
        "Connections turned away because a limit was reached.",
        lambda broker: broker.reactor.refused,
    )
    yield _counter(
        "ottla_malformed_requests_total",
        "Connections closed because what they sent was no request.",
        lambda broker: broker.reactor.malformed,
    )
    yield _counter(
        "ottla_requests_without_memory_total",
        "Connections closed because there was no memory for their request.",
        lambda broker: broker.reactor.refused_requests,
    )
    yield Family(
        "ottla_failed_authentications_total",
        "counter",
        "Clients that did not prove who they are: by SASL, in a TLS handshake, or crowded out by "
        "others before they could.",
        _failed_authentications,
    )
    yield Family("ottla_connections", "gauge", "Open connections, by listener.", _connections)
    yield _gauge(
        "ottla_unanswered_requests",
        "Requests that wait: for data, a disk, a worker or a group.",
        _unanswered,
    )
    yield _gauge(
        "ottla_waiting_fetches",
        "Fetches that wait for data.",
        lambda broker: len(broker.waiting_fetches),
    )
    yield _gauge(
        "ottla_request_memory_bytes",
        "Memory held by requests that have arrived in part or wait.",
        lambda broker: broker.reactor.partial_bytes,
    )
    yield Family("ottla_topic_partitions", "gauge", "Partitions of each topic.", _partitions)
    yield Family(
        "ottla_partition_log_start_offset",
        "gauge",
        "The first offset that is still there.",
        _of_logs(lambda log: log.log_start_offset),
    )
    yield Family(
        "ottla_partition_log_end_offset",
        "gauge",
        "The offset of the next record; its rate is that of records written.",
        _of_logs(lambda log: log.log_end_offset),
    )
    yield Family(
        "ottla_partition_high_watermark",
        "gauge",
        "Consumers may read up to here.",
        _of_logs(lambda log: log.high_watermark),
    )
    yield Family(
        "ottla_partition_last_stable_offset",
        "gauge",
        "Consumers of committed records may read up to here; one that stands still below the high "
        "watermark is a transaction that does not end.",
        _of_logs(lambda log: log.last_stable_offset),
    )
    yield Family(
        "ottla_partition_size_bytes",
        "gauge",
        "Bytes in the log files of a partition.",
        _of_logs(lambda log: log.size),
    )
    yield Family(
        "ottla_partition_appended_bytes_total",
        "counter",
        "Bytes appended since the log was opened.",
        _of_logs(lambda log: log.appended_bytes),
    )
    yield Family(
        "ottla_partition_offline",
        "gauge",
        "1 for each partition whose log cannot be used; none is what one wants to see.",
        _offline,
    )
    yield Family(
        "ottla_under_replicated_partitions",
        "gauge",
        "Partitions led here that have fewer replicas in sync than they are to have; 0 is what one "
        "wants to see.",
        _led_here(_is_under_replicated),
    )
    yield Family(
        "ottla_under_min_isr_partitions",
        "gauge",
        "Partitions led here that have fewer replicas in sync than `min.insync.replicas`: producers "
        "with acks=all are refused.",
        _led_here(lambda partition: partition.under_min_isr),
    )
    yield Family(
        "ottla_leaderless_partitions",
        "gauge",
        "Partitions of the whole cluster that nobody leads; told by the controller, 0 elsewhere.",
        _leaderless,
    )
    yield _gauge(
        "ottla_active_controller",
        "1 on the broker that is the controller; the sum over all brokers is 1.",
        lambda broker: int(broker.membership.controller is not None),
    )
    yield _counter(
        "ottla_unclean_elections_total",
        "Elections, by a controller on this broker, of a leader that was not in sync: records may "
        "be lost. Each is named in the log.",
        lambda broker: broker.tally.unclean_elections,
    )
    yield Family(
        "ottla_fenced_brokers_total",
        "counter",
        "Brokers that a controller on this broker took for dead: their port refused connections, or "
        "their session ended. Those that leave in good order do not count.",
        _fenced,
    )
    yield _counter(
        "ottla_isr_shrinks_total",
        "Times that a leader here took replicas out of an in-sync set, because they lagged.",
        lambda broker: broker.replicas.isr_shrinks,
    )
    yield _counter(
        "ottla_isr_expands_total",
        "Times that a leader here took replicas that had caught up into an in-sync set.",
        lambda broker: broker.replicas.isr_expands,
    )
    yield _gauge(
        "ottla_unflushed_bytes",
        "Bytes written to logs that no flush to the disk covers yet.",
        _unflushed,
    )
    yield _counter(
        "ottla_compactions_total",
        "Passes of the compactor that came to their end.",
        lambda broker: broker.compactor.passes,
    )
    yield Family(
        "ottla_log_damaged_batches",
        "gauge",
        "Batches in closed segments that the last scrub found damaged or missing; none is what one "
        "wants to see (`log.scrub.interval.ms`).",
        _damaged,
    )
    yield _counter(
        "ottla_damaged_replicas_repaired_total",
        "Replicas whose logs were damaged, set aside and fetched again from another broker.",
        lambda broker: broker.repairs.repaired,
    )
    yield _counter(
        "ottla_scrubbed_bytes_total",
        "Bytes of closed segments that the background scrub has read.",
        lambda broker: broker.scrubber.bytes_read,
    )
    yield Family("ottla_groups", "gauge", "Groups coordinated here, by type and state.", _groups)
    yield Family(
        "ottla_group_committed_offset",
        "gauge",
        "The offset that a group has committed.",
        _committed_offsets,
    )
    yield Family(
        "ottla_group_lag",
        "gauge",
        "Records between a group's committed offset and the high watermark, where the partition is "
        "led here.",
        _lag,
    )
    yield Family(
        "ottla_transactional_ids",
        "gauge",
        "Transactional ids coordinated here, by the state of their last transaction.",
        _transactions,
    )
    yield _counter(
        "process_cpu_seconds_total",
        "Processor time of the broker's process, without its workers.",
        _processor_seconds,
    )
    yield _gauge(
        "process_resident_memory_bytes",
        "Resident memory of the broker's process, without its workers.",
        lambda _: _resident_bytes(),
    )
    yield _gauge(
        "process_open_fds",
        "Open file descriptors.",
        lambda _: _open_files(),
    )
    yield _gauge(
        "process_max_fds",
        "How many file descriptors may be open.",
        lambda _: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    yield _gauge(
        "process_start_time_seconds",
        "When the broker's process started, in seconds since 1970.",
        lambda _: _STARTED,
    )


FAMILIES = tuple(_families())


async def pieces(broker: Broker) -> AsyncIterator[str]:
    """The whole answer, piece by piece."""
    for family in FAMILIES:
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
        samples = iter(family.samples(broker))
        while some := list(islice(samples, SAMPLES_AT_ONCE)):
            yield "".join(
                f"{family.name}{{{labels}}} {value}\n" if labels else f"{family.name} {value}\n"
                for labels, value in filter(None, some)
            )
            await asyncio.sleep(0)
    yield timings_text(list(broker.apis.values()))
