"""Figures of a row, and how they are shown: medians, bests, spread, ratio, target reached or not."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

OTTLA, KAFKA = "Ottla", "Kafka"


class Target(NamedTuple):
    """What a figure must reach.

    `of` says what is compared: Ottla's ratio to Kafka, or Ottla's own figure.
    """

    floor: float
    goal: float
    of: Literal["ratio", "figure"] = "ratio"


@dataclass(slots=True)
class Measurement:
    """One figure of a row: a value for each round and broker, in the order of the rounds."""

    row: str
    setting: str
    what: str
    unit: str
    higher_is_better: bool
    values: dict[str, list[float]]
    target: Target | None = None
    notes: list[str] = field(default_factory=list)

    def median(self, broker: str) -> float:
        return statistics.median(self.values[broker])

    def best(self, broker: str) -> float:
        return (max if self.higher_is_better else min)(self.values[broker])

    def measured(self, broker: str) -> bool:
        return bool(self.values.get(broker))

    @property
    def ratio_of_medians(self) -> float | None:
        return self._ratio(self.median)

    @property
    def ratio_of_bests(self) -> float | None:
        return self._ratio(self.best)

    def _ratio(self, pick: Any) -> float | None:
        if not self.measured(OTTLA) or not self.measured(KAFKA) or not pick(KAFKA):
            return None
        return float(pick(OTTLA) / pick(KAFKA))

    @property
    def verdict(self) -> str:
        """Of the medians; empty where there is nothing to compare."""
        if self.target is None or not self.measured(OTTLA):
            return ""
        reached = self.median(OTTLA) if self.target.of == "figure" else self.ratio_of_medians
        if reached is None:
            return ""
        sign = 1 if self.higher_is_better else -1
        if sign * reached >= sign * self.target.goal:
            return "goal"
        return "floor" if sign * reached >= sign * self.target.floor else "below the floor"

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "setting": self.setting,
            "what": self.what,
            "unit": self.unit,
            "higher_is_better": self.higher_is_better,
            "values": self.values,
            "medians": {name: self.median(name) for name, rounds in self.values.items() if rounds},
            "bests": {name: self.best(name) for name, rounds in self.values.items() if rounds},
            "ratio_of_medians": self.ratio_of_medians,
            "ratio_of_bests": self.ratio_of_bests,
            "target": self.target._asdict() if self.target else None,
            "verdict": self.verdict,
            "notes": self.notes,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Measurement:
        names = ("row", "setting", "what", "unit", "higher_is_better", "values", "notes")
        target = Target(**data["target"]) if data["target"] else None
        return cls(**{name: data[name] for name in names}, target=target)


def confidence(values: Sequence[float]) -> tuple[float, float]:
    """Between which two values the mean lies, with a confidence of 95 %: Student's t, by its expansion
    around the normal distribution's 1.96."""
    mean = statistics.fmean(values)
    freedom = len(values) - 1
    if freedom < 1:
        return mean, mean
    z = 1.959964
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    reach = t * statistics.stdev(values) / len(values) ** 0.5
    return mean - reach, mean + reach


def number(value: float) -> str:
    """Three digits that count, thousands separated."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return (
        f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
        if abs(value) >= 1
        else f"{value:.3f}"
    )


def _cell(measurement: Measurement, broker: str) -> tuple[str, str, str]:
    """Median, best, and the range of the rounds."""
    rounds = measurement.values.get(broker)
    if not rounds:
        return "–", "–", "–"
    spread = f"{number(min(rounds))}–{number(max(rounds))}"
    return number(measurement.median(broker)), number(measurement.best(broker)), spread


def _target(measurement: Measurement) -> str:
    if measurement.target is None:
        return ""
    sign = "≥" if measurement.higher_is_better else "≤"
    floor, goal, of = measurement.target
    unit = "×" if of == "ratio" else ""
    return f"{sign} {floor:g}{unit} / {goal:g}{unit}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


HEADINGS = (
    "row",
    "what",
    "Ottla",
    "best",
    "range",
    "Kafka",
    "best",
    "range",
    "ratio",
    "of bests",
    "floor / goal",
    "reached",
)


def cells(measurement: Measurement) -> tuple[str, ...]:
    name = f"{measurement.row}, {measurement.setting}" if measurement.setting else measurement.row
    return (
        name,
        f"{measurement.what}, {measurement.unit}",
        *_cell(measurement, OTTLA),
        *_cell(measurement, KAFKA),
        _ratio(measurement.ratio_of_medians),
        _ratio(measurement.ratio_of_bests),
        _target(measurement),
        measurement.verdict,
    )


def one_line(measurement: Measurement) -> str:
    """For the terminal, as soon as a row is measured."""
    name, what, *rest = cells(measurement)
    ottla, ottla_best, _, kafka, kafka_best, _, ratio, bests, target, verdict = rest
    line = f"{name:32} {what:58} {ottla:>9} ({ottla_best:>8}) {kafka:>9} ({kafka_best:>8})"
    line += f" {ratio:>8} ({bests:>8})  {target:14} {verdict}"
    return line.rstrip()


ONE_LINE_HEADING = (
    f"{'row, setting':32} {'what':58} {'Ottla':>9} ({'best':>8}) {'Kafka':>9} ({'best':>8})"
    f" {'ratio':>8} ({'bests':>8})  {'floor / goal':14} reached"
)


def markdown_table(measurements: Iterable[Measurement]) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|" + "---:|" * 8 + "---|---|"]
    lines += ["| " + " | ".join(cells(each)) + " |" for each in measurements]
    return "\n".join(lines)
