"""The page that lists keys and versions is the one the code would write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "protocol_table.py"


def test_page_is_up_to_date() -> None:
    checked = subprocess.run([sys.executable, TOOL, "--check"], check=False)
    assert checked.returncode == 0, "run: python tools/protocol_table.py"
