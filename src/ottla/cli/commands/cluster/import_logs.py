"""`ottla cluster import-logs`: the topics of an Apache Kafka broker become those of a single node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.failures import Failure
from ottla.cli.folders import local_folder
from ottla.cli.options import Json
from ottla.cli.output import write_document


def import_logs(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            help="The data folders (log.dirs) of one Apache Kafka broker, which is not running.",
            exists=True,
            file_okay=False,
            show_default=False,
        ),
    ],
    into: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="The data folder of a single node: a new one, or one that is not running.",
            file_okay=False,
            show_default=False,
        ),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Only this one; repeat for more."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Not this one; repeat for more."),
    ] = None,
    node_id: Annotated[
        int,
        typer.Option("--node-id", "-n", metavar="N", min=0, help="The number of a new node."),
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be taken over, and stop.")
    ] = False,
    json: Json = False,
) -> None:
    """Take the topics of a stopped Apache Kafka broker over, with their groups' offsets.

    The logs are copied into the data folder of a single node; nothing of Kafka's is changed. Topics keep
    their ids, offsets, settings and transactions. `ottla cluster adopt` makes a cluster of the node.

    \b
    ottla cluster import-logs /var/lib/kafka/data --into ./data --dry-run
    ottla cluster import-logs /disk1/kafka /disk2/kafka --into ./data --exclude old-orders
    """
    from ottla.cli.cluster import importing
    from ottla.cli.progress import Progress
    from ottla.server.importing.importing import import_logs as take_over
    from ottla.server.importing.source import CannotImport

    into = local_folder(into, "--into")
    with ExitStack() as shown:

        def begun(total: int) -> Callable[[int], None]:
            bar = Progress("copying", total, wanted=not json, in_bytes=True)
            return shown.enter_context(bar).advance

        try:
            report = take_over(
                [each.absolute() for each in sources],
                into,
                node_id=node_id,
                wanted=topics or (),
                unwanted=exclude or (),
                dry_run=dry_run,
                begun=begun,
            )
        except CannotImport as error:
            raise Failure(f"nothing was taken over: {error}") from error
    if json:
        write_document(importing.document(report, dry_run=dry_run))
    else:
        importing.show(report, into, dry_run=dry_run)
