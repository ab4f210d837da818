"""Groups, by both protocols, against Ottla, against a broker like Kafka 2.4, and Apache Kafka."""

from __future__ import annotations

import copy
import functools
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from consumer_kit.writing import write_values

from ottla import Admin, Consumer, Producer
from ottla.client.admin.offsets import CommittedOffset
from ottla.client.consumer.group.classic import ClassicMembership
from ottla.client.consumer.group.commits import Commits
from ottla.client.consumer.group.next_generation import NextGenerationMembership
from ottla.client.errors import (
    CommitFailed,
    ConfigurationError,
    OttlaError,
    TimedOut,
    TopicNotFound,
    Unsupported,
)
from ottla.client.loop import run
from ottla.client.positions import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from ottla.testing import BrokerProcess

PATIENCE = 30  # seconds

Make = Callable[..., Consumer]


@pytest.fixture(params=["classic", "cooperative", "consumer"])
def make(request: pytest.FixtureRequest, bootstrap: str, kind: str, group: str) -> Iterator[Make]:
    """Makes members of one group."""
    if request.param == "consumer":
        if kind == "older":
            pytest.skip("Kafka 2.4 has no groups of the next generation")
        protocol: dict[str, object] = {"group.protocol": "consumer"}
    else:
        strategy = "range" if request.param == "classic" else "cooperative-sticky"
        protocol = {
            "group.protocol": "classic",
            "partition.assignment.strategy": strategy,
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 6000,
        }
    with ExitStack() as stack:

        def one(**options: object) -> Consumer:
            settings = {"auto.offset.reset": "earliest", **protocol, **options}
            return stack.enter_context(Consumer(bootstrap, group=group, **settings))

        yield one


