"""Members of consumer groups by the thousand: each has a connection and at most one request on it.

One thread, one epoll. The members do what a client library does: join, join again with the id that
they were given, hand in the assignment if they lead, join again when they are told to, and from then
on send heartbeats and commits. Session timeouts are long, so that a member that has nothing to do in
a round need not be asked to show itself.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from bench.harness import group_wire as wire
from bench.harness.client import LEADER_TIMEOUT, Client, open_socket, receive_frame
from bench.harness.errors import BenchError
from bench.harness.load.paced import Latencies
from bench.harness.load.produce import SILENCE
from bench.harness.wire import api_versions_request

SESSION_MS: Final = 600_000
REBALANCE_MS: Final = 300_000
# While groups form, a member that has its assignment looks this often whether others came.
FORMING_HEARTBEAT: Final = 0.3
_NOT_YET = {14, 15, 16}

Reaction = Callable[["Member", bytes], None]


class Member:
    """One connection. `react` is called with the body of the answer that it waits for."""

    __slots__ = (
        "asked_at",
        "generation",
        "group",
        "member_id",
        "number",
        "offset",
        "react",
        "received",
        "settled_at",
        "socket",
    )

    def __init__(self, address: tuple[str, int], group: Group, number: int) -> None:
        self.socket: socket.socket = open_socket(address)
        if number == 0:
            # An answer shows that the broker has taken all connections until here. More at once than
            # its queue holds (Kafka's 50) would wait a second for their next attempt.
            self.socket.sendall(api_versions_request())
            receive_frame(self.socket)
        self.socket.setblocking(False)
        self.group = group
        self.number = number
        self.member_id = ""
        self.generation = -1
        self.offset = 0
        self.react: Reaction | None = None
        self.received = b""
        self.asked_at = 0.0
        self.settled_at = 0.0  # when it had the assignment of its generation

    def ask(self, request: bytes, react: Reaction) -> None:
        self.react = react
        self.asked_at = time.perf_counter()
        if self.socket.send(request) != len(request):
            raise BenchError("a request did not fit into the socket of a member")

    def answer(self) -> bytes | None:
        """The body of the answer, if it is complete."""
        data = self.received + self.socket.recv(1 << 16)
        if not data:
            raise BenchError("the broker closed a member's connection")
        if len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            self.received = data
            return None
        self.received = b""
        assert len(data) == 4 + int.from_bytes(data[:4], "big"), "two answers to one request"
        return data[4:]


@dataclass(slots=True)
class Group:
    name: str
    members: list[Member]

    @property
    def formed(self) -> bool:
        generation = self.members[0].generation
        return all(member.settled_at and member.generation == generation for member in self.members)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one round of requests came to."""

    requests: int
    seconds: float
    latencies: Latencies
    broker_cpu: float  # cores kept busy

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


