"""Where the `ottla` command begins.

A plain `ottla serve …` goes straight to the broker: nothing is imported here that it does not
need (see `serve.py`). So does a plain `ottla sql QUERY` to a Spark that is kept ready (see `plain.py`).
Everything else goes to the typer application.
"""

from __future__ import annotations

import os
import sys

from ottla.cli.failures import INTERRUPTED

COMPLETION_VARIABLE = "_OTTLA_COMPLETE"


def main() -> None:
    """Run the command of this process's arguments, and exit."""
    _open_streams()
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are imported; a command that runs has its own ways
        sys.exit(INTERRUPTED)


def _open_streams() -> None:
    """Gives the null device to standard streams that are closed (`>&-`). Else the next files and sockets
    to be opened would be taken for them, here and by the programs that are started."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _run(words: list[str]) -> None:
    if words[:1] == ["serve"] and COMPLETION_VARIABLE not in os.environ:
        from ottla.cli.commands import serve

        arguments = serve.parse(words[1:])
        if arguments is not None:
            sys.exit(serve.start_without_typer(arguments))
    if words[:1] == ["sql"] and COMPLETION_VARIABLE not in os.environ:
        from ottla.cli.sql import plain

        if plain.answer(words[1:]):
            return
    from ottla.cli.app import run

    run(words)


if __name__ == "__main__":
    main()
