"""A client's connection through TLS.

It is the connection of the others (`connection.py`), over a socket that encrypts: OpenSSL reads from
and writes to the non-blocking socket itself, decrypts into the reactor's buffer, and says when it
would block. Two things are different. Decrypted bytes may wait inside OpenSSL, of which the loop knows
nothing: they are asked for. And ranges of files are read to be encrypted, not sent by the kernel.

docs/adr/0020 says why this is not asyncio's transport.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any, cast

from ottla.server.network.connection import COPY_BYTES, Connection
from ottla.server.network.file_range import FileRange
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.security.principals import principal_of

if TYPE_CHECKING:
    from ottla.server.network.reactor import Listener, Reactor
    from ottla.server.security.tls import ListenerTls

log = LimitedLog(logging.getLogger("ottla.security"))


class TlsSocket:
    """What a Connection needs of its socket, over OpenSSL."""

    __slots__ = ("_tls",)

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        self._tls = context.wrap_socket(
            plain, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def fileno(self) -> int:
        return self._tls.fileno()

    def shake_hands(self) -> bool:
        """Go on with the handshake; False if the peer has to say more. Raises ssl.SSLError, OSError."""
        try:
            self._tls.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        return True

    @property
    def subject(self) -> tuple[tuple[tuple[str, str], ...], ...] | None:
        """The subject of the client's certificate, which was checked; None if it showed none."""
        certificate = self._tls.getpeercert()
        return None if not certificate else cast(Any, certificate["subject"])

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._tls.getsockopt(level, option, size)

    @property
    def pending(self) -> int:
        """Decrypted bytes that wait to be received."""
        return self._tls.pending()

    def recv_into(self, buffer: memoryview, count: int = 0) -> int:
        """As many bytes as are there, up to the size of the buffer or `count`. A record of TLS has at
        most 16 KiB, so several are taken."""
        most = min(len(buffer), count) if count else len(buffer)
        received = 0
        while received < most:
            try:
                some = self._tls.recv_into(buffer[received:most])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if received:
                    return received
                raise BlockingIOError from None
            except OSError:
                if received:
                    return received  # the next call finds out again
                raise
            if not some:
                return received
            received += some
        return received

    def recv(self, count: int, flags: int = 0) -> bytes:
        """Beneath TLS: only used to see whether the peer is gone."""
        return socket.socket.recv(self._tls, count, flags)

    def send(self, data: bytes | bytearray | memoryview, _flags: int = 0) -> int:
        try:
            return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def _send_close_notify(self) -> None:
        try:
            self._tls.unwrap()
        except (OSError, ValueError):
            pass  # said, and not answered yet, which is not waited for; or the peer is gone

    def shutdown(self, how: int) -> None:
        self._send_close_notify()
        self._tls.shutdown(how)

    def close(self) -> None:
        self._send_close_notify()
        self._tls.close()


class TlsConnection(Connection):
    """A connection whose bytes go through TLS; nothing is handled before the handshake is over."""

    __slots__ = ("_began", "_established", "_is_read_due", "_rules")

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        listener: Listener,
        peer: str,
        tls: ListenerTls,
    ) -> None:
        secured = TlsSocket(sock, tls.context)
        self._began = False
        self._established = False
        # In the loop's next turn: once, however many ask for it.
        self._is_read_due = False
        self._rules = tls.rules
        super().__init__(reactor, cast(socket.socket, secured), listener, peer)

    @property
    def _secured(self) -> TlsSocket:
        return cast(TlsSocket, self.sock)

    def on_readable(self) -> None:
        if not self._established:
            if not self._is_held_back():
                # Not again before the next step is done.
                self._pause_reading()
                self.reactor.shake_hands_in_turn(self._go_on_shaking_hands)
            return
        super().on_readable()
        self._look_inside()

    def _go_on_shaking_hands(self) -> None:
        if self.closed or self._established:
            return
        is_done = self._shake_hands()
        self.resume()
        if is_done and self._reading:
            # What came with the end of the handshake is inside OpenSSL, or in the socket.
            self.on_readable()

    def resume(self) -> None:
        super().resume()
        self._look_inside()

    def _look_inside(self) -> None:
        """Read soon what OpenSSL has decrypted and nobody has taken: the loop does not know of it."""
        if self._reading and not self.closed and not self._is_read_due and self._secured.pending:
            self._is_read_due = True
            self._loop.call_soon(self._read_pending)

    def _read_pending(self) -> None:
        self._is_read_due = False
        if self._reading and not self.closed:
            self.on_readable()

    def _is_held_back(self) -> bool:
        """Whether the handshake, which is what costs, has to wait, because the address connects too
        often. Pauses reading then."""
        if not self.paused:
            return False
        self._pause_reading()
        return True

    def _shake_hands(self) -> bool:
        if not self._began:
            if self._peer_is_gone():
                # It only looked whether somebody listens, as balancers of load do, and other brokers.
                self.close("closed by the peer")
                return False
            self._began = True
        try:
            if not self._secured.shake_hands():
                return False
        except OSError as error:  # SSLError is one
            self.reactor.failed_handshakes += 1
            log.warning("TLS handshake failed: peer=%s %s", self.address, _reason_of(error))
            self.close("TLS handshake failed")
            return False
        subject = self._secured.subject
        if subject is not None:
            principal = principal_of(subject, self._rules)
            if principal is None:
                self.reactor.failed_handshakes += 1
                log.warning("no rule for the certificate's name: peer=%s", self.address)
                self.close("no principal")
                return False
            self.principal = principal
        self._established = True
        if self.authentication is None:
            self.reactor.authenticated(self)
        return True

    def close_when_sent(self) -> None:
        if self._established:
            super().close_when_sent()
        else:
            self.close("the broker stops")

    def _ignore(self) -> None:
        # What comes now is thrown away unread: no need to decrypt it.
        try:
            if self._secured.recv(COPY_BYTES):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass  # gone, which is what was waited for
        self.close("the broker stops")

    def _send_some(self, part: FileRange, size: int) -> int:
        # After a refusal the same bytes are offered again, which OpenSSL asks for.
        data = os.pread(part.file.fd, min(size, COPY_BYTES), part.position)
        return self.sock.send(data) if data else 0


def _reason_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return error.strerror or str(error)
