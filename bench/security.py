"""What security costs: produce and fetch through TLS, and how many clients log in by SCRAM a second.

Both brokers have the same certificate (ECDSA, P-256), made for the run, and the same user. The client of
the TLS rows is librdkafka, the same for both; that of the SCRAM row is written for it and computes the
salted password once, so that it is the brokers that are measured.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import peer
from bench.harness.bench import Bench, Row
from bench.harness.broker import HOST, ManagedBroker, OttlaBroker
from bench.harness.errors import BenchError
from bench.harness.results import Measurement, Target
from ottla.protocol.frame import encode_request, has_flexible_response_header, parse_response_header
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.testing.ports import free_port

USER, SECRET, ITERATIONS = "bench", "a secret of nobody", 4096
MECHANISM = "SCRAM-SHA-256"
RECORD = 1000
LOGINS_AT_ONCE = 8


class Certificate:
    """A key, its certificate for 127.0.0.1, and both in one file."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            raise BenchError("openssl is needed to make a certificate")
        key, self.authority, self.store = (folder / name for name in ("key", "cert", "store"))
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
                *("-addext", f"subjectAltName=IP:{HOST}"),
                *("-keyout", str(key), "-out", str(self.authority)),
            ],
            check=True,
            capture_output=True,
        )
        self.store.write_bytes(key.read_bytes() + self.authority.read_bytes())

    def settings(self, plain: int, tls: int, sasl: int) -> dict[str, str]:
        return {
            "listeners": f"PLAINTEXT://{HOST}:{plain},SSL://{HOST}:{tls},"
            f"SASL_PLAINTEXT://{HOST}:{sasl}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "sasl.enabled.mechanisms": MECHANISM,
        }


class SecuredOttla(OttlaBroker):
    def __init__(self, folder: Path, settings: Mapping[str, str], certificate: Certificate) -> None:
        super().__init__(folder, settings)
        self.tls, self.sasl = free_port(), free_port()
        self._settings |= certificate.settings(self.address[1], self.tls, self.sasl)


class SecuredKafka(peer.KafkaBroker):
    def __init__(self, folder: Path, certificate: Certificate) -> None:
        self.tls, self.sasl = free_port(), free_port()
        self._certificate = certificate
        super().__init__(folder)

    def settings(self) -> Mapping[str, str]:
        plain = dict(super().settings())
        secured = self._certificate.settings(self.address[1], self.tls, self.sasl)
        controller = plain["listeners"].rpartition(",")[2]
        advertised = secured["listeners"]
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            **plain,
            **secured,
            "listeners": f"{advertised},{controller}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
            "SASL_PLAINTEXT:SASL_PLAINTEXT",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{module} required;",
        }


Secured = SecuredOttla | SecuredKafka


def _brokers(bench: Bench, certificate: Certificate) -> list[Secured]:
    made: list[Secured] = [SecuredOttla(bench.folder("tmpfs"), bench.settings, certificate)]
    if bench.manages_peer:
        made.append(SecuredKafka(bench.folder("tmpfs"), certificate))
    for broker in made:
        bench.own(broker)
        broker.start()
    return made


# TLS --------------------------------------------------------------------------------------------


def _options(broker: Secured, certificate: Certificate) -> dict[str, object]:
    return {
        "bootstrap.servers": f"{HOST}:{broker.tls}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificate.authority),
    }


def _produce(broker: Secured, certificate: Certificate, topic: str, seconds: float) -> float:
    """MB/s of acknowledged records."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            **_options(broker, certificate),
            "linger.ms": 5,
            "batch.size": 256 << 10,
            "queue.buffering.max.kbytes": 64 << 10,
        }
    )
    value = secrets.token_bytes(RECORD)
    sent = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(500):
            try:
                producer.produce(topic, value)
                sent += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    left = producer.flush(60)
    return (sent - left) * RECORD / 1e6 / (time.perf_counter() - began)


def _consume(broker: Secured, certificate: Certificate, topic: str, seconds: float) -> float:
    """MB/s of records that were read."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            **_options(broker, certificate),
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 1 << 20,
            "queued.max.messages.kbytes": 64 << 10,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: Sequence[object] = consumer.consume(300, 10)
    read = 0
    began = time.perf_counter()
    while found and time.perf_counter() - began < seconds:
        found = consumer.consume(300, 1)
        read += len(found)
    took = time.perf_counter() - began
    consumer.close()
    return read * RECORD / 1e6 / took


