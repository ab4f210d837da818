"""The exceptions that users of the client see.

    OttlaError
    ├── ConfigurationError        an option that is unknown, or a value that makes no sense
    ├── ClientClosed              the client was used after it was closed
    │   └── ClientForked          it was made by the process that this one was forked from
    ├── AlreadyRead               what can be read once was read to its end
    ├── ClusterUnreachable        no broker could be reached
    │   └── AdvertisedUnreachable none at the address that the cluster itself names for it
    ├── AuthenticationError       a broker refused our credentials, or its own did not convince
    ├── Unsupported               the broker is too old (or too different) for this
    ├── TimedOut                  the time was up; `__cause__` is the last thing that went wrong
    │   └── DeliveryTimeout       records were not acknowledged in time
    ├── BufferFull                the producer's memory is used up
    ├── CorruptRecords            what a broker sent is not what record batches look like
    ├── NoStartingOffset          nobody has said where in a partition to begin
    ├── LogTruncated              records that were read are not in the log any more
    ├── Failures                  several things were asked for, and some of them failed
    └── BrokerError               the broker answered with an error code (`code`, `name`)
        ├── TopicNotFound, TopicExists, InvalidTopic, OffsetOutOfRange, RecordTooLarge,
        ├── GroupNotFound, GroupNotEmpty, UnknownMember, NotAuthorized, InvalidSetting, …
        ├── CommitFailed          offsets of partitions that are another member's by now
        ├── PartlyDeleted         some records of a partition were deleted, then it failed
        └── Fenced                another instance has taken this one's place

`broker_error` makes the right BrokerError of a code. What happens on a connection (ottla.wire.errors)
is turned into these by `client_error`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from ottla.client.positions import TopicPartition
from ottla.protocol.errors import ErrorCode, error_code
from ottla.wire import errors as wire


class OttlaError(Exception):
    """Whatever the client raises on purpose."""


class ConfigurationError(OttlaError, ValueError):
    """An option is unknown, or its value cannot be used; the message says what to do."""


class ClientClosed(OttlaError):
    """The client was closed and cannot be used any more."""


class ClientForked(ClientClosed):
    """The client was made before the process forked: it works in the parent alone."""


class AlreadyRead(OttlaError):
    """A scan was read to its end already: its rows come once. Ask for another scan."""


class ClusterUnreachable(OttlaError):
    """No broker could be reached; the message names the addresses and what became of them."""


class AdvertisedUnreachable(ClusterUnreachable):
    """A bootstrap server answers, and no broker is to be reached at the address it advertises."""


class AuthenticationError(OttlaError):
    """A broker refused our credentials, or could not prove that it knows them itself."""


class Unsupported(OttlaError):
    """The broker does not offer what this needs."""


class TimedOut(OttlaError, TimeoutError):
    """The time for it was up; `__cause__` is the last thing that went wrong, if anything did."""


class DeliveryTimeout(TimedOut):
    """Records were not acknowledged within delivery.timeout.ms; they may have been written."""


class BufferFull(OttlaError):
    """The producer holds as many records as it may, and none could be sent in time."""


class CorruptRecords(OttlaError):
    """Records that a broker sent are damaged; the message names topic, partition and offset."""


class NoStartingOffset(OttlaError):
    """Nothing was committed (or it is gone), and auto.offset.reset is "error": seek to begin."""


class LogTruncated(OttlaError):
    """The log was cut off before the position: records that were read are lost, or others now.

    That happens where a replica becomes leader that lacked records (an unclean election). It is raised
    if auto.offset.reset is "error"; else reading goes on where the logs part. `seek` to go on.
    """

    def __init__(self, message: str, offset: int, diverging_offset: int) -> None:
        super().__init__(message)
        self.offset = offset  # what was to be read next
        self.diverging_offset = (
            diverging_offset  # from here on the log holds other records, or none
        )

    def __reduce__(self) -> tuple[type[LogTruncated], tuple[str, int, int]]:
        return type(self), (str(self), self.offset, self.diverging_offset)


class Failures(OttlaError, ExceptionGroup[OttlaError]):
    """Several things were asked for in one call, and some failed.

    `errors` has the exception of each that failed, `results` what became of the others. It is an
    exception group: `except* TopicExists` catches those of one kind.
    """

    errors: Mapping[Any, OttlaError]
    results: Mapping[Any, Any]

    @classmethod
    def of(cls, errors: Mapping[Any, OttlaError], results: Mapping[Any, Any]) -> Failures:
        several = cls(f"{len(errors)} of {len(errors) + len(results)}", list(errors.values()))
        several.errors = dict(errors)
        several.results = dict(results)
        return several

    def __str__(self) -> str:
        return f"{self.message} failed: " + "; ".join(map(str, self.exceptions))


class BrokerError(OttlaError):
    """The broker answered with an error code."""

    codes: ClassVar[tuple[ErrorCode, ...]] = ()

    def __init__(self, code: ErrorCode, message: str | None = None, about: str = "") -> None:
        super().__init__(code, message, about)
        self.code = code
        self.about = about  # what it is about, for example "topic 'orders'"
        self.message = message or code.message

    @property
    def name(self) -> str:
        """The code's name as Kafka has it, for example UNKNOWN_TOPIC_OR_PARTITION."""
        return self.code.name

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.retriable

    def __str__(self) -> str:
        subject = f"{self.about}: " if self.about else ""
        return f"{subject}{self.message.rstrip('.')} ({self.code.name})"

    def __reduce__(self) -> tuple[type[BrokerError], tuple[Any, ...]]:
        return type(self), (self.code, self.message, self.about)


