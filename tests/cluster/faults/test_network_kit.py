"""The network of namespaces loses what it is told to lose, in one direction, and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from cluster_kit.network import NamespacesRefused, Network, skip_or_fail


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network(["one", "two", "three"]) as network:
            yield network
    except NamespacesRefused as refusal:
        skip_or_fail(refusal)


def arrives(network: Network, source: str, target: str) -> bool:
    """Whether a datagram arrives."""
    with network.inside(target):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((network.address(target), 0))
    with network.inside(source):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        sender.sendto(b"x", receiver.getsockname())
        receiver.settimeout(0.3)
        try:
            return receiver.recv(1) == b"x"
        except TimeoutError:
            return False


def test_a_cut_is_of_one_direction(network: Network) -> None:
    assert arrives(network, "one", "two")
    network.cut("one", "two")
    network.cut("one", "two")
    assert not arrives(network, "one", "two")
    assert arrives(network, "two", "one")
    assert arrives(network, "one", "three")
    network.cut_both_ways("one", "two")
    assert not arrives(network, "two", "one")
    network.heal()
    assert arrives(network, "one", "two")
    assert arrives(network, "two", "one")


def test_nothing_is_left_of_it() -> None:
    before = os.readlink("/proc/thread-self/ns/net") if os.path.exists("/proc/thread-self") else ""
    links = [name for _, name in socket.if_nameindex()]
    try:
        with Network(["one", "two"]) as network, network.inside("one"):
            assert [name for _, name in socket.if_nameindex()] != links
    except NamespacesRefused as refusal:
        skip_or_fail(refusal)
    assert [name for _, name in socket.if_nameindex()] == links
    assert os.readlink("/proc/thread-self/ns/net") == before


def test_where_namespaces_are_required_a_refusal_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = NamespacesRefused("no")
    monkeypatch.delenv("REQUIRE_NAMESPACES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no"):
        skip_or_fail(refusal)
    monkeypatch.setenv("REQUIRE_NAMESPACES", "1")
    with pytest.raises(pytest.fail.Exception, match="REQUIRE_NAMESPACES is set, but no"):
        skip_or_fail(refusal)