def until(
    condition: Callable[[], bool],
    *,
    polling: tuple[Consumer, ...] = (),
    within: float = PATIENCE,
) -> None:
    """Wait for the condition; the consumers go on asking for records meanwhile."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        for consumer in polling:
            consumer.next_batch(timeout=0.01)
        time.sleep(0.02)


def places(topic: str, count: int) -> set[TopicPartition]:
    return {TopicPartition(topic, index) for index in range(count)}


def test_members_share_and_inherit(bootstrap: str, admin: Admin, topic: str, make: Make) -> None:
    admin.create_topic(topic, partitions=4)
    for partition in range(4):
        write_values(bootstrap, topic, partition, f"a{partition}")
    first = make()
    first.subscribe(topic)
    until(lambda: first.assignment == places(topic, 4))
    found = [value for batch in _take(first, 4) for value in batch]
    assert sorted(found) == [b"a0", b"a1", b"a2", b"a3"]
    first.commit()

    second = make()
    heard: list[frozenset[TopicPartition]] = []
    second.subscribe(topic, on_assign=heard.append)
    until(
        lambda: len(first.assignment) == 2 and len(second.assignment) == 2,
        polling=(first, second),
    )
    assert first.assignment | second.assignment == places(topic, 4)
    assert frozenset().union(*heard) >= second.assignment
    assert second.positions() == dict.fromkeys(second.assignment, 1)  # what was committed

    for partition in range(4):
        write_values(bootstrap, topic, partition, f"b{partition}")
    values = [
        value for consumer in (first, second) for batch in _take(consumer, 2) for value in batch
    ]
    assert sorted(values) == [b"b0", b"b1", b"b2", b"b3"]

    second.commit()  # else it would read its last batch again
    first.close()  # leaves, and commits what was handed out
    until(lambda: second.assignment == places(topic, 4), polling=(second,))
    assert set(second.positions().values()) == {2}


def _take(consumer: Consumer, count: int) -> Iterator[list[bytes]]:
    """Batches of values until there have been `count` of them."""
    while count > 0:
        batch = consumer.next_batch(timeout=PATIENCE)
        assert batch is not None
        count -= batch.num_rows
        yield batch.column("value").to_pylist()


def test_who_listens_to_a_group_hears_nothing_of_what_is_assigned_by_hand(
    admin: Admin, topic: str, make: Make
) -> None:
    admin.create_topic(topic, partitions=2)
    consumer = make()
    revoked: list[frozenset[TopicPartition]] = []
    consumer.subscribe(topic, on_revoke=revoked.append)
    until(lambda: consumer.assignment == places(topic, 2), polling=(consumer,))
    consumer.assign({TopicPartition(topic, 0): 0})
    assert revoked == [places(topic, 2)]
    consumer.close()
    assert revoked == [places(topic, 2)]


def test_what_a_listener_raises_is_raised_where_records_are_asked_for(
    bootstrap: str, admin: Admin, topic: str, make: Make
) -> None:
    """It ends the membership: partitions of which the program does not know are not to be read."""
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, "a")

    def refuse(_: frozenset[TopicPartition]) -> None:
        raise LookupError("no place for them")

    consumer = make()
    with pytest.raises(LookupError, match="no place for them"):
        consumer.subscribe(topic, on_assign=refuse)
    with pytest.raises(LookupError, match="no place for them"):
        consumer.next_batch(timeout=PATIENCE)
    assert not consumer.assignment
    consumer.close()
    other = make()
    other.subscribe(topic)
    until(lambda: other.assignment == places(topic, 1), polling=(other,))


def test_what_a_listener_raises_when_partitions_are_revoked(
    admin: Admin, topic: str, make: Make
) -> None:
    admin.create_topic(topic, partitions=2)

    def refuse(_: frozenset[TopicPartition]) -> None:
        raise LookupError("they are needed")

    first, second = make(), make()
    first.subscribe(topic, on_revoke=refuse)
    until(lambda: first.assignment == places(topic, 2), polling=(first,))
    joining = threading.Thread(target=second.subscribe, args=(topic,))
    joining.start()
    with pytest.raises(LookupError, match="they are needed"):
        until(lambda: False, polling=(first,))
    first.close()
    joining.join()
    until(lambda: second.assignment == places(topic, 2), polling=(second,))


def test_closing_leaves_the_group(
    bootstrap: str, admin: Admin, topic: str, group: str, make: Make
) -> None:
    admin.create_topic(topic)
    consumer = make()
    consumer.subscribe(topic)
    (described,) = admin.describe_groups([group]).values()
    assert len(described.members) == 1
    consumer.close()
    (described,) = admin.describe_groups([group]).values()
    assert not described.members


def test_a_listener_that_raises_at_the_end_does_not_keep_the_place_in_the_group(
    admin: Admin, topic: str, group: str, make: Make
) -> None:
    admin.create_topic(topic)

    def refuse(_: frozenset[TopicPartition]) -> None:
        raise LookupError("they are needed")

    consumer = make()
    consumer.subscribe(topic, on_revoke=refuse)
    until(lambda: consumer.assignment == places(topic, 1), polling=(consumer,))
    with pytest.raises(LookupError, match="they are needed"):
        consumer.close()
    (described,) = admin.describe_groups([group]).values()
    assert not described.members


def test_a_static_member_comes_back_to_its_own(admin: Admin, topic: str, make: Make) -> None:
    admin.create_topic(topic, partitions=2)
    one = make(group_instance_id="one")
    two = make(group_instance_id="two")
    one.subscribe(topic)
    two.subscribe(topic)
    until(lambda: len(one.assignment) == len(two.assignment) == 1, polling=(one, two))
    before = one.assignment
    one.close()
    again = make(group_instance_id="one")
    again.subscribe(topic)
    until(lambda: again.assignment == before, polling=(two, again))
    assert len(two.assignment) == 1


def test_partitions_that_are_added_are_shared_out(
    bootstrap: str, admin: Admin, topic: str, make: Make
) -> None:
    """Also those of a topic that only another member subscribes to."""
    other = f"{topic}-other"
    for name in (topic, other):
        admin.create_topic(name)
    options = {"metadata.max.age.ms": 200}
    leader, member = make(**options), make(**options)
    leader.subscribe(topic)
    member.subscribe(other)
    until(lambda: leader.assignment == places(topic, 1), polling=(leader, member))
    until(lambda: member.assignment == places(other, 1), polling=(leader, member))
    admin.create_partitions(topic, 3)
    until(lambda: leader.assignment == places(topic, 3), polling=(leader, member))
    admin.create_partitions(other, 2)
    until(lambda: member.assignment == places(other, 2), polling=(leader, member))


def test_topics_by_pattern(bootstrap: str, admin: Admin, topic: str, make: Make) -> None:
    admin.create_topic(f"{topic}-a")
    consumer = make(**{"metadata.max.age.ms": 200})
    consumer.subscribe(re.compile(rf"{topic}-[a-z]"))
    until(lambda: consumer.assignment == {(f"{topic}-a", 0)}, polling=(consumer,))
    admin.create_topic(f"{topic}-b")
    admin.create_topic(f"{topic}-0")
    expected = {(f"{topic}-a", 0), (f"{topic}-b", 0)}
    until(lambda: consumer.assignment == expected, polling=(consumer,))
    assert consumer.subscription == {f"{topic}-a", f"{topic}-b"}


def test_whoever_does_not_come_back_is_left_out(admin: Admin, topic: str, make: Make) -> None:
    admin.create_topic(topic, partitions=2)
    sleeper = make(**{"max.poll.interval.ms": 1500})
    sleeper.subscribe(topic)
    until(lambda: len(sleeper.assignment) == 2, polling=(sleeper,))
    awake = make()
    awake.subscribe(topic)
    until(lambda: len(awake.assignment) == 2, polling=(awake,))
    until(lambda: len(sleeper.assignment) == len(awake.assignment) == 1, polling=(awake, sleeper))


def test_whoever_cannot_leave_comes_back_all_the_same(
    admin: Admin, topic: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator was away when it had not asked for records for too long."""
    admin.create_topic(topic)
    sleeper = make(**{"max.poll.interval.ms": 1000})
    sleeper.subscribe(topic)
    until(lambda: sleeper.assignment == places(topic, 1), polling=(sleeper,))

    async def away(_: object) -> None:
        raise TimedOut("LeaveGroup was not done in time")

    with monkeypatch.context() as patched:
        for kind in (ClassicMembership, NextGenerationMembership):
            patched.setattr(kind, "leave", away)
        until(lambda: not sleeper.assignment)
        until(lambda: sleeper.assignment == places(topic, 1), polling=(sleeper,))


