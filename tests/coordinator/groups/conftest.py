"""Fixtures of the tests of consumer groups."""

from __future__ import annotations

import sys
from pathlib import Path

# The kit is a package beside the tests; with pytest's importlib mode nothing else puts it on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))
