"""The security of a broker: of its listeners, and towards other brokers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ottla.protocol.scram import hash_name
from ottla.server.security.names import ANONYMOUS
from ottla.settings import InvalidSetting
from ottla.wire.sasl import Mechanism, OAuthBearer, Plain, RefusedByMechanism, Scram
from ottla.wire.security import PLAINTEXT, SecurityError
from ottla.wire.security import Security as WireSecurity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ottla.cluster.metadata import ClusterImage, Resource
    from ottla.protocol.errors import ErrorCode
    from ottla.server.broker import Broker
    from ottla.server.configuration.broker_config import BrokerConfig
    from ottla.server.configuration.listeners import ListenerAddress
    from ottla.server.network.connection import Connection
    from ottla.server.security.authorizer import Authorizer
    from ottla.server.security.listeners import ListenerSecurity
    from ottla.server.security.mechanisms import Users

log = logging.getLogger("ottla.security")

# How often it is looked whether certificates have changed on disk.
LOOK_SECONDS = 5.0


class CannotSecure(Exception):
    """Why a listener cannot be secured as it is configured, for the operator."""


class Security:
    """The security of all listeners of a broker, and its authorizer. Belongs to the broker's loop. A
    broker with PLAINTEXT listeners alone has nothing here."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._listeners: dict[str, ListenerSecurity] = {}
        self._users: Users | None = None
        # By which this broker proves to others who it is. Made once: its settings do not change, and it
        # may hold a token.
        self._mechanism: Mechanism | None = None

    def of(self, address: ListenerAddress) -> ListenerSecurity:
        """The security of a listener that is about to be opened. Raises CannotSecure."""
        from ottla.server.security.listeners import ListenerSecurity

        try:
            made = ListenerSecurity(self._broker, address, self._known_users())
        except (SecurityError, InvalidSetting) as error:
            raise CannotSecure(f"cannot secure the listener {address.name}: {error}") from error
        self._listeners[address.name] = made
        if address.name == self._broker.config.inter_broker_listener:
            self.between_brokers()  # now, so that a mistake is told at the start
        return made

    def _known_users(self) -> Users:
        if self._users is None:
            from ottla.server.security.mechanisms import Users

            self._users = Users(lambda: self._broker.image)
        return self._users

    def between_brokers(self) -> WireSecurity:
        """How this broker connects to others. Raises CannotSecure."""
        config = self._broker.config
        listener = self._listeners.get(config.inter_broker_listener)
        if listener is None:
            return PLAINTEXT
        try:
            tls = None if listener.tls is None else listener.tls.tls
            if listener.mechanisms and self._mechanism is None:
                self._mechanism = _own_mechanism(config, listener.name)
        except InvalidSetting as error:
            raise CannotSecure(f"cannot connect to other brokers: {error}") from error
        return WireSecurity(tls, self._mechanism)

    @property
    def knows_clients(self) -> bool:
        """Whether there is a listener whose clients may prove who they are."""
        return any(each.protocol != "PLAINTEXT" for each in self._broker.config.listeners)

    def open_listeners(self) -> list[ListenerAddress]:
        """Listeners that others than this machine reach, and at which nobody has to prove anything."""
        config = self._broker.config
        return [
            each
            for each in config.listeners
            if not _is_loopback(each.host)
            and not each.protocol.startswith("SASL_")
            and (
                each.protocol == "PLAINTEXT"
                or config.of_listener(each.name, "ssl.client.auth") != "required"
            )
        ]

    def make_authorizer(self) -> Authorizer | None:
        """What decides who may do what; None if nobody asks for it."""
        config = self._broker.config
        if not config.authorizer_class_name:
            return None
        from ottla.server.security.authorizer import Authorizer, parse_super_users

        return Authorizer(
            parse_super_users(config.super_users),
            allow_if_none=config.allow_everyone_if_no_acl_found,
        )

    # What Produce and Fetch ask if there is an authorizer; imported then, not at the start.

    def refused_topics(
        self,
        connection: Connection,
        transactional_id: str | None,
        topics: Iterable[tuple[bytes, Any]],
        by_id: bool,
    ) -> dict[bytes, ErrorCode]:
        """Topics of a Produce request that the client may not write."""
        from ottla.server.security.guards.hot import refused_topics

        return refused_topics(self._broker, connection, transactional_id, topics, by_id)

    def may_fetch(self, connection: Connection, replica: int, topic: str | bytes) -> bool:
        """Whether a reader may have the records of a topic."""
        from ottla.server.security.guards.hot import may_fetch

        return may_fetch(self._broker, connection, replica, topic)

    def may_replicate(self, connection: Connection) -> bool:
        """Whether a client that calls itself a replica may fetch as one."""
        from ottla.server.security.guards.hot import may_replicate

        return may_replicate(self._broker, connection)

    def load_acls(self) -> None:
        """Give the authorizer, if there is one, the entries of the metadata."""
        if self._broker.authorizer is not None:
            from ottla.server.security.acl_filters import acls_of

            self._broker.authorizer.change((), acls_of(self._broker.image))

    def follow_acls(
        self, old: ClusterImage, new: ClusterImage, resources: Collection[Resource]
    ) -> None:
        """Bring the authorizer's entries about these resources up to date. Others are not looked at, for
        they may be many."""
        if self._broker.authorizer is not None:
            from ottla.server.security.acl_filters import acls_among

            self._broker.authorizer.change(acls_among(old, resources), acls_among(new, resources))

    def start(self) -> None:
        for address in self.open_listeners():
            authorizer = self._broker.authorizer
            who = (
                "ANYBODY WHO REACHES IT CAN READ, WRITE AND DELETE EVERYTHING"
                if authorizer is None or ANONYMOUS in authorizer.super_users
                else f"whoever reaches it is {ANONYMOUS}"
            )
            log.warning(
                "the listener %s asks nobody who they are: %s (docs/security.md)", address, who
            )
        metrics = self._broker.config.metrics_listener
        if metrics is not None and not _is_loopback(metrics[0]):
            log.warning(
                "metrics are served on %s:%d to whoever reaches it: they have the names of topics and "
                "groups (docs/security.md)", metrics[0] or "*", metrics[1],
            )  # fmt: skip
        if any(listener.tls is not None for listener in self._listeners.values()):
            self._broker.spawn(self._watch_certificates(), "watch over certificates")

    async def _watch_certificates(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look_at_certificates()

    async def look_at_certificates(self) -> None:
        """Take over certificates that changed on disk."""
        for listener in self._listeners.values():
            if listener.tls is None:
                continue
            try:
                await self._broker.loop.run_in_executor(self._broker.threads, listener.tls.look)
            except Exception as error:  # noqa: BLE001 - it is looked again, whatever went wrong
                log.error("certificates not looked at: listener=%s %r", listener.name, error)

    def follow(self, config: BrokerConfig) -> None:
        """Settings were changed while running."""
        for listener in self._listeners.values():
            if listener.tls is not None:
                listener.tls.follow(config)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _own_mechanism(config: BrokerConfig, listener: str) -> Mechanism:
    """The mechanism by which this broker proves to others who it is."""
    from ottla.server.security.listeners import login_module

    name = config.sasl_mechanism_inter_broker_protocol
    if name not in config.of_listener(listener, "sasl.enabled.mechanisms"):
        raise InvalidSetting(
            "sasl.mechanism.inter.broker.protocol",
            name,
            f"it must be one of sasl.enabled.mechanisms of {listener}",
        )
    module = login_module(config, listener, name)
    options = {} if module is None else module.options
    if name == "OAUTHBEARER":
        return _own_token(config, listener, options)
    username, password = _both(listener, name, options, "username", "password")
    if name == "PLAIN":
        return Plain(username, password)
    return Scram(username, password, hash_name(name))


def _own_token(config: BrokerConfig, listener: str, options: Mapping[str, str]) -> Mechanism:
    from ottla.wire.oidc import ClientCredentials, KeptToken, TokenFile, extensions_of, file_of

    setting = "sasl.oauthbearer.token.endpoint.url"
    endpoint: str | None = config.of_listener(listener, setting)
    if not endpoint:
        raise InvalidSetting(
            setting,
            "",
            f"it must be set, for brokers talk to each other over {listener} with OAUTHBEARER",
        )
    extensions = extensions_of(options)
    file = file_of(endpoint)
    if file is not None:
        source = TokenFile(file, extensions)
        try:
            source.read()
        except RefusedByMechanism as error:
            raise InvalidSetting(setting, endpoint, str(error)) from None
        return OAuthBearer(KeptToken(source))
    if not endpoint.lower().startswith(("https:", "http:")):
        raise InvalidSetting(setting, endpoint, "it must be an https:, http: or file: URL")
    client, secret = _both(listener, "OAUTHBEARER", options, "clientId", "clientSecret")
    scope = options.get("scope")
    return OAuthBearer(KeptToken(ClientCredentials(endpoint, client, secret, scope, extensions)))


def _both(
    listener: str, mechanism: str, options: Mapping[str, str], name: str, secret: str
) -> tuple[str, str]:
    """The two options of this broker's login. Raises InvalidSetting."""
    if name in options and secret in options:
        return options[name], options[secret]
    raise InvalidSetting(
        f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config",
        None,
        f"it must have {name} and {secret} of this broker, for brokers talk to each other "
        f"over {listener}",
    )