def test_the_best_protocol_there_is(
    bootstrap: str, kind: str, admin: Admin, topic: str, group: str
) -> None:
    admin.create_topic(topic)
    with Consumer(bootstrap, group=group) as consumer:
        consumer.subscribe(topic)
        expected = ClassicMembership if kind == "older" else NextGenerationMembership
        assert type(consumer._consumer._membership) is expected
    if kind == "older":
        consumer = Consumer(bootstrap, group=group, group_protocol="consumer")
        with pytest.raises(Unsupported):
            consumer.subscribe(topic)
        consumer.close()


def test_with_members_of_another_maker(
    bootstrap: str, admin: Admin, topic: str, make: Make, group: str
) -> None:
    """librdkafka in the same group, of whichever protocol: they share."""
    admin.create_topic(topic, partitions=4)
    ours = make()
    options: dict[str, object] = {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
    }  # fmt: skip
    if ours.settings.group_protocol == "consumer":
        options["group.protocol"] = "consumer"
    else:
        options["partition.assignment.strategy"] = ",".join(ours.settings.assignment_strategies)
        options["heartbeat.interval.ms"] = 100
    theirs = confluent_kafka.Consumer(options)
    try:
        # Ours first: librdkafka takes part in a rebalance only while somebody polls it, and the other
        # way round our `subscribe` would wait for a member that waits for us.
        ours.subscribe(topic)
        theirs.subscribe([topic])

        def shared() -> bool:
            theirs.poll(0.05)
            mine = ours.assignment
            other = {TopicPartition(each.topic, each.partition) for each in theirs.assignment()}
            return len(mine) == 2 and len(other) == 2 and mine | other == places(topic, 4)

        until(shared, polling=(ours,))
    finally:
        theirs.close()
    until(lambda: ours.assignment == places(topic, 4), polling=(ours,))


def test_an_assignor_that_is_none(bootstrap: str, admin: Admin, topic: str, group: str) -> None:
    admin.create_topic(topic)
    options = {"group.protocol": "classic", "partition.assignment.strategy": "best"}
    consumer = Consumer(bootstrap, group=group, **options)
    with pytest.raises(OttlaError, match="not 'best'"):
        consumer.subscribe(topic)
    consumer.close()


