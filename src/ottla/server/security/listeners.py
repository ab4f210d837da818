"""What the clients of a listener have to do before they are served: TLS, SASL, or both."""

from __future__ import annotations

import socket
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from ottla.server.network.connection import Connection
from ottla.settings import HIDDEN, InvalidSetting
from ottla.wire.jaas import LoginModule, UnreadableJaas, parse_jaas
from ottla.wire.security import SecurityError

if TYPE_CHECKING:
    from ottla.server.api import Api
    from ottla.server.broker import Broker
    from ottla.server.configuration.broker_config import BrokerConfig
    from ottla.server.configuration.listeners import ListenerAddress
    from ottla.server.network.reactor import Listener, Reactor
    from ottla.server.security.mechanisms import Exchange, Users
    from ottla.server.security.tls import ListenerTls
    from ottla.server.security.tokens import Keys, TokenRules

_USER_PREFIX = "user_"


class ListenerSecurity:
    """The security of one listener; its protocol is any but PLAINTEXT."""

    def __init__(self, broker: Broker, address: ListenerAddress, users: Users) -> None:
        """Raises SecurityError or InvalidSetting."""
        self._broker = broker
        self._users = users
        self.name = address.name
        self.mechanisms: tuple[str, ...] = ()
        # APIs that are answered before the authentication.
        self.early_apis: dict[int, Api] = {}
        self.largest_early_request = 0
        self.session_lifetime = 0.0  # seconds, 0: for ever
        self.failure_delay = 0.0
        self._passwords: Mapping[str, str] = {}
        self._token_rules: TokenRules | None = None
        self._keys: Keys | None = None
        self.tls: ListenerTls | None = None
        if address.protocol.endswith("SSL"):
            from ottla.server.security.tls import ListenerTls

            self.tls = ListenerTls(broker.config, address.name)
        if address.protocol.startswith("SASL_"):
            self._prepare_sasl(broker.config)

    def _prepare_sasl(self, config: BrokerConfig) -> None:
        from ottla.server.security.sasl import BEFORE_AUTHENTICATION

        self.mechanisms = config.of_listener(self.name, "sasl.enabled.mechanisms")
        if not self.mechanisms:
            raise InvalidSetting("sasl.enabled.mechanisms", "", f"{self.name} needs at least one")
        self.early_apis = {
            key: self._broker.apis[key] for key in BEFORE_AUTHENTICATION if key in self._broker.apis
        }
        self.largest_early_request = config.of_listener(self.name, "sasl.server.max.receive.size")
        self.session_lifetime = config.of_listener(self.name, "connections.max.reauth.ms") / 1000
        self.failure_delay = config.connection_failed_authentication_delay_ms / 1000
        if "PLAIN" in self.mechanisms:
            module = login_module(config, self.name, "PLAIN")
            options = {} if module is None else module.options
            self._passwords = {
                name.removeprefix(_USER_PREFIX): password
                for name, password in options.items()
                if name.startswith(_USER_PREFIX)
            }
        if "OAUTHBEARER" in self.mechanisms:
            self._prepare_tokens(config)

    def _prepare_tokens(self, config: BrokerConfig) -> None:
        import importlib.util

        from ottla.server.security.tokens import NEEDS_PYJWT, Keys, TokenRules

        if importlib.util.find_spec("jwt") is None:
            raise SecurityError(NEEDS_PYJWT)
        rules = TokenRules.from_config(config, self.name)
        if rules is None:
            raise InvalidSetting(
                "sasl.oauthbearer.jwks.endpoint.url",
                "",
                f"it must be set, for {self.name} takes OAUTHBEARER",
            )
        self._token_rules = rules
        self._keys = Keys(rules)

    def make_connection(
        self, reactor: Reactor, sock: socket.socket, listener: Listener, peer: str
    ) -> Connection:
        """A connection that is served once its peer has proved who it is."""
        if self.tls is None:
            connection = Connection(reactor, sock, listener, peer)
        else:
            from ottla.server.network.tls import TlsConnection

            connection = TlsConnection(reactor, sock, listener, peer, self.tls)
        if self.mechanisms:
            from ottla.server.security.sasl import Authentication

            connection.authentication = Authentication(connection, self)
        return connection

    def exchange(self, mechanism: str, connection: Connection) -> Exchange:
        """The broker's side of one authentication."""
        if mechanism == "OAUTHBEARER":
            from ottla.server.security.tokens import TokenExchange

            assert self._token_rules is not None
            assert self._keys is not None
            return TokenExchange(self._token_rules, self._keys)
        from ottla.server.security.mechanisms import PlainExchange, ScramExchange

        if mechanism == "PLAIN":
            return PlainExchange(self._passwords, self._users, lambda: connection.closed)
        return ScramExchange(mechanism, self._users)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._broker.spawn(work, name)


def login_module(config: BrokerConfig, listener: str, mechanism: str) -> LoginModule | None:
    """The credentials that the configuration has for a mechanism on a listener."""
    text = config.credentials(listener, mechanism)
    if text is None:
        return None
    try:
        return parse_jaas(text)
    except UnreadableJaas as error:
        raise InvalidSetting(
            f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config",
            HIDDEN,
            str(error),
        ) from None
