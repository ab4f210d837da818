"""Where the `ottla` command begins.

A plain `ottla serve …` goes straight to the broker: nothing is imported here that it does not
need (see `serve.py`). So does a plain `ottla sql QUERY` to a Spark that is kept ready (see `plain.py`).
Everything else goes to the typer application.
"""

from __future__ import annotations

import os
import sys

COMPLETION_VARIABLE = "_OTTLA_COMPLETE"


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["serve"] and COMPLETION_VARIABLE not in os.environ:
        from ottla.cli.commands import serve

        arguments = serve.parse(words[1:])
        if arguments is not None:
            sys.exit(serve.start_plainly(arguments))
    if words[:1] == ["sql"] and COMPLETION_VARIABLE not in os.environ:
        from ottla.cli.sql import plain

        if plain.answer(words[1:]):
            return
    from ottla.cli.app import run

    run(words)


if __name__ == "__main__":
    main()