def test_a_member_that_comes_right_after_another_does_not_wait_for_its_next_heartbeat(
    tmp_path: Path, topic: str
) -> None:
    """Coordinators assign at intervals; what was held back when it joined is asked for again."""
    settings = {
        "group.consumer.assignment.interval.ms": "1000",
        "group.consumer.heartbeat.interval.ms": "15000",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        with Admin(process.bootstrap) as admin:
            admin.create_topic(topic)
        write_values(process.bootstrap, topic, 0, *"ab")
        for _ in range(3):
            with Consumer(process.bootstrap, group="g", auto_offset_reset="earliest") as consumer:
                consumer.subscribe(topic)
                until(functools.partial(_has_some, consumer), within=12)


def _has_some(consumer: Consumer) -> bool:
    return bool(consumer.assignment)


# Commits that come too late


def test_a_commit_after_the_time_is_up_fails(
    bootstrap: str, admin: Admin, topic: str, group: str, make: Make
) -> None:
    """Who has been away for too long hears that its rows were not committed, and can go on."""
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, "a", "b")
    sleeper = make(**{"max.poll.interval.ms": 1000, "enable.auto.commit": False})
    sleeper.subscribe(topic)
    assert sleeper.next_batch(timeout=PATIENCE) is not None
    until(lambda: not sleeper.assignment)
    with pytest.raises(CommitFailed, match=r"reads the records again") as failed:
        sleeper.commit()
    assert failed.value.partitions == places(topic, 1)
    with pytest.raises(CommitFailed):
        sleeper.commit({(topic, 0): 2})
    assert admin.committed_offsets(group) == {}
    sleeper.commit()  # it was said; there is nothing else to commit

    rows = [value for batch in _take(sleeper, 2) for value in batch]
    assert rows == [b"a", b"b"]
    sleeper.commit()
    assert admin.committed_offsets(group)[TopicPartition(topic, 0)].offset == 2


def test_a_group_that_takes_its_time_is_no_absence(tmp_path: Path) -> None:
    """Who waits for an assignment, for longer than max.poll.interval.ms, is not away."""
    settings = {"group.initial.rebalance.delay.ms": "2500"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders")
        write_values(broker.address, "orders", 0, "a")
        options = {"max.poll.interval.ms": 1000, "group.protocol": "classic"}
        with Consumer(
            broker.address, group="slow", auto_offset_reset="earliest", **options
        ) as consumer:
            consumer.subscribe("orders")
            assert consumer.assignment
            assert consumer.next_batch(timeout=PATIENCE) is not None


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param("classic", marks=pytest.mark.long),
        pytest.param("cooperative", marks=pytest.mark.long),
        "consumer",
    ],
)
def test_an_open_transaction_keeps_offsets_back_for_longer_than_a_session(
    tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is to go on where another has died in the midst of it waits, as a member of the group."""
    options: dict[str, object] = {
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "default.api.timeout.ms": 5000,
        "group.protocol": "consumer" if protocol == "consumer" else "classic",
    }
    if protocol != "consumer":
        strategy = "range" if protocol == "classic" else "cooperative-sticky"
        options |= {
            "partition.assignment.strategy": strategy,
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 3000,
        }
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "3000",
        "group.consumer.session.timeout.ms": "3000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "100",
        "group.consumer.assignment.interval.ms": "0",
    }
    lost: list[frozenset[TopicPartition]] = []
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path / "data", settings=settings))
        stack.enter_context(Admin(broker.address)).create_topic("orders", partitions=2)
        heir, other = (
            stack.enter_context(Consumer(broker.address, group="readers", **options))
            for _ in range(2)
        )
        heir.subscribe("orders", on_revoke=lost.append)
        other.subscribe("orders")
        until(lambda: len(heir.assignment) == 1 and len(other.assignment) == 1)
        (own,) = heir.assignment
        lost.clear()
        member = heir.group_member().member_id
        producer = stack.enter_context(Producer(broker.address, transactional_id="dies"))
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction(dict.fromkeys(other.assignment, 1), "readers")
        other.close()

        def has_lost_patience() -> bool:
            return any("not known yet where to begin" in each for each in caplog.messages)

        until(has_lost_patience, polling=(heir,))
        if protocol != "classic":
            # What it has, it goes on reading.
            assert heir.assignment == {own}
            assert not lost
        assert heir.group_member().member_id == member
        producer.abort_transaction()
        until(lambda: len(heir.assignment) == 2, polling=(heir,))
        assert heir.group_member().member_id == member


@pytest.mark.parametrize("step", ["_join", "_sync"])
def test_a_coordinator_that_is_away_during_a_rebalance_is_waited_for(
    bootstrap: str, admin: Admin, topic: str, group: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long: whoever is a member of the other protocol waits, too."""
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, "a")
    ask = getattr(ClassicMembership, step)
    asked = []

    async def away_at_first(*given: object) -> object:
        asked.append(given)
        if len(asked) == 1:
            raise TimedOut(f"{step} was not done in time")
        return await ask(*given)

    monkeypatch.setattr(ClassicMembership, step, away_at_first)
    options: dict[str, object] = {"group.protocol": "classic", "auto.offset.reset": "earliest"}
    with Consumer(bootstrap, group=group, **options) as consumer:
        consumer.subscribe(topic)
        assert consumer.next_batch(timeout=PATIENCE) is not None
    assert len(asked) > 1


