"""CRC32C, in native code: the checksum of batches and of producer snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = None

__all__ = ["crc32c"]


def _native_function() -> object:
    """The function of the package `crc32c`, without the package around it.

    That one looks its own version up when it is imported, for which it needs the reader of mail
    headers and a parser of command lines: a fifth of all that a broker imports. So its extension
    module is loaded by itself, under its own name; whoever imports the package later gets the same.
    """
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    name = "crc32c._crc32c"
    loaded = sys.modules.get(name)
    if loaded is None:
        package = PathFinder.find_spec("crc32c")
        spec = package and PathFinder.find_spec(name, package.submodule_search_locations)
        if not spec or spec.loader is None:
            # The package is built in another way than the releases known here.
            from crc32c import crc32c as function

            return function
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
        sys.modules[name] = loaded
    return loaded.crc32c


if not TYPE_CHECKING:
    crc32c = _native_function()
