"""Options and arguments that several commands share, and completion of their values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.environment import DEFAULT_SERVER as DEFAULT_SERVER
from ottla.cli.environment import SERVER_VARIABLE as SERVER_VARIABLE
from ottla.cli.failures import Failure, Misuse

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
COMPLETION_PATIENCE = 2.0  # seconds; a shell waits for the answer


def connect(server: str, patience: float | None = None) -> Cluster:
    """The cluster that --server names."""
    # Here and not above: the client library is slow to import, and --help needs none of it.
    from ottla.cli.cluster.admin import Cluster

    return Cluster(server, patience)


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics for the shell; nothing at all when no broker answers."""
    server = ctx.params.get("server") or DEFAULT_SERVER
    try:
        topics = connect(server, COMPLETION_PATIENCE).topics()
    except Failure:
        return []
    internal = incomplete.startswith("_")
    return [
        topic.name
        for topic in topics
        if topic.name.startswith(incomplete) and (internal or not topic.internal)
    ]


Server = Annotated[
    str,
    typer.Option(
        "--server",
        "-s",
        metavar="HOST:PORT",
        envvar=SERVER_VARIABLE,
        help="A broker of the cluster; several are separated by commas.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer with JSON, for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only names.")]
Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic, show_default=False
    ),
]
Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC",
        help="Names of topics.",
        autocompletion=complete_topic,
        show_default=False,
    ),
]


def check_new_name(topic: str) -> None:
    """Checks a new topic's name here, so that the message is the same with every broker."""
    if _TOPIC_NAME.fullmatch(topic) is None or topic in (".", ".."):
        raise Misuse(
            f"'{topic}' cannot be a topic's name; take up to 249 letters, digits, '.', '_' and '-'"
        )


def parse_assignments(pairs: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` each; the last of a name wins."""
    assigned = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise Misuse(f"{option} takes name=value, not '{pair}'")
        assigned[name.strip()] = value
    return assigned


def help_group(help_text: str, **more: Any) -> typer.Typer:
    """A group of commands that answers with its help when no command is named."""
    group = typer.Typer(
        help=help_text,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        invoke_without_command=True,
        context_settings={"help_option_names": ["--help", "-h"]},
        **more,
    )

    @group.callback()
    def show_help(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            typer.echo(ctx.get_help())
            raise typer.Exit(2)

    return group
