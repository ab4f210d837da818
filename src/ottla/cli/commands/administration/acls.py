"""`ottla acl`: list, add, delete."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failures import Misuse
from ottla.cli.options import DEFAULT_SERVER, Json, Server, connect, help_group
from ottla.cli.output import write_document, write_line, write_table

if TYPE_CHECKING:
    from ottla.client.admin.access import Acl, AclFilter

app = help_group("Manage access control: who may do what to which topics, groups and so on.")

_CLUSTER = "kafka-cluster"

Topic = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; '*' is every topic.")
]
Group = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="A consumer group.")
]
Transaction = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="ID", help="A transactional id."),
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster as a whole.")]
Prefixed = Annotated[
    bool, typer.Option("--prefixed", help="All whose names begin with the names given.")
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        "-o",
        metavar="NAME",
        help="read, write, create, delete, alter, describe, all, …; repeat for more.",
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="ADDRESS", help="Only from this address; repeat for more."),
]


def _resources(
    topics: list[str] | None,
    groups: list[str] | None,
    transactions: list[str] | None,
    cluster: bool,
) -> list[tuple[Any, str]]:
    from ottla.client.admin.access import AclResource

    found: list[tuple[Any, str]] = [(AclResource.TOPIC, each) for each in topics or ()]
    found += [(AclResource.GROUP, each) for each in groups or ()]
    found += [(AclResource.TRANSACTIONAL_ID, each) for each in transactions or ()]
    if cluster:
        found.append((AclResource.CLUSTER, _CLUSTER))
    return found


def _operations(names: Iterable[str]) -> list[Any]:
    from ottla.client.admin.access import AclOperation

    known = {each.name.lower(): each for each in AclOperation if each is not AclOperation.ANY}
    found = []
    for name in names:
        operation = known.get(name.lower().replace("-", "_"))
        if operation is None:
            raise Misuse(f"--operation takes one of {', '.join(known)}, not '{name}'")
        found.append(operation)
    return found


def _principal(text: str) -> str:
    return text if ":" in text else f"User:{text}"


def _shown(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": acl.operation.name.lower(),
        "resource": acl.resource.name.lower(),
        "name": acl.name,
        "pattern": acl.pattern.name.lower(),
        "host": acl.host,
    }


def _write(acls: Iterable[Acl], *, json: bool) -> None:
    rows = sorted((_shown(each) for each in acls), key=lambda row: tuple(row.values()))
    if json:
        write_document(rows)
    else:
        columns = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
        write_table(columns, [tuple(row.values()) for row in rows])


def _filters(
    resources: list[tuple[Any, str]],
    principals: list[str] | None,
    operations: list[Any],
    prefixed: bool,
) -> list[AclFilter]:
    from ottla.client.admin.access import AclFilter, AclOperation, AclPattern, AclResource

    pattern = AclPattern.PREFIXED if prefixed else AclPattern.ANY
    about: list[tuple[Any, str | None]] = [*resources] or [(AclResource.ANY, None)]
    whose: list[str | None] = [_principal(each) for each in principals or ()] or [None]
    return [
        AclFilter(resource, name, principal, operation, pattern=pattern)
        for (resource, name), principal, operation in product(
            about,
            whose,
            operations or [AclOperation.ANY],
        )
    ]


@app.command("list")
def list_acls(
    topics: Topic = None,
    groups: Group = None,
    transactions: Transaction = None,
    cluster: OfCluster = False,
    principals: Annotated[
        list[str] | None,
        typer.Option("--principal", "-p", metavar="USER", help="Only of this user."),
    ] = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """List entries: all, or those about some resources or users.

    \b
    ottla acl list
    ottla acl list --topic orders
    """
    resources = _resources(topics, groups, transactions, cluster)
    connected = connect(server)
    found: dict[Acl, None] = {}
    for each in _filters(resources, principals, [], False):
        with connected.failures_reported():
            found.update(dict.fromkeys(connected.admin.describe_acls(each)))
    _write(found, json=json)


@app.command()
def add(
    principals: Annotated[
        list[str],
        typer.Argument(metavar="USER", help="Who: alice is User:alice; '*' is everybody."),
    ],
    operations: Operations = None,
    topics: Topic = None,
    groups: Group = None,
    transactions: Transaction = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    deny: Annotated[bool, typer.Option("--deny", help="Deny it, whatever allows it.")] = False,
    hosts: Hosts = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Allow users something, or deny it to them.

    \b
    ottla acl add alice --operation write --topic orders
    ottla acl add alice -o read --topic orders --group reports-
    ottla acl add bob -o all --topic test- --prefixed --host 10.0.0.7
    """
    from ottla.client.admin.access import Acl, AclPattern, AclPermission

    chosen = _operations(operations or ())
    resources = _resources(topics, groups, transactions, cluster)
    if not chosen:
        raise Misuse("say what they may do: --operation NAME")
    if not resources:
        raise Misuse("say to what: --topic, --group, --transactional-id or --cluster")
    acls = [
        Acl(
            resource,
            name,
            _principal(principal),
            operation,
            AclPermission.DENY if deny else AclPermission.ALLOW,
            AclPattern.PREFIXED if prefixed and name != _CLUSTER else AclPattern.LITERAL,
            host,
        )
        for principal, (resource, name), operation, host in product(
            principals, resources, chosen, hosts or ["*"]
        )
    ]
    connected = connect(server)
    with connected.failures_reported():
        connected.admin.create_acls(acls)
    write_line(f"added {len(acls)} {'entry' if len(acls) == 1 else 'entries'}")


@app.command()
def delete(
    principals: Annotated[
        list[str] | None, typer.Argument(metavar="USER", help="Whose entries; all users' if none.")
    ] = None,
    operations: Operations = None,
    topics: Topic = None,
    groups: Group = None,
    transactions: Transaction = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Delete entries, and show what was deleted.

    \b
    ottla acl delete alice
    ottla acl delete --topic orders
    """
    resources = _resources(topics, groups, transactions, cluster)
    chosen = _operations(operations or ())
    if not (principals or resources):
        raise Misuse("say whose entries, or about what")
    connected = connect(server)
    gone: dict[Acl, None] = {}
    for each in _filters(resources, principals, chosen, prefixed):
        with connected.failures_reported():
            gone.update(dict.fromkeys(connected.admin.delete_acls(each)))
    _write(gone, json=json)
