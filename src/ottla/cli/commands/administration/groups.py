"""`ottla group`: list, describe, members, lag, reset-offsets, delete."""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.deleting import Yes, delete_each
from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import (
    COMPLETION_PATIENCE,
    DEFAULT_SERVER,
    Json,
    Quiet,
    Server,
    complete_topic,
    connect,
    help_group,
)
from ottla.cli.output import note, plural, write_document, write_line, write_table
from ottla.cli.records.positions import EARLIEST, LATEST, Kind, Position, parse_position, parse_span

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster
    from ottla.client.admin.groups import GroupDescription
    from ottla.client.admin.offsets import OffsetPlan, PartitionLag
    from ottla.client.positions import TopicPartition

app = help_group("List, describe, reset and delete consumer groups.")


class GroupType(enum.StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of groups for the shell; nothing at all when no broker answers."""
    try:
        cluster = connect(ctx.params.get("server") or DEFAULT_SERVER, COMPLETION_PATIENCE)
        with cluster.failures_reported():
            groups = cluster.admin.list_groups()
    except Failure:
        return []
    return [each.group for each in groups if each.group.startswith(incomplete)]


Group = Annotated[
    str,
    typer.Argument(
        metavar="GROUP", help="The group's name.", autocompletion=complete_group, show_default=False
    ),
]
Groups = Annotated[
    list[str],
    typer.Argument(
        metavar="GROUP", help="Names of groups.", autocompletion=complete_group, show_default=False
    ),
]
TopicChoice = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:N,…]",
        help="Only this topic, or these partitions of it; repeat for more.",
        autocompletion=complete_topic,
    ),
]


@app.command("list")
def list_groups(
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only in this state: stable, empty, …"),
    ] = None,
    types: Annotated[
        list[GroupType] | None, typer.Option("--type", help="Only of this type; repeat for more.")
    ] = None,
    quiet: Quiet = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """List groups.

    \b
    ottla group list
    ottla group list --state empty --quiet
    """
    cluster = connect(server)
    with cluster.failures_reported():
        groups = cluster.admin.list_groups(
            states=states or (), types=[each.value for each in types or ()]
        )
    if json:
        write_document(
            [
                {
                    "group": each.group,
                    "type": each.type,
                    "state": each.state,
                    "protocol": each.protocol_type,
                    "coordinator": each.coordinator,
                }
                for each in groups
            ]
        )
    elif quiet:
        for each in groups:
            write_line(each.group)
    else:
        write_table(
            ("group", "type", "state", "coordinator"),
            [(each.group, each.type, each.state, each.coordinator) for each in groups],
        )


@app.command()
def describe(groups: Groups, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Show a group's state, its offsets, how far it is behind, and who reads what.

    \b
    ottla group describe billing
    """
    cluster = connect(server)
    documents = []
    for name in dict.fromkeys(groups):
        described = _describe(cluster, name)
        documents.append(_document(described, _lags(cluster, described)))
    if json:
        write_document(documents)
        return
    for number, document in enumerate(documents):
        if number:
            write_line()
        _write_description(document)


def _describe(cluster: Cluster, group: str) -> GroupDescription:
    with cluster.failures_reported(group=group):
        return cluster.admin.describe_groups(group)[group]


def _lags(cluster: Cluster, group: GroupDescription) -> list[PartitionLag]:
    """The lag of all partitions in which the group has committed, or that its members read."""
    with cluster.failures_reported(group=group.group):
        committed = set(cluster.admin.committed_offsets(group.group))
        assigned = {each for member in group.members for each in member.assignment}
        return cluster.admin.group_lag(group.group, sorted(committed | assigned))


def _document(group: GroupDescription, lags: list[PartitionLag]) -> dict[str, Any]:
    readers = {each: member for member in group.members for each in member.assignment}
    return {
        "group": group.group,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor or None,
        "coordinator": group.coordinator,
        "members": len(group.members),
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "committed": each.committed,
                "earliest": each.start,
                "latest": each.end,
                "lag": each.lag,
                "member": reader.member_id if reader else None,
                "client": reader.client_id if reader else None,
                "host": reader.host if reader else None,
            }
            for each in lags
            for reader in [readers.get(each.partition)]
        ],
    }


