"""`ottla config`: describe, set and unset the settings of topics and brokers."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import (
    DEFAULT_SERVER,
    Json,
    Server,
    complete_topic,
    connect,
    help_group,
    parse_assignments,
)
from ottla.cli.output import write_document, write_line, write_table

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster

app = help_group("Show and change the settings of topics and brokers, by Kafka's names.")


# In the place of a broker's number: what holds for every broker that has no setting of its own.
ALL_BROKERS = "default"


class Resource(enum.StrEnum):
    TOPIC = "topic"
    BROKER = "broker"


def _complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete_topic(ctx, incomplete) if ctx.params.get("kind") == "topic" else []


Kind = Annotated[
    Resource, typer.Argument(metavar="topic|broker", help="Whose settings.", show_default=False)
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The topic's name, or the broker's number; `default` stands for all brokers.",
        autocompletion=_complete_name,
        show_default=False,
    ),
]


def _checked_name(kind: Resource, name: str, cluster: Cluster) -> str:
    """The name as the protocol has it."""
    if kind is Resource.TOPIC:
        return name
    if name == ALL_BROKERS:
        return ""
    brokers = cluster.brokers()
    if name not in map(str, brokers):
        raise Failure(
            f"there is no broker '{name}'; the cluster has {', '.join(map(str, brokers))}, and "
            f"'{ALL_BROKERS}' stands for all of them"
        )
    return name


@app.command()
def describe(
    kind: Kind,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The topic's name; the broker's number may be left out when there is but one, and "
            "`default` stands for all.",
            autocompletion=_complete_name,
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that have their default value.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Show settings: those that were changed, or all.

    \b
    ottla config describe topic orders
    ottla config describe broker --all
    """
    if name is None and kind is Resource.TOPIC:
        raise Misuse("whose settings? `ottla config describe topic NAME`")
    cluster = connect(server)
    if name is None:
        brokers = cluster.brokers()
        if len(brokers) != 1:
            raise Misuse(
                f"which broker? `ottla config describe broker N`, N one of "
                f"{', '.join(map(str, brokers))}"
            )
        name = str(brokers[0])
    known_as = _checked_name(kind, name, cluster)
    settings = [each for each in cluster.settings_of(kind, known_as) if every or each.changed]
    if json:
        write_document([each._asdict() for each in settings])
    elif not settings:
        write_line(f"{kind} {name} has no settings of its own; --all shows the defaults")
    else:
        write_table(
            ("setting", "value", "from"),
            [
                (
                    each.name,
                    "(hidden)" if each.sensitive else each.value,
                    each.source + (", read-only" if each.read_only else ""),
                )
                for each in settings
            ],
        )


@app.command("set")
def assign(
    kind: Kind,
    name: Name,
    settings: Annotated[
        list[str],
        typer.Argument(metavar="SETTING=VALUE", help="What to set.", show_default=False),
    ],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Set settings, while the broker runs.

    \b
    ottla config set topic orders retention.ms=86400000
    ottla config set broker 1 log.retention.ms=86400000
    ottla config set broker default log.retention.ms=86400000
    """
    assigned = parse_assignments(settings, "config set")
    cluster = connect(server)
    cluster.alter_settings(kind, _checked_name(kind, name, cluster), assigned, ())
    if json:
        write_document({"resource": kind, "name": name, "set": assigned})
    else:
        for setting, value in assigned.items():
            write_line(f"{kind} {name}: {setting}={value}")


@app.command()
def unset(
    kind: Kind,
    name: Name,
    settings: Annotated[
        list[str],
        typer.Argument(metavar="SETTING", help="What to unset.", show_default=False),
    ],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Give settings their default back.

    \b
    ottla config unset topic orders retention.ms
    """
    for setting in settings:
        if "=" in setting:
            raise Misuse(f"config unset takes names only, not '{setting}'")
    cluster = connect(server)
    cluster.alter_settings(kind, _checked_name(kind, name, cluster), {}, settings)
    if json:
        write_document({"resource": kind, "name": name, "unset": settings})
    else:
        for setting in settings:
            write_line(f"{kind} {name}: {setting} has its default again")
