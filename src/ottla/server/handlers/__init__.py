"""One module for each API, in a folder for each family of APIs.

Importing them (`load`) makes them declare themselves.
"""

from __future__ import annotations

import importlib
import pkgutil

from ottla.server.api import DECLARED, Declaration


def load() -> list[Declaration]:
    """Import every handler module of every family; what they declare, by key."""
    for family in pkgutil.iter_modules(__path__, f"{__name__}."):
        folder = importlib.import_module(family.name)
        for module in pkgutil.iter_modules(folder.__path__, f"{family.name}."):
            importlib.import_module(module.name)
    return [DECLARED[key] for key in sorted(DECLARED)]