def test_a_group_that_is_gone_is_joined_anew(
    bootstrap: str,
    admin: Admin,
    topic: str,
    group: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or that is a classic one again: whoever slept for longer than its session finds nobody there."""
    if kind == "older":
        pytest.skip("Kafka 2.4 has no groups of the next generation")
    admin.create_topic(topic)
    ask = NextGenerationMembership._heartbeat
    told = []

    async def gone_once(membership: NextGenerationMembership) -> ConsumerGroupHeartbeatResponse:
        if membership.in_group and not told:
            told.append(membership.epoch)
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        return await ask(membership)

    monkeypatch.setattr(NextGenerationMembership, "_heartbeat", gone_once)
    options: dict[str, object] = {"group.protocol": "consumer", "auto.offset.reset": "earliest"}
    with Consumer(bootstrap, group=group, **options) as consumer:
        consumer.subscribe(topic)
        until(lambda: bool(told), polling=(consumer,))
        until(lambda: bool(consumer.assignment), polling=(consumer,))


def test_a_commit_of_what_others_have_now_fails(
    bootstrap: str, admin: Admin, topic: str, group: str, make: Make
) -> None:
    admin.create_topic(topic, partitions=2)
    for partition in range(2):
        write_values(bootstrap, topic, partition, "a", "b")
    first = make(enable_auto_commit=False)
    first.subscribe(topic)
    assert len([value for batch in _take(first, 4) for value in batch]) == 4
    second = make(enable_auto_commit=False)
    second.subscribe(topic)
    until(lambda: len(first.assignment) == len(second.assignment) == 1)
    assert len([value for batch in _take(second, 2) for value in batch]) == 2
    second.commit()
    (taken,) = second.assignment
    (kept,) = first.assignment

    with pytest.raises(CommitFailed) as failed:
        first.commit({taken: 1, kept: 2})
    assert failed.value.partitions == {taken}
    # What is this member's own is committed, and the other's commit is not undone.
    committed = {each: there.offset for each, there in admin.committed_offsets(group).items()}
    assert committed == {taken: 2, kept: 2}
    while first.positions()[kept] < 2:  # an eager assignor has taken and given it back
        assert first.next_batch(timeout=PATIENCE) is not None
    first.commit()


def test_commits_of_those_that_the_group_does_not_know(
    bootstrap: str, admin: Admin, topic: str, group: str, make: Make
) -> None:
    """What coordinators answer (unknown member, another epoch or generation) is one exception."""
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, "a")
    member = make(enable_auto_commit=False)
    member.subscribe(topic)
    assert member.next_batch(timeout=PATIENCE) is not None
    membership = member._consumer._membership
    assert membership is not None

    async def commit_as(member_id: str, epoch: int) -> None:
        other = copy.copy(membership)
        other.member_id, other.epoch = member_id, epoch
        commits = Commits(membership.cluster, group)
        await commits.commit({TopicPartition(topic, 0): CommittedOffset(1)}, other)

    for member_id, epoch in (("nobody", 1), (membership.member_id, membership.epoch + 7)):
        with pytest.raises(CommitFailed) as failed:
            run(commit_as(member_id, epoch))
        assert failed.value.partitions == places(topic, 1)
        again = pickle.loads(pickle.dumps(failed.value))
        assert (str(again), again.partitions) == (str(failed.value), failed.value.partitions)
    # One that assigns itself must not commit beside the members.
    with Consumer(bootstrap, group=group) as stranger:
        stranger.assign((topic, 0))
        with pytest.raises(CommitFailed):
            stranger.commit({(topic, 0): 1})
    assert admin.committed_offsets(group) == {}
    member.commit()
    assert admin.committed_offsets(group)[TopicPartition(topic, 0)].offset == 1


def test_offsets_of_a_transaction_are_those_of_a_member(
    bootstrap: str, admin: Admin, topic: str, group: str, kind: str, make: Make
) -> None:
    """Who has lost its place in the group cannot commit with a transaction either."""
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, "a")
    consumer = make(**{"max.poll.interval.ms": 3000, "enable.auto.commit": False})
    consumer.subscribe(topic)
    assert consumer.next_batch(timeout=PATIENCE) is not None
    with Producer(bootstrap, transactional_id=group) as producer:
        producer.init_transactions()
        if kind == "older":
            producer.begin_transaction()
            with pytest.raises(Unsupported, match=r"Kafka 2\.5"):
                producer.send_offsets_to_transaction({(topic, 0): 1}, consumer.group_member())
            producer.abort_transaction()
            return
        with producer.transaction():
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_member())
        assert consumer.committed()[TopicPartition(topic, 0)].offset == 1
        before = consumer.group_member()
        until(lambda: not consumer.assignment)
        producer.begin_transaction()
        with pytest.raises(OttlaError):
            producer.send_offsets_to_transaction({(topic, 0): 0}, before)
        producer.abort_transaction()
    assert admin.committed_offsets(group)[TopicPartition(topic, 0)].offset == 1
    with Consumer(bootstrap) as stranger, pytest.raises(ConfigurationError):
        stranger.group_member()


# Topics that are deleted


def test_a_deleted_topic_of_a_pattern_is_no_error(
    bootstrap: str, admin: Admin, topic: str, make: Make
) -> None:
    stays, goes = f"{topic}-a", f"{topic}-b"
    admin.create_topics([stays, goes])
    for each in (stays, goes):
        write_values(bootstrap, each, 0, "old")
    consumer = make(**{"metadata.max.age.ms": 2000})
    consumer.subscribe(re.compile(rf"{topic}-[a-z]"))
    assert [value for batch in _take(consumer, 2) for value in batch] == [b"old", b"old"]
    consumer.commit()
    assert consumer.assignment == {(stays, 0), (goes, 0)}
    admin.delete_topics(goes)
    until(lambda: consumer.assignment == {(stays, 0)}, polling=(consumer,))
    consumer.commit()
    write_values(bootstrap, stays, 0, "new")
    values = _values(consumer, b"new")
    assert values <= {b"old", b"new"}

    admin.create_topic(goes)
    write_values(bootstrap, goes, 0, "again")
    _values(consumer, b"again")
    consumer.commit()


def test_a_deleted_topic_that_was_named_is_an_exception(
    bootstrap: str, admin: Admin, topic: str, make: Make
) -> None:
    admin.create_topic(topic)
    consumer = make(enable_auto_commit=False)
    consumer.subscribe(topic)
    until(lambda: consumer.assignment == {(topic, 0)}, polling=(consumer,))
    # The coordinator may be quicker to take it away: this consumer's membership stands still.
    stop_membership(consumer)
    admin.delete_topics(topic)
    with pytest.raises(TopicNotFound):
        consumer.next_batch(timeout=PATIENCE)
    with pytest.raises(TopicNotFound):
        consumer.commit({(topic, 0): 1})


def stop_membership(consumer: Consumer) -> None:
    async def stop() -> None:
        membership = consumer._consumer._membership
        assert membership is not None
        assert membership._task is not None
        membership._task.cancel()

    run(stop())


def _values(consumer: Consumer, last: bytes) -> set[bytes]:
    """Values up to and with this one."""
    values: set[bytes] = set()
    while last not in values:
        batch = consumer.next_batch(timeout=PATIENCE)
        assert batch is not None
        values.update(batch.column("value").to_pylist())
    return values
