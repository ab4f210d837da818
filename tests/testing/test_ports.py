"""Ports for servers that are about to start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ottla.testing.ports import free_port, free_ports, free_ports_in_a_row

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def listen(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.skipif(
    not RANGE.exists(), reason="this system does not tell which ports it gives away"
)
def test_the_system_gives_them_to_nobody_by_itself() -> None:
    lowest, highest = map(int, RANGE.read_text().split())
    given = {free_port(), *free_ports(50), *range((first := free_ports_in_a_row(9)), first + 9)}
    assert not [port for port in given if lowest <= port <= highest]


def test_they_differ_and_can_be_listened_on() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    first = free_ports_in_a_row(9)
    for port in (*ports, *range(first, first + 9)):
        listen(port)


def test_one_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports_in_a_row(2)
    monkeypatch.setattr("ottla.testing.ports._PORTS", range(first, first + 2))
    with socket.create_server(("127.0.0.1", first)):
        assert free_port() == first + 1
