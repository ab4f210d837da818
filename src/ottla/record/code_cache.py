"""Where compiled code is kept for the next process: OTTLA_CACHE_DIR, or `ottla` in the user's cache."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path


def code_cache(name: str) -> Path | None:
    """A folder of this name for compiled code, made if need be; None if nothing can be written."""
    if "OTTLA_CACHE_DIR" in os.environ:
        parent = Path(os.environ["OTTLA_CACHE_DIR"])
    elif sys.platform == "darwin":
        parent = Path("~/Library/Caches/ottla")
    else:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ottla"
    try:
        folder = parent.expanduser() / name
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.{threading.get_ident()}"
        probe.touch()
        probe.unlink()
    except (OSError, RuntimeError):
        return None  # RuntimeError: there is no home
    return folder
