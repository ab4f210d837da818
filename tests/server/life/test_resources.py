"""How a broker divides what the system gives it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from ottla.server import resources
from ottla.server.resources import divide_descriptors


@pytest.mark.parametrize("limit", [128, 256, 1024, 4096, 20_000, 1 << 20])
def test_every_part_gets_descriptors(limit: int) -> None:
    parts = divide_descriptors(limit)
    assert sum(parts) == limit
    assert parts.reserved >= 64
    assert parts.mapped_indexes >= 8
    assert parts.answers >= 7
    assert parts.segment_files >= 24
    assert parts.connections >= parts.segment_files


def test_the_limit_is_raised_as_far_as_allowed() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300));"
        "from ottla.server.resources import descriptor_limit, raise_descriptor_limit;"
        "raise_descriptor_limit(); print(descriptor_limit())"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(printed.stdout) == 300


def test_a_limit_that_the_system_does_not_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where the hard limit promises more than there is."""
    granted = []

    def setrlimit(_kind: int, limits: tuple[int, int]) -> None:
        if limits[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        granted.append(limits[0])

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    resources.raise_descriptor_limit()
    assert granted == [8192]


def test_memory_for_requests_follows_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_left_of_cgroup", lambda: 1 << 40)
    monkeypatch.setattr(resources, "_left_of_limits", lambda: 1 << 40)
    assert resources.request_memory() == 1 << 30
    monkeypatch.setattr(resources, "_left_of_limits", lambda: 64 << 20)
    assert resources.request_memory() == 32 << 20
    monkeypatch.setattr(resources, "_left_of_cgroup", lambda: 0)
    assert resources.request_memory() == resources.REQUEST_BYTES_AT_LEAST


def test_what_a_limit_on_the_address_space_leaves() -> None:
    program = (
        "import resource; from ottla.server.resources import _left_of_limits;"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "limit = used + (100 << 20);"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit));"
        "print(_left_of_limits() >> 20)"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert 90 <= int(printed.stdout) <= 100
