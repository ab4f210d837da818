"""`ottla transaction`: list, describe, abort, find-hanging."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ottla.cli.failures import Misuse
from ottla.cli.options import DEFAULT_SERVER, Json, Server, complete_topic, connect, help_group
from ottla.cli.output import write_document, write_line, write_table
from ottla.cli.records.positions import parse_span, show_time

app = help_group("List and describe transactions; find and abort those that hang.")

_DEFAULT_LONGEST = "15m"  # the broker's default for transaction.max.timeout.ms


@app.command("list")
def list_transactions(
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only in this state: Ongoing, Empty, …"),
    ] = None,
    producer_ids: Annotated[
        list[int] | None,
        typer.Option("--producer-id", metavar="N", help="Only of this producer; repeat for more."),
    ] = None,
    running_for: Annotated[
        str | None,
        typer.Option("--running-for", metavar="SPAN", help="Open for at least: 30s, 15m, 2h."),
    ] = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """List transactional ids and the state of their transactions.

    \b
    ottla transaction list
    ottla transaction list --state Ongoing --running-for 10m
    """
    span = None if running_for is None else parse_span(running_for, "--running-for") / 1000
    cluster = connect(server)
    try:
        with cluster.failures_reported():
            listed = cluster.admin.list_transactions(
                states=states or (), producer_ids=producer_ids or (), running_for=span
            )
    except ValueError as error:
        raise Misuse(f"--state: {error}") from None
    rows: list[dict[str, Any]] = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "coordinator": each.coordinator,
        }
        for each in listed
    ]
    if json:
        write_document(rows)
    else:
        write_table(
            ("transactional id", "state", "producer id", "coordinator"),
            [tuple(row.values()) for row in rows],
        )


@app.command()
def describe(
    transactional_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID", help="Transactional ids.", show_default=False),
    ],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Show the state of transactional ids and the partitions of their open transactions.

    \b
    ottla transaction describe payments-1
    """
    cluster = connect(server)
    documents: list[dict[str, Any]] = []
    for name in dict.fromkeys(transactional_ids):
        with cluster.failures_reported(transaction=name):
            each = cluster.admin.describe_transactions(name)[name]
        documents.append(
            {
                "transactional_id": name,
                "state": each.state,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "timeout_ms": each.timeout_ms,
                "started": each.started_ms,
                "partitions": [list(one) for one in each.partitions],
                "coordinator": each.coordinator,
            }
        )
    if json:
        write_document(documents)
        return
    for document in documents:
        write_line(
            f"{document['transactional_id']}: {document['state']}, "
            f"producer {document['producer_id']} epoch {document['producer_epoch']}, "
            f"timeout {document['timeout_ms']} ms, coordinator {document['coordinator']}"
        )
        if document["started"] is not None:
            age = max(0, time.time_ns() // 1_000_000 - document["started"]) // 1000
            write_line(f"  open since {show_time(document['started'])} ({age} s)")
        for topic, partition in document["partitions"]:
            write_line(f"  {topic}-{partition}")


@app.command("find-hanging")
def find_hanging(
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only in this topic; repeat for more.",
            autocompletion=complete_topic,
        ),
    ] = None,
    longest: Annotated[
        str,
        typer.Option(
            "--longest",
            metavar="SPAN",
            help="How long a transaction may be open: the broker's transaction.max.timeout.ms.",
        ),
    ] = _DEFAULT_LONGEST,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Find transactions that partitions wait for and that no coordinator will end.

    Readers of committed records stop before them. `ottla transaction abort` ends them.

    \b
    ottla transaction find-hanging
    ottla transaction find-hanging --topic orders
    """
    span = parse_span(longest, "--longest") / 1000
    cluster = connect(server)
    if topics:
        cluster.describe_topics(topics)  # a misspelt name is told by name
    with cluster.failures_reported():
        found = cluster.admin.find_hanging_transactions(topics=topics or None, longest=span)
    rows: list[dict[str, Any]] = [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "start_offset": each.producer.transaction_start,
            "producer_id": each.producer.producer_id,
            "producer_epoch": each.producer.producer_epoch,
            "last_record": each.producer.last_timestamp_ms,
            "transactional_id": each.transactional_id,
        }
        for each in found
    ]
    if json:
        write_document(rows)
    elif not rows:
        write_line("no transaction hangs")
    else:
        write_table(
            ("topic", "partition", "start offset", "producer id", "epoch", "last record"),
            [
                (
                    row["topic"],
                    row["partition"],
                    row["start_offset"],
                    row["producer_id"],
                    row["producer_epoch"],
                    None if row["last_record"] is None else show_time(row["last_record"]),
                )
                for row in rows
            ],
        )


@app.command()
def abort(
    topic: Annotated[
        str,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="The topic.",
            autocompletion=complete_topic,
            show_default=False,
        ),
    ],
    partition: Annotated[
        int,
        typer.Option(
            "--partition", "-p", metavar="N", min=0, help="The partition.", show_default=False
        ),
    ],
    start_offset: Annotated[
        int,
        typer.Option(
            "--start-offset",
            metavar="N",
            min=0,
            help="Where it starts, as find-hanging shows.",
            show_default=False,
        ),
    ],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Abort a hanging transaction in one partition.

    Only what `ottla transaction find-hanging` shows: one that still lives would be torn.

    \b
    ottla transaction abort --topic orders --partition 3 --start-offset 4711
    """
    from ottla.client.positions import TopicPartition

    cluster = connect(server)
    cluster.describe_topics([topic])
    place = TopicPartition(topic, partition)
    with cluster.failures_reported():
        producer = cluster.admin.abort_transaction(place, start_offset)
    if json:
        write_document(
            {
                "topic": topic,
                "partition": partition,
                "start_offset": start_offset,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
            }
        )
    else:
        write_line(
            f"aborted the transaction of producer {producer.producer_id} at {place}, "
            f"offset {start_offset}"
        )
