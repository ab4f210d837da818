"""What the parts of the admin client have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar

from ottla.client.cluster import ANY, Cluster, Request, Route
from ottla.client.errors import OttlaError, broker_error
from ottla.client.spreading import Outcomes, Verdict
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.message import Message

# The table calls them retriable, because metadata may lag; of what a user named they are final.
_NOT_AGAIN: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.ELECTION_NOT_NEEDED,
    )
)

_Answer = TypeVar("_Answer", bound=Message)
_Item = TypeVar("_Item", bound=Hashable)
_Value = TypeVar("_Value")


class AdminPart:
    """A part of AsyncAdmin: the calls of one subject."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def _timeout_ms(self) -> int:
        """How long a broker may take for one request."""
        return int(self.cluster.settings.request_timeout * 1000)

    async def _ask(
        self,
        request: Request,
        answer: type[_Answer],
        *,
        read: Callable[[_Answer], Iterable[Verdict[_Item, _Value]]],
        about: Callable[[_Item], str],
        at: Route = ANY,
        timeout: float | None = None,
        at_most: int | None = None,
    ) -> Outcomes[_Item, _Value]:
        """One request about several items, all of which the same broker answers for.

        It is repeated while every item fails for a reason that passes (a controller that moved);
        an answer that did something for one of them is taken as it is.
        """

        def failing(decoded: _Answer) -> int:
            codes = [verdict.code for verdict in read(decoded)]
            passing = codes and all(
                error_code(code).retriable and error_code(code) not in _NOT_AGAIN for code in codes
            )
            return codes[0] if passing else 0

        decoded = await self.cluster.ask(
            request, answer, at=at, timeout=timeout, failing=failing, at_most=at_most
        )
        results: dict[_Item, _Value] = {}
        errors: dict[_Item, OttlaError] = {}
        for verdict in read(decoded):
            if verdict.code:
                errors[verdict.item] = broker_error(
                    verdict.code, verdict.message, about(verdict.item)
                )
            else:
                results[verdict.item] = verdict.value
        return Outcomes(results, errors)
