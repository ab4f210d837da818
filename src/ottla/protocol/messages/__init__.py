"""Requests and responses, one module per API, each with one class per message for all versions."""

from __future__ import annotations

from importlib import import_module

from ottla.protocol.apis import ApiKey, api_name
from ottla.protocol.message import Message


def message_classes(api_key: int) -> tuple[type[Message], type[Message]]:
    """The request and response classes of an API, imported on first use.

    LookupError for an API without messages here: those that only controllers and voters of a KRaft
    quorum speak, those that Kafka gave up, client telemetry and groups of Kafka Streams.
    """
    try:
        module = import_module(f"{__name__}.{ApiKey(api_key).name.lower()}")
    except (ValueError, ModuleNotFoundError) as error:
        raise LookupError(f"no messages of {api_name(api_key)}") from error
    name = api_name(api_key)
    return getattr(module, f"{name}Request"), getattr(module, f"{name}Response")
