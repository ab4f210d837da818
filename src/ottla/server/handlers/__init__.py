"""One module for each API; importing this package's `load` makes them declare themselves."""

from __future__ import annotations

import importlib
import pkgutil

from ottla.server.api import DECLARED, Declaration


def load() -> list[Declaration]:
    """Import every handler module beside this one; what they declare, by key."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return [DECLARED[key] for key in sorted(DECLARED)]
