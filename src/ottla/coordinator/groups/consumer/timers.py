"""What time does to the members of consumer groups.

A member has up to four deadlines. Whichever passes, it is removed:

    session      it must be heard of
    rebalance    it must give up what it was told to (it stays in its epoch until then)
    join, sync   of a member that speaks the classic protocol: it must come again when it was asked to,
                 and fetch its assignment afterwards

They are passing state: a coordinator that takes over starts them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.coordinator.groups.timers import Timer, Timers, unset
from ottla.coordinator.shard import Effects, Instant

if TYPE_CHECKING:
    from ottla.protocol.errors import ErrorCode

# When the removal of a member could not be written: how long until the next try.
RETRY_MS: Final = 500

# (group id, member id, now, the epoch that it must have left; None: whatever its epoch is)
Fence = Callable[[str, str, Instant, int | None], Effects]


class _MemberTimers:
    __slots__ = ("join", "rebalance", "rebalance_epoch", "session", "sync")

    def __init__(self, session: Timer, rebalance: Timer, join: Timer, sync: Timer) -> None:
        self.session = session
        self.rebalance = rebalance
        self.rebalance_epoch = 0
        self.join = join
        self.sync = sync

    def all(self) -> tuple[Timer, ...]:
        return self.session, self.rebalance, self.join, self.sync


class ConsumerGroupTimers:
    """The deadlines of all members of all consumer groups of a shard."""

    def __init__(self, timers: Timers, fence: Fence) -> None:
        self._timers = timers
        self._fence = fence
        self._members: dict[tuple[str, str], _MemberTimers] = {}

    def session(self, group_id: str, member_id: str, deadline: int) -> None:
        self._timers.set(self._of(group_id, member_id).session, deadline)

    def rebalance(self, group_id: str, member_id: str, epoch: int, deadline: int) -> None:
        """Sets by when a member must have left this epoch."""
        member = self._of(group_id, member_id)
        member.rebalance_epoch = epoch
        self._timers.set(member.rebalance, deadline)

    def end_rebalance(self, group_id: str, member_id: str) -> None:
        unset(self._of(group_id, member_id).rebalance)

    def join(self, group_id: str, member_id: str, deadline: int) -> None:
        """Set by when a member must have joined, unless that is set: it is asked again and again."""
        timer = self._of(group_id, member_id).join
        if timer.deadline is None:
            self._timers.set(timer, deadline)

    def joined(self, group_id: str, member_id: str, sync_deadline: int) -> None:
        member = self._of(group_id, member_id)
        unset(member.join)
        self._timers.set(member.sync, sync_deadline)

    def synced(self, group_id: str, member_id: str) -> None:
        unset(self._of(group_id, member_id).sync)

    def forget(self, group_id: str, member_id: str) -> None:
        """Unset all timers of a member that has left."""
        member = self._members.pop((group_id, member_id), None)
        if member is not None:
            for timer in member.all():
                unset(timer)

    def _of(self, group_id: str, member_id: str) -> _MemberTimers:
        key = group_id, member_id
        member = self._members.get(key)
        if member is None:
            member = _MemberTimers(
                self._timer(group_id, member_id),
                Timer(lambda now: self._rebalance_timed_out(group_id, member_id, now)),
                self._timer(group_id, member_id),
                self._timer(group_id, member_id),
            )
            self._members[key] = member
        return member

    def _timer(self, group_id: str, member_id: str) -> Timer:
        timer = Timer(lambda now: self._retried(timer, now, group_id, member_id, None))
        return timer

    def _rebalance_timed_out(self, group_id: str, member_id: str, now: Instant) -> Effects:
        member = self._members[group_id, member_id]
        return self._retried(member.rebalance, now, group_id, member_id, member.rebalance_epoch)

    def _retried(
        self, timer: Timer, now: Instant, group_id: str, member_id: str, epoch: int | None
    ) -> Effects:
        effects = self._fence(group_id, member_id, now, epoch)

        def failed(_: ErrorCode) -> Effects:
            self._timers.set(timer, now.monotonic + RETRY_MS)
            return Effects()

        effects.failed = failed
        return effects

    def __len__(self) -> int:
        return len(self._members)
