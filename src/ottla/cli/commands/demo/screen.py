"""What `ottla demo` shows: a screen that is kept up to date on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.output import human_size, on_terminal, plural, write_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from weblogs.results import Results

LINE_EVERY: Final = 5.0  # seconds between two lines
BARS: Final = " ▁▂▃▄▅▆▇█"
MINUTES: Final = 30  # in the small chart
WIDTH: Final = 24  # of a bar, in characters
ALERTS: Final = 5
CLASSES: Final = (
    ("ok", "2xx", "green"),
    ("redirected", "3xx", "cyan"),
    ("refused", "4xx", "yellow"),
    ("errors", "5xx", "red"),
)


@dataclass
class DemoState:
    """All that there is to show."""

    title: str
    results: Results
    doing: str = ""  # what is under way while there are no results yet
    rate: float = 0.0  # lines a second that are collected
    lines: int = 0  # that were collected
    batch: int | None = None
    lag: int | None = None
    table_rows: int = 0
    notes: list[str] = field(default_factory=list)


def screen(show: Callable[[], DemoState]) -> TerminalScreen | PlainScreen:
    return TerminalScreen(show) if on_terminal() else PlainScreen(show)


class TerminalScreen:
    """One picture, drawn anew a few times a second."""

    def __init__(self, show: Callable[[], DemoState]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._show = show
        self._live = Live(
            console=Console(highlight=False),
            get_renderable=self._draw,
            refresh_per_second=4,
            redirect_stdout=False,
        )

    def __enter__(self) -> TerminalScreen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self) -> None:
        """Takes what to show; the display redraws itself."""

    def _draw(self) -> RenderableType:
        from rich.columns import Columns
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        shown = self._show()
        results = shown.results
        newest = results.newest
        title = Text(shown.title, style="bold")
        if newest is None:
            return Panel(Group(title, Text(f"{shown.doing} … {shown.lines:,} lines collected")))
        statistics = results.minutes[newest]
        state = Text(
            f"{shown.rate:,.0f} requests/s   lag {_number(shown.lag)}   "
            f"batch {_number(shown.batch)}   table {shown.table_rows:,} rows",
            style="cyan",
        )
        panels = [
            Panel(_statistics(newest, statistics), title=f"minute {newest[-5:]}"),
            Panel(_pages(results.pages.get(newest, [])), title="top pages"),
        ]
        parts: list[RenderableType] = [title, state, _chart(results), Columns(panels)]
        parts += [Text(alert_sentence(alert), style="red") for alert in results.alerts[-ALERTS:]]
        parts += [Text(note, style="yellow") for note in shown.notes[-3:]]
        return Group(*parts)


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _chart(results: Results) -> RenderableType:
    from rich.text import Text

    counts = [results.minutes[minute]["requests"] for minute in sorted(results.minutes)[-MINUTES:]]
    highest = max(*counts, 1)
    line = "".join(BARS[round(count / highest * (len(BARS) - 1))] for count in counts)
    return Text(f"requests per minute {line} (at most {highest:,})", style="green")


def _statistics(minute: str, statistics: dict[str, Any]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    del minute
    table = Table.grid(padding=(0, 1))
    requests = max(statistics["requests"], 1)
    table.add_row("requests", f"{statistics['requests']:,}")
    table.add_row("visitors", f"{statistics['visitors']:,}")
    table.add_row("by bots", f"{statistics['by_bots'] / requests:.0%}")
    table.add_row("sent", human_size(statistics["bytes"] or 0))
    for name, label, style in CLASSES:
        share = statistics[name] / requests
        table.add_row(
            label, Text("█" * max(round(share * WIDTH), statistics[name] > 0), style=style)
        )
    return table


def _pages(pages: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    highest = max((page["requests"] for page in pages), default=1)
    for page in pages:
        bar = "█" * max(1, round(page["requests"] / highest * WIDTH))
        table.add_row(
            Text(page["page"], overflow="ellipsis", no_wrap=True),
            f"{page['requests']:,}",
            Text(bar, style="blue"),
        )
    return table


class PlainScreen:
    """A line now and then, and one for each alert."""

    def __init__(self, show: Callable[[], DemoState]) -> None:
        self._show = show
        self._next = 0.0  # monotonic
        self._shown: set[str] = set()  # alerts, by when they began
        self._doing = ""

    def __enter__(self) -> PlainScreen:
        write_line(self._show().title)
        return self

    def __exit__(self, *_: object) -> None:
        self._next = 0.0
        self.update()

    def update(self) -> None:
        shown = self._show()
        newest = shown.results.newest
        if newest is None:
            if shown.doing != self._doing:
                self._doing = shown.doing
                self._write(shown.doing)
            return
        for alert in shown.results.alerts:
            if alert["since"] not in self._shown:
                self._shown.add(alert["since"])
                self._write(alert_sentence(alert))
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_EVERY
        found = shown.results.minutes[newest]
        pages = ", ".join(
            f"{page['page']} ({page['requests']})"
            for page in shown.results.pages.get(newest, [])[:3]
        )
        self._write(
            f"{newest[-5:]} {plural(found['requests'], 'request')}, {found['visitors']} visitors, "
            f"{plural(found['errors'], 'error')}; top pages {pages}; "
            f"lag {_number(shown.lag)}, batch {_number(shown.batch)}"
        )

    @staticmethod
    def _write(line: str) -> None:
        write_line(line)
        sys.stdout.flush()


def alert_sentence(alert: dict[str, Any]) -> str:
    since = str(alert["since"])[11:19]
    return f"alert {since}: {alert['errors']} of {alert['requests']} answers were errors"
