"""The options of security (security.protocol, ssl.*, sasl.*) as a `Security`.

librdkafka's names and the Java client's are both understood. Where they clash: ssl.keystore.location
is a PKCS #12 store in librdkafka; in Java it is what ssl.keystore.type says, JKS if that is missing.
Here the file itself tells: PKCS #12 and PEM are read whatever the type says, JKS cannot be read.
"""

from __future__ import annotations

import inspect
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.client.configuration.options import boolean, choice, text, words
from ottla.client.errors import ConfigurationError
from ottla.protocol.scram import SCRAM_MECHANISMS, hash_name
from ottla.wire.jaas import LoginModule, UnreadableJaas, parse_jaas
from ottla.wire.oidc import (
    ClientCredentials,
    KeptToken,
    TokenFile,
    expiry_of,
    extensions_of,
    file_of,
)
from ottla.wire.sasl import (
    BearerToken,
    Mechanism,
    OAuthBearer,
    Plain,
    Scram,
    TokenSource,
)
from ottla.wire.security import Pem, Pkcs12, Security, SecurityError, Tls, cipher_list

logger = logging.getLogger(__name__)

_TLS: Final = (
    "enable.ssl.certificate.verification",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.cipher.suites",
    "ssl.crl.location",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
_SASL: Final = (
    "oauth.cb",
    "sasl.jaas.config",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
)
# Understood by Java or librdkafka; here they change nothing, or nothing that could be lost.
_IGNORED: Final = (
    "https.ca.location",
    "sasl.client.callback.handler.class",
    "sasl.kerberos.service.name",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "ssl.curves.list",
    "ssl.engine.factory.class",
    "ssl.keymanager.algorithm",
    "ssl.protocol",
    "ssl.provider",
    "ssl.providers",
    "ssl.secure.random.implementation",
    "ssl.sigalgs.list",
    "ssl.trustmanager.algorithm",
)
SECURITY_OPTIONS: Final = frozenset(("security.protocol", *_TLS, *_SASL, *_IGNORED))

_PROTOCOL = choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER")
_TLS_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# How a Java key store begins, and its sibling with better encryption.
_JAVA_STORES: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_MODULES: Final = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": SCRAM_MECHANISMS,
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}


def read_security(given: Mapping[str, object]) -> Security:
    """The security that the options describe; raises ConfigurationError."""
    options = _Options(given)
    protocol = options.read("security.protocol", _PROTOCOL, "PLAINTEXT")
    with_tls, with_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for used, names in ((with_tls, _TLS), (with_sasl, _SASL)):
        if not used and (unused := [name for name in names if name in given]):
            logger.warning("security.protocol=%s makes no use of %s", protocol, ", ".join(unused))
    for name in _IGNORED:
        if name in given:
            logger.info("option %s has no meaning here", name)
    tls = _read_tls(options) if with_tls else None
    mechanism = _read_sasl(options) if with_sasl else None
    return Security(tls, mechanism)


