"""What can go wrong with a connection, apart from the error codes that brokers answer with."""

from __future__ import annotations


class WireError(Exception):
    """A connection could not do what was asked of it."""


class ConnectFailed(WireError):
    """No connection to the address came about: refused, unreachable, unresolved, or too slow."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLost(WireError):
    """The connection ended; whether the broker acted on a request in flight is not known."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"the connection to {address} ended: {reason}")
        self.address = address
        self.reason = reason


class RequestTimeout(WireError):
    """The answer did not come in time. The connection is closed, since it may be stuck."""

    def __init__(self, address: str, api: str, seconds: float) -> None:
        super().__init__(f"{address} did not answer {api} within {seconds:g} s")
        self.address = address
        self.api = api
        self.seconds = seconds


class UnsupportedByBroker(WireError):
    """The broker has no version of this API in common with us, or not the version needed."""

    def __init__(self, address: str, api: str, wanted: str, offered: str) -> None:
        super().__init__(f"{address} offers {api} {offered}, needed is {wanted}")
        self.address = address
        self.api = api
        self.wanted = wanted
        self.offered = offered


class ProtocolViolation(ConnectionLost):
    """The peer sent bytes that are no answer; the connection was closed."""


class AuthenticationFailed(WireError):
    """The broker (or, where it proves itself, the client) refused the other's credentials."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"authentication with {address} failed: {reason}")
        self.address = address
        self.reason = reason


class TlsFailed(ConnectFailed):
    """The TLS handshake failed: a certificate that is not trusted, or not for this host."""
