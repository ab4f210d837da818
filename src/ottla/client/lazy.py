"""Packages that take long to import, imported when something of them is first used.

pyarrow and numpy take a fifth of a second, more than a short command has: whoever sends ten records
needs neither. Type checkers are shown the real import:

    if TYPE_CHECKING:
        import pyarrow as pa
    else:
        pa = lazy("pyarrow")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name), name)
        setattr(self, name, value)  # found without this function from now on
        return value


def lazy(name: str) -> Any:
    """The module of this name, or what behaves like it."""
    return _LazyModule(name)
