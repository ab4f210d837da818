"""The table of clients: name, how to get it going, what it can do.

The factories skip (or fail, see toolchain.py) where a toolchain is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from interop_kit import toolchain
from interop_kit.client import ALL_CODECS, EVERYTHING, Ability, Client
from interop_kit.driver import DriverClient
from interop_kit.kcat import KcatClient
from interop_kit.python_clients import AiokafkaClient, ConfluentClient, KafkaPythonClient

Factory = Callable[[str, Path], Client]  # of the bootstrap address and a folder for logs
JAVA = toolchain.INTEROP / "java"
A = Ability


def confluent(bootstrap: str, logs: Path) -> Client:
    return ConfluentClient(bootstrap)


def kafka_python(bootstrap: str, logs: Path) -> Client:
    return KafkaPythonClient(bootstrap)


def aiokafka(bootstrap: str, logs: Path) -> Client:
    return AiokafkaClient(bootstrap)


def kcat(bootstrap: str, logs: Path) -> Client:
    return KcatClient(toolchain.tool("kcat"), bootstrap)


def java(bootstrap: str, logs: Path) -> Client:
    command = toolchain.java_program(
        "java-client",
        [JAVA / "Lines.java", JAVA / "ClientDriver.java"],
        "ClientDriver",
        [f"org.apache.kafka:kafka-clients:{toolchain.KAFKA_VERSION}", toolchain.GSON],
    )
    return DriverClient("java", [*command, bootstrap], logs / "java.log")


def franz_go(bootstrap: str, logs: Path) -> Client:
    command = toolchain.go_program("franz")
    return DriverClient("franz-go", [*command, bootstrap], logs / "franz-go.log")


def sarama(bootstrap: str, logs: Path) -> Client:
    command = toolchain.go_program("sarama")
    return DriverClient("sarama", [*command, bootstrap], logs / "sarama.log")


def kafkajs(bootstrap: str, logs: Path) -> Client:
    return DriverClient(
        "kafkajs",
        [*toolchain.node_program("kafkajs.mjs"), bootstrap],
        logs / "kafkajs.log",
        abilities=EVERYTHING - {A.READ, A.REPEATED_HEADERS, A.NULL_HEADERS} | {A.GROUP_READ},
    )


def platformatic(bootstrap: str, logs: Path) -> Client:
    return DriverClient(
        "platformatic",
        [*toolchain.node_program("platformatic.mjs"), bootstrap],
        logs / "platformatic.log",
    )


def php(bootstrap: str, logs: Path) -> Client:
    return DriverClient("php", [*toolchain.php_program(), bootstrap], logs / "php.log")


CLIENTS: dict[str, Factory] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "kcat": kcat,
    "java": java,
    "franz-go": franz_go,
    "sarama": sarama,
    "kafkajs": kafkajs,
    "platformatic": platformatic,
    "php": php,
}


# Clients from before Kafka 0.11, or new ones told to speak as if the broker were that old. Message
# format v0 up to 0.9, v1 in 0.10: what a broker of today has to convert both ways.

NO_HEADERS = frozenset({A.HEADERS, A.NULL_HEADERS, A.REPEATED_HEADERS})
OLD_CODECS = frozenset(ALL_CODECS) - {"zstd"}
OLD_ABILITIES = EVERYTHING - NO_HEADERS - {A.CREATE, A.IDEMPOTENCE, A.TIME, A.OFFSETS}


def parsed(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def magic_of(version: str) -> int:
    """The message format that clients of this version of Kafka write."""
    return 0 if parsed(version) < (0, 10) else 1


def old_kafka_python(version: tuple[int, ...]) -> Factory:
    return lambda bootstrap, logs: KafkaPythonClient(bootstrap, api_version=version)


def old_kcat(version: str) -> Factory:
    return lambda bootstrap, logs: KcatClient(toolchain.tool("kcat"), bootstrap, version)


def old_sarama(version: str) -> Factory:
    def make(bootstrap: str, logs: Path) -> Client:
        name = f"sarama-{version}"
        abilities = OLD_ABILITIES | {A.OFFSETS}
        unreadable = frozenset({A.HEADERS})
        if magic_of(version) == 0:
            abilities -= {A.TIMESTAMPS}
            unreadable |= {A.TIMESTAMPS}
        if parsed(version) >= (0, 10, 1):
            abilities |= {A.TIME, A.CREATE}
        return DriverClient(
            name,
            [*toolchain.go_program("sarama"), bootstrap, version],
            logs / f"{name}.log",
            codecs=OLD_CODECS,
            abilities=abilities,
            unreadable=unreadable,
        )

    return make


def old_java(version: str) -> Factory:
    def make(bootstrap: str, logs: Path) -> Client:
        name = f"java-{version}"
        sources = [JAVA / "Lines.java", JAVA / "OldProducerDriver.java"]
        main = "OldProducerDriver"
        abilities = OLD_ABILITIES
        unreadable = frozenset({A.HEADERS})
        if parsed(version) < (0, 9):
            abilities -= {A.READ}  # its jar has a producer only
        else:
            sources.append(JAVA / "OldClientDriver.java")
            main = "OldClientDriver"
        if magic_of(version) == 0:
            abilities -= {A.TIMESTAMPS}
            unreadable |= {A.TIMESTAMPS}
        if parsed(version) >= (0, 10, 1):
            abilities |= {A.TIME}
        command = toolchain.java_program(
            name, sources, main, [f"org.apache.kafka:kafka-clients:{version}", toolchain.GSON]
        )
        return DriverClient(
            name,
            [*command, bootstrap],
            logs / f"{name}.log",
            codecs=OLD_CODECS,
            abilities=abilities,
            unreadable=unreadable,
        )

    return make


OLD_CLIENTS: dict[str, Factory] = {
    "kafka-python-0.8.2": old_kafka_python((0, 8, 2)),
    "kafka-python-0.9": old_kafka_python((0, 9)),
    "kafka-python-0.10.0": old_kafka_python((0, 10, 0)),
    "kafka-python-0.10.2": old_kafka_python((0, 10, 2)),
    "kcat-0.8.2": old_kcat("0.8.2"),
    "kcat-0.9.0": old_kcat("0.9.0"),
    "kcat-0.10.0": old_kcat("0.10.0"),
    "sarama-0.8.2.0": old_sarama("0.8.2.0"),
    "sarama-0.9.0.0": old_sarama("0.9.0.0"),
    "sarama-0.10.0.0": old_sarama("0.10.0.0"),
    "sarama-0.10.2.0": old_sarama("0.10.2.0"),
    "java-0.8.2.2": old_java("0.8.2.2"),
    "java-0.9.0.1": old_java("0.9.0.1"),
    "java-0.10.0.1": old_java("0.10.0.1"),
    "java-0.10.2.2": old_java("0.10.2.2"),
}