def _run_tls(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    seconds = bench.seconds(5, 1)
    produced: dict[str, list[float]] = {}
    consumed: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        certificate = Certificate(Path(folder))
        brokers = _brokers(bench, certificate)
        topic = bench.topic_name()
        for broker in brokers:
            with broker.client() as client:
                client.create_topic(topic, 1)
            with broker.blamed():  # warm both up
                _produce(broker, certificate, topic, 2 * seconds)
                _consume(broker, certificate, topic, seconds)
        for number in range(bench.rounds):
            for broker in brokers if number % 2 == 0 else brokers[::-1]:
                with broker.blamed():
                    rate = _produce(broker, certificate, topic, seconds)
                    produced.setdefault(broker.name, []).append(rate)
                    rate = _consume(broker, certificate, topic, seconds)
                    consumed.setdefault(broker.name, []).append(rate)
        for broker in brokers:
            bench.discard(broker)
    setting = "TLS 1.3, librdkafka"
    return [
        Measurement("tls", setting, "produce 1 kB records, acks=all", "MB/s", True, produced,
                    Target(1.0, 1.5)),
        Measurement("tls", setting, "consume 1 kB records", "MB/s", True, consumed, Target(1.0, 1.3)),
    ]  # fmt: skip


# SCRAM ------------------------------------------------------------------------------------------


class _Line:
    """Requests and answers over one socket, one after the other."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0

    def close(self) -> None:
        self._socket.close()

    def call(self, request: object, response: type, version: int) -> object:
        self._number += 1
        self._socket.sendall(encode_request(request, version, self._number, "bench"))
        frame = self._exactly(int.from_bytes(self._exactly(4), "big"))
        flexible = has_flexible_response_header(response.api_key, version)
        _, at = parse_response_header(frame, 0, flexible)
        return response.decode(frame, at, version)[0]

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            some = self._socket.recv(size - len(received))
            if not some:
                raise BenchError("the broker closed the connection")
            received += some
        return received


@functools.cache
def _keys(salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """The client's key and its hash, which the broker has stored."""
    salted = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return client_key, hashlib.sha256(client_key).digest()


def _log_in(port: int) -> None:
    line = _Line(port)
    try:
        line.call(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, 1)
        first = f"n={USER},r={secrets.token_hex(16)}"
        challenge = _step(line, f"n,,{first}")
        fields = dict(part.partition("=")[::2] for part in challenge.split(","))
        client_key, stored_key = _keys(b64decode(fields["s"]), int(fields["i"]))
        final = f"c=biws,r={fields['r']}"
        signature = hmac.digest(stored_key, f"{first},{challenge},{final}".encode(), "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        _step(line, f"{final},p={b64encode(proof).decode()}")
    finally:
        line.close()


def _step(line: _Line, message: str) -> str:
    answer = line.call(
        SaslAuthenticateRequest(auth_bytes=message.encode()), SaslAuthenticateResponse, 1
    )
    assert isinstance(answer, SaslAuthenticateResponse)
    if answer.error_code:
        raise BenchError(f"the broker refused the login: {answer.error_message}")
    return answer.auth_bytes.decode()


def _logins(broker: Secured, seconds: float) -> float:
    """Logins a second, on connections of their own."""
    counts = [0] * LOGINS_AT_ONCE
    end = time.perf_counter() + seconds

    def work(place: int) -> None:
        while time.perf_counter() < end:
            _log_in(broker.sasl)
            counts[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(LOGINS_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def _make_user(broker: ManagedBroker) -> None:
    salt = secrets.token_bytes(24)
    line = _Line(broker.address[1])
    salted = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), salt, ITERATIONS)
    line.call(
        AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    name=USER,
                    mechanism=1,
                    iterations=ITERATIONS,
                    salt=salt,
                    salted_password=salted,
                )
            ]
        ),
        AlterUserScramCredentialsResponse,
        0,
    )
    line.close()
    deadline = time.monotonic() + 20
    while True:
        try:
            _log_in(broker.sasl)  # type: ignore[attr-defined]
            return
        except BenchError:
            # Kafka answers before its broker knows of the user.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _run_scram(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    seconds = bench.seconds(5, 1)
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        brokers = _brokers(bench, Certificate(Path(folder)))
        for broker in brokers:
            with broker.blamed():
                _make_user(broker)
                _logins(broker, 2 * seconds)  # warm both up
        for number in range(bench.rounds):
            for broker in brokers if number % 2 == 0 else brokers[::-1]:
                with broker.blamed():
                    rates.setdefault(broker.name, []).append(_logins(broker, seconds))
        for broker in brokers:
            bench.discard(broker)
    what = f"connections that authenticate, {LOGINS_AT_ONCE} at once"
    return [Measurement("scram", MECHANISM, what, "1/s", True, rates, Target(1.0, 1.5))]


def _row(name: str, claim: str, run: Callable[[Bench], list[Measurement]]) -> Row:
    return Row(name, claim, run, heavy=True)


ROWS = (
    _row("tls", "produce and consume through TLS, MB/s", _run_tls),
    _row("scram", "connections a second that authenticate by SCRAM", _run_scram),
)
