"""The kit is a package beside the tests; with pytest's importlib mode nothing else finds it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