class Fleet:
    """Groups of members on one broker."""

    def __init__(
        self, address: tuple[str, int], topic: str, names: Sequence[str], size: int
    ) -> None:
        self._topic = topic
        self._poller = select.epoll()
        self._by_socket: dict[int, Member] = {}
        self.groups: list[Group] = []
        for name in names:
            group = Group(name, [])
            self.groups.append(group)
            for number in range(size):
                member = Member(address, group, number)
                group.members.append(member)
                self._by_socket[member.socket.fileno()] = member
                self._poller.register(member.socket.fileno(), select.EPOLLIN)
        self._members = list(self._by_socket.values())

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self._members:
            member.socket.close()
        self._poller.close()

    def _serve(self, timeout: float) -> int:
        """Take the answers that are there, or the first that comes; how many."""
        count = 0
        for fd, _ in self._poller.poll(timeout):
            member = self._by_socket[fd]
            body = member.answer()
            if body is not None:
                react, member.react = member.react, None
                assert react is not None, "an answer that nobody asked for"
                count += 1
                react(member, body)
        return count

    # Forming

    def form(self) -> float:
        """Until every group has all its members in one generation; the seconds it took."""
        began = last = time.perf_counter()
        for member in self._members:
            self._join(member)
        waiting = list(self.groups)
        while waiting:
            now = time.perf_counter()
            if self._serve(0.05):
                last = now
            elif now - last > SILENCE:
                raise BenchError(f"{len(waiting)} groups do not form")
            waiting = [group for group in waiting if not group.formed]
            for group in waiting:
                for member in group.members:
                    if member.react is None and now - member.settled_at > FORMING_HEARTBEAT:
                        member.ask(self._heartbeat(member), self._looked)
        # Answers to heartbeats that are under way.
        while any(member.react is not None for member in self._members):
            self._serve(SILENCE)
        if not all(group.formed for group in self.groups):
            raise BenchError("a group that had formed rebalances again")
        return max(member.settled_at for member in self._members) - began

    def _join(self, member: Member) -> None:
        member.settled_at = 0.0
        request = wire.join_group_request(
            member.group.name, member.member_id, self._topic, SESSION_MS, REBALANCE_MS
        )
        member.ask(request, self._joined)

    def _joined(self, member: Member, body: bytes) -> None:
        joined = wire.join_group_answer(body)
        if joined.error == wire.MEMBER_ID_REQUIRED:
            member.member_id = joined.member_id
        if joined.error in {wire.MEMBER_ID_REQUIRED, wire.REBALANCE_IN_PROGRESS, *_NOT_YET}:
            self._join(member)
            return
        if joined.error:
            raise BenchError(f"a member's JoinGroup was answered with error {joined.error}")
        member.generation = joined.generation
        shares = [
            (each, wire.assignment(self._topic, [number]))
            for number, each in enumerate(joined.members)
        ]
        request = wire.sync_group_request(
            member.group.name, member.generation, member.member_id, shares
        )
        member.ask(request, self._synced)

    def _synced(self, member: Member, body: bytes) -> None:
        error = wire.error_after_throttle(body)
        if error in {wire.REBALANCE_IN_PROGRESS, *_NOT_YET}:
            self._join(member)
        elif error:
            raise BenchError(f"a member's SyncGroup was answered with error {error}")
        else:
            member.settled_at = time.perf_counter()

    def _looked(self, member: Member, body: bytes) -> None:
        error = wire.error_after_throttle(body)
        if error == wire.REBALANCE_IN_PROGRESS:
            self._join(member)
        elif error:
            raise BenchError(f"a heartbeat was answered with error {error}")

    # Requests of members that have formed their groups

    def _heartbeat(self, member: Member) -> bytes:
        return wire.heartbeat_request(member.group.name, member.generation, member.member_id)

    def _commit(self, member: Member) -> bytes:
        member.offset += 1
        return wire.offset_commit_request(
            member.group.name,
            member.generation,
            member.member_id,
            self._topic,
            member.number,
            member.offset,
        )

    def heartbeats(
        self, members: int, seconds: float, broker_cpu: Callable[[], float], every: float
    ) -> Exchange:
        """Each of so many members sends one `every` so many seconds, on time."""
        return self._paced(self._members[:members], self._heartbeat, seconds, broker_cpu, every)

    def heartbeats_at_once(
        self, members: int, at_once: int, seconds: float, broker_cpu: Callable[[], float]
    ) -> Exchange:
        """So many members take turns, with so many requests under way."""
        chosen = self._members[:members]
        return self._in_turns(
            chosen, self._heartbeat, wire.error_after_throttle, at_once, seconds, broker_cpu
        )

    def commits(
        self, members: int, at_once: int, seconds: float, broker_cpu: Callable[[], float]
    ) -> Exchange:
        """The same, of OffsetCommit requests with one partition. The members are of many groups."""
        size = len(self.groups[0].members)
        spread = [group.members[turn] for turn in range(size) for group in self.groups]
        return self._in_turns(
            spread[:members], self._commit, wire.offset_commit_answer, at_once, seconds, broker_cpu
        )

    def _in_turns(
        self,
        members: list[Member],
        request: Callable[[Member], bytes],
        error_of: Callable[[bytes], int],
        at_once: int,
        seconds: float,
        broker_cpu: Callable[[], float],
    ) -> Exchange:
        taken: list[float] = []
        idle = deque(members)
        deadline = 0.0

        def next_one() -> None:
            member = idle.popleft()
            member.ask(request(member), answered)

        def answered(member: Member, body: bytes) -> None:
            now = time.perf_counter()
            taken.append(now - member.asked_at)
            idle.append(member)
            if error := error_of(body):
                raise BenchError(f"a member's request was answered with error {error}")
            if now < deadline:
                next_one()

        if at_once > len(members):
            raise BenchError("a member has one request under way at a time")
        cpu_before = broker_cpu()
        began = time.perf_counter()
        deadline = began + seconds
        for _ in range(at_once):
            next_one()
        while len(idle) < len(members):
            if not self._serve(SILENCE):
                raise BenchError(f"no answer for {SILENCE:.0f} s")
        took = time.perf_counter() - began
        cpu = (broker_cpu() - cpu_before) / took
        return Exchange(len(taken), took, Latencies.of(taken), cpu)

    def _paced(
        self,
        members: list[Member],
        request: Callable[[Member], bytes],
        seconds: float,
        broker_cpu: Callable[[], float],
        every: float,
    ) -> Exchange:
        taken: list[float] = []

        def answered(member: Member, body: bytes) -> None:
            taken.append(time.perf_counter() - member.asked_at)
            if error := wire.error_after_throttle(body):
                raise BenchError(f"a heartbeat was answered with error {error}")

        pace = every / len(members)
        total = int(seconds / pace)
        sent = 0
        cpu_before = broker_cpu()
        began = time.perf_counter()
        while len(taken) < total:
            due = min(total, int((time.perf_counter() - began) / pace) + 1)
            while sent < due:
                member = members[sent % len(members)]
                if member.react is not None:
                    raise BenchError(f"a heartbeat was not answered within {every:.0f} s")
                member.ask(request(member), answered)
                sent += 1
            # epoll waits in steps of a millisecond; what is due in between goes out together.
            if not self._serve(0.001 if sent < total else SILENCE) and sent == total:
                raise BenchError(f"no answer for {SILENCE:.0f} s")
        took = time.perf_counter() - began
        cpu = (broker_cpu() - cpu_before) / took
        return Exchange(total, took, Latencies.of(taken), cpu)


def await_coordinator(client: Client, group: str) -> None:
    """The first question makes a broker create its topic of offsets."""
    deadline = time.monotonic() + LEADER_TIMEOUT
    while error := wire.find_coordinator_answer(client.ask(wire.find_coordinator_request(group))):
        if error not in _NOT_YET or time.monotonic() > deadline:
            raise BenchError(f"no coordinator: error {error}")
        time.sleep(0.05)
