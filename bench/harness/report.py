"""Figures into a document: everything between two marks is replaced, the words around it stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.errors import BenchError
from bench.harness.results import Measurement, markdown_table

BEGIN = "<!-- figures: written by `python -m bench --markdown` -->"
END = "<!-- end of figures -->"


def markdown(result: dict[str, Any]) -> str:
    where = result["environment"]
    measurements = [Measurement.from_json(each) for each in result["measurements"]]
    lines = [
        (
            f"Measured {where['when']} on {where['processor']}, {where['cores']} cores,"
            f" {where['memory_gb']} GB, Linux {where['kernel']}; Python {where['python']};"
            f" Kafka {where['kafka']} on {where['java']}; Ottla {where['ottla']};"
            f" {result['rounds']} rounds; load average {where['load_average_before']} before."
            " To repeat it:"
        ),
        "",
        f"    {result['command']}",
        "",
        markdown_table(measurements),
        "",
    ]
    lines += [f"- {note}" for note in result["notes"]]
    lines += [f"- {row}: not measured: {why}" for row, why in result["failures"].items()]
    behind = [
        f"- {each.row}{', ' + each.setting if each.setting else ''}: {note}"
        for each in measurements
        for note in each.notes
    ]
    if behind:
        lines += ["", "Behind the figures:", "", *behind]
    return "\n".join(lines)


def write_into(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """The figures of one run, or of several one below the other."""
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{path} has no marks to write between")
    figures = "\n\n".join(markdown(result) for result in results)
    path.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}")
