"""`ottla console`: the HTTP API of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.addresses import parse_servers
from ottla.cli.failures import Failure, Misuse
from ottla.cli.options import DEFAULT_SERVER, Server

DEFAULT_LISTEN = "127.0.0.1:8080"
SHORTEST_TOKEN = 16


def console(
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where to listen.")
    ] = DEFAULT_LISTEN,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="A file with the token that requests have to carry; needed beyond loopback.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="A name by which the console may be called, beside localhost and addresses; "
            "repeat for more.",
        ),
    ] = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Serve HTTP calls: look at topics and records, delete single records.

    \b
    ottla console
    ottla console --server broker.example:9092 --listen 127.0.0.1:8090
    ottla --client-config client.properties console --listen 0.0.0.0:8080 --token-file token
    """
    host, port = _address(listen)
    token = None if token_file is None else _read_token(token_file)
    servers = ",".join(
        f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
        for name, number in parse_servers(server)
    )
    try:
        from ottla.console import run as console_run
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "ottla":
            raise
        raise Failure(f"the console needs {missing.name}: `pip install 'ottla[console]'`") from None
    from ottla.client.errors import ConfigurationError

    if token is None and not console_run.is_loopback(host):
        raise Misuse(
            f"on {host} everybody who reaches this machine could delete records; "
            "name a file with a token by --token-file, or listen on 127.0.0.1"
        )
    try:
        console_run.check_options(servers)
        sock = console_run.listen(host, port)
    except ConfigurationError as problem:
        raise Misuse(str(problem)) from None
    except console_run.CannotListen as problem:
        raise Failure(str(problem)) from None
    names = list(allow_host or ())
    raise typer.Exit(console_run.run(servers, sock, hosts=[*names, host], token=token))


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    is_port = port.isascii() and port.isdigit() and int(port) < 65536
    if not separator or not plain or not is_port or (":" in plain) != bracketed:
        raise Misuse(f"--listen takes HOST:PORT, not '{text}'")
    return plain, int(port)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise Misuse(f"{path} holds no token: it is not text") from None
    if (
        len(token) < SHORTEST_TOKEN
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise Misuse(
            f"{path} holds no token that can be used: take {SHORTEST_TOKEN} or more letters, digits "
            "and signs, without spaces"
        )
    return token
