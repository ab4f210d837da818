"""Long requests where an authorizer looks at each name: the work grows with the request, not faster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.protocol.message import Message
from ottla.protocol.messages import (
    consumer_group_describe,
    describe_groups,
    describe_transactions,
    find_coordinator,
)
from ottla.server.security.guards import groups, transactions

MANY = 300


class Name(str):
    """Counts how often names are compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


class Access:
    """Allows every other name."""

    def may(self, _operation: object, _kind: object, name: str, **_: object) -> bool:
        return name.endswith(("0", "2", "4", "6", "8"))

    def operations(self, _kind: object, _name: str) -> int:
        return 0


def names() -> list[str]:
    return [Name(f"name-{number}") for number in range(MANY)]


REQUESTS: dict[str, tuple[Any, Message, Message, int]] = {
    "FindCoordinator": (
        groups.find_coordinator,
        find_coordinator.FindCoordinatorRequest(coordinator_keys=names()),
        find_coordinator.FindCoordinatorResponse(),
        4,
    ),
    "DescribeGroups": (
        groups.describe_groups,
        describe_groups.DescribeGroupsRequest(groups=names()),
        describe_groups.DescribeGroupsResponse(),
        5,
    ),
    "ConsumerGroupDescribe": (
        groups.describe_groups,
        consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=names()),
        consumer_group_describe.ConsumerGroupDescribeResponse(),
        0,
    ),
    "DescribeTransactions": (
        transactions.describe_transactions,
        describe_transactions.DescribeTransactionsRequest(transactional_ids=names()),
        describe_transactions.DescribeTransactionsResponse(),
        0,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_names_are_not_looked_for_in_lists(name: str) -> None:
    guard, message, response, version = REQUESTS[name]
    request = SimpleNamespace(message=message, version=version)
    Name.compared = 0
    answer = guard(Access(), request, lambda _: response)
    assert Name.compared <= MANY
    # Those that are refused are answered, the others went on.
    refused = [each for field in answer.declared for each in _list(getattr(answer, field))]
    passed = [each for field in message.declared for each in _list(getattr(message, field))]
    assert (len(refused), len(passed)) == (MANY // 2, MANY // 2)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
