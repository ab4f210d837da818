"""`ottla quota`: list, set, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.failures import Misuse
from ottla.cli.options import DEFAULT_SERVER, Json, Server, connect, help_group, parse_assignments
from ottla.cli.output import write_document, write_line, write_table

app = help_group("Manage quotas: how much users, client ids and addresses may use.")

_DEFAULT = "(default)"

User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="A user; '' is every other user.")
]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="NAME", help="A client id; '' is every other client."),
]
Address = Annotated[
    str | None, typer.Option("--ip", metavar="ADDRESS", help="An address; '' is every other one.")
]


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    given = {"user": user, "client-id": client_id, "ip": ip}
    entity = {kind: name or None for kind, name in given.items() if name is not None}
    if not entity:
        raise Misuse("say whose quota: --user, --client-id, both, or --ip")
    return entity


def _shown(entity: dict[str, str | None]) -> str:
    return ", ".join(f"{kind} {name or _DEFAULT}" for kind, name in sorted(entity.items()))


@app.command("list")
def list_quotas(server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """List the quotas that are set.

    \b
    ottla quota list
    """
    cluster = connect(server)
    with cluster.failures_reported():
        found = cluster.admin.describe_quotas()
    if json:
        write_document(
            [{"entity": dict(each.entity), "values": dict(each.values)} for each in found]
        )
        return
    rows = sorted(
        (_shown(dict(each.entity)), name, f"{value:.15g}")
        for each in found
        for name, value in each.values.items()
    )
    write_table(("entity", "quota", "value"), rows)


@app.command("set")
def set_quota(
    quotas: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE",
            help="producer_byte_rate, consumer_byte_rate, request_percentage, "
            "controller_mutation_rate; connection_creation_rate of an address.",
        ),
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Limit what a user, a client id, both together, or an address may use.

    \b
    ottla quota set producer_byte_rate=1000000 --user alice
    ottla quota set request_percentage=50 --user '' --client-id reports
    ottla quota set connection_creation_rate=10 --ip 10.0.0.7
    """
    entity = _entity(user, client_id, ip)
    values = {}
    for name, text in parse_assignments(quotas, "a quota").items():
        try:
            values[name] = float(text)
        except ValueError:
            raise Misuse(f"{name} takes a number, not '{text}'") from None
    cluster = connect(server)
    with cluster.failures_reported():
        cluster.admin.alter_quotas(entity, assign=values)
    write_line(f"set for {_shown(entity)}: {', '.join(values)}")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of quotas.")],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Take quotas away.

    \b
    ottla quota delete producer_byte_rate --user alice
    """
    entity = _entity(user, client_id, ip)
    cluster = connect(server)
    with cluster.failures_reported():
        cluster.admin.alter_quotas(entity, unset=names)
    write_line(f"taken from {_shown(entity)}: {', '.join(names)}")
