"""What goes wrong, as an HTTP answer: a status, and one sentence in JSON.

    {"error": {"status": 404, "code": "UNKNOWN_TOPIC_OR_PARTITION", "message": "…"}}

`code` is Kafka's name where a broker has refused, else the words of the HTTP status.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from ottla.client.errors import (
    AuthenticationError,
    BrokerError,
    ClusterUnreachable,
    Failures,
    InvalidTopic,
    NotAuthorized,
    OffsetOutOfRange,
    OttlaError,
    TimedOut,
    TopicNotFound,
    Unsupported,
)
from ottla.protocol.errors import ErrorCode

_LONGEST_MESSAGE: Final = 1000


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= _LONGEST_MESSAGE else f"{message[:999]}…"
        self.code = HTTPStatus(status).name if code is None else code

    @property
    def error(self) -> dict[str, Any]:
        return {"status": self.status, "code": self.code, "message": self.message}


def refusal_of(error: OttlaError, *, named: bool = True) -> Refusal:
    """What a failure of the client means for who asked over HTTP; `named` says what it is about."""
    match error:
        case Failures():
            return refusal_of(min(error.errors.items())[1], named=named)
        case TopicNotFound():
            status = HTTPStatus.NOT_FOUND
        case OffsetOutOfRange():
            status = HTTPStatus.NOT_FOUND
        case NotAuthorized():
            status = HTTPStatus.FORBIDDEN
        case InvalidTopic():
            status = HTTPStatus.BAD_REQUEST
        case BrokerError() if error.code is ErrorCode.INVALID_REQUEST:
            # The request was checked before it was sent: what is in the way is what the log holds.
            status = HTTPStatus.CONFLICT
        case BrokerError():
            status = HTTPStatus.SERVICE_UNAVAILABLE if error.retriable else HTTPStatus.BAD_GATEWAY
        case TimedOut() | ClusterUnreachable():
            status = HTTPStatus.SERVICE_UNAVAILABLE
        case AuthenticationError():
            status = HTTPStatus.BAD_GATEWAY
        case Unsupported():
            status = HTTPStatus.NOT_IMPLEMENTED
        case _:
            status = HTTPStatus.BAD_GATEWAY
    code = error.name if isinstance(error, BrokerError) else None
    return Refusal(status, _sentence(error, named), code)


def _sentence(error: OttlaError, named: bool) -> str:
    if isinstance(error, BrokerError):
        about = f"{error.about}: " if named and error.about else ""
        return f"{about}{error.message.rstrip('. ')}"
    cause = error.__cause__
    if isinstance(error, TimedOut) and isinstance(cause, OttlaError):
        return f"{error}: {cause}"
    return str(error)
