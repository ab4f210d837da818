"""Listeners that speak TLS: what comes through, who is let in, and what a flood of others does."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import batch_of, create_topic, produce, produce_request, read_all
from server_kit.security import Authority, TlsWire, client_context, tls_settings

from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.server.network import reactor
from ottla.server.network.tls import TlsConnection
from ottla.server.security import security
from ottla.server.security.principals import BadRule, distinguished_name, parse_rules, principal_of
from ottla.wire.connection import Connection
from ottla.wire.errors import TlsFailed
from ottla.wire.security import Pem, Security, Tls, cipher_list

StartBroker = Callable[..., BrokerThread]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def principals(broker: BrokerThread) -> set[str]:
    return broker.run(lambda inside: {each.principal for each in inside.reactor.connections})


def port_of(broker: BrokerThread, name: str) -> int:
    return next(each.port for each in broker.broker.bound if each.name == name)


BOTH = "PLAINTEXT://127.0.0.1:0,SSL://localhost:0"


def test_records_go_in_and_out_through_tls(authority: Authority, start_broker: StartBroker) -> None:
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    with TlsWire("localhost", broker.port, client_context(authority)) as wire:
        topic = create_topic(wire)
        # Larger than a record of TLS, than the shared buffer, and than what is sent at once.
        large = [os.urandom(700_000) for _ in range(9)]
        for value in (b"small", *large):
            assert produce(wire, topic, batch_of(value)).error_code == 0
        assert read_all(wire, topic) == [b"small", *large]
        assert wire.sock.version() == "TLSv1.3"


def test_each_listener_tells_its_own_addresses(
    authority: Authority, start_broker: StartBroker
) -> None:
    broker = start_broker(settings=tls_settings(authority, BOTH))
    plain, secured = port_of(broker, "PLAINTEXT"), port_of(broker, "SSL")
    with (
        broker.wire() as wire,
        TlsWire("localhost", secured, client_context(authority)) as tls_wire,
    ):
        for each, host, port in ((wire, "127.0.0.1", plain), (tls_wire, "localhost", secured)):
            told = each.call(MetadataRequest(topics=[]), MetadataResponse, 12)
            assert [(node.host, node.port) for node in told.brokers] == [(host, port)]
            found = each.call(FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 3)
            assert (found.host, found.port) == (host, port)


def test_names_of_listeners_stand_for_protocols(
    authority: Authority, start_broker: StartBroker
) -> None:
    settings = tls_settings(authority, "OUTSIDE://localhost:0,INSIDE://127.0.0.1:0")
    settings["listener.security.protocol.map"] = "OUTSIDE:SSL,INSIDE:PLAINTEXT"
    settings["inter.broker.listener.name"] = "inside"
    # What a listener is told for itself goes before what holds for all.
    settings["listener.name.outside.ssl.keystore.location"] = settings["ssl.keystore.location"]
    settings["ssl.keystore.location"] = "/nowhere"
    broker = start_broker(settings=settings)
    with TlsWire("localhost", broker.port, client_context(authority)) as wire:
        assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
    assert broker.broker.config.inter_broker_listener == "INSIDE"


@pytest.mark.parametrize("asking", ["requested", "required"])
def test_a_client_certificate_says_who_it_is(
    asking: str, authority: Authority, start_broker: StartBroker
) -> None:
    broker = start_broker(
        settings=tls_settings(
            authority,
            "SSL://localhost:0",
            asking,
            ssl_principal_mapping_rules="RULE:^.*?CN=([a-z]+),.*$/$1/U,DEFAULT",
        )
    )
    context = client_context(authority, authority.client("alice"))
    with TlsWire("localhost", broker.port, context) as wire:
        wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        assert principals(broker) == {"User:ALICE"}


def test_without_a_certificate_a_client_is_nobody(
    authority: Authority, start_broker: StartBroker
) -> None:
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0", "requested"))
    with TlsWire("localhost", broker.port, client_context(authority)) as wire:
        wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        assert principals(broker) == {"User:ANONYMOUS"}


@pytest.mark.parametrize("what", ["none", "foreign", "expired"])
def test_who_has_no_good_certificate_is_not_let_in(
    what: str, authority: Authority, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0", "required"))
    store = {
        "none": lambda: None,
        "foreign": lambda: Authority(tmp_path / "foreign").client("alice"),
        "expired": lambda: authority.client("alice", expired=True),
    }[what]()
    # In TLS 1.3 the client learns of it with what it reads first.
    with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):  # noqa: PT012
        wire = TlsWire("localhost", broker.port, client_context(authority, store))
        wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
    assert broker.run(lambda inside: inside.reactor.failed_handshakes) == 1
    assert broker.run(lambda inside: inside.apis[18].requests) == 0


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_and_weak_ciphers_are_refused(
    authority: Authority, start_broker: StartBroker
) -> None:
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    old = client_context(authority)
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    weak = client_context(authority)
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("ECDHE+AES:!AESGCM:!AESCCM")  # CBC alone
    for context in (old, weak):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            TlsWire("localhost", broker.port, context)
    good = client_context(authority)
    good.maximum_version = ssl.TLSVersion.TLSv1_2
    with TlsWire("localhost", broker.port, good) as wire:
        assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
    assert broker.run(lambda inside: inside.reactor.failed_handshakes) == 2


def test_a_certificate_is_replaced_while_the_broker_runs(
    authority: Authority, start_broker: StartBroker, tmp_path: Path
) -> None:
    settings = tls_settings(authority, "SSL://localhost:0")
    broker = start_broker(settings=settings)

    def shown() -> bytes:
        with TlsWire("localhost", broker.port, client_context(authority)) as wire:
            assert isinstance(wire.sock, ssl.SSLSocket)
            return wire.sock.getpeercert(binary_form=True) or b""

    with TlsWire("localhost", broker.port, client_context(authority)) as old:
        before = shown()
        shutil.copy(authority.server("newer"), settings["ssl.keystore.location"])
        broker.run_async(broker.broker.security.look_at_certificates())
        assert shown() != before
        # Who is connected stays connected.
        assert old.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0


@pytest.mark.complains
def test_a_broken_certificate_does_not_replace_a_good_one(
    authority: Authority, start_broker: StartBroker, complaints: list[str]
) -> None:
    settings = tls_settings(authority, "SSL://localhost:0")
    broker = start_broker(settings=settings)
    Path(settings["ssl.keystore.location"]).write_text("nothing")
    broker.run_async(broker.broker.security.look_at_certificates())
    with TlsWire("localhost", broker.port, client_context(authority)) as wire:
        assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
    assert any("not reloaded" in line for line in complaints)


@pytest.mark.complains
def test_certificates_are_watched_whatever_a_file_does(
    authority: Authority,
    start_broker: StartBroker,
    monkeypatch: pytest.MonkeyPatch,
    complaints: list[str],
) -> None:
    monkeypatch.setattr(security, "LOOK_SECONDS", 0.001)
    settings = tls_settings(authority, "SSL://localhost:0")
    broker = start_broker(settings=settings)
    (listener,) = broker.broker.security._listeners.values()
    assert listener.tls is not None
    # Neither what cannot be foreseen of OpenSSL ends the watch, nor what cannot be of the file system.
    look, failed = listener.tls.look, threading.Event()

    def bad_look() -> None:
        failed.set()
        raise RuntimeError("nobody thought of this")

    def bad_context(*_: object) -> ssl.SSLContext:
        raise MemoryError

    monkeypatch.setattr(listener.tls, "look", bad_look)
    assert failed.wait(20)
    monkeypatch.setattr(listener.tls, "look", look)
    keystore = Path(settings["ssl.keystore.location"])
    with monkeypatch.context() as patched:
        patched.setattr(Tls, "server_context", bad_context)
        keystore.write_bytes(keystore.read_bytes() + b"\n")
        broker.until(lambda _: any("not reloaded" in line for line in complaints))
    before = listener.tls.context
    shutil.copy(authority.server("newer"), keystore)
    broker.until(lambda _: listener.tls is not None and listener.tls.context is not before)
    assert any("not looked at" in line for line in complaints)


def test_half_open_handshakes_lock_nobody_out(
    authority: Authority, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactor, "AUTHENTICATING_LIMIT", 50)
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    half_open = []
    for number in range(200):
        plug = socket.create_connection(("localhost", broker.port))
        if number % 2:
            plug.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        half_open.append(plug)
    try:
        with TlsWire("localhost", broker.port, client_context(authority)) as wire:
            assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
            assert len(broker.run(lambda inside: set(inside.reactor.connections))) <= 51
    finally:
        for plug in half_open:
            plug.close()


@pytest.mark.parametrize("what", ["expired", "foreign", "of another host"])
def test_our_client_refuses_a_broker_that_has_no_good_certificate(
    what: str, authority: Authority, start_broker: StartBroker, tmp_path: Path
) -> None:
    store = {
        "expired": lambda: authority.server(expired=True),
        "foreign": lambda: Authority(tmp_path / "foreign").server(),
        "of another host": lambda: authority.server(hosts=["broker.example"]),
    }[what]()
    settings = {"listeners": "SSL://localhost:0", "ssl.keystore.location": store}
    broker = start_broker(settings=settings)

    async def connect(tls: Tls) -> None:
        (await Connection.open("localhost", broker.port, security=Security(tls))).close()

    with pytest.raises(TlsFailed, match="certificate is not accepted"):
        asyncio.run(connect(Tls(authorities=Pem(file=authority.file))))
    # It is the certificate that keeps it from that.
    asyncio.run(connect(Tls(verify=False)))


def client_hello(authority: Authority) -> bytes:
    """What a client begins with."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_a_flood_of_handshakes_leaves_others_their_turns(
    authority: Authority, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty clients begin while the loop is busy: then it takes one after the other, by turns."""
    events: list[str] = []
    shake = TlsConnection._shake_hands

    def shaking(connection: TlsConnection) -> bool:
        events.append("handshake")
        return shake(connection)

    monkeypatch.setattr(TlsConnection, "_shake_hands", shaking)
    # Time flies: every step takes the whole of a turn.
    ticks = itertools.count()
    monkeypatch.setattr(reactor, "clock", lambda: float(next(ticks)))
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    hello = client_hello(authority)
    clients, busy, go_on = [], threading.Event(), threading.Event()

    def stop_the_loop(inside: Any) -> None:
        def turn() -> None:
            events.append("turn")
            inside.loop.call_soon(turn)

        inside.loop.call_soon(turn)
        busy.set()
        go_on.wait(30)

    stopped = threading.Thread(target=broker.run, args=(stop_the_loop,))
    stopped.start()
    try:
        assert busy.wait(30)
        for _ in range(20):
            clients.append(socket.create_connection(("localhost", broker.port)))
            clients[-1].sendall(hello)
        go_on.set()
        stopped.join(30)
        broker.until(lambda _: events.count("handshake") >= 20)
        # The server's part of the handshake has come to each of them.
        assert all(each.recv(1) == b"\x16" for each in clients)
    finally:
        go_on.set()
        for each in clients:
            each.close()
    first = events.index("handshake")
    assert "handshake handshake" not in " ".join(events[first:])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_handshake_cannot_be_asked_for_again(
    authority: Authority, start_broker: StartBroker
) -> None:
    """It costs the broker more than the client: with TLS 1.2 one could do it again and again."""
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"localhost:{broker.port}", "-tls1_2",
         "-CAfile", authority.file],
        input=b"R\n",
        capture_output=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert b"Verify return code: 0 (ok)" in done.stdout
    assert b"RENEGOTIATING" in done.stdout + done.stderr
    assert b"no renegotiation" in done.stderr.lower()
    with TlsWire("localhost", broker.port, client_context(authority)) as wire:
        assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0


def test_who_only_looks_whether_somebody_listens_has_not_failed(
    authority: Authority, start_broker: StartBroker
) -> None:
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    for failed, sent in enumerate((b"", b"\x16\x03\x01")):
        with socket.create_connection(("localhost", broker.port)) as plug:
            plug.sendall(sent)
        broker.until(
            lambda inside, count=failed + 1: (
                inside.reactor.accepted == count and not inside.reactor.connections
            )
        )
        assert broker.run(lambda inside: inside.reactor.failed_handshakes) == failed


def test_who_connects_too_often_waits_with_its_handshake(
    authority: Authority, start_broker: StartBroker
) -> None:
    settings = {
        **tls_settings(authority, "SSL://localhost:0"),
        "max.connection.creation.rate": "0",
    }
    broker = start_broker(settings=settings)
    with socket.create_connection(("localhost", broker.port)) as plug:
        # No handshake at all: it would be refused at once.
        plug.sendall(b"this is no TLS")
        broker.until(
            lambda inside: [not each.is_read for each in inside.reactor.connections] == [True]
        )
        assert broker.run(lambda inside: inside.reactor.failed_handshakes) == 0

        def let_in(inside: Any) -> None:
            for each in inside.reactor.connections:
                each._unmute()

        broker.run(let_in)
        broker.until(lambda inside: inside.reactor.failed_handshakes == 1)


def test_a_handshake_that_never_ends_is_given_up(
    authority: Authority, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactor, "AUTHENTICATION_SECONDS", 0.05)
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    with socket.create_connection(("localhost", broker.port)) as plug:
        assert plug.recv(1) == b""


def test_plain_bytes_on_a_tls_listener_are_no_requests(
    authority: Authority, start_broker: StartBroker
) -> None:
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    with broker.wire() as wire:
        wire.send(ApiVersionsRequest(), 0)
        try:
            while wire.sock.recv(100):
                pass  # an alert, then the end
        except ConnectionResetError:
            pass
    assert broker.run(lambda inside: inside.apis[18].requests) == 0


def test_what_openssl_has_decrypted_is_not_forgotten(
    authority: Authority, start_broker: StartBroker
) -> None:
    """The end of a large request and a small one come in one record of TLS. The large one is read up to
    its end, and of the rest no event tells."""
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    with TlsWire("localhost", broker.port, client_context(authority)) as wire:
        topic = create_topic(wire)
        large = wire.encode(produce_request(topic, (0, batch_of(os.urandom(300_000)))), 9)
        small = wire.encode(ApiVersionsRequest(), 0)
        wire.send_raw(large[:200_000])
        broker.until(lambda inside: any(each.arrived for each in inside.reactor.connections))
        wire.send_raw(large[200_000:] + small)
        answer = wire.receive(ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert wire.receive(ApiVersionsResponse, 0).error_code == 0


def test_a_slow_reader_gets_all_of_it(authority: Authority, start_broker: StartBroker) -> None:
    """Sending stops and goes on in the middle of records of TLS and of ranges of files."""
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    with TlsWire("localhost", broker.port, client_context(authority)) as wire:
        topic = create_topic(wire)
        large = [os.urandom(900_000) for _ in range(12)]
        for value in large:
            assert produce(wire, topic, batch_of(value)).error_code == 0
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        assert read_all(wire, topic) == large


def test_subjects_are_written_as_java_writes_them() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "Ottla, Inc."),),
        (("organizationalUnitName", "#1"),),
        (("commonName", 'a "b"+c '),),
    )
    assert distinguished_name(subject) == 'CN=a \\"b\\"\\+c\\ ,OU=\\#1,O=Ottla\\, Inc.,C=DE'
    assert distinguished_name(((("emailAddress", "a@b"),),)) == "1.2.840.113549.1.9.1=#1603614062"


def test_a_name_writes_no_lines_of_its_own_into_logs() -> None:
    for letter in "\n\r\x00\x1b\x85\x9b\u2028":
        subject = ((("commonName", f"alice{letter}denied: principal=User:bob"),),)
        assert principal_of(subject, parse_rules("DEFAULT")) is None
    assert principal_of(((("commonName", "Zoë\xa0 B."),),), parse_rules("DEFAULT")) is not None


def test_nobody_proves_to_be_nobody() -> None:
    """Who is not asked may be a broker where brokers are not asked either, and then a super user."""
    subject = ((("commonName", "ANONYMOUS"),),)
    assert principal_of(subject, parse_rules("RULE:^CN=(.*)$/$1/")) is None
    assert principal_of(subject, parse_rules("DEFAULT")) == "User:CN=ANONYMOUS"


def test_rules_map_names_as_in_kafka() -> None:
    subject = ((("organizationName", "Service"),), (("commonName", "Duke"),))
    # The examples of Kafka's documentation.
    for rules, name in (
        ("DEFAULT", "User:CN=Duke,O=Service"),
        ("RULE:^CN=(.*?),O=Service.*$/$1/", "User:Duke"),
        ("RULE:^CN=(.*?),O=Service.*$/$1/L", "User:duke"),
        ("RULE:^CN=(.*?),O=Other.*$/$1/,RULE:^.*CN=(.*?),.*$/$1@x\\/y/U", "User:DUKE@X/Y"),
        ("RULE:^CN=(.*?),O=Other.*$/$1/", None),
    ):
        assert principal_of(subject, parse_rules(rules)) == name
    for bad in ("RULE:(/x/", "nonsense", "RULE:a/$1/"):
        with pytest.raises(BadRule):
            parse_rules(bad)


def test_cipher_suites_have_the_names_of_openssl_or_java() -> None:
    java = {
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": "DHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
        "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    }
    known = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    known.set_ciphers("ALL:@SECLEVEL=0")
    assert {each["name"] for each in known.get_ciphers()} >= set(java.values())
    assert cipher_list([*java, "TLS_AES_128_GCM_SHA256"]) == ":".join(java.values())
    assert cipher_list(java.values()) == ":".join(java.values())
    assert cipher_list(["TLS_AES_256_GCM_SHA384"]) is None
