"""The program that has tests rewritten before a run."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "rewrite_tests.py"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rewrite_tests", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_file_is_rewritten_once(tool: ModuleType, tmp_path: Path) -> None:
    files = [tmp_path / "test_one.py", tmp_path / "deeper" / "test_two.py"]
    files[1].parent.mkdir()
    for file in files:
        file.write_text("def test_this() -> None:\n    assert True\n")
    assert sorted(tool.not_rewritten(tmp_path)) == sorted(files)
    tool.rewrite(files)
    assert tool.not_rewritten(tmp_path) == []
    later = files[0].stat().st_mtime + 10
    os.utime(files[0], (later, later))
    assert tool.not_rewritten(tmp_path) == files[:1]
