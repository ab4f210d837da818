"""Apache Kafka, one node in KRaft mode with its default settings, to be measured beside Ottla.

Its jars come from Maven Central once, into a cache folder (`$XDG_CACHE_HOME/ottla-bench`, or where
`BENCH_CACHE` points). `KAFKA_LIBS` names a folder of jars to use instead. Needs Java and, for
the first time, Maven; without them `available` says what is missing and the benchmarks run alone.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.harness.broker import HOST, HOUSEKEEPING, ManagedBroker
from bench.harness.errors import BenchError
from ottla.testing.ports import free_port

VERSION = "4.3.1"
SCALA = "2.13"
# The heap and the collector of Kafka's own start script.
JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>peer</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_{SCALA}</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def cache_folder() -> Path:
    if given := os.environ.get("BENCH_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ottla-bench"


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (java := Path(home) / "bin" / "java").is_file():
        return str(java)
    return shutil.which("java")


def _libraries() -> Path:
    if given := os.environ.get("KAFKA_LIBS"):
        return Path(given)
    return cache_folder() / f"kafka-{VERSION}"


def _complete(libraries: Path) -> bool:
    return (libraries / f"kafka_{SCALA}-{VERSION}.jar").is_file()


def unavailable() -> str | None:
    """Why Kafka cannot be run here; None when it can."""
    if _java() is None:
        return "no Java on this machine"
    if not _complete(_libraries()) and shutil.which("mvn") is None:
        return f"no Maven to fetch Kafka's jars with, and none in {_libraries()}"
    return None


def fetch() -> Path:
    """The folder with Kafka's jars; fetched when it is not there."""
    libraries = _libraries()
    if _complete(libraries):
        return libraries
    project = cache_folder() / "fetch"
    project.mkdir(parents=True, exist_ok=True)
    (project / "pom.xml").write_text(_POM)
    partial = libraries.with_name(f"{libraries.name}.partial")
    command = ["mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies"]
    fetched = subprocess.run(
        [*command, f"-DoutputDirectory={partial}"], cwd=project, capture_output=True, text=True
    )
    if fetched.returncode or not _complete(partial):
        raise BenchError(f"Maven could not fetch Kafka {VERSION}:\n{fetched.stdout[-2000:]}")
    partial.rename(libraries)
    return libraries


def java_version() -> str:
    java = _java()
    if java is None:
        return "none"
    shown = subprocess.run([java, "-version"], capture_output=True, text=True)
    return shown.stderr.splitlines()[0] if shown.stderr else "unknown"


def new_cluster_id() -> str:
    # A leading "i" keeps the random id from beginning with a dash, like an option.
    return "i" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


class KafkaBroker(ManagedBroker):
    """One broker that is its own controller."""

    def __init__(self, folder: Path) -> None:
        super().__init__("Kafka", folder)
        self._java = _java() or "java"
        self._class_path = f"{fetch()}/*"
        self._configuration = folder / "server.properties"
        self._format()

    @property
    def cluster_id(self) -> str:
        return new_cluster_id()

    def settings(self) -> Mapping[str, str]:
        host, port = self.address
        controller = free_port()
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{host}:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            # One node cannot hold three copies; Kafka's own example for one node says the same.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # Deleted topics go at once, not from 30 s after the start on.
            "log.initial.task.delay.ms": "1000",
            **HOUSEKEEPING,
        }

    def _format(self) -> None:
        lines = [f"{name}={value}" for name, value in self.settings().items()]
        self._configuration.write_text("\n".join(lines) + "\n")
        command = [self._java, "-cp", self._class_path, "kafka.tools.StorageTool", "format"]
        formatted = subprocess.run(
            [*command, "-t", self.cluster_id, "-c", str(self._configuration)],
            capture_output=True,
            text=True,
        )
        if formatted.returncode:
            raise BenchError(f"Kafka could not format its folder:\n{formatted.stderr[-2000:]}")

    def command(self) -> Sequence[str]:
        return [
            self._java,
            *JVM_OPTIONS,
            "-cp",
            self._class_path,
            "kafka.Kafka",
            str(self._configuration),
        ]
