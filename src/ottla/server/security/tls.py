"""TLS of a broker: its settings as contexts, and certificates that change while it runs.

Imported only where a listener, or the connection to another broker, speaks TLS.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ottla.server.security.principals import BadRule, MappingRule, parse_rules
from ottla.settings import InvalidSetting
from ottla.wire.security import Pem, Pkcs12, SecurityError, Tls, cipher_list

if TYPE_CHECKING:
    from ottla.server.configuration.broker_config import BrokerConfig

log = logging.getLogger("ottla.security")

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_ASKING: Final[Mapping[str, ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def tls_of(config: BrokerConfig, listener: str) -> Tls:
    """The TLS settings of a listener. Raises InvalidSetting."""

    def text(name: str) -> str | None:
        value: str | None = config.of_listener(listener, name)
        return value or None

    chain, key = text("ssl.keystore.certificate.chain"), text("ssl.keystore.key")
    certificate: Pem | Pkcs12 | None = None
    location = text("ssl.keystore.location")
    if chain is not None:
        certificate = Pem(text=chain if key is None else f"{key}\n{chain}")
    elif location is not None:
        certificate = _store(text("ssl.keystore.type"), location, text("ssl.keystore.password"))
    authorities: Pem | Pkcs12 | None = None
    trusted, trust_store = text("ssl.truststore.certificates"), text("ssl.truststore.location")
    if trusted is not None:
        authorities = Pem(text=trusted)
    elif trust_store is not None:
        authorities = _store(
            text("ssl.truststore.type"), trust_store, text("ssl.truststore.password")
        )
    versions = [_VERSIONS[each] for each in config.of_listener(listener, "ssl.enabled.protocols")]
    if not versions:
        raise InvalidSetting("ssl.enabled.protocols", "", "must name at least one version")
    return Tls(
        authorities=authorities,
        certificate=certificate,
        key_password=text("ssl.key.password"),
        check_hostname=bool(config.of_listener(listener, "ssl.endpoint.identification.algorithm")),
        ciphers=cipher_list(config.of_listener(listener, "ssl.cipher.suites")),
        oldest=min(versions),
        newest=max(versions),
    )


def _store(kind: str | None, location: str, password: str | None) -> Pem | Pkcs12:
    if (kind or "PEM").upper() == "PKCS12":
        return Pkcs12(location, password)
    return Pem(file=location)


def rules_of(config: BrokerConfig, listener: str) -> tuple[MappingRule, ...]:
    """The rules for names in client certificates. Raises InvalidSetting."""
    text: str = config.of_listener(listener, "ssl.principal.mapping.rules")
    try:
        return parse_rules(text)
    except BadRule as error:
        raise InvalidSetting("ssl.principal.mapping.rules", text, str(error)) from None


class ListenerTls:
    """TLS of one listener: the context of connections to come. It is made anew when a file that it
    was made of changes, or the settings do; connections that stand keep theirs."""

    def __init__(self, config: BrokerConfig, listener: str) -> None:
        """Raises SecurityError or InvalidSetting."""
        self._listener = listener
        self._tls = tls_of(config, listener)
        self._asking = _ASKING[config.of_listener(listener, "ssl.client.auth")]
        self._seen = _stamps(self._tls)
        self.rules = rules_of(config, listener)
        self.context = self._tls.server_context(self._asking)
        if self._tls.authorities is not None:
            # The same is used towards other brokers, at the first connection to one.
            self._tls.context()

    @property
    def tls(self) -> Tls:
        """For connections to other brokers' listeners of the same name."""
        return self._tls

    def follow(self, config: BrokerConfig) -> None:
        """Take over settings that may have changed; they count only if they can be used."""
        try:
            tls = tls_of(config, self._listener)
        except InvalidSetting as error:
            log.error("TLS settings not taken over: listener=%s %s", self._listener, error)
            return
        if replace(tls, generation=self._tls.generation) != self._tls:
            self._take(tls)

    def look(self) -> None:
        """Look whether a file has changed. May block."""
        if _stamps(self._tls) != self._seen:
            self._take(self._tls)

    def _take(self, tls: Tls) -> None:
        seen = _stamps(tls)
        newer = replace(tls, generation=self._tls.generation + 1)
        try:
            context = newer.server_context(self._asking)
            if newer.authorities is not None:
                newer.context()
        except Exception as error:  # whatever a file can make OpenSSL raise
            # The next look finds the files as they were left, and is silent about them.
            self._seen = seen
            unforeseen = None if isinstance(error, SecurityError) else error
            log.error(
                "certificates not reloaded: listener=%s %s", self._listener, error,
                exc_info=unforeseen,
            )  # fmt: skip
            return
        self._tls, self._seen, self.context = newer, seen, context
        log.info("certificates reloaded: listener=%s", self._listener)


def _stamps(tls: Tls) -> list[tuple[int, int, int] | None]:
    """What tells whether the files are still the same."""
    stamps: list[tuple[int, int, int] | None] = []
    for each in (tls.certificate, tls.key, tls.authorities):
        if each is None or each.file is None:
            continue
        try:
            found = os.stat(each.file)
            stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
        except OSError:
            stamps.append(None)
    return stamps
