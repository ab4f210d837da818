"""Levels of features: `ottla cluster features`, `upgrade` and `downgrade`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ottla.cli.cluster import moving
from ottla.cli.commands.cluster.chosen import DEFAULT_DATA, Data, OtherServer, chosen
from ottla.cli.deleting import Yes
from ottla.cli.failures import Misuse
from ottla.cli.options import Json, parse_assignments
from ottla.cli.output import plural, write_document, write_line, write_table

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster
    from ottla.client.admin.cluster import Feature

ShowOnly = Annotated[bool, typer.Option("--dry-run", help="Show it, and change nothing.")]


def features(
    context: typer.Context,
    data: Data = DEFAULT_DATA,
    server: OtherServer = None,
    json: Json = False,
) -> None:
    """Show the levels of features: those at which the cluster works, and those its brokers support.

    \b
    ottla cluster features
    """
    found = _features(chosen(context, data, server))
    if json:
        write_document({"features": [asdict(each) for each in found.values()]})
        return
    write_table(
        ("feature", "level", "lowest", "highest"),
        [(each.name, each.level or 0, each.lowest, each.highest) for each in found.values()],
    )
    if _raises(found):
        write_line("`ottla cluster upgrade` raises them to the highest levels")


def upgrade(
    context: typer.Context,
    levels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FEATURE=LEVEL]...",
            help="Only these; without any, all to the highest level that all brokers support.",
            show_default=False,
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    server: OtherServer = None,
    dry_run: ShowOnly = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Raise the levels of features, when all brokers have been brought up to date.

    No level is raised by itself. Until this is called brokers can be put back to the version before;
    those that do not support the new levels are refused afterwards.

    \b
    ottla cluster upgrade --dry-run
    ottla cluster upgrade
    ottla cluster upgrade ottla.version=1
    """
    cluster = chosen(context, data, server)
    found = _features(cluster)
    wanted = _wanted_levels(levels) if levels else _raises(found)
    _change_levels(cluster, found, wanted, "upgrade", dry_run=dry_run, yes=yes, json=json)


def downgrade(
    context: typer.Context,
    levels: Annotated[
        list[str],
        typer.Argument(
            metavar="FEATURE=LEVEL...",
            help="What is to be lowered; level 0 takes a feature out of use.",
            show_default=False,
        ),
    ],
    data: Data = DEFAULT_DATA,
    server: OtherServer = None,
    dry_run: ShowOnly = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Lower the levels of features, so that brokers of an earlier version can come back.

    Refused where an earlier version could not read what was written at the level that there is.

    \b
    ottla cluster downgrade transaction.version=1
    """
    cluster = chosen(context, data, server)
    found = _features(cluster)
    wanted = _wanted_levels(levels)
    _change_levels(cluster, found, wanted, "safe-downgrade", dry_run=dry_run, yes=yes, json=json)


def _change_levels(
    cluster: Cluster,
    found: dict[str, Feature],
    wanted: dict[str, int],
    kind: Literal["upgrade", "safe-downgrade"],
    *,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> None:
    doing, done = ("Raise", "raised") if kind == "upgrade" else ("Lower", "lowered")
    changes = {
        name: level
        for name, level in wanted.items()
        if name not in found or (found[name].level or 0) != level
    }
    rows = [
        (name, (found[name].level or 0) if name in found else 0, level)
        for name, level in changes.items()
    ]
    if rows and not json:
        write_table(("feature", "level", "after"), rows)
    if changes:
        if not dry_run:
            moving.confirm(f"{doing} them?", yes=yes or json, refusal="nothing was changed")
        with cluster.failures_reported():
            cluster.admin.update_features(changes, kind=kind, validate_only=dry_run)
    if json:
        write_document({done: not dry_run, "levels": changes})
    elif not changes:
        write_line("every feature is at that level already")
    elif not dry_run:
        write_line(f"{done} {plural(len(changes), 'feature')}")


def _features(cluster: Cluster) -> dict[str, Feature]:
    with cluster.failures_reported():
        return cluster.admin.describe_features()


def _raises(found: dict[str, Feature]) -> dict[str, int]:
    """What can be raised, and the highest level that all brokers support."""
    return {
        each.name: each.highest
        for each in found.values()
        if each.highest is not None and each.highest > (each.level or 0)
    }


def _wanted_levels(given: list[str]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for name, text in parse_assignments(given, "FEATURE=LEVEL").items():
        if not text.isdecimal():
            raise Misuse(f"the level of {name} is a number, not '{text}'")
        wanted[name] = int(text)
    return wanted
