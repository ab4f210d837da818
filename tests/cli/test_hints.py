"""`ottla serve --hints` says what to try next, with the address that was bound."""

from __future__ import annotations

from pathlib import Path

from ottla.testing import BrokerProcess


def test_hints_name_the_address(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", arguments=["--hints"]) as broker:
        broker.stop()
        text = broker.log_text()
    assert f"consume greetings -s {broker.bootstrap}" in text
    assert "Traceback" not in text
