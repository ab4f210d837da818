"""`ottla topic`: create, list, describe, alter, delete, offsets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.cluster import moving
from ottla.cli.cluster.moving import Throttle
from ottla.cli.deleting import Yes, delete_each
from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import (
    DEFAULT_SERVER,
    Json,
    Quiet,
    Server,
    Topic,
    Topics,
    check_new_name,
    complete_topic,
    connect,
    help_group,
    parse_assignments,
)
from ottla.cli.output import plural, write_document, write_line, write_table
from ottla.cli.records.positions import EARLIEST, LATEST, Kind, parse_position, show_time

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster
    from ottla.client.moves.plan import BrokerRoom, Move, PlacedPartition

app = help_group("Create, list, describe, alter and delete topics.")

Settings = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting; repeat for more."),
]


@app.command()
def create(
    topics: Topics,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", metavar="N", min=1, help="How many; else num.partitions."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            min=1,
            help="Copies of each partition; else the broker's default.",
        ),
    ] = None,
    settings: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Be content when the topic is there.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the broker check, and create nothing.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Create topics.

    \b
    ottla topic create orders
    ottla topic create orders payments -p 6 -c retention.ms=3600000
    """
    for name in topics:
        check_new_name(name)
    overrides = parse_assignments(settings or (), "--config")
    cluster = connect(server)
    existing = {topic.name for topic in cluster.topics()} if if_not_exists else set()
    created = []
    for name in dict.fromkeys(topics):
        if name in existing:
            continue
        cluster.create_topic(name, partitions, replication_factor, overrides, dry_run=dry_run)
        created.append(name)
        if not json:
            write_line(f"{name} could be created" if dry_run else f"created {name}")
    if json:
        write_document({"created": [] if dry_run else created, "dry_run": dry_run})


@app.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("--internal", help="Also those whose names begin with '__'.")
    ] = False,
    quiet: Quiet = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """List topics.

    \b
    ottla topic list
    ottla topic list --quiet | xargs -n 1 ottla topic offsets
    """
    topics = [topic for topic in connect(server).topics() if internal or not topic.internal]
    if json:
        write_document([topic._asdict() for topic in topics])
    elif quiet:
        for topic in topics:
            write_line(topic.name)
    else:
        write_table(
            ("topic", "partitions", "replicas"),
            [(topic.name, topic.partitions, topic.replication_factor) for topic in topics],
        )


