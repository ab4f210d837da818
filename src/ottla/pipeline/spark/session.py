"""The Spark session of pipelines.

    from ottla.pipeline import session

    spark = session()
    spark.read.format("ottla").option("kafka.bootstrap.servers", …).option("subscribe", …).load()

Spark's workers run the `python3` on the PATH unless they are told otherwise before its JVM starts:
that one may have neither Ottla nor pyarrow. So the session sets PYSPARK_PYTHON to the Python that
asks for it. The source `ottla` is registered by hand; where Spark looks for it by name it does not
always find it.

What Spark prints goes to standard error, unless the session is given a file for its log. A master
`sc://…` is a Spark Connect server, which has its own JVM and its own log.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.pipeline.spark.home import home_without_zip
from ottla.pipeline.spark.java import java_home
from ottla.pipeline.spark.task_python import settings_for_sent_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"


CONNECT = "sc://"
_OF_THE_JVM = (
    "spark.driver.extraJavaOptions",
    "spark.python.sql.dataFrameDebugging.enabled",
    "spark.sql.warehouse.dir",
    "spark.ui.enabled",
    "spark.ui.showConsoleProgress",
)
_KEPT_LOGS = 10
_JVM_PATIENCE = 30.0  # seconds for its end
# Spark's first choice for checkpoints runs `readlink` and `chmod` for every file on a local disk, half
# of the time of a small micro-batch. This one renames into place just so, and runs nothing.
_CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_RENAMED_IN_PROCESS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


class SparkMissing(ImportError):
    """PySpark is not installed; the message says how to get it."""


@dataclass
class Defaults:
    """What `session` takes where it is not told: set by a command that runs somebody's script."""

    master: str = LOCAL
    settings: dict[str, str] = field(default_factory=dict)
    log: Path | None = None
    made: list[SparkSession] = field(default_factory=list)  # the sessions since


defaults = Defaults()


def session(
    master: str | None = None,
    *,
    name: str = "ottla",
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
    before: Callable[[], object] | None = None,
) -> SparkSession:
    """The session of this process, made now if there is none; `settings` are Spark's own.

    `master` is Spark's: local[*] unless the argument, the setting spark.master or the command that
    runs the script says otherwise. What Spark has to say is appended to the file `log`. `before` is
    called once there is a JVM, and may raise before a session is made. What is set in the environment
    already (PYSPARK_PYTHON, SPARK_LOCAL_IP) stays. Raises SparkMissing and JavaMissing.
    """
    running = running_session()
    from pyspark.sql import SparkSession

    chosen = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        **defaults.settings,
        **(settings or {}),
    }
    address = master or chosen.pop("spark.master", defaults.master)
    chosen = {**worker_settings(address), **chosen}
    if address.startswith("local"):
        chosen.setdefault(_CHECKPOINT_FILES, _RENAMED_IN_PROCESS)
        chosen.setdefault("spark.sql.shuffle.partitions", str(_cores(address)))
    if address.startswith(CONNECT):
        for each in _OF_THE_JVM:  # the server has its own, and would warn of these
            chosen.pop(each, None)
        builder = SparkSession.builder.remote(address).appName(name)
    else:
        if running is None:
            prepare_environment(address)
            chosen |= settings_for_sent_python(chosen)
            start_jvm({**chosen, "spark.master": address}, log or defaults.log)
            if before is not None:
                before()
        builder = SparkSession.builder.master(address).appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register_source(spark)
    use_in_this_thread(spark)
    if spark not in defaults.made:
        defaults.made.append(spark)
    return spark


def _cores(master: str) -> int:
    """The tasks that a local Spark runs at a time; more partitions of a shuffle are of no use to it."""
    given = re.match(r"local\[(\d+|\*)", master)
    if given is None:
        return 1
    return int(given[1]) if given[1] != "*" else os.cpu_count() or 1