class TopicNotFound(BrokerError):
    """There is no such topic or partition, or it was deleted."""

    codes = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class TopicExists(BrokerError):
    """A topic of this name exists already."""

    codes = (ErrorCode.TOPIC_ALREADY_EXISTS,)


class InvalidTopic(BrokerError):
    """The topic's name is not allowed, or what was asked is not allowed on it."""

    codes = (ErrorCode.INVALID_TOPIC_EXCEPTION,)


class InvalidPartitions(BrokerError):
    """The number of partitions cannot be, or cannot be reached from the present one."""

    codes = (ErrorCode.INVALID_PARTITIONS,)


class InvalidReplication(BrokerError):
    """The replication factor or assignment cannot be, for example for want of brokers."""

    codes = (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT)


class InvalidSetting(BrokerError):
    """A setting is unknown to the broker, or its value is refused."""

    codes = (ErrorCode.INVALID_CONFIG,)


class PolicyViolation(BrokerError):
    """A policy of the broker forbids it."""

    codes = (ErrorCode.POLICY_VIOLATION,)


class OffsetOutOfRange(BrokerError):
    """The offset lies outside what the log holds."""

    codes = (ErrorCode.OFFSET_OUT_OF_RANGE,)


class RecordTooLarge(BrokerError):
    """A record batch is larger than the broker or the topic allows."""

    codes = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


class InvalidRecords(BrokerError):
    """The broker refused records: no key where one is needed, a timestamp out of bounds, …"""

    codes = (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP, ErrorCode.CORRUPT_MESSAGE)


class NotAuthorized(BrokerError):
    """The user may not do this."""

    codes = (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    )


class SecurityDisabled(BrokerError):
    """The broker has no authorizer, so it keeps no ACLs."""

    codes = (ErrorCode.SECURITY_DISABLED,)


class GroupNotFound(BrokerError):
    """There is no such group."""

    codes = (ErrorCode.GROUP_ID_NOT_FOUND,)


class GroupNotEmpty(BrokerError):
    """The group still has members, or still subscribes to the topic."""

    codes = (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)


class UnknownMember(BrokerError):
    """The group has no such member: it was removed, or its time ran out."""

    codes = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class CommitFailed(BrokerError):
    """Offsets were not committed: their partitions are not this member's, or not any more.

    Others have taken them over, or this consumer was away from its group for too long
    (max.poll.interval.ms, session.timeout.ms). Nothing is lost: whoever has the partitions now reads
    the records again, from what was committed before. To commit the same offsets again is of no use;
    go on reading, and the consumer gets what its group assigns to it. `partitions` names those it is
    about; offsets of others that were given in the same call are committed.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        about: str = "",
        partitions: Iterable[TopicPartition] = (),
    ) -> None:
        super().__init__(code, message, about)
        self.partitions = frozenset(partitions)

    def __reduce__(self) -> tuple[type[CommitFailed], tuple[Any, ...]]:
        return type(self), (self.code, self.message, self.about, self.partitions)


class PartlyDeleted(BrokerError):
    """Some records of a partition were deleted before the broker refused the next: `deleted` of them.

    Where there are more than go into one request, all of them are checked first, so this means that
    the log has changed since (retention, somebody else's deletions).
    """

    def __init__(
        self, code: ErrorCode, message: str | None = None, about: str = "", deleted: int = 0
    ) -> None:
        super().__init__(code, message, about)
        self.deleted = deleted

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.deleted:,} records were deleted before that"

    def __reduce__(self) -> tuple[type[PartlyDeleted], tuple[Any, ...]]:
        return type(self), (self.code, self.message, self.about, self.deleted)


class TransactionNotFound(BrokerError):
    """There is no such transactional id."""

    codes = (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,)


class TransactionAbortable(BrokerError):
    """The transaction cannot go on: abort it and begin another."""

    codes = (ErrorCode.TRANSACTION_ABORTABLE,)


class Fenced(BrokerError):
    """Another producer or member has taken this one's place: it must not go on."""

    codes = (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    )


_BY_CODE: Final[Mapping[ErrorCode, type[BrokerError]]] = {
    code: kind for kind in BrokerError.__subclasses__() for code in kind.codes
}


def broker_error(code: int, message: str | None = None, about: str = "") -> BrokerError:
    """The exception for an error code: of a class of its own where there is one."""
    known = error_code(code)
    if known is ErrorCode.UNKNOWN_SERVER_ERROR and code != known and not message:
        message = f"an error of code {code}, which this client does not know"
    return _BY_CODE.get(known, BrokerError)(known, message, about)


def raise_for(code: int, message: str | None = None, about: str = "") -> None:
    """Raise what the code stands for; 0 stands for nothing."""
    if code:
        raise broker_error(code, message, about)


def client_error(error: wire.WireError) -> OttlaError:
    """What happened on a connection, in the terms of the client."""
    if isinstance(error, wire.AuthenticationFailed):
        return AuthenticationError(str(error))
    if isinstance(error, wire.UnsupportedByBroker):
        return Unsupported(str(error))
    if isinstance(error, wire.RequestTimeout):
        return TimedOut(str(error))
    return ClusterUnreachable(str(error))
