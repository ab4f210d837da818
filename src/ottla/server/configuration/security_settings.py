"""Settings of security: TLS, SASL, and what one listener may have in place of the others'.

`listener.name.NAME.ssl.keystore.location` counts for the listener NAME only and goes before
`ssl.keystore.location`; the credentials of a SASL mechanism stand in
`listener.name.NAME.MECHANISM.sasl.jaas.config`. Names of listeners and mechanisms are in lower case
there, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.settings import (
    Scope,
    Setting,
    SettingType,
    at_least,
    list_of,
    one_of,
    one_of_ignoring_case,
)

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
STORE_TYPES: Final = ("PEM", "PKCS12")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")

LISTENER_PREFIX: Final = "listener.name."
JAAS: Final = "sasl.jaas.config"

_STRING, _LIST, _INT, _LONG = (
    SettingType.STRING,
    SettingType.LIST,
    SettingType.INT,
    SettingType.LONG,
)
_PASSWORD = SettingType.PASSWORD
_PER_BROKER = Scope.PER_BROKER


def tls_settings() -> Iterator[Setting]:
    for name, doc in (
        (
            "ssl.keystore.location",
            "The file with the broker's key and certificates; read again when it changes on disk.",
        ),
        (
            "ssl.truststore.location",
            "The file with the authorities that clients' and brokers' certificates are checked with.",
        ),
    ):
        yield Setting(name, _STRING, None, None, doc, scope=_PER_BROKER)
    for name, doc in (
        ("ssl.keystore.type", "The format of the key store."),
        ("ssl.truststore.type", "The format of the trust store."),
    ):
        yield Setting(name, _STRING, "PEM", one_of_ignoring_case(*STORE_TYPES), doc)
    for name, doc in (
        ("ssl.keystore.password", "The password of a PKCS12 key store."),
        ("ssl.truststore.password", "The password of a PKCS12 trust store."),
        ("ssl.key.password", "The password of the private key in a PEM key store."),
        ("ssl.keystore.key", "The private key itself, as PEM, in place of a key store."),
        (
            "ssl.keystore.certificate.chain",
            "The certificate chain itself, as PEM, that goes with ssl.keystore.key.",
        ),
        (
            "ssl.truststore.certificates",
            "The authorities' certificates themselves, as PEM, in place of a trust store.",
        ),
    ):
        yield Setting(name, _PASSWORD, None, None, doc, sensitive=True)
    yield Setting(
        "ssl.client.auth",
        _STRING,
        "none",
        one_of("required", "requested", "none"),
        "Whether clients have to show a certificate, may show one, or are not asked for one.",
    )
    yield Setting(
        "ssl.enabled.protocols",
        _LIST,
        TLS_VERSIONS,
        list_of(*TLS_VERSIONS),
        "The versions of TLS that are spoken.",
    )
    yield Setting(
        "ssl.cipher.suites",
        _LIST,
        (),
        None,
        "The cipher suites of TLS 1.2, in OpenSSL's notation or Java's. Empty: those with forward "
        "secrecy and authenticated encryption. Those of TLS 1.3 are not chosen.",
    )
    yield Setting(
        "ssl.endpoint.identification.algorithm",
        _STRING,
        "https",
        one_of_ignoring_case("https", ""),
        "Whether a broker checks that another one's certificate is for the host it connects to; "
        "empty: it does not.",
    )
    yield Setting(
        "ssl.principal.mapping.rules",
        _STRING,
        "DEFAULT",
        None,
        "How the name in a client's certificate becomes a principal: RULE:pattern/replacement/[LU] "
        "or DEFAULT, separated by commas; the first that fits counts.",
    )


def sasl_settings() -> Iterator[Setting]:
    yield Setting(
        "sasl.enabled.mechanisms",
        _LIST,
        ("SCRAM-SHA-512",),
        list_of(*MECHANISMS),
        "The mechanisms that clients of SASL listeners may use.",
    )
    yield Setting(
        "sasl.mechanism.inter.broker.protocol",
        _STRING,
        "SCRAM-SHA-512",
        one_of(*MECHANISMS),
        "The mechanism that brokers use among each other; username and password (for OAUTHBEARER "
        "clientId and clientSecret) are in the sasl.jaas.config of the inter-broker listener and this "
        "mechanism.",
    )
    yield Setting(
        "sasl.server.max.receive.size",
        _INT,
        524_288,
        at_least(1024),
        "The largest request of a client that has not authenticated yet.",
    )
    yield Setting(
        "connections.max.reauth.ms",
        _LONG,
        0,
        None,
        "How long an authentication counts; who has not authenticated again by then is "
        "disconnected. 0: as long as the connection, or the token.",
    )
    yield Setting(
        "connection.failed.authentication.delay.ms",
        _INT,
        100,
        at_least(0),
        "How long a client waits for the answer that its authentication failed.",
    )
    yield from _token_settings()


def _token_settings() -> Iterator[Setting]:
    yield Setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        None,
        None,
        "Where the keys are that sign OAUTHBEARER tokens: a JSON web key set, as https:, http: or "
        "file: URL.",
    )
    yield Setting(
        "sasl.oauthbearer.token.endpoint.url",
        _STRING,
        None,
        None,
        "Where brokers get their own tokens, if OAUTHBEARER is the mechanism among them: an https: or "
        "http: URL, which is asked with clientId and clientSecret, or a file: URL of a token.",
    )
    yield Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        _LONG,
        3_600_000,
        at_least(1000),
        "How long these keys are kept before they are read again.",
    )
    yield Setting(
        "sasl.oauthbearer.expected.audience",
        _LIST,
        None,
        None,
        "Of these, a token must name at least one as its audience.",
    )
    yield Setting(
        "sasl.oauthbearer.expected.issuer", _STRING, None, None, "Who must have issued a token."
    )
    yield Setting(
        "sasl.oauthbearer.sub.claim.name",
        _STRING,
        "sub",
        None,
        "The claim of a token that is the name of its user.",
    )
    yield Setting(
        "sasl.oauthbearer.clock.skew.seconds",
        _INT,
        30,
        at_least(0),
        "How far the clock of the tokens' issuer may be from the broker's.",
    )


STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def access_settings() -> Iterator[Setting]:
    yield Setting(
        "authorizer.class.name",
        _STRING,
        "",
        one_of("", STANDARD_AUTHORIZER),
        "Who may do what is decided by access control lists if Kafka's authorizer is named here; "
        "empty: everybody may do everything.",
    )
    yield Setting(
        "super.users",
        _STRING,
        "",
        None,
        "Principals that may do everything, separated by semicolons: User:admin;User:broker. Those of "
        "the brokers belong to them.",
    )
    yield Setting(
        "allow.everyone.if.no.acl.found",
        SettingType.BOOLEAN,
        False,
        None,
        "Whether everybody may do everything to a resource that no entry is about.",
    )


# What may be set for one listener alone.
LISTENER_SETTINGS: Final = frozenset(
    {
        *(setting.name for setting in tls_settings()),
        "connections.max.reauth.ms",
        "max.connection.creation.rate",
        "sasl.enabled.mechanisms",
        "sasl.server.max.receive.size",
        *(setting.name for setting in _token_settings()),
    }
)


def base_name(name: str) -> str | None:
    """The setting that `listener.name.…` overrides for one listener; None if it is none."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
    if not listener:
        return None
    if setting in LISTENER_SETTINGS:
        return setting
    mechanism, _, rest = setting.partition(".")
    if rest == JAAS and mechanism.upper() in MECHANISMS:
        return JAAS
    return None


def name_for_listener(listener: str, name: str) -> str:
    """The name of a setting for one listener alone."""
    return f"{LISTENER_PREFIX}{listener.lower()}.{name}"


def jaas_name(listener: str, mechanism: str) -> str:
    """The setting with the credentials of a mechanism on a listener."""
    return name_for_listener(listener, f"{mechanism.lower()}.{JAAS}")
