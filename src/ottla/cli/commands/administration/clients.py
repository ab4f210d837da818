"""`ottla client`: who is connected, and what they do."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.options import DEFAULT_SERVER, Json, Server, complete_topic, connect, help_group
from ottla.cli.output import write_document, write_table
from ottla.cli.records.positions import show_time

app = help_group("List the clients that are connected.")

_USER = "User:"


@app.command("list")
def list_clients(
    client_id: Annotated[
        str | None, typer.Option("--client-id", metavar="ID", help="Only with this client id.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="Only of this user (or User:NAME)."),
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="ADDRESS", help="Only from this address.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Only members of this group.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only those that produce to this topic, or read it.",
            autocompletion=complete_topic,
        ),
    ] = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """List the connections of all brokers: who they are, and what they do.

    A client has several: to each broker that it produces to or reads from, and one more for its group.

    \b
    ottla client list
    ottla client list --topic orders
    ottla client list --user alice --json
    """
    principal = user if user is None or user.startswith(_USER) else f"{_USER}{user}"
    cluster = connect(server)
    with cluster.failures_reported():
        clients = cluster.admin.list_clients(
            client_id=client_id, principal=principal, address=address, group=group, topic=topic
        )
    if json:
        write_document([each.document() for each in clients])
    else:
        write_table(
            ("client id", "software", "address", "user", "broker", "doing", "since"),
            [
                (
                    each.client_id,
                    each.software,
                    each.peer,
                    each.principal.removeprefix(_USER),
                    each.broker,
                    each.doing,
                    show_time(each.connected_since_ms),
                )
                for each in clients
            ],
        )
