"""Random messages, made from the declarations, for tests that compare implementations."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ottla.protocol.message import Part
from ottla.protocol.schema import Kind, Slot, slots_of

P = TypeVar("P", bound=Part)
Restrict = Callable[[str, str], tuple[int, int] | None]

_RANGES = {
    "b": (-(2**7), 2**7 - 1),
    "h": (-(2**15), 2**15 - 1),
    "H": (0, 2**16 - 1),
    "i": (-(2**31), 2**31 - 1),
    "I": (0, 2**32 - 1),
    "q": (-(2**63), 2**63 - 1),
}
_LETTERS = "abcdefghijklmnopqrstuvwxyz.-_0123456789äß水🦋"


def _anything(_name: str, _code: str) -> tuple[int, int] | None:
    return None


class Sampler:
    """Makes random values that a version of a message can carry.

    `restrict(name, code)` may bound an integer field, for peers that accept less than the wire.
    """

    def __init__(self, seed: int, restrict: Restrict = _anything) -> None:
        self.random = random.Random(seed)
        self.restrict = restrict

    def message(self, cls: type[P], version: int) -> P:
        """A message with random values in every field that the version has."""
        values: dict[str, Any] = {}
        for slot in slots_of(cls):
            if not slot.present(version):
                continue
            if slot.tagged(version) and self.random.random() < 0.4:
                continue  # the default, which is not written
            if slot.null_allowed(version) and self.random.random() < 0.25:
                values[slot.name] = None
            else:
                values[slot.name] = self.value(slot, slot.kind, version)
        return cls(**values)

    def value(self, slot: Slot, kind: Kind, version: int) -> Any:
        if kind.name == "fixed":
            return self.fixed(slot.name, kind.code)
        if kind.name == "string":
            return self.text()
        if kind.name in ("bytes", "records"):
            return self.random.randbytes(self.random.choice((0, 1, 5, 126, 127, 128, 300)))
        if kind.part is not None:
            return self.message(kind.part, version)
        assert kind.element is not None
        count = self.random.choice((0, 1, 1, 2, 3))
        if kind.element.part is None and self.random.random() < 0.1:
            # Lengths that need more than one byte in the compact encoding.
            count = self.random.choice((126, 127, 128, 300))
        return [self.value(slot, kind.element, version) for _ in range(count)]

    def fixed(self, name: str, code: str) -> Any:
        if code == "?":
            return self.random.random() < 0.5
        if code == "d":
            return self.random.choice((0.0, -1.5, 1e300, self.random.random()))
        if code == "16s":
            return self.random.choice((bytes(16), self.random.randbytes(16)))
        low, high = self.restrict(name, code) or _RANGES[code]
        if self.random.random() < 0.2:
            return self.random.choice((low, high))
        return self.random.randint(low, high)

    def text(self) -> str:
        length = self.random.choice((0, 1, 3, 12, 40, 126, 127, 128))
        return "".join(self.random.choices(_LETTERS, k=length))


@pytest.fixture
def make_sampler() -> type[Sampler]:
    return Sampler
