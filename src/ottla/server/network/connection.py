"""One client's connection: frames in, responses out, in order.

The path of a request: the socket becomes readable, bytes are received into the reactor's shared
buffer, each whole frame in it is handled at once and in place, and the answers go out with one `send`
at the end. Only the beginning of an incomplete frame is copied:

- up to STASH_BYTES of it are kept as they are, and put back in front of the next read;
- more than that moves to a buffer of the connection's own, into which the rest is received directly.
  Its size follows the bytes that arrived, never what a length field claims, and it grows in place
  (see `Reactor.grow_buffer`), so that receiving is linear in the size of the request.

Responses leave in the order of their requests. A handler that cannot answer at once reserves a
`Slot`; later answers wait for it. A slot may be exclusive (a waiting Fetch): then no further request
of this connection is handled until it is filled, as in Kafka. The others (a Produce that waits for
the disk) do not hold up the requests that follow.

Back-pressure: a connection whose peer does not read what it asked for is not read from, and neither
is one with too many unanswered requests.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter, time
from typing import TYPE_CHECKING

from ottla.protocol.message import MalformedMessage
from ottla.protocol.wiretypes import skip_tags
from ottla.server.disk.old_data import PIECE_BYTES
from ottla.server.network.activity import Activity
from ottla.server.network.file_range import FileRange
from ottla.server.network.platform import HAS_SENDFILE, MORE_FOLLOWS
from ottla.server.network.slots import NOTHING, Buffer, HeldBytes, Part, Slot
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.observability.timings import TIMED_ONE_IN
from ottla.server.security.names import ANONYMOUS

if TYPE_CHECKING:
    import asyncio

    from ottla.server.api import Api
    from ottla.server.handlers.groups.offset_commit.repeated import RepeatedCommit
    from ottla.server.handlers.records.fetch.repeated import RepeatedFetch
    from ottla.server.handlers.records.produce.repeated import RepeatedProduce
    from ottla.server.network.reactor import Listener, Reactor
    from ottla.server.security.sasl import Authentication

log = logging.getLogger("ottla.connection")
limited_log = LimitedLog(log)

# api key, api version, correlation id, length of the client id: every request header begins so.
_HEADER = struct.Struct(">ihhih")
_read_header = _HEADER.unpack_from
_HEADER_SIZE = _HEADER.size
_read_length = struct.Struct(">i").unpack_from

# Bytes of answers that may wait, for a slow reader or for an earlier answer, before further requests
# are left unread.
OUTPUT_LIMIT = 1 << 20
# For so long requests of one connection are handled before others have their turn; after so many of them
# the clock is read (tests put another in its place).
TURN_SECONDS = 0.001
FRAMES_BETWEEN_LOOKS = 16
clock: Callable[[], float] = perf_counter
# Requests handled but not answered yet (they wait for a disk or a replica).
SLOT_LIMIT = 128
# Bytes of such requests that had to be kept aside.
HELD_LIMIT = 8 << 20
# How much of a large request is taken, of one from a peer whose last one was large too, and
RECEIVE_QUANTUM = 128 << 10
FIRST_QUANTUM = 64 << 10
# how much a single connection may send before others get their turn.
SEND_QUANTUM = 4 << 20
# A peer that took nothing for so long may find that what it is to be sent has left memory.
STALE_SECONDS = 1.0
# Where there is no sendfile: bytes that are read at once on their way to the socket.
COPY_BYTES = 256 << 10
# The beginning of a frame that is kept as it is, without a buffer of its own.
STASH_BYTES = 8 << 10
# The first buffer of a frame has room for so many times what has arrived, up to EAGER_BYTES; once
# TRUSTED_BYTES have arrived it is one of SPARE_BYTES; after that it doubles.
EAGER_FACTOR = 8
EAGER_BYTES = 128 << 10
TRUSTED_BYTES = 32 << 10
# The size of buffers that are kept for the next frame: a produce request of usual size fits.
SPARE_BYTES = 1 << 20

PAUSED, MUTED = 1, 2

_RESET = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EBADF})


class MalformedRequest(ValueError):
    """What the peer sent is no request; its connection is closed, with a line in the log."""


class Connection:
    __slots__ = (
        "_apis",
        "_client_id_raw",
        "_is_resume_due",
        "_large",
        "_loop",
        "_max_request",
        "_mute",
        "_muted_until",
        "_partial",
        "_partial_filled",
        "_partial_start",
        "_partial_view",
        "_reading",
        "_stalled",
        "_stash",
        "_turn_is_over",
        "_writing",
        "active_at",
        "activity",
        "address",
        "authentication",
        "client_id",
        "closed",
        "connected_at",
        "exclusive",
        "fd",
        "held_bytes",
        "id",
        "last_api",
        "listener",
        "out",
        "out_bytes",
        "paused",
        "principal",
        "reactor",
        "repeated",
        "repeated_commit",
        "repeated_fetch",
        "requests",
        "slots",
        "sock",
        "software_name",
        "software_version",
        "throttle_ms",
    )

    def __init__(
        self, reactor: Reactor, sock: socket.socket, listener: Listener, peer: str
    ) -> None:
        self.reactor = reactor
        self.sock = sock
        self.fd = sock.fileno()
        self.listener = listener
        self.address = peer
        # Of this broker's life; no other connection has it.
        self.id = reactor.accepted + 1
        self.connected_at = time()
        self.activity = Activity()
        # Who the peer is, and how it proves that where the listener asks for SASL.
        self.principal = ANONYMOUS
        self.authentication: Authentication | None = None
        self.client_id = ""
        self.software_name = ""
        self.software_version = ""
        self.requests = 0
        self.last_api: Api | None = None
        self.active_at = reactor.now()
        # What its Produce requests have in common, once one was answered.
        self.repeated: RepeatedProduce | None = None
        # Its last Fetch request, if the next one may be like it.
        self.repeated_fetch: RepeatedFetch | None = None
        # What its OffsetCommit requests have in common, once one was answered.
        self.repeated_commit: RepeatedCommit | None = None
        self.closed = False
        # The pending slot that no further request may pass, if there is one.
        self.exclusive: Slot | None = None
        # Why it is left unread: PAUSED until the reactor has memory for what this peer sends, MUTED
        # because it used more than its quota. 0: it is not.
        self.paused = 0
        self._muted_until = 0.0
        self._mute: asyncio.TimerHandle | None = None
        # For how long the peer is muted, to be told in the next answer that has a place for it.
        self.throttle_ms = 0
        self.slots: deque[Slot] = deque()
        # Of requests that were copied because they wait for a disk or a worker.
        self.held_bytes = 0
        # Answers ready to leave, oldest first. Invariant: empty unless the socket refused to take more,
        # or we are inside on_readable.
        self.out: deque[Part] = deque()
        # Of these answers and of those in `slots` that wait for an earlier one.
        self.out_bytes = 0
        self._client_id_raw: memoryview = NOTHING
        self._loop = reactor.loop
        self._apis = reactor.apis
        self._max_request = reactor.max_request_bytes
        # What has arrived of an incomplete frame, or of frames that have to wait: in the stash, or
        # (never both) in a buffer.
        self._stash = b""
        self._partial: Buffer | None = None
        # The buffer up to where the next reads may go: its end, or that of the frame in it.
        self._partial_view: memoryview | None = None
        # What arrived and was not handled: from start (0 unless several frames had to wait) to filled.
        self._partial_start = 0
        self._partial_filled = 0
        # The last frame was a large one.
        self._large = False
        self._reading = True
        # The stash or the buffer may hold whole frames that had to wait: `resume` handles them before
        # anything more is read.
        self._stalled = False
        # The requests that are left have to wait for the loop's next turn.
        self._turn_is_over = False
        # In which `resume` will be called.
        self._is_resume_due = False
        self._writing = False
        self._loop.add_reader(self.fd, self.on_readable)

    # Reading ------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        if self._stalled or self._held_up():
            # Leave it in the kernel, so that TCP slows the peer down.
            self._pause_reading()
            # What a producer that wants no answers has sent is handled, also if it has left since.
            if not self._stalled and self._peer_is_gone():
                self.close("closed by the peer")
            return
        partial = self._partial_view
        try:
            if partial is None:
                view = self.reactor.scratch
                stash = self._stash
                if stash:
                    end = len(stash)
                    view[:end] = stash
                    end += self.sock.recv_into(view[end:], FIRST_QUANTUM if self._large else 0)
                    received = end - len(stash)
                else:
                    # The beginning of a large request is copied, so let it be small.
                    received = end = self.sock.recv_into(view, FIRST_QUANTUM if self._large else 0)
            else:
                filled = self._partial_filled
                received = self.sock.recv_into(partial[filled : filled + RECEIVE_QUANTUM])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(_reason(error))
            return
        if received == 0:
            self.close("closed by the peer")
            return
        self.active_at = self._loop.time()
        self.reactor.received_bytes += received
        try:
            if partial is None:
                if stash:
                    self._drop_stash()
                self._take(view, end)
            else:
                self._partial_filled += received
                self._take_partial()
        except Exception as error:  # noqa: BLE001 - one connection pays, the broker goes on
            self.give_up(error)
            return
        if self.out and not self._writing:
            self.flush()
        self._resume_if_stalled()

    def _resume_if_stalled(self) -> None:
        """Go on soon with requests that were held up, if there are any."""
        if self._stalled:
            self._resume_soon()

    def give_up(self, error: Exception) -> None:
        """Close the connection because of an error: the peer sent something that is no request, memory
        is short, or a handler raised what it should not (our mistake)."""
        if isinstance(error, MalformedRequest):
            limited_log.warning(
                "malformed request: peer=%s client=%r %s", self.address, self.client_id, error
            )
            self.reactor.malformed += 1
            self.hang_up("malformed request")
            return
        if is_out_of_memory(error):
            limited_log.warning(
                "no memory for a request: peer=%s client=%r", self.address, self.client_id
            )
            self.reactor.refused_requests += 1
            self.hang_up("no memory for its request")
            return
        name = "?" if self.last_api is None else self.last_api.name
        limited_log.error(
            "handler failed: api=%s peer=%s client=%r", name, self.address, self.client_id,
            exc_info=error,
        )  # fmt: skip
        self.hang_up("internal error")

    def _take(self, view: memoryview, end: int) -> None:
        """Handle the frames of the shared buffer and keep what is left over."""
        at = self._handle_frames(view, 0, end)
        if at < end and not self.closed:
            self._keep_rest(view, at, end)
        elif self._large:
            self._large = False

    def _take_partial(self) -> None:
        """Handle the frames of the connection's own buffer, if one is whole."""
        view = self._partial_view
        assert view is not None
        start, filled = self._partial_start, self._partial_filled
        at = self._handle_frames(view, start, filled)
        if self.closed:
            return
        if at > start:
            self._large = at - start > RECEIVE_QUANTUM
        if at == filled:
            self._drop_partial()
        elif self._held_up() and self._partial is not None:
            # Whole frames may follow: they wait where they are.
            self._partial_start = at
            self._stalled = True
        elif at == 0:
            self._make_room()
        else:
            rest = memoryview(bytes(view[at:filled]))
            self._drop_partial()
            self._keep_rest(rest, 0, len(rest))

    def _keep_rest(self, view: memoryview, at: int, end: int) -> None:
        """Copy the beginning of a frame, or whole frames that have to wait."""
        left = end - at
        held_up = self._held_up()
        if held_up:
            self._stalled = True
        if left <= STASH_BYTES:
            self._stash = bytes(view[at:end])
            self.reactor.partial_bytes += left
            return
        size = left
        if not held_up:
            size = max(left, self._room_for(_read_length(view, at)[0] + 4, left))
        buffer = self.reactor.take_buffer(size)
        self._partial = buffer
        own = self._partial_view = memoryview(buffer)[:size]
        own[:left] = view[at:end]
        self._partial_start = 0
        self._partial_filled = left
        self._limit_memory()

    def _make_room(self) -> None:
        """See that the next read has somewhere to go, and ends with the frame at the latest: what
        follows it goes to the shared buffer again."""
        view, filled = self._partial_view, self._partial_filled
        assert view is not None
        assert self._partial is not None
        if filled < len(view):
            return
        size = self._room_for(_read_length(view)[0] + 4, filled)
        # A buffer that is referred to cannot grow in place.
        view.release()
        self._partial_view = None
        self._partial = self.reactor.grow_buffer(self._partial, filled, size)
        self._partial_view = memoryview(self._partial)[:size]
        self._limit_memory()

    def _room_for(self, needed: int, arrived: int) -> int:
        """How large the buffer of a frame should be of which so much has arrived. A peer that lies
        about a length has to send bytes to make us hold memory for it."""
        if arrived < TRUSTED_BYTES:
            size = max(2 * arrived, min(EAGER_FACTOR * arrived, EAGER_BYTES))
        elif self.reactor.has_memory:
            size = max(2 * arrived, SPARE_BYTES)
        else:
            size = 2 * arrived
        return min(needed, size)

    def _limit_memory(self) -> None:
        reactor = self.reactor
        if (
            self.authentication is not None
            and not reactor.has_memory
            and not self.authentication.is_served
        ):
            # What is left is for those who are known.
            limited_log.warning("no memory for who has not authenticated: peer=%s", self.address)
            reactor.refused_requests += 1
            self.close("no memory for who has not authenticated")
        elif reactor.partial_bytes > reactor.partial_bytes_limit:
            reactor.wait_for_memory(self)

    @property
    def arrived(self) -> int:
        """Bytes of the incomplete request that its buffer holds."""
        return self._partial_filled

    def _drop_stash(self) -> None:
        self.reactor.partial_bytes -= len(self._stash)
        self._stash = b""

    def _drop_partial(self) -> None:
        buffer, view = self._partial, self._partial_view
        self._partial = None
        self._partial_view = None
        if buffer is not None:
            self.reactor.give_buffer_back(buffer)
        if buffer is not None or view is not None:
            self.reactor.memory_released(self)
        self._partial_start = 0
        self._partial_filled = 0

    def _handle_frames(self, view: memoryview, at: int, end: int) -> int:
        """Handle the whole frames of view[at:end]. Returns where it stopped: less than a frame is left,
        or no further request may be handled now."""
        apis = self._apis
        limit = self._max_request
        unlooked = FRAMES_BETWEEN_LOOKS
        turn_ends = 0.0
        while end - at >= _HEADER_SIZE:
            if not unlooked:
                # A peer that has sent thousands of requests at once must not keep all others waiting.
                now = clock()
                if not turn_ends:
                    turn_ends = now + TURN_SECONDS
                elif now >= turn_ends:
                    self._turn_is_over = True
                    return at
                unlooked = FRAMES_BETWEEN_LOOKS
            unlooked -= 1
            size, key, version, correlation_id, client_length = _read_header(view, at)
            stop = at + 4 + size
            if not 10 <= size <= limit:
                raise MalformedRequest(f"frame of {size} bytes (limit {limit})")
            if stop > end:
                return at
            body = at + _HEADER_SIZE
            if client_length > 0:
                body += client_length
                if body > stop:
                    raise MalformedRequest(
                        f"client id of {client_length} bytes in a frame of {size}"
                    )
                raw = view[at + _HEADER_SIZE : body]
                if raw != self._client_id_raw:
                    self._client_id_raw = memoryview(bytes(raw))
                    self.client_id = str(raw, "utf-8", "replace")
            api = apis.get(key)
            if api is None or not api.lowest <= version <= api.highest:
                self.reactor.refuse_version(self, view[at + 4 : stop], key, version, correlation_id)
                if self.closed:
                    return end
            else:
                if version >= api.flexible_since:
                    body = _skip_header_tags(view, body, stop)
                self.last_api = api
                self.requests += 1
                api.requests += 1
                if api.requests % TIMED_ONE_IN:
                    api.serve(self, view, body, stop, version, correlation_id)
                else:
                    api.serve_timed(self, view, body, stop, version, correlation_id)
                if self.closed:
                    return end
            at = stop
            # As `_held_up`, without a call for every request.
            if (
                self.exclusive is not None
                or self.paused
                or self.out_bytes > OUTPUT_LIMIT
                or len(self.slots) >= SLOT_LIMIT
                or self.held_bytes > HELD_LIMIT
            ):
                return at
        if end - at >= 4:
            size = _read_length(view, at)[0]
            if not 10 <= size <= limit:
                raise MalformedRequest(f"frame of {size} bytes (limit {limit})")
        return at

    def _held_up(self) -> bool:
        """Whether no further request may be handled now."""
        return (
            self.exclusive is not None
            or self.paused != 0
            or self._turn_is_over
            or self.out_bytes > OUTPUT_LIMIT
            or len(self.slots) >= SLOT_LIMIT
            or self.held_bytes > HELD_LIMIT
        )

    def _peer_is_gone(self) -> bool:
        try:
            return self.sock.recv(1, socket.MSG_PEEK) == b""
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self.fd)

    @property
    def is_read(self) -> bool:
        """Whether the loop reads from it, and so learns that the peer has gone."""
        return self._reading

    def pause(self) -> None:
        self.paused |= PAUSED
        self._pause_reading()

    def unpause(self) -> None:
        self.paused &= ~PAUSED
        self.resume()

    def mute(self, seconds: float) -> None:
        """Handle no further request for so long; those before it are answered."""
        until = self._loop.time() + seconds
        if until > self._muted_until:
            self._muted_until = until
            self.paused |= MUTED
            if self._mute is not None:
                self._mute.cancel()
            self._mute = self._loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._mute = None
        self.paused &= ~MUTED
        self.resume()

    def _resume_soon(self) -> None:
        """Resume in the loop's next turn; once, however many ask for it: each would be a turn of this
        peer's."""
        if not self._is_resume_due:
            self._is_resume_due = True
            self._loop.call_soon(self._resume_in_turn)

    def _resume_in_turn(self) -> None:
        self._is_resume_due = False
        self.resume()

    def resume(self) -> None:
        """Go on with what was left unhandled, then with the socket; not now if that is due anyway."""
        if self._is_resume_due:
            return
        self._turn_is_over = False
        if self.closed or self._held_up():
            return
        if self._stalled:
            self._stalled = False
            try:
                if self._partial_view is not None:
                    self._take_partial()
                else:
                    end = len(self._stash)
                    view = self.reactor.scratch
                    view[:end] = self._stash
                    self._drop_stash()
                    self._take(view, end)
            except Exception as error:  # noqa: BLE001 - as in on_readable
                self.give_up(error)
                return
            if self.out and not self._writing:
                self.flush()
            if self._stalled:
                self._resume_soon()
                return
            if self.closed or self._held_up():
                return
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self.fd, self.on_readable)

    # Who it is ----------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The peer's address without its port."""
        return self.address.rpartition(":")[0]

    def serve_only(self, apis: dict[int, Api], largest: int) -> None:
        """Answer only these APIs, in requests up to this size. Counts from the next read on, so the
        request that is being handled must have reserved an exclusive slot."""
        self._apis = apis
        self._max_request = largest

    def read_by(self, reader: Callable[[], None] | None) -> None:
        """Let another read what comes, in place of requests; None: requests come again."""
        self._loop.add_reader(self.fd, self.on_readable if reader is None else reader)

    @property
    def authentication_is_over(self) -> bool:
        """Whether the peer has proved who it is."""
        return self.authentication is not None and self.authentication.is_served

    # Answering ----------------------------------------------------------------------------------

    def reserve(self, *, exclusive: bool = False) -> Slot:
        """A place in the order of answers, for a request that is answered later."""
        slot = Slot(self)
        self.slots.append(slot)
        if exclusive:
            self.exclusive = slot
        return slot

    def keep(self, part: memoryview) -> HeldBytes:
        """Keep a part of the request that is being handled, whose buffer the next request will use.
        Where that is this connection's own buffer and at least half of it is this part, the buffer
        is handed over and nothing is copied."""
        size = len(part)
        buffer = self._partial
        if buffer is not None and part.obj is buffer and 2 * size >= len(buffer):
            # Its memory is accounted for until it is given back.
            self._partial = None
            self.held_bytes += size
            return HeldBytes(self, part, size, buffer)
        self.held_bytes += size
        self.reactor.partial_bytes += size
        return HeldBytes(self, bytearray(part), size, None)

    def answer(self, response: bytes) -> None:
        """A whole response frame, known at once. Leaves when the current read has been handled."""
        if self.slots:
            slot = Slot(self)
            slot.parts = [response]
            self.slots.append(slot)
        else:
            self.out.append(response)
        self.out_bytes += len(response)

    def answer_parts(self, parts: list[Part]) -> None:
        if self.slots:
            slot = Slot(self)
            slot.parts = parts
            self.slots.append(slot)
        else:
            self.out.extend(parts)
        for part in parts:
            self.out_bytes += len(part)

    def drain_slots(self) -> None:
        """Move the answers that have no unanswered request before them to the socket."""
        if self.closed:
            self.slots.clear()
            self.exclusive = None
            return
        slots = self.slots
        while slots and slots[0].parts is not None:
            slot = slots.popleft()
            if slot is self.exclusive:
                self.exclusive = None
            assert slot.parts is not None
            self.out.extend(slot.parts)
        if self.out and not self._writing:
            gathered = self.reactor.gathered
            if gathered is None:
                self.flush()
            else:
                gathered.append(self)
        if self._stalled or not self._reading:
            self._resume_soon()

    def flush_ready(self) -> None:
        """Send what is ready, unless that was done or is under way."""
        if self.out and not self._writing and not self.closed:
            self.flush()

    def flush(self) -> None:
        """Send what is ready; what the socket does not take waits until it is writable."""
        out = self.out
        sock = self.sock
        budget = SEND_QUANTUM
        waiting = self.out_bytes
        try:
            while out and budget > 0:
                part = out[0]
                if type(part) is FileRange:
                    sent = self._send_range(part)
                    self.out_bytes -= sent
                    budget -= sent
                    if part.length:
                        break
                    out.popleft()
                    continue
                if len(out) == 1:
                    sent = sock.send(part)  # type: ignore[arg-type]
                    if sent == len(part):
                        out.clear()
                        self.out_bytes -= sent
                        break
                else:
                    part, more = self._gather()
                    out.appendleft(part)
                    sent = sock.send(part, MORE_FOLLOWS if more else 0)
                    if sent == len(part):
                        out.popleft()
                        self.out_bytes -= sent
                        budget -= sent
                        continue
                self.out_bytes -= sent
                out[0] = memoryview(part)[sent:]  # type: ignore[arg-type]
                break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(_reason(error))
            return
        self.reactor.sent_bytes += waiting - self.out_bytes
        if out:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self.fd, self._on_writable)
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self.fd)
            self.reactor.settled()

    def _gather(self) -> tuple[bytes, bool]:
        """Take the leading byte parts off the queue as one; whether a file range follows them."""
        out = self.out
        parts = []
        size = 0
        while out and type(out[0]) is not FileRange and size < 1 << 20:
            part = out.popleft()
            parts.append(part)
            size += len(part)
        return b"".join(parts), bool(out)  # type: ignore[arg-type]

    def _send_range(self, part: FileRange) -> int:
        """Send from the page cache to the socket, without the bytes passing through here."""
        if not part.is_from_disk:
            return self._send_up_to(part, SEND_QUANTUM)
        old_data = self.reactor.old_data
        # Not in the turn in which the answer was made, which took its time.
        if not self._writing or not old_data.may_send():
            return 0
        started = perf_counter()
        total = self._send_up_to(part, PIECE_BYTES)
        if total:
            old_data.sent(self.fd, total, perf_counter() - started)
        return total

    def _send_up_to(self, part: FileRange, most: int) -> int:
        total = 0
        while part.length:
            try:
                sent = self._send_some(part, min(part.length, most - total))
            except (BlockingIOError, InterruptedError):
                break
            if sent == 0:
                # The file is shorter than the range that was promised: the stream cannot be mended.
                raise OSError(errno.EIO, "file range ended early")
            part.position += sent
            part.length -= sent
            total += sent
            if total >= most:
                break
        return total

    def _send_some(self, part: FileRange, size: int) -> int:
        if HAS_SENDFILE:
            return os.sendfile(self.fd, part.file.fd, part.position, size)
        data = os.pread(part.file.fd, min(size, COPY_BYTES), part.position)
        return self.sock.send(data) if data else 0

    def _on_writable(self) -> None:
        if self._loop.time() - self.active_at >= STALE_SECONDS:
            cold = self._cold_range()
            if cold is not None:
                self._page_in(cold)
                return
        self.flush()
        if not self.closed:
            self.active_at = self._loop.time()
            if self._stalled or not self._reading:
                self.resume()

    def _cold_range(self) -> FileRange | None:
        """The first range among what would be sent next that only the disk has by now."""
        left = SEND_QUANTUM
        for part in self.out:
            if type(part) is FileRange and not part.is_held(left):
                return part
            left -= len(part)
            if left <= 0:
                break
        return None

    def _page_in(self, cold: FileRange) -> None:
        """Have a thread read what was in memory when it was found; it is sent afterwards. (Or else the
        loop would wait for the disk.) Until then nobody else sends, since `_writing` is set."""
        self._loop.remove_writer(self.fd)
        paged_in = self.reactor.page_in(cold, min(cold.length, SEND_QUANTUM))
        paged_in.add_done_callback(partial(self._paged_in, cold))

    def _paged_in(self, cold: FileRange, done: asyncio.Future[bool]) -> None:
        error = None if done.cancelled() else done.exception()
        if self.closed:
            return
        if error is not None:
            self.close(str(error))
            return
        if not cold.is_held(SEND_QUANTUM):
            self.active_at = self._loop.time()  # memory keeps nothing: it is waited for
        self._loop.add_writer(self.fd, self._on_writable)

    # The end ------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no answer to the peer is due or on its way."""
        return not self.slots and not self.out

    def hang_up(self, why: str) -> None:
        """Close because of what the peer sent; answers to what it sent before go out first."""
        if self.out and not self._writing and not self.closed:
            self.flush()
        self.close(why)

    def close_when_sent(self) -> None:
        """Tell the peer that nothing more comes, and read on without heeding it until it is gone too.

        A socket that is closed with requests in it that nobody read resets the connection, and a
        reset may overtake the answers that are on their way.
        """
        if self.closed:
            return
        self._pause_reading()
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.close(_reason(error))
            return
        self._reading = True
        self._loop.add_reader(self.fd, self._ignore)

    def _ignore(self) -> None:
        try:
            if self.sock.recv_into(self.reactor.scratch):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass  # gone, which is what was waited for
        self.close("the broker stops")

    def close(self, why: str) -> None:
        if self.closed:
            return
        self.closed = True
        log.debug("connection closed: peer=%s client=%r %s", self.address, self.client_id, why)
        if self._reading:
            self._loop.remove_reader(self.fd)
        if self._writing:
            self._loop.remove_writer(self.fd)
        self._drop_partial()
        self._drop_stash()
        self.out.clear()
        self.out_bytes = 0
        self.slots.clear()
        self.exclusive = None
        if self._mute is not None:
            # A large debt mutes for hours: nobody waits for that with a closed connection.
            self._mute.cancel()
            self._mute = None
        self.sock.close()
        self.reactor.forget(self)


def _skip_header_tags(view: memoryview, at: int, stop: int) -> int:
    """Step over the tagged fields of a request header (clients send none: a single zero)."""
    if at >= stop:
        raise MalformedRequest("the request header is cut short")
    tags = view[at]
    if tags == 0:
        return at + 1
    try:
        return skip_tags(view, at + 1, tags, stop)
    except (MalformedMessage, IndexError) as error:
        raise MalformedRequest(f"tagged fields of the request header: {error}") from None


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    )


def _reason(error: OSError) -> str:
    return "closed by the peer" if error.errno in _RESET else str(error)
