"""A standalone Spark cluster on loopback, from the Spark that pip installed: a master and workers.

Each of them is a process as on a machine of its own; all listen on ports that the system chooses, and
what they are is read from their logs.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from ottla.testing.guardian import end_with_this_program

START_TIMEOUT = 90.0  # seconds; a busy machine starts three JVMs slowly

# These JVMs live for a minute: what starts fast is better than what runs fast.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

SPARK_HOME = Path(pyspark.__file__).parent


class ClusterDied(RuntimeError):
    """A part of the cluster ended or did not start; the message ends with its log."""


class Daemon:
    """A master or a worker."""

    def __init__(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "SPARK_HOME": str(SPARK_HOME),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
                    **environment,
                },
                cwd=log.parent,
                start_new_session=True,
            )
        end_with_this_program(self._process.pid)

    def says(self, pattern: str) -> re.Match[str]:
        """Waits for a line of its log."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            ended = self._process.poll() is not None
            log = self._log.read_text(errors="replace")
            found = re.search(pattern, log)
            if found is not None:
                return found
            if ended or time.monotonic() > deadline:
                raise ClusterDied(f"no line like {pattern!r} in {self._log.name}:\n{log}")
            time.sleep(0.05)

    def stop(self) -> None:
        """SIGTERM: a worker ends its executors, and those the processes of their Python."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def running_cluster(
    folder: Path, workers: int, worker_environment: Mapping[str, str], *, hosts: int = 1
) -> Iterator[str]:
    """The address of the master of a new cluster, once its workers of one core each are with it.

    They are on this machine, but Spark takes them for workers on so many `hosts` (on Linux, which has
    more than one address for itself).
    """
    with ExitStack() as stack:

        def start(
            name: str, kind: str, *arguments: str, host: str = "127.0.0.1", **environment: str
        ) -> Daemon:
            listen = ["--host", host, "--port", "0", "--webui-port", "0"]
            command = [f"org.apache.spark.deploy.{kind}", *listen, *arguments]
            daemon = Daemon(command, folder / f"{name}.log", environment)
            stack.callback(daemon.stop)
            return daemon

        master = start("master", "master.Master")
        address = master.says(r"Starting Spark master at (spark://\S+)")[1]
        started = [
            start(
                f"worker-{number}",
                "worker.Worker",
                *("--cores", "1", "--memory", "1g"),
                *("--work-dir", str(folder / f"work-{number}"), address),
                host=f"127.0.0.{1 + number % hosts}",
                **worker_environment,
            )
            for number in range(workers)
        ]
        for worker in started:
            worker.says("Successfully registered with master")
        yield address
