"""When a broker has to reckon with a cluster that has gone on without it: `Membership.can_be_fenced`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from store_kit.faulty import Faults, FaultyStore

from ottla.cluster.controller import Controller
from ottla.cluster.decisions.configs import ConfigRules
from ottla.cluster.decisions.features import FeatureRange
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.membership.membership import CONFIRMATIONS_PER_TIMEOUT, Membership
from ottla.cluster.metadata import RegisteredBroker
from ottla.cluster.store import Answer, Store, boottime

TIMEOUT = 600.0


class Session(FaultyStore):
    """A session that times out, of which the server may answer when the store would not."""

    def __init__(self, inner: Store, timeout: float = TIMEOUT) -> None:
        super().__init__(inner, 0, Faults())
        self.timeout = timeout
        self.contact = self.commit = boottime()
        self.syncs = 0

    @property
    def session_timeout(self) -> float:
        return self.timeout

    @property
    def last_contact(self) -> float:
        return self.contact

    @property
    def answers_can_be_stale(self) -> bool:
        return True

    @property
    def last_commit(self) -> float:
        return self.commit

    async def multi(self, operations: object) -> Answer:
        sent = boottime()
        answer = await super().multi(operations)  # type: ignore[arg-type]
        self.commit = sent
        return answer

    async def sync(self) -> None:
        sent = boottime()
        await super().sync()
        self.syncs += 1
        self.commit = sent


Scenario = Callable[[Membership], Awaitable[None]]
Run = Callable[..., None]


@pytest.fixture
def run(
    tmp_path: Path,
    rules: ConfigRules,
    features: Mapping[str, FeatureRange],
    broker: Callable[..., RegisteredBroker],
) -> Run:
    """Runs a scenario with a broker that has joined."""

    def run_scenario(scenario: Scenario, wrap: Callable[[Store], Store] = Session) -> None:
        async def whole() -> None:
            store = EmbeddedStore(tmp_path / "metadata.db")
            member = Membership(
                1,
                lambda: wrap(store),
                lambda session: Controller(session, 1, rules, features),
                reconnects=True,
            )
            await member.open()
            try:
                assert member.can_be_fenced is (member.store.session_timeout is not None), (
                    "it has not registered"
                )
                await member.join(broker(1), False)
                assert not member.can_be_fenced
                await asyncio.wait_for(scenario(member), 60)
            finally:
                await member.close()

        asyncio.run(whole())

    return run_scenario


def session_of(member: Membership) -> Session:
    assert isinstance(member.store, Session)
    return member.store


def test_a_session_that_cannot_time_out(run: Run) -> None:
    async def scenario(member: Membership) -> None:
        assert member.store.session_timeout is None
        assert not member.can_be_fenced
        assert "confirmation" not in [each.get_name() for each in member._tasks]

    run(scenario, lambda store: store)


@pytest.mark.parametrize(("age", "fenced"), [(TIMEOUT - 60, False), (TIMEOUT + 1, True)])
def test_what_counts_is_when_the_store_last_confirmed_something(
    run: Run, age: float, fenced: bool
) -> None:
    """Not when somebody last answered."""

    async def scenario(member: Membership) -> None:
        session = session_of(member)
        session.contact = boottime() - (TIMEOUT + 1 if not fenced else 0)
        session.commit = boottime() - age
        assert member.can_be_fenced is fenced

    run(scenario)


def test_a_clock_that_goes_on_while_the_machine_sleeps(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(member: Membership) -> None:
        monkeypatch.setattr(
            "ottla.cluster.membership.membership.boottime", lambda: boottime() + TIMEOUT + 1
        )
        assert member.can_be_fenced

    run(scenario)


def test_without_a_registration(run: Run) -> None:
    async def scenario(member: Membership) -> None:
        member.epoch = -1
        assert member.can_be_fenced

    run(scenario)


def test_who_has_registered_again_and_was_not_taken_in_yet(run: Run) -> None:
    """What was decided between its two lives, it does not know."""

    async def scenario(member: Membership) -> None:
        epoch = member.epoch
        member.epoch += 1
        assert member.can_be_fenced
        member.epoch = epoch
        assert not member.can_be_fenced

    run(scenario)


def test_a_session_in_which_nothing_is_written_is_confirmed(run: Run) -> None:
    async def scenario(member: Membership) -> None:
        session = session_of(member)
        before, confirmed = session.syncs, session.commit
        while session.syncs < before + 2:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
        assert session.commit >= confirmed + session.timeout / CONFIRMATIONS_PER_TIMEOUT

    run(scenario, lambda store: Session(store, timeout=0.6))


def test_one_that_is_confirmed_by_what_is_written_is_left_alone(run: Run) -> None:
    async def scenario(member: Membership) -> None:
        session = session_of(member)
        session.timeout = 0.6
        session.commit = boottime() + session.timeout
        await member.follower.caught_up()  # those who joined ask for it, too, and may not be done
        await asyncio.sleep(0.1)
        before = session.syncs
        end = boottime() + 2 * session.timeout
        while boottime() < end:
            # As a change would: on a slow machine, too, before anybody else looks.
            session.commit = boottime() + session.timeout
            await asyncio.sleep(0.01)
        assert session.syncs == before

    run(scenario)
