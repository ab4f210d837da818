"""Apache Kafka with listeners of every kind of security, one process for a worker's tests.

PLAINTEXT, SSL (asks for a client certificate if there is one), SASL_PLAINTEXT and SASL_SSL with PLAIN,
SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER (unsigned tokens). Alice's password is "alice-secret".
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.testing import answers, free_port
from ottla.testing.guardian import end_with_this_program

from .certificates import PASSWORD, Certificates

# The kit of the interop tests knows where Java and Kafka's jars are.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "interop"))

USER, SECRET = "alice", "alice-secret"
PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0
SESSION_LIFETIME_MS = 2000


@dataclass(frozen=True)
class Kafka:
    ports: dict[str, int]
    certificates: Certificates

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports[PLAINTEXT]}"

    def address(self, protocol: str) -> str:
        """By the name that its certificate is for."""
        return f"localhost:{self.ports[protocol]}"


@contextmanager
def running_kafka(
    folder: Path, certificates: Certificates, *, keeps_data: bool = False
) -> Iterator[Kafka]:
    """`keeps_data`: what it leaves in the folder `data` when it has ended is of interest."""
    try:
        from interop_kit.toolchain import kafka_tools
    except ImportError as error:  # pragma: no cover
        pytest.skip(f"the interop kit is not here: {error}")
    command = [*kafka_tools()]
    ports = {name: free_port() for name in (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)}
    controller = free_port()
    settings = folder / "server.properties"
    settings.write_text(_properties(folder, ports, controller, certificates))
    scram = [
        word
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for word in ("--add-scram", f"{mechanism}=[name={USER},password={SECRET}]")
    ]
    subprocess.run(
        [
            *(*command, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk"),
            *("-c", str(settings), *scram),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    log = folder / "server.log"
    java = command[0]
    libraries = command[command.index("-cp") + 1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-cp", libraries, "kafka.Kafka", str(settings)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    end_with_this_program(process.pid)
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while not answers("127.0.0.1", ports[PLAINTEXT]):
            story = log.read_text(errors="replace")[-3000:]
            assert process.poll() is None, f"Kafka ended: {story}"
            assert time.monotonic() < deadline, f"Kafka did not answer: {story}"
            time.sleep(0.1)
        yield Kafka(ports, certificates)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not keeps_data:
            shutil.rmtree(folder / "data", ignore_errors=True)


def _properties(
    folder: Path, ports: dict[str, int], controller: int, certificates: Certificates
) -> str:
    listeners = ",".join(
        [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
        + [f"CONTROLLER://127.0.0.1:{controller}"]
    )
    # By name where TLS is spoken: the certificate is for localhost.
    advertised = ",".join(
        f"{name}://{'localhost' if 'SSL' in name else '127.0.0.1'}:{port}"
        for name, port in ports.items()
    )
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    bearer = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    claim = 'unsecuredLoginStringClaim_sub="broker"'
    lines = [
        "process.roles=broker,controller",
        "node.id=1",
        f"controller.quorum.voters=1@127.0.0.1:{controller}",
        f"listeners={listeners}",
        f"advertised.listeners={advertised}",
        "controller.listener.names=CONTROLLER",
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,"
        + ",".join(f"{name}:{name}" for name in ports),
        f"log.dirs={folder / 'data'}",
        "offsets.topic.replication.factor=1",
        "offsets.topic.num.partitions=4",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "transaction.state.log.num.partitions=4",
        "share.coordinator.state.topic.replication.factor=1",
        "share.coordinator.state.topic.min.isr=1",
        # Members hear of a rebalance with their next heartbeat.
        "group.consumer.heartbeat.interval.ms=200",
        "group.consumer.min.heartbeat.interval.ms=200",
        # So that a test can make a transaction that hangs.
        "transaction.partition.verification.enable=false",
        "group.initial.rebalance.delay.ms=0",
        "auto.create.topics.enable=false",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found=true",
        f"super.users=User:ANONYMOUS;User:{USER}",
        "ssl.keystore.type=PKCS12",
        f"ssl.keystore.location={certificates.path('server.p12')}",
        f"ssl.keystore.password={PASSWORD}",
        f"ssl.key.password={PASSWORD}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={certificates.path('ca.pem')}",
        "ssl.client.auth=requested",
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"connections.max.reauth.ms={SESSION_LIFETIME_MS}",
    ]
    for listener in (SASL_PLAINTEXT, SASL_SSL):
        prefix = f"listener.name.{listener.lower()}"
        lines += [
            f'{prefix}.plain.sasl.jaas.config={plain} required user_{USER}="{SECRET}";',
            f"{prefix}.scram-sha-256.sasl.jaas.config={scram} required;",
            f"{prefix}.scram-sha-512.sasl.jaas.config={scram} required;",
            f"{prefix}.oauthbearer.sasl.jaas.config={bearer} required {claim};",
        ]
    return "\n".join(lines) + "\n"
