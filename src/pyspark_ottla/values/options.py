"""The options that say what values are: `valueFormat`, `valueSchema`, and those of a schema registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_ottla.errors import OptionError

FORMATS: Final = (
    "json",
    "avro",
    "protobuf",
    "arrow",
    "confluent-avro",
    "confluent-json",
    "confluent-protobuf",
)
FRAMED: Final = "confluent-"  # after the id of a schema in a registry

# The names of Confluent's Python client, and what the registry's client here calls them.
REGISTRY_OPTIONS: Final[Mapping[str, str]] = {
    "schema.registry.url": "url",
    "schema.registry.basic.auth.user.info": "user_info",
    "schema.registry.bearer.auth.token": "bearer_token",
    "schema.registry.ssl.ca.location": "ca_location",
    "schema.registry.ssl.certificate.location": "certificate_location",
    "schema.registry.ssl.key.location": "key_location",
    "schema.registry.ssl.key.password": "key_password",
}
VALUE_OPTIONS: Final = (
    "valueFormat",
    "valueSchema",
    "valueMessage",
    "valueSubject",
    *REGISTRY_OPTIONS,
)


@dataclass(frozen=True)
class ValueOptions:
    """What values are to be decoded to, as the options say; nothing was looked up yet."""

    format: str
    schema: str | None = None  # text of the format's own kind; of protobuf a file
    message: str | None = None  # of protobuf
    subject: str | None = None  # in the registry
    registry: tuple[tuple[str, str], ...] = ()  # arguments of SchemaRegistry
    # What load() has found in a registry or a file, so that a query sees one schema from then on.
    found: str | None = None


def read_value_options(
    named: Mapping[str, str], topics: frozenset[str] = frozenset()
) -> ValueOptions | None:
    """The options of values among all, whose spelling is right; None if values stay bytes.

    `topics` are those that are subscribed to: one gives its name to the subject.
    """
    given = [name for name in VALUE_OPTIONS if name in named]
    if not given:
        return None
    name = named.get("valueFormat", "").strip().lower()
    if "valueFormat" not in named:
        raise OptionError(f"{given[0]} needs valueFormat: {', '.join(FORMATS)}")
    if name not in FORMATS:
        raise OptionError(
            f"valueFormat is one of {', '.join(FORMATS)}, not {named['valueFormat']!r}"
        )
    by_registry = name == "confluent-avro"  # the others have their schemas from valueSchema alone
    bare = name.removeprefix(FRAMED)
    registry = {
        argument: named[option] for option, argument in REGISTRY_OPTIONS.items() if option in named
    }
    if by_registry and "url" not in registry:
        raise OptionError(f"valueFormat={name} needs schema.registry.url")
    if registry and not name.startswith(FRAMED):
        option = next(each for each in REGISTRY_OPTIONS if each in named)
        raise OptionError(
            f"{option} is for valueFormat=confluent-avro and its like, not for {name}"
        )
    if "valueMessage" in named and bare != "protobuf":
        raise OptionError(f"valueMessage is for valueFormat=protobuf, not for {name}")
    if bare == "protobuf" and "valueMessage" not in named:
        raise OptionError(
            f"valueFormat={name} needs valueMessage, the full name of the message's type"
        )
    if "valueSubject" in named and not by_registry:
        raise OptionError(f"valueSubject is for valueFormat=confluent-avro, not for {name}")
    schema = named.get("valueSchema")
    if schema is None and not by_registry:
        raise OptionError(f"valueFormat={name} needs valueSchema: {_WANTED[bare]}")
    subject = named.get("valueSubject")
    if by_registry and schema is None and subject is None:
        if len(topics) != 1:
            raise OptionError(
                "valueFormat=confluent-avro needs valueSchema or valueSubject, unless subscribe "
                "names one topic: whose schema is the newest one?"
            )
        subject = f"{next(iter(topics))}-value"
    return ValueOptions(
        name, schema, named.get("valueMessage"), subject, tuple(sorted(registry.items()))
    )


_WANTED: Final[Mapping[str, str]] = {
    "json": "its fields, such as `id BIGINT, tags ARRAY<STRING>`, or StructType.json()",
    "avro": "the Avro schema that values are written with, in JSON",
    "protobuf": "a file that `protoc --include_imports --descriptor_set_out` has written",
    "arrow": "the fields of a row, such as `id BIGINT, tags ARRAY<STRING>`, or StructType.json()",
}
