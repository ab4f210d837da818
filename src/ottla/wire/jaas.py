"""Java's sasl.jaas.config, of clients and brokers: a line that names a login module and its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";

Values may stand in single or double quotes, with backslashes before quotes and backslashes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s*(?: (?P<quoted>"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*')
             | (?P<mark>[=;])
             | (?P<word>[^\s=;"']+) )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class UnreadableJaas(ValueError):
    """What is wrong with such a line, without the line: it holds a password."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """The module's class name without its package, and its options."""

    name: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """The one login module of the line; raises UnreadableJaas."""
    tokens = _tokens(text.strip())
    if len(tokens) < 3 or tokens[1].lower() not in _FLAGS:
        raise _bad('it must be: MODULE required NAME="VALUE" …;')
    if tokens[-1] != ";":
        raise _bad("it must end with ';'")
    if ";" in tokens[:-1]:
        raise _bad("it names several login modules; one is used")
    options: dict[str, str] = {}
    pairs = tokens[2:-1]
    if len(pairs) % 3:
        raise _bad('its options must be NAME="VALUE"')
    for at in range(0, len(pairs), 3):
        name, mark, value = pairs[at : at + 3]
        if mark != "=":
            raise _bad(f"after '{name}' there must be '='")
        options[name] = value
    return LoginModule(tokens[0].rpartition(".")[2], options)


def _tokens(text: str) -> list[str]:
    tokens = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _bad("a quote in it is never closed")
        at = match.end()
        quoted = match["quoted"]
        if quoted is not None:
            tokens.append(_ESCAPE.sub(r"\1", quoted[1:-1]))
        else:
            tokens.append(match["mark"] or match["word"])
    return tokens


def _bad(why: str) -> UnreadableJaas:
    return UnreadableJaas(f"sasl.jaas.config cannot be read: {why}")
