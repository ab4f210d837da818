"""ApiVersions: the table is what is served, and every client can read it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.wire import Wire

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.server.api import DECLARED


def request() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="a-client", client_software_version="1.0.0-rc1")


@pytest.mark.parametrize("version", range(5))
def test_every_version(inside: BrokerThread, wire: Wire, version: int) -> None:
    response = wire.call(request(), ApiVersionsResponse, version)
    assert response.error_code == 0
    assert {each.api_key: (each.min_version, each.max_version) for each in response.api_keys} == {
        int(key): declared.versions for key, declared in DECLARED.items()
    }
    assert response.throttle_time_ms == 0


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_unknown_version_is_answered_in_version_0(wire: Wire, version: int) -> None:
    """Clients depend on it: they ask again in a version that they find there."""
    wire.send_raw(struct.pack(">ihhih", 11, ApiKey.API_VERSIONS, version, 4711, -1) + b"\0")
    response = wire.receive(ApiVersionsResponse, 0)
    assert wire.answered == 4711
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    (own,) = response.api_keys
    assert (own.api_key, own.min_version, own.max_version) == (18, 0, 4)
    # The connection lives on.
    assert wire.call(request(), ApiVersionsResponse, 4).error_code == 0


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "software"),
    [("", "1"), ("a", ""), ("-a", "1"), ("a", "1."), ("a b", "1"), ("a", "1\n"), ("ä", "1")],
)
def test_software_names(wire: Wire, version: int, name: str, software: str) -> None:
    bad = ApiVersionsRequest(client_software_name=name, client_software_version=software)
    response = wire.call(bad, ApiVersionsResponse, version)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert wire.call(request(), ApiVersionsResponse, version).error_code == 0


def test_the_broker_knows_who_is_connected(inside: BrokerThread, wire: Wire) -> None:
    wire.send(request(), 3, "my-client")
    wire.receive(ApiVersionsResponse, 3)
    port = wire.sock.getsockname()[1]

    def look(_: object) -> tuple[str, str, str]:
        (found,) = [
            each
            for each in inside.broker.reactor.connections
            if each.address == f"127.0.0.1:{port}"
        ]
        return found.client_id, found.software_name, found.software_version

    assert inside.run(look) == ("my-client", "a-client", "1.0.0-rc1")


def test_all_that_is_advertised_is_served(
    inside: BrokerThread, connect: Callable[[], Wire]
) -> None:
    """Every key in its lowest and highest version takes a plain request and answers it."""
    from importlib import import_module

    for key, declared in sorted(DECLARED.items()):
        module = import_module(declared.request.__module__)
        response = getattr(module, declared.request.__name__.replace("Request", "Response"))
        for version in range(declared.versions[0], declared.versions[1] + 1):
            wire = connect()
            message = request() if key == ApiKey.API_VERSIONS else declared.request()
            if key == ApiKey.PRODUCE:
                message.acks = 1  # type: ignore[attr-defined]
            assert wire.call(message, response, version) is not None
            wire.close()
