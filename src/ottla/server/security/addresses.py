"""Addresses of clients in entries of access control and in quotas.

The same address of IPv6 can be written in many ways: Java, and so Kafka's tools, write
`0:0:0:0:0:0:0:1`, where a socket here says `::1`. An entry that denies must not miss because of that.
"""

from __future__ import annotations

from typing import Final

_MAPPED: Final = "::ffff:"  # an IPv4 address on a socket of IPv6


def of_connection(host: str) -> str:
    """The address of a peer, as it is compared with those that somebody wrote."""
    return host.removeprefix(_MAPPED)


def plain_address(text: str) -> str:
    """An address that somebody wrote, as that of a connection is written; other words as they are."""
    if ":" not in text:
        return text  # one of IPv4, or "*"
    import ipaddress  # not at the start, for hardly anybody has one

    try:
        found = ipaddress.IPv6Address(text)
    except ValueError:
        return text
    return str(found if found.ipv4_mapped is None else found.ipv4_mapped)
