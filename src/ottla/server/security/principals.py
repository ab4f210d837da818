"""Principals: who a client is, as `User:name`.

The name of a client certificate is its subject as Java writes it (RFC 2253: `CN=alice,OU=sales`), or
what ssl.principal.mapping.rules make of it. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ottla.cluster.security.credentials import can_be_name

# The attributes that RFC 2253 has short names for, by OpenSSL's long names.
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_EMAIL: Final = ("emailAddress", "1.2.840.113549.1.9.1")
_SPECIAL: Final = frozenset(',+"\\<>;')

Subject = Sequence[Sequence[tuple[str, str]]]


def distinguished_name(subject: Subject) -> str:
    """A certificate's subject in RFC 2253's form, the most specific part first."""
    return ",".join("+".join(_attribute(*each) for each in part) for part in reversed(subject))


def _attribute(name: str, value: str) -> str:
    if name == _EMAIL[0]:
        # No short name in RFC 2253: Java shows the type's number and the value's encoding in hex.
        encoded = value.encode()
        return f"{_EMAIL[1]}=#16{len(encoded):02x}{encoded.hex()}"
    return f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}"


def _escaped(value: str) -> str:
    letters = [f"\\{letter}" if letter in _SPECIAL else letter for letter in value]
    if value[:1] in (" ", "#"):
        letters[0] = f"\\{letters[0]}"
    if len(value) > 1 and value[-1] == " ":
        letters[-1] = "\\ "
    return "".join(letters)


class BadRule(ValueError):
    """A mapping rule that cannot be used."""


class MappingRule(NamedTuple):
    """One rule; without a pattern it takes every name as it is."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""  # "L" or "U": the result in lower or upper case

    def apply(self, name: str) -> str | None:
        """The name that this rule makes of a subject; None if it does not fit."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(self.replacement, name)
        if self.case == "L":
            return mapped.lower()
        return mapped.upper() if self.case == "U" else mapped


_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\n|$)"
)


def parse_rules(text: str) -> tuple[MappingRule, ...]:
    """ssl.principal.mapping.rules. Raises BadRule."""
    rules: list[MappingRule] = []
    at = 0
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            raise BadRule("must be rules like RULE:pattern/replacement/[LU] or DEFAULT")
        at = found.end()
        if found["default"]:
            rules.append(MappingRule())
            continue
        try:
            pattern = re.compile(found["pattern"].replace("\\/", "/"))
            # Java's $1 is \g<1> here.
            replacement = re.sub(r"\$(\d+)", r"\\g<\1>", found["replacement"].replace("\\/", "/"))
            if any(int(group) > pattern.groups for group in re.findall(r"\\g<(\d+)>", replacement)):
                raise BadRule(
                    f"the replacement {found['replacement']} has more groups than its rule"
                )
        except re.error as error:
            raise BadRule(f"the pattern {found['pattern']} is not valid: {error}") from None
        rules.append(MappingRule(pattern, replacement, found["case"]))
    return tuple(rules) or (MappingRule(),)


def principal_of(subject: Subject, rules: Iterable[MappingRule]) -> str | None:
    """The principal of a client certificate; None if no rule makes a name of its subject."""
    name = distinguished_name(subject)
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None and can_be_name(mapped):
            return f"User:{mapped}"
    return None