def _write_description(document: dict[str, Any]) -> None:
    assignor = f", assignor {document['assignor']}" if document["assignor"] else ""
    write_line(
        f"{document['group']}: {document['type']} group, {document['state']}, "
        f"{plural(document['members'], 'member')}{assignor}, coordinator {document['coordinator']}"
    )
    if not document["partitions"]:
        write_line("  nothing committed, and nobody reads")
        return
    columns = ("topic", "partition", "committed", "latest", "lag", "client", "host")
    write_table(
        columns,
        [[each[name] for name in columns] for each in document["partitions"]],
    )


@app.command()
def members(group: Group, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Show a group's members and the partitions that each reads.

    \b
    ottla group members billing
    """
    described = _describe(connect(server), group)
    if json:
        write_document(
            [
                {
                    "member": each.member_id,
                    "instance": each.instance_id,
                    "client": each.client_id,
                    "host": each.host,
                    "rack": each.rack,
                    "epoch": each.epoch,
                    "topics": list(each.topics),
                    "pattern": each.pattern,
                    "partitions": [list(one) for one in each.assignment],
                }
                for each in described.members
            ]
        )
    elif not described.members:
        write_line(f"{group} has no members; it is {described.state.lower()}")
    else:
        write_table(
            ("member", "instance", "client", "host", "partitions"),
            [
                (
                    each.member_id,
                    each.instance_id,
                    each.client_id,
                    each.host,
                    " ".join(map(str, each.assignment)),
                )
                for each in described.members
            ],
        )


@app.command()
def lag(
    group: Group,
    topics: TopicChoice = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Show how many records a group has still to read, for each topic.

    \b
    ottla group lag billing
    ottla group lag billing --topic orders
    """
    chosen = _parse_topics(topics)
    cluster = connect(server)
    described = _describe(cluster, group)
    lags = [each for each in _lags(cluster, described) if _is_chosen(each.partition, chosen)]
    totals: dict[str, list[PartitionLag]] = {}
    for each in lags:
        totals.setdefault(each.partition.topic, []).append(each)
    rows = [
        {
            "topic": topic,
            "partitions": len(some),
            "uncommitted": sum(each.lag is None for each in some),
            "lag": sum(each.lag or 0 for each in some),
        }
        for topic, some in sorted(totals.items())
    ]
    if json:
        total = sum(each.lag or 0 for each in lags)
        write_document({"group": group, "lag": total, "topics": rows})
    else:
        columns = ("topic", "partitions", "uncommitted", "lag")
        write_table(columns, [[row[name] for name in columns] for row in rows])  # type: ignore[misc]


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    topics: TopicChoice = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All in which the group has committed.")
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first record there is.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="2026-11-15T08:30, @MS, or -15m."),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="So many records on; -N: back."),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="SPAN", help="So long ago: 15m, 2h, P1DT12H."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it. Without this the plan is only shown.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan, which is the default.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Move a group that has no members to another position, to read again or to skip.

    Shows what would change; --execute does it. Offsets outside of a partition become its ends.

    \b
    ottla group reset-offsets billing --all-topics --to-earliest
    ottla group reset-offsets billing --topic orders:0,1 --shift-by -100 --execute
    ottla group reset-offsets billing --topic orders --to-datetime 2026-11-15T08:30 --execute
    """
    if execute and dry_run:
        raise Misuse("--execute changes offsets and --dry-run does not; give one of them")
    if bool(topics) == all_topics:
        raise Misuse("which topics? give --topic TOPIC (or TOPIC:0,1), or --all-topics")
    position = _target(to_earliest, to_latest, to_offset, to_datetime, shift_by, by_duration)
    chosen = _parse_topics(topics)
    cluster = connect(server)
    active = _is_active(cluster, group)
    if active and execute:
        raise Failure(
            f"group '{group}' has members, whose commits would undo it; stop them first "
            f"(`ottla group members {group}` shows them)"
        )
    plan = _plan(cluster, group, chosen, position, shift_by)
    if execute:
        with cluster.failures_reported(group=group):
            cluster.admin.apply_offsets(plan)
    _write_plan(plan, executed=execute, json=json)
    if not execute:
        reason = "; the group has members, which must be stopped first" if active else ""
        note(f"nothing was changed: --execute does it{reason}")


def _target(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
    by_duration: str | None,
) -> Position | None:
    """The position; None where it is a shift. Exactly one must be given."""
    options = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-offset": to_offset is not None,
        "--to-datetime": to_datetime is not None,
        "--shift-by": shift_by is not None,
        "--by-duration": by_duration is not None,
    }
    given = [name for name, is_given in options.items() if is_given]
    if not given:
        raise Misuse(f"where to? give one of {', '.join(options)}")
    if len(given) > 1:
        raise Misuse(f"{' and '.join(given)} contradict each other; give one of them")
    if to_offset is not None:
        return Position.offset(to_offset)
    if to_datetime is not None:
        moment = parse_position(to_datetime, "--to-datetime")
        if moment.kind is not Kind.TIME:
            raise Misuse(f"--to-datetime takes a time (2026-11-15T08:30), not '{to_datetime}'")
        return moment
    if by_duration is not None:
        ago = parse_span(by_duration, "--by-duration")
        return Position.time(max(0, time.time_ns() // 1_000_000 - ago))
    if shift_by is not None:
        return None
    return EARLIEST if to_earliest else LATEST


def _parse_topics(texts: list[str] | None) -> dict[str, set[int]]:
    """Topic -> its partitions; empty for all of them."""
    chosen: dict[str, set[int]] = {}
    for text in texts or ():
        topic, separator, numbers = text.partition(":")
        parts = [part.strip() for part in numbers.split(",")] if separator else []
        if not topic or not all(part.isascii() and part.isdigit() for part in parts):
            raise Misuse(f"--topic takes TOPIC or TOPIC:0,1, not '{text}'")
        chosen.setdefault(topic, set()).update(map(int, parts))
    return chosen


def _is_chosen(partition: TopicPartition, chosen: dict[str, set[int]]) -> bool:
    if not chosen:
        return True
    numbers = chosen.get(partition.topic)
    return numbers is not None and (not numbers or partition.partition in numbers)


def _is_active(cluster: Cluster, group: str) -> bool:
    from ottla.client.errors import GroupNotFound

    with cluster.failures_reported(group=group):
        try:
            return cluster.admin.describe_groups(group)[group].is_active
        except GroupNotFound:
            return False  # offsets of a group that is not there yet may be set


def _plan(
    cluster: Cluster,
    group: str,
    chosen: dict[str, set[int]],
    position: Position | None,
    shift: int | None,
) -> OffsetPlan:
    from ottla.client.positions import TopicPartition

    for topic, numbers in chosen.items():
        [description] = cluster.describe_topics([topic])
        existing = {each.partition for each in description.partitions}
        if missing := numbers - existing:
            raise Failure(
                f"topic '{topic}' has no partition {min(missing)}; "
                f"it has {plural(len(existing), 'partition')}, counted from 0"
            )
    whole = [topic for topic, numbers in chosen.items() if not numbers]
    partitions = [
        TopicPartition(topic, number) for topic, numbers in chosen.items() for number in numbers
    ]
    with cluster.failures_reported(group=group):
        plan = cluster.admin.plan_offsets(
            group,
            position,
            shift=shift,
            partitions=partitions if chosen else None,
            topics=whole if chosen else None,
        )
    if not plan.changes:
        raise Failure(
            f"group '{group}' has committed nothing there, so there is nothing to move; name its "
            "topics with --topic, and a position"
        )
    return plan


def _write_plan(plan: OffsetPlan, *, executed: bool, json: bool) -> None:
    if json:
        write_document(
            {
                "group": plan.group,
                "executed": executed,
                "changes": [
                    {
                        "topic": each.partition.topic,
                        "partition": each.partition.partition,
                        "before": each.before,
                        "after": each.after,
                    }
                    for each in plan.changes
                ],
            }
        )
        return
    write_table(
        ("topic", "partition", "before", "after"),
        [
            (each.partition.topic, each.partition.partition, each.before, each.after)
            for each in plan.changes
        ],
    )


@app.command()
def delete(
    groups: Groups,
    yes: Yes = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Delete groups that have no members, with their committed offsets.

    \b
    ottla group delete billing --yes
    """
    cluster = connect(server)
    names = list(dict.fromkeys(groups))
    for name in names:  # all or none: a misspelt name stops before any is deleted
        _describe(cluster, name)

    def delete_one(name: str) -> None:
        with cluster.failures_reported(group=name):
            cluster.admin.delete_groups(name)

    delete_each(names, "committed offsets", delete_one, yes=yes, json=json)
