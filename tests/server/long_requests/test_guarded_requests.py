"""Long requests where an authorizer looks at each name: the work grows with the request, not faster,
and the loop has its turn between slices of it, whether much is allowed or much is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from server_kit.access import guarded_settings
from server_kit.broker_thread import BrokerThread
from server_kit.long_requests import (
    LONG,
    LONG_QUESTIONS,
    LONGEST,
    Turns,
    count_steps,
    entries_of,
    errors_of,
    make_ready,
)
from server_kit.long_requests import MANY as VERY_MANY
from server_kit.security import authenticate
from server_kit.wire import Wire

from ottla.cluster.metadata import ClusterImage, Partition, Topic
from ottla.cluster.security.acls import CLUSTER_NAME, Acl
from ottla.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from ottla.protocol.message import Message
from ottla.protocol.messages import (
    consumer_group_describe,
    create_topics,
    describe_groups,
    describe_topic_partitions,
    describe_transactions,
    find_coordinator,
    list_groups,
    list_transactions,
    metadata,
    offset_commit,
)
from ottla.server.api import Later
from ottla.server.observability import limited_log
from ottla.server.security.guards import groups, topics, transactions
from ottla.server.turns import Steps
from ottla.wire.sasl import Plain

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
    answer = done(guard(Access(), request, lambda _: response))
    assert Name.compared <= MANY
    # Those that are refused are answered, the others went on.
    refused = [each for field in answer.declared for each in _list(getattr(answer, field))]
    passed = [each for field in message.declared for each in _list(getattr(message, field))]
    assert (len(refused), len(passed)) == (MANY // 2, MANY // 2)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def done(steps: Steps[Any], most: int | None = None) -> Any:
    """What the steps lead to."""
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as stop:
            assert most is None or count >= most
            return stop.value


# What handlers answer with, however they do -------------------------------------------------------


def response_of(count: int) -> list_groups.ListGroupsResponse:
    return list_groups.ListGroupsResponse(
        groups=[list_groups.ListedGroup(group_id=f"group-{each}") for each in range(count)]
    )


class Peeking(Access):
    def cluster(self, _operation: object, **_: object) -> bool:
        return False


@pytest.mark.parametrize("way", ["at once", "in steps", "awaited", "later", "later from steps"])
def test_answers_are_finished_however_they_come(way: str) -> None:
    """A list of many groups, of which every other one may be seen."""

    async def ask() -> Any:
        later = Later()

        async def answer() -> Message:
            return response_of(MANY)

        def steps() -> Steps[Any]:
            yield
            return later if way == "later from steps" else response_of(MANY)

        def proceed(_: object) -> Any:
            if way == "at once":
                return response_of(MANY)
            if way == "awaited":
                return answer()
            return later if way == "later" else steps()

        request: Any = SimpleNamespace(message=list_groups.ListGroupsRequest(), version=5)
        guarded = done(groups.list_groups(Peeking(), request, proceed))  # type: ignore[arg-type]
        if isinstance(guarded, Message):
            return guarded
        if not isinstance(guarded, Later):
            return await guarded
        finished: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        guarded.done = finished.set_result
        assert later.done is not None
        later.done(response_of(MANY))
        return await finished

    answer = asyncio.run(ask())
    assert [each.group_id for each in answer.groups] == [
        f"group-{each}" for each in range(0, MANY, 2)
    ]


def test_lists_are_looked_through_in_steps() -> None:
    """Those of responses, of which the request says nothing."""
    access: Any = Peeking()
    request: Any = SimpleNamespace(message=list_transactions.ListTransactionsRequest(), version=1)
    states = [
        list_transactions.TransactionState(transactional_id=f"id-{each}") for each in range(MANY)
    ]
    listed = list_transactions.ListTransactionsResponse(transaction_states=states)
    answer = done(transactions.list_transactions(access, request, lambda _: listed), MANY)
    assert len(answer.transaction_states) == MANY // 2
    made = [create_topics.CreatableTopicResult(name=f"t-{each}") for each in range(MANY)]
    request = SimpleNamespace(message=create_topics.CreateTopicsRequest(topics=[]), version=7)
    created = create_topics.CreateTopicsResponse(topics=made)
    answer = done(topics.create_topics(access, request, lambda _: created), MANY)
    assert sum(each.topic_config_error_code != 0 for each in answer.topics) == MANY // 2


def test_the_next_page_is_looked_for_in_steps() -> None:
    names = [f"topic-{each:05}" for each in range(1, 2 * MANY, 2)]  # none of them may be seen
    partitions = (Partition(0, (1,), (1,), 1),)
    found = {name: Topic(name, name.encode(), partitions) for name in (*names, "z-0")}
    cursor = describe_topic_partitions.CursorResponse(topic_name=names[3], partition_index=0)
    response = describe_topic_partitions.DescribeTopicPartitionsResponse(next_cursor=cursor)
    request: Any = SimpleNamespace(
        message=describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[]),
        version=0,
        broker=SimpleNamespace(image=ClusterImage("id", topics=found)),
    )
    access: Any = Peeking()
    steps: Any = topics.describe_topic_partitions(access, request, lambda _: response)
    answer = done(steps, MANY)
    assert answer.next_cursor.topic_name == "z-0"


# On a broker --------------------------------------------------------------------------------------

# Of the rest one is like the other; the long run has all.
IN_SHORT_RUNS = ("Metadata", "OffsetCommit", "ConsumerGroupHeartbeat")
ALL = {**LONG, **LONG_QUESTIONS}
NAMES = [
    name if name in IN_SHORT_RUNS else pytest.param(name, marks=pytest.mark.long) for name in ALL
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """With a user that may do everything by its entries, and one that has none."""
    settings = guarded_settings(
        {"may": "x", "must-not": "x"},
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="1",
    )
    entries = [
        Acl(kind, name, AclPattern.LITERAL, "User:may", "*", AclOperation.ALL, AclPermission.ALLOW)
        for kind, name in (
            (AclResource.TOPIC, "*"),
            (AclResource.GROUP, "*"),
            (AclResource.TRANSACTIONAL_ID, "*"),
            (AclResource.CLUSTER, CLUSTER_NAME),
        )
    ]
    with BrokerThread(tmp_path_factory.mktemp("guarded"), settings=settings) as running:
        running.run_async(running.broker.controller.create_acls(entries))
        make_ready(running)
        yield running


@pytest.mark.parametrize("user", ["may", "must-not"])
@pytest.mark.parametrize("name", NAMES)
def test_the_loop_has_its_turn_while_names_are_looked_at(
    guarded: BrokerThread, name: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, kind, version = ALL[name]
    with Wire("127.0.0.1", guarded.broker.bound[1].port) as wire:
        authenticate(wire, Plain(user, "x"))
        short = wire.call(make(7), kind, version)  # what is imported on first use is imported now
        count_steps(monkeypatch)
        # Of denials few lines are written; other tests want all of them.
        monkeypatch.setattr(limited_log, "LINES", 3)
        with Turns(guarded) as seen:
            response = wire.call(make(VERY_MANY), kind, version)
    assert seen.longest < LONGEST
    assert errors_of(response) == errors_of(short)
    if name in LONG and user == "must-not" and name not in WHOLE:
        assert entries_of(response) >= VERY_MANY


# Refused with one error for the whole request.
WHOLE = ("OffsetDelete", "LeaveGroup", "OffsetFetch", "DescribeLogDirs")


def test_commits_of_many_topics_are_refused_in_steps() -> None:
    message = offset_commit.OffsetCommitRequest(
        group_id="0",
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=f"t-{each}",
                partitions=[offset_commit.OffsetCommitRequestPartition() for _ in range(10)],
            )
            for each in range(MANY)
        ],
    )
    request: Any = SimpleNamespace(message=message, version=9)
    access: Any = Peeking()
    handled: list[int] = []

    def proceed(passed: Any) -> Message:
        handled.append(len(passed.message.topics))
        return offset_commit.OffsetCommitResponse()

    answer = done(groups.offset_commit(access, request, proceed), MANY + 10 * MANY // 2)
    assert handled == [MANY // 2]
    assert [len(each.partitions) for each in answer.topics] == [10] * (MANY // 2)


def test_what_is_asked_in_the_first_version_is_not_answered_with_all() -> None:
    """An empty list means all topics there."""
    message = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="t-1")])
    image = ClusterImage("id")
    request: Any = SimpleNamespace(
        message=message, version=0, broker=SimpleNamespace(image=image, config=SimpleNamespace())
    )
    access: Any = Peeking()
    everything = [metadata.MetadataResponseTopic(name="t-0"), metadata.MetadataResponseTopic()]
    steps = topics.metadata(access, request, lambda _: metadata.MetadataResponse(topics=everything))
    assert [each.name for each in done(steps).topics] == ["t-1"]
