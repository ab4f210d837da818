"""How the broker gets to its ZooKeeper: what its settings say, and the files that they name.

The user's password is read from a file, so that it stands in no list of processes and in no log.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

from ottla.cluster.store import StoreError
from ottla.cluster.zookeeper import Credentials, Scheme, Tls, ZooKeeperStore, parse_address

if TYPE_CHECKING:
    import ssl

    from ottla.server.configuration.broker_config import BrokerConfig

log = logging.getLogger("ottla.broker")


def zookeeper_store(config: BrokerConfig) -> ZooKeeperStore:
    """A session that is not started yet. StoreError, with a sentence, if a file is not as it should
    be."""
    assert config.zookeeper_connect is not None
    try:
        address = parse_address(config.zookeeper_connect)
    except ValueError as error:
        raise StoreError(str(error)) from error
    return ZooKeeperStore(
        address,
        session_timeout=config.zookeeper_session_timeout_ms / 1000,
        start_timeout=config.zookeeper_connection_timeout_ms / 1000,
        credentials=_credentials(config),
        closes_nodes=config.zookeeper_set_acl,
        tls=_tls(config),
    )


def _credentials(config: BrokerConfig) -> Credentials | None:
    path = config.zookeeper_auth_file
    if path is None:
        return None
    name = "zookeeper.auth.file"
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
            others = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{name}={path} cannot be read: {_why(error)}") from error
    lines = [line for line in text.splitlines() if line.strip()]
    user, colon, password = lines[0].partition(":") if len(lines) == 1 else ("", "", "")
    if not (user and colon and password):
        raise StoreError(f"{name}={path} must have one line, USER:PASSWORD")
    if others:
        log.warning("%s=%s can be read by others than its owner: chmod 600 it", name, path)
    return Credentials(Scheme(config.zookeeper_auth_scheme), user, password)


def tls_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """For connections to ZooKeeper that are like the broker's; None if those are not encrypted.
    StoreError, with a sentence, if a file cannot be used."""
    tls = _tls_settings(config)
    return None if tls is None else _context(tls)


def _tls(config: BrokerConfig) -> Tls | None:
    tls = _tls_settings(config)
    if tls is not None:
        _context(tls)  # files that cannot be used are told of now, and not as a failed connection
    return tls


def _tls_settings(config: BrokerConfig) -> Tls | None:
    if not config.zookeeper_ssl_client_enable:
        return None
    return Tls(
        ca=config.zookeeper_ssl_truststore_location,
        certificate=config.zookeeper_ssl_keystore_location,
        key_password=config.zookeeper_ssl_keystore_password,
        check_hostname=config.zookeeper_ssl_endpoint_identification_algorithm != "",
    )


def _context(tls: Tls) -> ssl.SSLContext:
    """What kazoo makes of the same settings. A file that cannot be used is told of by name."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.check_hostname = tls.check_hostname
    if tls.ca is not None:
        try:
            context.load_verify_locations(tls.ca)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("zookeeper.ssl.truststore.location", tls.ca, error) from error
    if tls.certificate is not None:
        try:
            # Without a password nobody is asked for one.
            context.load_cert_chain(tls.certificate, password=tls.key_password or "")
        except (OSError, ssl.SSLError) as error:
            name = "zookeeper.ssl.keystore.location"
            # OpenSSL has the same words for all that is wrong with a PEM file.
            if isinstance(error, ssl.SSLError) and _has_encrypted_key(tls.certificate):
                raise StoreError(
                    f"{name}={tls.certificate}: zookeeper.ssl.keystore.password does not open its key"
                ) from error
            raise _unusable(name, tls.certificate, error) from error
    return context


def _has_encrypted_key(path: str) -> bool:
    with open(path, "rb") as file:
        return b"ENCRYPTED" in file.read()


def _unusable(name: str, path: str, error: OSError) -> StoreError:
    import ssl

    if isinstance(error, ssl.SSLError):
        wanted = "certificates" if "truststore" in name else "a certificate and its key"
        return StoreError(f"{name}={path} is not a PEM file with {wanted}")
    return StoreError(f"{name}={path} cannot be read: {_why(error)}")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
