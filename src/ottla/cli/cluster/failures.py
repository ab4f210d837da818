"""What went wrong between a command and the cluster, in one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ottla.cli.addresses import no_answer, no_such_topic
from ottla.cli.failures import Failure
from ottla.client.errors import (
    AdvertisedUnreachable,
    BrokerError,
    ClusterUnreachable,
    Failures,
    GroupNotEmpty,
    GroupNotFound,
    InvalidSetting,
    OttlaError,
    RecordTooLarge,
    TimedOut,
    TopicExists,
    TopicNotFound,
    TransactionNotFound,
    Unsupported,
)


@contextmanager
def failures_reported(
    servers: str,
    *,
    topic: str | None = None,
    group: str | None = None,
    transaction: str | None = None,
) -> Iterator[None]:
    """Whatever goes wrong inside is told in one sentence, about the thing that is named."""
    try:
        yield
    except OttlaError as error:
        raise failure_of(error, servers, topic, group, transaction) from error


def failure_of(
    error: OttlaError,
    servers: str,
    topic: str | None = None,
    group: str | None = None,
    transaction: str | None = None,
) -> Failure:
    match error:
        case Failures():
            first = next(iter(error.errors.values()))
            return failure_of(first, servers, topic, group, transaction)
        case AdvertisedUnreachable():
            return Failure(str(error))
        case TimedOut() if isinstance(error.__cause__, BrokerError):
            # It does answer; its last answer is in the message.
            return Failure(str(error))
        case TimedOut() | ClusterUnreachable():
            cause = error.__cause__
            reason = str(cause) if isinstance(cause, OttlaError) else str(error)
            return no_answer(servers, reason)
        case TopicNotFound():
            return no_such_topic(topic or error.about.removeprefix("topic ").strip("'"))
        case TopicExists() if topic:
            return Failure(
                f"topic '{topic}' exists already; change it with `ottla topic alter {topic}`"
            )
        case RecordTooLarge() if topic:
            return Failure(
                "a record is larger than the topic allows; raise its limit with "
                f"`ottla config set topic {topic} max.message.bytes=…`"
            )
        case InvalidSetting() if topic:
            return Failure(
                f"{error.message.rstrip('. ')}; settings and their values are listed by "
                "`ottla config describe topic NAME --all`"
            )
        case GroupNotFound() if group:
            return Failure(f"there is no group '{group}'; `ottla group list` shows those there are")
        case GroupNotEmpty() if group:
            return Failure(
                f"group '{group}' has members; stop them first "
                f"(`ottla group members {group}` shows them)"
            )
        case TransactionNotFound() if transaction:
            return Failure(
                f"there is no transactional id '{transaction}'; "
                "`ottla transaction list` shows those there are"
            )
        case Unsupported():
            return Failure(f"the broker is too old for this: {error}")
        case BrokerError():
            return Failure(f"the broker refused: {error.message.rstrip('. ')}")
        case _:
            return Failure(str(error))
