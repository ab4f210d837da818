"""Who a connection talks to and as whom: TLS settings and the SASL mechanism.

Certificates and keys come as PEM (files or text) or as a PKCS #12 store. The latter needs the
package `cryptography`, because Python's own TLS reads only PEM.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from ottla.wire.sasl import Mechanism


class SecurityError(ValueError):
    """The security settings cannot be used: a file that is missing or not what it should be."""


@dataclass(frozen=True, slots=True)
class Pem:
    """Something in PEM, in a file or as text; exactly one of the two."""

    file: str | None = None
    text: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Pkcs12:
    """A store that holds certificates and perhaps a key."""

    file: str
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """How TLS connections are made. The default trusts the system's certificate authorities."""

    authorities: Pem | Pkcs12 | None = None  # None: those of the system
    certificate: Pem | Pkcs12 | None = None  # ours, for brokers that ask for one
    key: Pem | None = None  # None: it stands beside the certificate
    key_password: str | None = field(default=None, repr=False)
    revoked: Pem | None = None  # a list of revoked certificates; the leaf is checked against it
    verify: bool = True  # that the broker's certificate is signed by an authority
    check_hostname: bool = True  # that it is for the host connected to
    ciphers: str | None = None  # in OpenSSL's notation; TLS 1.2 only
    oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
    generation: int = 0  # another number makes another context of the same files

    def context(self) -> ssl.SSLContext:
        """The context of new connections; made once. Raises SecurityError."""
        return _context(self)

    def server_context(self, client_certificates: ssl.VerifyMode) -> ssl.SSLContext:
        """A new context for the side that is connected to. Raises SecurityError."""
        return _server_context(self, client_certificates)


