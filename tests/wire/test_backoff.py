"""Back-off: doubling, bounded, spread."""

from __future__ import annotations

from ottla.wire.backoff import Backoff


def test_it_doubles_up_to_its_maximum() -> None:
    backoff = Backoff(0.1, 1.0, 0.0)
    assert [round(backoff.after(n), 3) for n in range(7)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.after(10_000) == 1.0


def test_it_is_spread() -> None:
    backoff = Backoff(0.1, 1.0, 0.2)
    waits = [backoff.after(3) for _ in range(1000)]
    assert 0.32 <= min(waits) < 0.36 < 0.44 < max(waits) <= 0.48
    assert Backoff(0.0, 1.0).after(5) == 0.0
