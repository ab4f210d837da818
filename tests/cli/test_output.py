"""What commands print of texts that others chose."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from typer.testing import Result

from ottla.cli.output import harmless, rich_table, write_document, write_table

Run = Callable[..., Result]

# A row of its own, a sequence that clears the screen, and a line end that only some know.
EVIL = "a\nadmin  127.0.0.1\r\x1b[2J\u2028\x9b1m"


def test_texts_of_others_are_shown_in_their_cell(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_table(("name", "more"), [(EVIL, 1), ("Zoë [b]", 22)])
    shown = capfdbinary.readouterr().out.decode()
    assert len(shown.splitlines()) == 3
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown
    assert "Zoë [b]" in shown
    from rich.console import Console

    console = Console(width=200, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(rich_table(("name",), [(EVIL,)]))
    assert "\x1b[2J" not in captured.get()
    assert len(captured.get().splitlines()) == 5


def test_documents_hold_nothing_that_a_terminal_obeys(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    document = {EVIL: [EVIL, "\x7f\U000e0001\u202e half \udc80", "Zoë’s — 東京 🙂"]}
    write_document(document)
    shown = capfdbinary.readouterr().out.decode()
    assert json.loads(shown) == document
    assert shown.replace("\n", "").isprintable()
    assert "Zoë’s — 東京 🙂" in shown


def test_what_can_be_shown_is_shown_as_it_is() -> None:
    for text in ("", "plain", "Zoë’s — 東京 🙂", "C:\\x"):
        assert harmless(text) == text
    assert harmless("half \udc80") == "half \\udc80"


def test_a_quota_is_listed_to_the_last_digit(ottla: Run) -> None:
    name = uuid.uuid4().hex
    ottla("quota", "set", "producer_byte_rate=123456789", "--user", name)
    ottla("quota", "set", "request_percentage=0.25", "--user", name)
    shown = ottla("quota", "list").output
    assert "123456789" in shown
    assert "0.25" in shown
    ottla("quota", "delete", "producer_byte_rate", "request_percentage", "--user", name)