class _Options:
    """What was given, read on demand."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self.given = given

    def read(self, name: str, reader: Callable[[object], Any], default: Any = None) -> Any:
        if name not in self.given:
            return default
        try:
            return reader(self.given[name])
        except ValueError as error:
            raise ConfigurationError(f"{name} takes {error}") from None

    def text(self, *names: str) -> str | None:
        """The first of these that was given and is not empty."""
        for name in names:
            value: str | None = self.read(name, text)
            if value:
                return value
        return None


# TLS


def _read_tls(options: _Options) -> Tls:
    verify: bool = options.read("enable.ssl.certificate.verification", boolean, True)
    # Java's way to switch it off is an empty value.
    algorithm: str = options.read(
        "ssl.endpoint.identification.algorithm", choice("https", "none", "", HTTPS="https"), "https"
    )
    oldest, newest = _read_versions(options)
    certificate, key = _read_certificate(options)
    tls = Tls(
        authorities=_read_authorities(options),
        certificate=certificate,
        key=key,
        key_password=options.text("ssl.key.password"),
        revoked=_file(options.text("ssl.crl.location")),
        verify=verify,
        check_hostname=algorithm == "https",
        ciphers=_read_ciphers(options),
        oldest=oldest,
        newest=newest,
    )
    try:
        tls.context()  # now, so that a wrong path is told here and not at the first connection
    except SecurityError as error:
        raise ConfigurationError(str(error)) from error
    return tls


def _file(path: str | None) -> Pem | None:
    return None if path is None else Pem(file=path)


def _read_authorities(options: _Options) -> Pem | Pkcs12 | None:
    if content := options.text("ssl.ca.pem", "ssl.truststore.certificates"):
        return Pem(text=content)
    location = options.text("ssl.ca.location")
    if location is not None:
        # librdkafka's word for what is the default here: look where the system has them.
        return None if location == "probe" else Pem(file=location)
    store = options.text("ssl.truststore.location")
    if store is None:
        return None
    return _read_store(store, options.text("ssl.truststore.password"), "ssl.truststore.location")


def _read_certificate(options: _Options) -> tuple[Pem | Pkcs12 | None, Pem | None]:
    key_text = options.text("ssl.key.pem", "ssl.keystore.key")
    key = Pem(text=key_text) if key_text else _file(options.text("ssl.key.location"))
    if chain := options.text("ssl.certificate.pem", "ssl.keystore.certificate.chain"):
        return Pem(text=chain), key
    if location := options.text("ssl.certificate.location"):
        return Pem(file=location), key
    store = options.text("ssl.keystore.location")
    if store is not None:
        password = options.text("ssl.keystore.password")
        return _read_store(store, password, "ssl.keystore.location"), None
    if key is not None:
        raise ConfigurationError(
            "a private key was given without a certificate; give ssl.certificate.location or "
            "ssl.certificate.pem (in Java's terms ssl.keystore.certificate.chain), too"
        )
    return None, None


def _read_store(path: str, password: str | None, option: str) -> Pem | Pkcs12:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            beginning = file.read(4096)
    except OSError as error:
        raise ConfigurationError(f"{option}={path}: {error.strerror}") from error
    if beginning.startswith(_JAVA_STORES):
        raise ConfigurationError(
            f"{option}={path} is a JKS store, which only Java reads; convert it with: keytool "
            f"-importkeystore -srckeystore {path} -destkeystore store.p12 -deststoretype PKCS12"
        )
    if b"-----BEGIN" in beginning:
        return Pem(file=path)
    return Pkcs12(path, password)


def _read_ciphers(options: _Options) -> str | None:
    return cipher_list(options.read("ssl.cipher.suites", _words_or_colons, ()))


def _words_or_colons(value: object) -> tuple[str, ...]:
    return words(value.replace(":", ",") if isinstance(value, str) else value)


def _read_versions(options: _Options) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    names: tuple[str, ...] = options.read("ssl.enabled.protocols", words, ())
    known = sorted(_TLS_VERSIONS[name] for name in names if name in _TLS_VERSIONS)
    if names and not known:
        raise ConfigurationError(
            f"ssl.enabled.protocols takes {', '.join(_TLS_VERSIONS)}, not {', '.join(names)}"
        )
    if not known:
        return ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.MAXIMUM_SUPPORTED
    return known[0], known[-1]


# SASL


def _read_sasl(options: _Options) -> Mechanism:
    jaas_text = options.text("sasl.jaas.config")
    try:
        jaas = None if jaas_text is None else parse_jaas(jaas_text)
    except UnreadableJaas as error:
        raise ConfigurationError(str(error)) from None
    name = _mechanism_name(options, jaas)
    module = LoginModule("", {}) if jaas is None else jaas
    if name == "OAUTHBEARER":
        return OAuthBearer(KeptToken(_read_token_source(options, module)))
    username = options.text("sasl.username") or module.options.get("username")
    password = options.text("sasl.password") or module.options.get("password")
    if username is None or password is None:
        raise ConfigurationError(
            f"{name} needs sasl.username and sasl.password (or a sasl.jaas.config with both)"
        )
    if name == "PLAIN":
        return Plain(username, password)
    return Scram(
        username,
        password,
        hash_name(name),
        token=module.options.get("tokenauth", "").lower() == "true",
    )


def _mechanism_name(options: _Options, jaas: LoginModule | None) -> str:
    given = options.text("sasl.mechanism", "sasl.mechanisms")
    allowed: tuple[str, ...] = _MECHANISMS
    if jaas is not None:
        if jaas.name not in _MODULES:
            raise ConfigurationError(
                f"sasl.jaas.config names {jaas.name}; understood are {', '.join(_MODULES)}"
            )
        allowed = _MODULES[jaas.name]
        if given is None and len(allowed) == 1:
            return allowed[0]
    name = (given or "").upper()
    if name not in _MECHANISMS:
        shown = f", not {given}" if given else ""
        raise ConfigurationError(
            f"sasl.mechanism takes one of {', '.join(_MECHANISMS)}{shown}"
            + ("; Kerberos is not supported" if name == "GSSAPI" else "")
        )
    if name not in allowed:
        raise ConfigurationError(
            f"sasl.mechanism={given} does not go with the login module {getattr(jaas, 'name', '')}"
        )
    return name


def _read_token_source(options: _Options, jaas: LoginModule) -> TokenSource:
    callback: Callable[..., Any] | None = options.read("oauth.cb", _function)
    if callback is not None:
        return _Callback(callback, options.text("sasl.oauthbearer.config") or "")
    endpoint = options.text("sasl.oauthbearer.token.endpoint.url")
    if endpoint is None:
        raise ConfigurationError(
            "OAUTHBEARER needs oauth_cb (a function that returns a token), or "
            "sasl.oauthbearer.method=oidc with sasl.oauthbearer.token.endpoint.url, "
            "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret, or a token in a file that "
            "sasl.oauthbearer.token.endpoint.url=file:… names"
        )
    extensions = dict(
        each.partition("=")[::2] for each in options.read("sasl.oauthbearer.extensions", words, ())
    ) | extensions_of(jaas.options)
    file = file_of(endpoint)
    if file is not None:
        return TokenFile(file, extensions)
    client_id = jaas.options.get("clientId") or options.text(
        "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id"
    )
    secret = jaas.options.get("clientSecret") or options.text(
        "sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret"
    )
    if client_id is None or secret is None:
        raise ConfigurationError(
            "OAUTHBEARER with sasl.oauthbearer.token.endpoint.url needs "
            "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"
        )
    authorities = _read_authorities(options)
    return ClientCredentials(
        endpoint,
        client_id,
        secret,
        jaas.options.get("scope") or options.text("sasl.oauthbearer.scope"),
        extensions,
        None if authorities is None else Tls(authorities=authorities).context(),
    )


def _function(value: object) -> Callable[..., Any]:
    if callable(value):
        return value
    raise ValueError("a function that returns a token")


class _Callback:
    """A token source over the user's function, as confluent-kafka calls it.

    It is given the text of sasl.oauthbearer.config and returns the token: as text, as a
    `BearerToken`, or as (token, time of expiry in seconds since 1970[, principal[, extensions]]).
    It may be a coroutine function.
    """

    def __init__(self, function: Callable[..., Any], configuration: str) -> None:
        self._function = function
        self._configuration = configuration

    async def __call__(self) -> BearerToken:
        result = self._function(self._configuration)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, BearerToken):
            return result
        if isinstance(result, str):
            return BearerToken(result, expiry_of(result))
        try:
            value, expires, *rest = result
            extensions = rest[1] if len(rest) > 1 else {}
            return BearerToken(str(value), float(expires), dict(extensions))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                "oauth_cb must return a token as text, or (token, time of expiry)"
            ) from error
