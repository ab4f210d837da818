"""Spark Declarative Pipelines: a folder with `spark-pipeline.yml`, run with the source `ottla` at hand.

Spark runs such projects through a Connect server. Unless the master is one, it is started in this
process' JVM, on a port of its own choice. Between runs Spark has to remember its tables, or the second
run finds their folders taken: a metastore in the project's folder does (Hive's, with Derby, both of
which Spark brings along). The project's own settings may say otherwise.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.client.errors import OttlaError
from ottla.pipeline.spark.errors import sentence_in
from ottla.pipeline.spark.progress import watching
from ottla.pipeline.spark.session import (
    CONNECT,
    LOCAL,
    SparkMissing,
    end_jvm,
    prepare_environment,
    running_session,
    session,
    start_jvm,
    worker_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPECIFICATIONS: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
_JAVA: Final = "spark.driver.extraJavaOptions"
_NO_DERBY_LOG: Final = f"-Dderby.stream.error.file={os.devnull}"
_DONE: Final = "Run is COMPLETED"
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_SERVER: Final[Mapping[str, str]] = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


class ProjectError(OttlaError):
    """A folder is no project that could be run; the message says why."""


@dataclass(frozen=True)
class Run:
    """How a project is to be run."""

    master: str | None = None
    settings: Mapping[str, str] | None = None
    log: Path | None = None
    full_refresh: bool = False  # forget what was computed, and compute it anew
    dry: bool = False  # check the definitions only


def specification_in(place: Path) -> Path | None:
    """The file that makes a folder a project."""
    found = [place / name for name in SPECIFICATIONS if (place / name).is_file()]
    if len(found) > 1:
        raise ProjectError(f"{place} has {' and '.join(SPECIFICATIONS)}; remove one of them")
    return found[0] if found else None


def run_project(specification: Path, run: Run) -> None:
    """Bring all tables of a project up to date; progress goes to standard error."""
    try:
        from pyspark.pipelines import cli
    except ImportError as error:  # Connect's libraries, and PyYAML
        raise SparkMissing(
            f"pipeline projects need {error.name or error}: `pip install 'ottla[spark]'`"
        ) from None
    from pyspark.pipelines.spark_connect_graph_element_registry import (
        SparkConnectGraphElementRegistry,
    )
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    # The same may befall what listens to queries, which then says so.
    warnings.filterwarnings("ignore", message="StreamingQueryListenerBus")
    project = cli.load_pipeline_spec(specification)
    with (
        _connected(specification.parent.resolve(), project.configuration, run) as spark,
        watching(lambda: [spark]) as display,
    ):
        with redirect_stdout(_LineOutput(display.say)):
            graph = create_dataflow_graph(
                spark, project.catalog, project.database, project.configuration
            )
            registry = SparkConnectGraphElementRegistry(spark, graph)
            cli.register_definitions(specification, registry, project, spark, graph)
        everything = run.full_refresh
        results = start_run(spark, graph, [], everything, [], run.dry, project.storage)
        for message in _messages(results):
            display.say(message)


def _messages(results: Iterator[dict[str, Any]]) -> Iterator[str]:
    """What Spark tells of a run, a line each."""
    from pyspark.errors import PySparkValueError

    message = ""
    try:
        for result in results:
            if "pipeline_event_result" in result:
                message = result["pipeline_event_result"].event.message
                said, failed, why = message.partition("\nError: ")
                yield f"{said} {sentence_in(why)}" if failed else said
    except PySparkValueError as error:
        # Counters of Python workers may come at the end, for which PySpark 4.3 has no use here.
        if error.getCondition() != "UNKNOWN_RESPONSE" or not message.startswith(_DONE):
            raise


class _LineOutput:
    """Stands for the standard output: each line that is written goes to a function."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)

    def flush(self) -> None:
        """Lines are passed on as they are completed."""


@contextmanager
def _connected(folder: Path, configuration: Mapping[str, str], run: Run) -> Iterator[SparkSession]:
    """A session over Connect for the project in this folder."""
    master = run.master or LOCAL
    if master.startswith(CONNECT):
        remote = session(master, settings=run.settings)
        try:
            yield remote
        finally:
            remote.stop()
        return
    if running_session() is not None:
        raise ProjectError("a process that has a Spark session already cannot run a project")
    settings = {
        **_SERVER,
        **worker_settings(master),
        **_remembering(folder),
        **configuration,
        **(run.settings or {}),
        "spark.master": master,
    }
    settings[_JAVA] = f"{_NO_DERBY_LOG} {settings.get(_JAVA, '')}".strip()
    token = os.environ.setdefault(_TOKEN, uuid.uuid4().hex)
    prepare_environment(master)
    start_jvm(settings, run.log)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    configured = SparkConf()
    for key, value in settings.items():
        configured.set(key, value)
    context = SparkContext.getOrCreate(configured)
    local = SparkSession(context)
    try:
        service = "org.apache.spark.sql.connect.service.SparkConnectService$"
        port = getattr(getattr(context._jvm, service), "MODULE$").localPort()
        # From here on PySpark's functions are those of Connect.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        from pyspark_ottla import OttlaDataSource

        address = f"{CONNECT}localhost:{port}/;token={token}"
        spark: Any = ConnectSession.builder.remote(address).getOrCreate()
        try:
            spark.dataSource.register(OttlaDataSource)
            yield spark
        finally:
            spark.stop()
    finally:
        local.stop()
        end_jvm()


def _remembering(folder: Path) -> dict[str, str]:
    metastore = f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
    return {
        "spark.sql.warehouse.dir": (folder / "tables").as_uri(),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
    }