@app.command()
def describe(topics: Topics, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Show a topic's partitions, leaders, replicas, offsets and its own settings.

    \b
    ottla topic describe orders
    """
    cluster = connect(server)
    documents: list[dict[str, Any]] = []
    for topic in cluster.describe_topics(topics):
        # A partition without a leader cannot tell its offsets.
        led = [each.partition for each in topic.partitions if each.leader is not None]
        starts = cluster.offsets(topic.name, led, EARLIEST)
        ends = cluster.offsets(topic.name, led, LATEST)
        changed = [value for value in cluster.settings_of("topic", topic.name) if value.changed]
        documents.append(
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "internal": topic.internal,
                "partitions": [
                    {
                        "partition": each.partition,
                        "leader": each.leader,
                        "replicas": list(each.replicas),
                        "in_sync": list(each.in_sync),
                        "earliest": starts[each.partition].offset
                        if each.partition in starts
                        else None,
                        "latest": ends[each.partition].offset if each.partition in ends else None,
                    }
                    for each in topic.partitions
                ],
                "settings": {value.name: value.value for value in changed},
            }
        )
    if json:
        write_document(documents)
        return
    for number, document in enumerate(documents):
        if number:
            write_line()
        _write_description(document)


def _write_description(document: dict[str, Any]) -> None:
    partitions = document["partitions"]
    write_line(
        f"{document['name']}: {plural(len(partitions), 'partition')}, id {document['topic_id']}"
        + (", internal" if document["internal"] else "")
    )
    for name, value in document["settings"].items():
        write_line(f"  {name}={value}")
    write_table(
        ("partition", "leader", "replicas", "in sync", "earliest", "latest"),
        [
            (
                each["partition"],
                "none" if each["leader"] is None else each["leader"],
                ",".join(map(str, each["replicas"])),
                ",".join(map(str, each["in_sync"])),
                each["earliest"],
                each["latest"],
            )
            for each in partitions
        ],
    )


@app.command()
def alter(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="The topic's name.",
            autocompletion=complete_topic,
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, help="Grow to N partitions."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            min=1,
            help="Copies of each partition: more are made, or those too many dropped.",
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="With --replication-factor: all topics, internal ones too."),
    ] = False,
    throttle: Throttle = None,
    settings: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Back to the default; repeat for more."),
    ] = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Add partitions to a topic, change its settings, or the number of its replicas.

    \b
    ottla topic alter orders --partitions 12
    ottla topic alter orders -c retention.ms=86400000 --unset segment.bytes
    ottla topic alter orders --replication-factor 3
    ottla topic alter --all --replication-factor 3
    """
    assigned = parse_assignments(settings or (), "--config")
    if partitions is None and not assigned and not unset and replication_factor is None:
        raise Misuse(
            "nothing to alter; give --partitions, --replication-factor, --config or --unset"
        )
    if every == (topic is not None):
        raise Misuse("name a topic, or give --all")
    if every and (partitions is not None or assigned or unset or replication_factor is None):
        raise Misuse("--all goes with --replication-factor, and with nothing else")
    cluster = connect(server)
    # Before anything is altered: it is refused as a whole while another command moves partitions.
    with nullcontext() if replication_factor is None else moving.only_mover(cluster):
        if topic is not None and (assigned or unset):
            cluster.alter_settings("topic", topic, assigned, unset or ())
        if topic is not None and partitions is not None:
            cluster.add_partitions(topic, partitions)
        if replication_factor is not None:
            _replicate(cluster, topic, replication_factor, throttle, json=json)
            return
    if json:
        write_document(
            {"altered": topic, "partitions": partitions, "set": assigned, "unset": unset or []}
        )
    else:
        write_line(f"altered {topic}")


def _replicate(
    cluster: Cluster, topic: str | None, factor: int, throttle: int | None, *, json: bool
) -> None:
    """Gives a topic, or all of them, so many replicas, and waits until they have them."""
    from ottla.client.moves.plan import with_factor

    if topic is not None:
        cluster.describe_topics([topic])  # says that there is no such topic

    def planner(partitions: Sequence[PlacedPartition], brokers: Sequence[BrokerRoom]) -> list[Move]:
        chosen = [each for each in partitions if topic in (None, each.partition.topic)]
        return with_factor(chosen, brokers, factor)

    partitions, brokers = moving.survey(cluster, seconds=0.0)
    moves = moving.planned(planner, partitions, brokers)
    if moves and not json:
        moving.show(moves, partitions, brokers)
    if moves:
        moving.carry_out(cluster, moves, throttle, planner)
    else:
        moving.lift_left_limits(cluster)
    if json:
        write_document(moving.document(moves, moved=True))
    elif moves:
        write_line(f"{plural(len(moves), 'partition')} have {plural(factor, 'replica')} now")
    else:
        write_line(f"all of them have {plural(factor, 'replica')} already")


@app.command()
def delete(
    topics: Topics,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Be content when the topic is not there.")
    ] = False,
    yes: Yes = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Delete topics with all their records.

    \b
    ottla topic delete orders --yes
    """
    cluster = connect(server)
    names = list(dict.fromkeys(topics))
    if if_exists:
        existing = {topic.name for topic in cluster.topics()}
        names = [name for name in names if name in existing]
    else:
        cluster.describe_topics(names)  # all or none: a misspelt name stops before any is deleted
    delete_each(names, "records", cluster.delete_topic, yes=yes, json=json)


@app.command()
def offsets(
    topic: Topic,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Only this; repeat for more."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="WHERE",
            help="earliest, latest, max-timestamp, or a time: 2026-11-15T08:30, @MS, -15m.",
            show_default="earliest and latest",
        ),
    ] = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Show the first and last offsets of partitions, or the offset at a time.

    \b
    ottla topic offsets orders
    ottla topic offsets orders --at 2026-11-15T08:30
    ottla topic offsets orders --at -15m
    """
    where = None
    if at is not None and at != "max-timestamp":
        where = parse_position(at, "--at")
        if where.kind in (Kind.OFFSET, Kind.BEFORE_END):
            raise Misuse(f"--at takes earliest, latest, max-timestamp or a time, not '{at}'")
    cluster = connect(server)
    [description] = cluster.describe_topics([topic])
    chosen = choose_partitions(
        topic, [each.partition for each in description.partitions], partition
    )
    if at is not None:
        found = cluster.offsets(topic, chosen, where)
        rows = [
            {
                "partition": index,
                "offset": found[index].offset if found[index].offset >= 0 else None,
                "timestamp": found[index].timestamp if found[index].timestamp >= 0 else None,
            }
            for index in chosen
        ]
    else:
        starts = cluster.offsets(topic, chosen, EARLIEST)
        ends = cluster.offsets(topic, chosen, LATEST)
        rows = [
            {
                "partition": index,
                "earliest": starts[index].offset,
                "latest": ends[index].offset,
                "span": ends[index].offset - starts[index].offset,
            }
            for index in chosen
        ]
    if json:
        write_document([{"topic": topic, **row} for row in rows])
        return
    columns = tuple(rows[0]) if rows else ("partition",)
    write_table(
        columns,
        [
            [
                show_time(value) if name == "timestamp" and value is not None else value
                for name, value in row.items()
            ]
            for row in rows
        ],
    )


def choose_partitions(topic: str, existing: list[int], wanted: list[int] | None) -> list[int]:
    """The partitions that were asked for, or all."""
    if not wanted:
        return existing
    missing = [index for index in wanted if index not in existing]
    if missing:
        raise Failure(
            f"topic '{topic}' has no partition {missing[0]}; "
            f"it has {plural(len(existing), 'partition')}, counted from 0"
        )
    return sorted(set(wanted))
