"""Runs a target under atheris, with the broker's modules instrumented."""

from __future__ import annotations

import sys
from typing import Any


def run(name: str) -> None:
    """Fuzz until told to stop (libFuzzer's options on the command line), or repeat given files."""
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["ottla"]):
        from fuzz_kit.targets import TARGETS

    target = TARGETS[name][0]()
    _instrument_generated(atheris)
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


def _instrument_generated(atheris: Any) -> None:
    """Decoders are made by `exec`, where no import hook sees them."""
    from ottla.server.api import DECLARED

    for declared in DECLARED.values():
        cls = declared.request
        for version in range(declared.versions[0], declared.versions[1] + 1):
            cls.decoder(version)
            if version in cls.decoders:
                cls.decoders[version] = atheris.instrument_func(cls.decoders[version])
