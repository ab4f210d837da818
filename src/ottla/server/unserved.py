"""Requests of APIs that Kafka has and this broker does not serve."""

from __future__ import annotations

from importlib import import_module

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message, UnencodableMessage


def unsupported_version(key: int, version: int) -> Message | None:
    """UNSUPPORTED_VERSION in the API's own response; None if nobody knows the API or the version, or
    if the response has no place for an error of the whole."""
    try:
        name = ApiKey(key).name.lower()
        module = import_module(f"ottla.protocol.messages.{name}")
    except (ValueError, ModuleNotFoundError):
        return None
    for kind in vars(module).values():
        if not (isinstance(kind, type) and issubclass(kind, Message)):
            continue
        lowest, highest = kind.versions
        if (
            kind.__name__.endswith("Response")
            and lowest <= version <= highest
            and "error_code" in kind.declared
        ):
            response = kind(error_code=ErrorCode.UNSUPPORTED_VERSION)
            try:
                response.encode(version)
            except UnencodableMessage:
                return None  # the error came with a later version
            return response
    return None
