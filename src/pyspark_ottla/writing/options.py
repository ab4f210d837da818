"""The options of the sink: those of Spark's Kafka sink, and what it takes to write exactly once.

As those of the source, they come in lower case and get their spelling back; each is taken, passed over
with a line in the log, or refused by name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ottla.client.configuration.clients import ClientSettings, ProducerSettings, read_settings
from ottla.client.configuration.options import options_of
from ottla.client.errors import ConfigurationError
from pyspark_ottla import options as reading
from pyspark_ottla.errors import OptionError
from pyspark_ottla.option_names import (
    KAFKA,
    OptionNames,
    client_option_error,
    client_options,
)

logger = logging.getLogger(__name__)

Guarantee = Literal["exactly-once", "at-least-once"]
Mode = Literal["batch", "streaming"]

_TWO_PHASES: Final = "transaction.two.phase.commit.enable"
_ACCEPTED: Final = ("topic", "deliveryGuarantee", "txnAppId", "txnVersion", "includeTimestamp")
# What Spark hands over for its own ends, or its sink takes and does nothing with.
_NO_EFFECT: Final[Mapping[str, str]] = {
    "checkpointLocation": "",  # Spark's own: nothing to tell
    "queryName": "",
    "includeHeaders": "the column headers is written if there is one",
}
_REFUSED: Final[Mapping[str, str]] = {
    "kafka.key.serializer": "keys are written as the bytes or the text that they are",
    "kafka.value.serializer": "values are written as the bytes or the text that they are",
    "kafka.interceptor.classes": "Java classes cannot be loaded",
    "kafka.transactional.id": "the sink names its transactions itself; see deliveryGuarantee",
    **{
        name: "it is for reads"
        for name in (*reading.ACCEPTED, *reading.NO_EFFECT)
        if name not in (*_ACCEPTED, *_NO_EFFECT) and not name.startswith(KAFKA)
    },
}
_NAMES: Final = OptionNames(
    "sink",
    "writes",
    accepted=_ACCEPTED,
    no_effect=_NO_EFFECT,
    refused=_REFUSED,
    near=(*_ACCEPTED, *_NO_EFFECT, "kafka.bootstrap.servers", "kafka.compression.type"),
)
_GUARANTEES: Final[Mapping[str, Guarantee]] = {
    "exactly-once": "exactly-once",
    "at-least-once": "at-least-once",
}
_VERSION: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write, checked as far as they can be without a look at rows and topics."""

    topic: str | None = None
    client: dict[str, str] = field(default_factory=dict)  # the Java client's names
    guarantee: Guarantee = "at-least-once"
    application: str | None = None  # txnAppId
    version: int | None = None  # txnVersion
    include_timestamp: bool = False

    @property
    def settings(self) -> ProducerSettings:
        return read_settings(ProducerSettings, self.client)

    @property
    def two_phase_commit(self) -> bool:
        """Whether to use it where the broker offers it: unless the user says no."""
        return _TWO_PHASES not in self.client or self.settings.two_phase_commit

    @property
    def any_client(self) -> dict[str, str]:
        """The client's options without those that only a producer has."""
        own = _names(ProducerSettings) - _names(ClientSettings)
        return {name: value for name, value in self.client.items() if name not in own}


def _names(settings: type[ClientSettings]) -> set[str]:
    declared = options_of(settings).values()
    return {name for each in declared for name in (each.name, *each.also)}


def read_sink_options(given: Mapping[str, str], mode: Mode) -> SinkOptions:
    """The options that Spark hands over; OptionError at the first that is wrong."""
    named = _NAMES.spelled(given)
    client = client_options(named)
    version = _version(named, mode)
    options = SinkOptions(
        topic=_topic(named),
        client=client,
        guarantee=_guarantee(named, mode, version),
        application=named.get("txnAppId"),
        version=version,
        include_timestamp=_boolean(named, "includeTimestamp"),
    )
    _check_client(options)
    return options


def _check_client(options: SinkOptions) -> None:
    if "bootstrap.servers" not in options.client:
        raise OptionError("the option kafka.bootstrap.servers is needed")
    try:
        settings = options.settings
    except ConfigurationError as error:
        raise client_option_error(error) from None
    strong = settings.idempotence is not False and settings.acks == -1
    if strong or options.guarantee == "at-least-once":
        return
    wrong = "kafka.acks" if settings.acks != -1 else "kafka.enable.idempotence"
    raise OptionError(
        f"{wrong} is too weak to write exactly once, which needs acks=all and idempotence; leave it "
        "out, or set deliveryGuarantee=at-least-once"
    )


def _topic(named: Mapping[str, str]) -> str | None:
    topic = named.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("topic takes the name of a topic, and it is empty")
    return None if topic is None else topic.strip()


def _guarantee(named: Mapping[str, str], mode: Mode, version: int | None) -> Guarantee:
    given = named.get("deliveryGuarantee")
    if given is None:
        return "exactly-once" if mode == "streaming" or version is not None else "at-least-once"
    found = given.strip().lower()
    if found not in _GUARANTEES:
        raise OptionError(f"deliveryGuarantee takes {' or '.join(_GUARANTEES)}, not {given!r}")
    if found == "at-least-once" and version is not None:
        raise OptionError("txnVersion is there to write once, and deliveryGuarantee says otherwise")
    if found == "exactly-once" and mode == "batch" and version is None:
        raise OptionError(
            "deliveryGuarantee=exactly-once needs txnAppId and txnVersion in a batch query, to tell "
            "a write that is repeated from one that is new"
        )
    return _GUARANTEES[found]


def _version(named: Mapping[str, str], mode: Mode) -> int | None:
    given = named.get("txnVersion")
    if (given is None) != ("txnAppId" not in named):
        raise OptionError(
            "txnAppId and txnVersion belong together: the application that writes, and a number "
            "that grows with each of its writes"
        )
    if given is None:
        return None
    if mode == "streaming":
        raise OptionError(
            "txnAppId and txnVersion are for batch queries and foreachBatch; a streaming query "
            "numbers its batches itself"
        )
    if not named["txnAppId"]:
        raise OptionError("txnAppId takes a text that is not empty")
    if not _VERSION.fullmatch(given.strip()):
        raise OptionError(f"txnVersion takes a whole number from 0, not {given!r}")
    return int(given)


def _boolean(named: Mapping[str, str], name: str) -> bool:
    given = named.get(name, "false").strip().lower()
    if given not in ("true", "false"):
        raise OptionError(f"{name} takes true or false, not {named[name]!r}")
    return given == "true"