@dataclass(frozen=True, slots=True)
class Security:
    """The security of a listener as Kafka names it."""

    tls: Tls | None = None
    sasl: Mechanism | None = None

    @property
    def protocol(self) -> str:
        """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        kind = "PLAINTEXT" if self.tls is None else "SSL"
        return kind if self.sasl is None else f"SASL_{kind}"


PLAINTEXT: Final = Security()

# Of TLS 1.2, those with forward secrecy and authenticated encryption.
SERVER_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20"


def cipher_list(suites: Iterable[str]) -> str | None:
    """Cipher suites in OpenSSL's notation, from that or Java's. Suites of TLS 1.3 are left out: OpenSSL
    does not choose among them by this list, and all of them are good. None if no other is named."""
    chosen = [
        _openssl_name(each) for each in suites if not each.startswith("TLS_") or "_WITH_" in each
    ]
    return ":".join(chosen) or None


def _openssl_name(suite: str) -> str:
    """ECDHE-RSA-AES128-GCM-SHA256 is TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 in Java."""
    if "_WITH_" not in suite:
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    for java, openssl in (
        ("AES_", "AES"),
        ("_CBC", ""),
        ("POLY1305_SHA256", "POLY1305"),
    ):
        cipher = cipher.replace(java, openssl)
    name = cipher if exchange == "RSA" else f"{exchange}-{cipher}"
    return name.replace("_", "-")


@lru_cache(maxsize=16)
def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = tls.oldest
    context.maximum_version = tls.newest
    context.check_hostname = tls.verify and tls.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    if tls.ciphers:
        try:
            context.set_ciphers(tls.ciphers)
        except ssl.SSLError as error:
            raise SecurityError(f"no cipher of '{tls.ciphers}' is known") from error
    if tls.authorities is not None:
        _trust(context, tls.authorities)
    elif tls.verify:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if tls.revoked is not None:
        _trust(context, tls.revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if tls.certificate is not None:
        _present(context, tls.certificate, tls.key, tls.key_password)
    return context


def _server_context(tls: Tls, client_certificates: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = tls.oldest
    context.maximum_version = tls.newest
    # A client could make the broker do the costly part of a handshake again and again.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        context.set_ciphers(tls.ciphers or SERVER_CIPHERS)
    except ssl.SSLError as error:
        raise SecurityError(f"no cipher of '{tls.ciphers}' is known") from error
    if tls.certificate is None:
        raise SecurityError("there is no certificate to show to clients")
    _present(context, tls.certificate, tls.key, tls.key_password)
    if client_certificates is not ssl.CERT_NONE:
        if tls.authorities is None:
            raise SecurityError("there are no authorities to check certificates of clients with")
        _trust(context, tls.authorities)
    context.verify_mode = client_certificates
    return context


def _trust(context: ssl.SSLContext, authorities: Pem | Pkcs12) -> None:
    if isinstance(authorities, Pkcs12):
        text = _pem_of_store(authorities)[1]
        if not text:
            raise SecurityError(f"{authorities.file} holds no certificate to trust")
        context.load_verify_locations(cadata=text)
        return
    try:
        if authorities.text is not None:
            context.load_verify_locations(cadata=authorities.text)
        elif os.path.isdir(str(authorities.file)):
            context.load_verify_locations(capath=authorities.file)
        else:
            context.load_verify_locations(cafile=authorities.file)
    except ssl.SSLError as error:
        where = authorities.file or "the text given"
        raise SecurityError(f"{where} holds no certificates in PEM ({error.reason})") from error
    except OSError as error:
        raise SecurityError(f"{authorities.file}: {error.strerror}") from error


def _present(
    context: ssl.SSLContext, certificate: Pem | Pkcs12, key: Pem | None, password: str | None
) -> None:
    if isinstance(certificate, Pkcs12):
        key_text, chain = _pem_of_store(certificate)
        if not key_text:
            raise SecurityError(f"{certificate.file} holds no private key")
        _load_chain(context, certificate.file, Pem(text=key_text + chain), None, None)
        return
    shown = certificate.file or "the certificate given"
    _load_chain(context, shown, certificate, key, password)


def _load_chain(
    context: ssl.SSLContext, shown: str, certificate: Pem, key: Pem | None, password: str | None
) -> None:
    # Without a password OpenSSL would ask for one at the terminal.
    secret = password if password is not None else ""
    with tempfile.TemporaryDirectory(prefix="ottla-") as folder:  # readable by nobody else
        try:
            context.load_cert_chain(
                _path_of(certificate, folder, "certificate.pem"),
                None if key is None else _path_of(key, folder, "key.pem"),
                password=lambda: secret,
            )
        except ssl.SSLError as error:
            raise SecurityError(
                f"{shown} and its key cannot be used ({error.reason or error}); both must be PEM, "
                "belong together, and ssl.key.password must fit"
            ) from error
        except OSError as error:
            raise SecurityError(f"{error.filename or shown}: {error.strerror}") from error


def _path_of(pem: Pem, folder: str, name: str) -> str:
    if pem.file is not None:
        return pem.file
    path = Path(folder) / name
    path.touch(mode=0o600)
    path.write_text(pem.text or "")
    return str(path)


def _pem_of_store(store: Pkcs12) -> tuple[str, str]:
    """The private key and the certificates of a PKCS #12 store, both as PEM, perhaps empty."""
    try:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            pkcs12,
        )
    except ImportError as error:
        raise SecurityError(
            f"{store.file} is a PKCS #12 store, which needs the package cryptography: "
            "pip install 'ottla[pkcs12]', or convert the store to PEM with openssl pkcs12"
        ) from error
    try:
        content = Path(store.file).read_bytes()
        password = None if store.password is None else store.password.encode()
        loaded = pkcs12.load_pkcs12(content, password)
    except OSError as error:
        raise SecurityError(f"{store.file}: {error.strerror}") from error
    except ValueError as error:
        raise SecurityError(
            f"{store.file} cannot be read as PKCS #12 ({error}); is the password right?"
        ) from error
    key = ""
    if loaded.key is not None:
        key = loaded.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    first = [] if loaded.cert is None else [loaded.cert]
    chain = "".join(
        each.certificate.public_bytes(Encoding.PEM).decode()
        for each in (*first, *loaded.additional_certs)
    )
    return key, chain
