"""What `ottla cluster import-logs` says about what it took over, and about what it did not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.output import human_size, note, plural, write_line, write_table

if TYPE_CHECKING:
    from ottla.server.importing.importing import ImportReport


def show(report: ImportReport, target: Path, *, dry_run: bool) -> None:
    """A table of the topics, what was left out, and what to do next."""
    columns = ("topic", "partitions", "size", *(() if dry_run else ("offsets",)))
    write_table(
        columns,
        [
            (
                each.name,
                each.partitions,
                human_size(each.size),
                *(() if dry_run else (each.offsets,)),
            )
            for each in report.topics
        ],
    )
    if not report.is_clean:
        note("Kafka was not stopped in good order: its logs are looked at as after a crash")
    for name, size in report.cut.items():
        note(f"{name}: {plural(size, 'byte')} at the end were no whole batch and are left out")
    for topic, name, value, why in report.settings_left_out:
        note(f"not taken over: {name}={value} of {topic}: {why}")
    for what in report.left_out:
        note(f"not taken over: {what}")
    for name in report.open_transactions:
        note(
            f"{name} has a transaction that nobody ends, because __transaction_state is not taken "
            "over: see `ottla transaction`"
        )
    if dry_run:
        write_line(f"{plural(len(report.topics), 'topic')} would be taken over")
        return
    write_line(f"took {plural(len(report.topics), 'topic')} over into {target}")
    write_line(
        "what Kafka's server.properties says (log.retention.* above all) holds only if the node is "
        "given it as well: "
        f"`ottla serve --data {target} --node-id {report.node_id} --config server.properties`"
    )


def document(report: ImportReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "node_id": report.node_id,
        "clean": report.is_clean,
        "topics": [
            {
                "topic": each.name,
                "partitions": each.partitions,
                "bytes": each.size,
                "offsets": each.offsets,
            }
            for each in report.topics
        ],
        "cut": dict(report.cut),
        "open_transactions": list(report.open_transactions),
        "left_out": list(report.left_out),
        "settings_left_out": [
            {"topic": topic, "name": name, "value": value, "reason": why}
            for topic, name, value, why in report.settings_left_out
        ],
    }
