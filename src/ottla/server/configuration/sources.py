"""Where a broker's settings are read from: files, the environment, the command line.

Each source becomes a list of assignments that remember where they were made, so that a complaint
can name the place. Nothing is checked here but the form; names and values are config.py's.
"""

# Annotations are not postponed here: as strings they would be compiled one by one at import.

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.properties import parse_properties


class ConfigurationError(Exception):
    """The configuration cannot be used; the message is one sentence for the user."""


class Assignment(NamedTuple):
    """A setting and the text that it was given."""

    name: str
    text: str
    where: str  # completes "from …"


# What start scripts and images of Kafka read from the environment and what is no setting.
NOT_SETTINGS = frozenset(
    {
        "KAFKA_DEBUG",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_HOME",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)


def read_file(path: str | os.PathLike[str]) -> list[Assignment]:
    """A configuration file: TOML if its name ends in .toml, otherwise Java properties."""
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigurationError(
            f"The configuration file {path} cannot be read: {error.strerror}."
        ) from error
    is_toml = path.endswith(".toml")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if is_toml:
            raise ConfigurationError(f"The configuration file {path} is not UTF-8.") from error
        text = data.decode("latin-1")  # which is what Java takes such a file for
    return read_toml(text, path) if is_toml else read_properties(text, path)


# Java properties --------------------------------------------------------------------------------


def read_properties(text: str, path: str) -> list[Assignment]:
    """Kafka's server.properties, in Java's syntax for such files.

    `name=value`, `name:value` or `name value`, comments after # or !, lines that end in a
    backslash continue in the next, and backslash escapes as in Java.
    """
    return [
        Assignment(name, value, f"{path}, line {number}")
        for number, name, value in parse_properties(text)
    ]


# TOML -------------------------------------------------------------------------------------------


def read_toml(text: str, path: str) -> list[Assignment]:
    """A TOML file: quoted keys (`"log.retention.ms" = 5`), or tables whose names are joined by dots."""
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            f"The configuration file {path} is not valid TOML: {error}."
        ) from error
    return list(_flatten(document, "", path))


def _flatten(table: Mapping[str, Any], prefix: str, path: str) -> Iterator[Assignment]:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, name + ".", path)
        elif isinstance(value, list):
            yield Assignment(name, ",".join(_scalar(name, one, path) for one in value), path)
        else:
            yield Assignment(name, _scalar(name, value, path), path)


def _scalar(name: str, value: object, path: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigurationError(
        f"{name} in {path} must be a text, a number, true or false, or a list of these."
    )


# Environment and command line -------------------------------------------------------------------


def read_environment(
    environment: Mapping[str, str], prefix: str, not_settings: Collection[str] = ()
) -> list[Assignment]:
    """With prefix KAFKA_: KAFKA_LOG_RETENTION_MS and the like, as in Kafka's images.

    Variables in `not_settings` have another use.
    """
    return [
        Assignment(
            setting_name(variable.removeprefix(prefix)),
            environment[variable],
            f"environment variable {variable}",
        )
        for variable in sorted(environment)
        if variable.startswith(prefix) and variable != prefix
        if variable not in NOT_SETTINGS and variable not in not_settings
    ]


def setting_name(variable: str) -> str:
    """LOG_RETENTION_MS is log.retention.ms; two underscores are one, three are a dash."""
    return (
        variable.lower()
        .replace("___", "-")
        .replace("__", "\0")
        .replace("_", ".")
        .replace("\0", "_")
    )


def read_command_line(assignments: Iterable[str]) -> list[Assignment]:
    """Read assignments of the form `--set name=value`."""
    found = []
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (equals and name.strip()):
            raise ConfigurationError(f"--set {assignment} must be written as --set name=value.")
        found.append(Assignment(name.strip(), text, "--set"))
    return found


def merge(
    sources: Iterable[Sequence[Assignment]], families: Iterable[Sequence[str]]
) -> dict[str, Assignment]:
    """What holds when several sources speak; a later one goes before an earlier one.

    `families` are names of one meaning: who sets one of them takes back what earlier sources said
    under any of the others.
    """
    family_of = {name: family for family in families for name in family}
    merged: dict[str, Assignment] = {}
    for source in sources:
        for assignment in source:
            for relative in family_of.get(assignment.name, ()):
                merged.pop(relative, None)
        merged.update((assignment.name, assignment) for assignment in source)
    return merged
