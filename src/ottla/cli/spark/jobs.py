"""What `ottla archive`, `restore` and `mirror` share: jobs that remember how far they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.cleanup import close_at_end
from ottla.cli.cluster.failures import failures_reported
from ottla.cli.failures import Misuse

if TYPE_CHECKING:
    from ottla.client.admin.client import Admin

# What these jobs shuffle is little, and every task costs a fraction of a second.
PRESET = {"spark.sql.shuffle.partitions": "8", "spark.ui.enabled": "false"}

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on as records come, until Ctrl-C.")
]
Every = Annotated[
    str, typer.Option("--every", metavar="TIME", help="With --follow: between micro-batches.")
]
BatchRows = Annotated[
    int, typer.Option("--batch", metavar="N", min=1, help="Records of a micro-batch, at most.")
]
State = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Where to keep how far it is.", show_default=False),
]


def check_master(master: str | None) -> None:
    """Misuse for a Spark Connect server: these jobs do part of their work in the driver, with files and
    locks of its machine."""
    if master is not None and master.startswith("sc://"):
        raise Misuse("this runs with a Spark driver of its own, not on a Spark Connect server")


def connect(client: dict[str, str], *topics: str) -> Admin:
    """A cluster, for the time of the command; tells at once if it or a topic is not there."""
    from ottla.cli.cluster.admin import REQUEST_TIMEOUT
    from ottla.client.admin.client import Admin

    admin = Admin(client, default_api_timeout_ms=REQUEST_TIMEOUT * 1000)
    close_at_end(admin.close)
    with failures_reported(client["bootstrap.servers"]):
        admin.describe_cluster()
    for topic in topics:
        with failures_reported(client["bootstrap.servers"], topic=topic):
            admin.describe_topics(topic)
    return admin