def register_source(spark: SparkSession) -> None:
    """Let a session know the source `ottla`, unless Spark has found it by itself.

    (It would warn that a source is replaced.)
    """
    from pyspark_ottla import OttlaDataSource

    if getattr(spark, "_jvm", None) is not None:
        state = spark._jsparkSession.sessionState()
        if state.dataSourceManager().dataSourceExists(OttlaDataSource.name()):
            return
    spark.dataSource.register(OttlaDataSource)


def use_in_this_thread(spark: SparkSession) -> None:
    """Let a thread write with a session that another one has made.

    Spark looks for Python sinks in the session of the thread alone: elsewhere than in the one where
    the session was made, it says that there is no source `ottla`.
    """
    if getattr(spark, "_jvm", None) is not None:  # over Connect there is one thing less to do
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]


def open_sessions() -> list[SparkSession]:
    """The sessions that were made here and are not stopped."""
    return [each for each in defaults.made if not _is_stopped(each)]


def _is_stopped(spark: SparkSession) -> bool:
    if hasattr(spark, "is_stopped"):  # over Connect
        return bool(spark.is_stopped)
    return spark.sparkContext._jsc is None


def worker_settings(master: str) -> dict[str, str]:
    """Let workers start sooner, if they are of this Python on this machine."""
    here = os.environ.get("PYSPARK_PYTHON") in (None, sys.executable)
    if not (master.startswith("local") and here):
        return {}
    return {"spark.python.daemon.module": "pyspark_ottla.daemon"}


def prepare_environment(master: str) -> None:
    """Set what Spark's JVM and its workers take from the environment; JavaMissing if there is none."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["JAVA_HOME"] = str(java_home())


def running_session() -> SparkSession | None:
    """The session that this process has already; SparkMissing if it cannot have one."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkMissing("PySpark is not installed: `pip install 'ottla[spark]'`") from None
    return SparkSession.getActiveSession()


def start_jvm(settings: Mapping[str, str], log: Path | None) -> None:
    """Start Spark's JVM, which prints to the log, as its workers do."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    configuration = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        configuration.set(key, value)
    # In a session of its own (a terminal's Ctrl-C is for the program: it stops its queries, while
    # workers would die of it at once). The JVM ends with the program, when its standard input does.
    options: dict[str, Any] = {"start_new_session": True}
    with home_without_zip(settings.get("spark.master", LOCAL)):
        if log is None:
            gateway = launch_gateway(configuration, options)  # type: ignore[no-untyped-call]
        else:
            with log.open("ab") as output:
                options |= {"stdout": output, "stderr": output}
                gateway = launch_gateway(configuration, options)  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)


def end_jvm() -> None:
    """End Spark's JVM and wait until it has gone, once its sessions are stopped.

    By itself it ends a little after the program that started it, and holds until then what it holds: a
    metastore of Derby's, which one process at a time can open.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:  # it is somebody else's
        return
    gateway.shutdown()
    process.stdin.close()  # which it waits for
    with suppress(subprocess.TimeoutExpired):
        process.wait(_JVM_PATIENCE)
    SparkContext._gateway = SparkContext._jvm = None


def log_file(command: str) -> Path:
    """A new file for the log of a session: in the user's folder for such, the last ten are kept."""
    folder = state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(".log", f"spark-{command}-", folder)
    except OSError:  # a home that cannot be written to
        handle, path = tempfile.mkstemp(".log", f"ottla-spark-{command}-")
        os.close(handle)
        return Path(path)
    os.close(handle)
    logs = sorted(folder.glob("spark-*.log"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in logs[_KEPT_LOGS:]:
        old.unlink(missing_ok=True)
    return Path(path)


def state_folder() -> Path:
    """Where the user's programs keep what outlives them: logs, and how far queries have come."""
    given = os.environ.get("XDG_STATE_HOME")
    return (Path(given) if given else Path.home() / ".local" / "state") / "ottla"


def warehouse_settings() -> dict[str, str]:
    """Spark makes a folder for tables wherever a program is started; commands have no use for it."""
    return {"spark.sql.warehouse.dir": (state_folder() / "warehouse").absolute().as_uri()}
