"""Timers of which hardly one ever fires."""

from __future__ import annotations

import asyncio

from ottla.server.delayed import Deadlines


def test_those_that_are_not_over_are_called_in_order() -> None:
    async def scenario() -> list[str]:
        deadlines = Deadlines(asyncio.get_running_loop())
        called: list[str] = []
        last = asyncio.Event()
        first = deadlines.after(20, lambda: called.append("first"))
        deadlines.after(20, lambda: called.append("second"))
        deadlines.after(5, lambda: called.append("shorter"))
        deadlines.after(40, last.set)
        first.cancel()
        await asyncio.wait_for(last.wait(), 30)
        assert not deadlines._queues
        return called

    assert asyncio.run(scenario()) == ["shorter", "second"]


def test_what_is_over_is_let_go_of_at_once() -> None:
    async def scenario() -> None:
        deadlines = Deadlines(asyncio.get_running_loop())
        waiting = [deadlines.after(60_000, lambda: None) for _ in range(3)]
        (queue,) = deadlines._queues.values()
        waiting[1].cancel()
        assert len(queue) == 3
        waiting[0].cancel()
        assert list(queue) == [waiting[2]]
        waiting[2].cancel()
        assert not queue

    asyncio.run(scenario())


def test_very_long_waits_keep_nothing_that_is_over() -> None:
    """One append that is never replicated would else keep what all others waited with, for weeks."""

    async def scenario() -> None:
        deadlines = Deadlines(asyncio.get_running_loop())
        deadlines.after(2**31 - 1, lambda: None)
        for _ in range(1000):
            deadlines.after(2**31 - 1, lambda: None).cancel()
        assert not deadlines._queues

    asyncio.run(scenario())


def test_one_timer_for_all_that_wait_equally_long() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop)
        for _ in range(100):
            deadlines.after(60_000, lambda: None)
        assert len(loop._scheduled) == 1  # type: ignore[attr-defined]

    asyncio.run(scenario())


def test_the_queue_goes_on_after_an_empty_one() -> None:
    async def scenario() -> None:
        deadlines = Deadlines(asyncio.get_running_loop())
        for _ in range(2):
            over = asyncio.Event()
            deadlines.after(1, lambda: None).cancel()
            deadlines.after(1, over.set)
            await asyncio.wait_for(over.wait(), 30)

    asyncio.run(scenario())


def test_one_that_fails_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        failures: list[object] = []
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        deadlines = Deadlines(loop)
        over = asyncio.Event()
        deadlines.after(1, lambda: {}["missing"])
        deadlines.after(1, over.set)
        await asyncio.wait_for(over.wait(), 30)
        assert [type(each) for each in failures] == [KeyError]

    asyncio.run(scenario())
