"""tools/other_pythons.py: which Pythons it finds."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "other_pythons.py"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The program on a machine with nothing but what a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return runpy.run_path(str(PROGRAM))


def install(place: Path, says: str, status: int = 0) -> str:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\necho {says}\nexit {status}\n")
    place.chmod(0o755)
    return str(place)


def others() -> list[int]:
    return [minor for minor in (11, 12, 13, 14) if minor != sys.version_info.minor]


def test_what_is_not_there_is_said(
    tool: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool["found"]() == []
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == [f"python 3.{minor}" for minor in others()]
    assert all("skipped" in line for line in said)


def test_on_the_path_and_among_those_of_pyenv(tool: dict[str, Any], tmp_path: Path) -> None:
    first, second, *_ = others()
    on_path = install(tmp_path / "bin" / f"python3.{first}", f"3.{first}.4")
    versions = tmp_path / "pyenv" / "versions"
    install(versions / f"3.{second}.9" / "bin" / "python", f"3.{second}.9")
    newest = install(versions / f"3.{second}.10" / "bin" / "python", f"3.{second}.10")
    assert tool["found"]() == [on_path, newest]


def test_one_that_does_not_run_is_passed_over(tool: dict[str, Any], tmp_path: Path) -> None:
    """As a shim of pyenv's does, for a version that is not switched on."""
    minor = others()[0]
    install(tmp_path / "bin" / f"python3.{minor}", "command not found", status=127)
    works = install(
        tmp_path / "pyenv" / "versions" / f"3.{minor}.2" / "bin" / "python", f"3.{minor}.2"
    )
    assert tool["found"]() == [works]
