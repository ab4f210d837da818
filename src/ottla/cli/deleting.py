"""Deleting by name, the same for everything that can be: asked once, told one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from ottla.cli.failures import Failure
from ottla.cli.output import write_document, write_line

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask (asked only on a terminal).")]


def delete_each(
    names: Sequence[str],
    possessions: str,
    delete: Callable[[str], object],
    *,
    yes: bool,
    json: bool,
) -> None:
    """Ask on a terminal, then call `delete` for each; `possessions` are what goes with them."""
    asked = names and not yes and sys.stdin.isatty() and sys.stdout.isatty()
    if asked and not typer.confirm(f"Delete {', '.join(names)} with all {possessions}?"):
        raise Failure("nothing was deleted")
    for name in names:
        delete(name)
        if not json:
            write_line(f"deleted {name}")
    if json:
        write_document({"deleted": names})
