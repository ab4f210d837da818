"""Commands of `ottla` run in the process of the tests, in whose Spark session they then work."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner, Result

from ottla.cli.app import needed_for


def run_command(*words: Any, server: str, stdin: str = "", fails: int = 0) -> Result:
    """Run a command against a broker; it must succeed unless `fails` says how it ends."""
    env = {"OTTLA_SERVER": server, "TERM": "dumb", "COLUMNS": "200"}
    given = [str(word) for word in words]
    result = CliRunner(env=env).invoke(
        needed_for(given), given, input=stdin, prog_name="ottla", catch_exceptions=False
    )
    assert result.exit_code == fails, (words, result.exit_code, result.output)
    return result
