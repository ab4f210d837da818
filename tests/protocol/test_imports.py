"""What importing the messages costs: nothing heavy comes along, and nothing is compiled."""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAM = """
import json, os, sys
from importlib import import_module
import ottla.protocol.messages, ottla.protocol.records, ottla.protocol.frame
import ottla.protocol.errors
for package in (ottla.protocol.messages, ottla.protocol.records):
    for each in os.listdir(package.__path__[0]):
        if each.endswith(".py") and each != "__init__.py":
            import_module(f"{package.__name__}.{each[:-3]}")
from ottla.protocol.message import Part

def below(cls):
    for each in cls.__subclasses__():
        yield each
        yield from below(each)

classes = list(below(Part))
print(json.dumps({
    "modules": sorted(sys.modules),
    "classes": len(classes),
    "compiled": [c.__name__ for c in classes if c.decoders or c.encoders or "__init__" in vars(c)],
}))
"""


def _import_everything() -> dict[str, list[str]]:
    output = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, list[str]] = json.loads(output)
    return found


def test_importing_all_messages() -> None:
    found = _import_everything()
    assert found["classes"] > 400
    assert found["compiled"] == []
    loaded = {name.partition(".")[0] for name in found["modules"]}
    assert not loaded & {
        "asyncio",
        "base64",
        "cramjam",
        "dataclasses",
        "inspect",
        "kio",
        "logging",
        "numpy",
        "pyarrow",
        "socket",
        "ssl",
        "uuid",
    }
    ours = {name for name in found["modules"] if name.startswith("ottla")}
    ours -= {"ottla", "ottla.version"}
    assert all(name.startswith("ottla.protocol") for name in ours)
    assert "ottla.protocol.compiler" not in ours
