"""`ottla demo`: a broker, a web site's logs, the sample pipeline over them, and its results live."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ottla.cli.addresses import parse_servers, takes_connections
from ottla.cli.commands.demo.screen import DemoState, alert_sentence, screen
from ottla.cli.failures import INTERRUPTED, Failure, Misuse
from ottla.cli.options import DEFAULT_SERVER
from ottla.cli.output import plural, write_line, write_table
from ottla.cli.spark.sessions import spark_failures_reported, starting_session, warming

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weblogs.job import Weblogs
    from weblogs.results import Results
    from weblogs.site import Site

TOPIC: Final = "weblogs"
HISTORY: Final = 120.0  # seconds of traffic that are there already when the site is new
ONCE: Final = 240.0  # the same, with --once
START_PATIENCE: Final = 30.0  # seconds for the broker
STOP_PATIENCE: Final = 10.0
LOOK_EVERY: Final = 0.2  # seconds
QUICK_REBALANCE: Final = "group.initial.rebalance.delay.ms=0"
_PR_SET_PDEATHSIG: Final = 1  # of Linux's prctl

SPARK_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # What starts fast is better here than what runs fast.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def demo(
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where the broker listens.")
    ] = DEFAULT_SERVER,
    data: Annotated[
        Path, typer.Option("--data", "-d", metavar="DIR", help="The folder for everything.")
    ] = Path("data"),
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, max=10_000, help="Requests a second, on average.")
    ] = 50.0,
    once: Annotated[
        bool,
        typer.Option("--once", help="Four minutes of traffic at once; show the results and stop."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="For the same traffic again.")
    ] = None,
) -> None:
    """See it work: a broker, a busy web site's logs, and a pipeline that makes sense of them.

    \b
    ottla demo
    ottla demo --listen 127.0.0.1:9192 --data /tmp/demo --rate 500

    The broker serves anybody meanwhile. Its records, and what the pipeline found (topics weblogs-…, a
    table in DIR/demo/requests), stay in DIR; started again, everything goes on. Ctrl-C stops it.
    """
    from ottla.pipeline.examples import make_importable
    from ottla.pipeline.spark.progress import stop_signals

    make_importable()
    with stop_signals() as stop, spark_failures_reported():
        address = _address(listen)
        folder = data / "demo"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise Failure(f"{folder}: {problem.strerror}") from None
        missing = _missing()
        if once and missing:
            raise Failure(missing)
        log = folder / "broker.log"
        with _broker(address, data, log) as broker, ExitStack() as running:
            spark = None
            if not missing:  # it takes longest, so nothing is awaited before
                spark = running.enter_context(starting_session("demo", SPARK_SETTINGS))
            _await_broker(broker, address, log)
            run = Demo(address, folder, rate, seed, broker)
            if spark is None:
                run.without_spark(stop, missing)
            elif once:
                run.once(stop, spark)
            else:
                run.on(stop, spark)
    if stop.is_set():
        raise typer.Exit(INTERRUPTED)


class Demo:
    """What runs beside the broker."""

    def __init__(
        self,
        address: str,
        folder: Path,
        rate: float,
        seed: int | None,
        broker: subprocess.Popen[bytes],
    ) -> None:
        self._address = address
        self._folder = folder
        self._rate = rate
        self._seed = int(time.time()) if seed is None else seed
        self._broker = broker
        self._notes: list[str] = []

    def on(self, stop: threading.Event, starting: Future[SparkSession]) -> None:
        """Runs the demo until it is stopped."""
        from weblogs.results import ResultsReader

        weblogs = self._weblogs()
        reader = ResultsReader(self._address, weblogs.results)
        site = self._site(self._history())
        shown = DemoState(self._title(), reader.results, "Spark is starting")
        with self._shown(site, shown) as update, ExitStack() as running:
            running.callback(reader.stop)
            reader.start()
            self._watch(stop, update, site, until=starting.done)
            if stop.is_set():
                return
            spark = _started(starting)
            shown.doing = "the pipeline is starting"
            update()
            known = reader.results.records
            running.enter_context(warming(partial(_warm, weblogs, spark)))
            queries = Queries(weblogs, spark)
            running.callback(queries.stop)

            def look() -> None:
                queries.look()
                shown.batch, shown.lag = queries.minutes.batch, queries.minutes.backlog
                shown.table_rows = queries.table.rows
                update()
                if reader.results.records > known:
                    queries.start_others()

            self._watch(stop, look, site)

    def without_spark(self, stop: threading.Event, missing: str) -> None:
        """Runs the broker and the site, whose log is collected in a topic."""
        from weblogs.results import Results

        doing = f"{missing}. Without it the pipeline does not run; the broker does"
        site = self._site(self._history())
        with self._shown(site, DemoState(self._title(), Results(), doing)) as update:
            self._watch(stop, update, site)

    def _history(self) -> float:
        return 0.0 if (self._folder / "access.log").exists() else HISTORY

    @contextmanager
    def _shown(self, site: Site, shown: DemoState) -> Iterator[Callable[[], None]]:
        """The site runs, and what is shown is on the screen; gives what brings that up to date."""

        def show() -> DemoState:
            shown.rate, shown.lines, shown.notes = site.rate, site.lines, self._notes
            return shown

        site.start()
        try:
            with screen(show) as display:
                display.update()
                yield display.update
        finally:
            site.stop()

    def _watch(
        self,
        stop: threading.Event,
        look: Callable[[], None],
        site: Site,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        while not until() and not stop.wait(LOOK_EVERY):
            if self._broker.poll() is not None:
                raise Failure(f"the broker has ended: {_last_line(self._folder / 'broker.log')}")
            if site.failure is not None:
                raise Failure(f"the collector has failed: {site.failure}")
            look()

    def once(self, stop: threading.Event, starting: Future[SparkSession]) -> None:
        """A bounded amount of traffic, and all that is found in it."""
        from ottla.pipeline.spark.progress import FollowedQuery, runs
        from weblogs.results import ResultsReader

        weblogs = self._weblogs()
        site = self._site(ONCE)
        site.once(time.time())
        write_line(f"{plural(site.lines, 'line')} of {site.log} sent to {TOPIC}")
        spark = _started(starting)
        with warming(partial(_warm, weblogs, spark)):
            queries = {
                FollowedQuery(name): query
                for name, query in weblogs.start(spark, once=True).items()
            }
            try:
                while [query for each, query in queries.items() if runs(each, query)]:
                    if stop.wait(LOOK_EVERY):
                        return
            finally:
                for query in queries.values():
                    query.stop()
        _write_results(ResultsReader(self._address, weblogs.results).read_once())
        rows = next(each.rows for each in queries if each.what == "table")
        write_line(f"{plural(rows, 'row')} added to {weblogs.table}")

    def _title(self) -> str:
        return f"Ottla demo: broker {self._address}, data {self._folder.parent}; Ctrl-C stops it"

    def _weblogs(self) -> Weblogs:
        from weblogs.job import Weblogs

        weblogs = Weblogs(self._address, TOPIC, self._folder)
        weblogs.create_topics()
        return weblogs

    def _site(self, history: float) -> Site:
        from ottla import Admin
        from ottla.client.errors import TopicExists
        from weblogs.site import Site
        from weblogs.traffic import Traffic

        with Admin(self._address) as admin, suppress(TopicExists):
            admin.create_topic(TOPIC)
        traffic = Traffic(self._seed, self._rate, time.time() - history)
        return Site(self._address, TOPIC, self._folder, traffic, self._notes.append)


class Queries:
    """The queries of the pipeline. The first results come sooner if the others begin after them."""

    def __init__(self, weblogs: Weblogs, spark: SparkSession) -> None:
        from ottla.pipeline.spark.progress import FollowedQuery

        self.minutes, self.alerts, self.table = map(FollowedQuery, ("minutes", "alerts", "table"))
        self._weblogs = weblogs
        self._spark = spark
        self._running = {self.minutes: weblogs.start_minutes(spark)}

    def start_others(self) -> None:
        if self.table not in self._running:
            self._running[self.alerts] = self._weblogs.start_alerts(self._spark)
            self._running[self.table] = self._weblogs.start_table(self._spark)

    def look(self) -> None:
        """Take their progress; raises what one has failed with."""
        from ottla.pipeline.spark.progress import runs

        for followed, query in self._running.items():
            runs(followed, query)

    def stop(self) -> None:
        for query in self._running.values():
            query.stop()


def _started(starting: Future[SparkSession]) -> SparkSession:
    from ottla.pipeline.spark.session import use_in_this_thread

    spark = starting.result()
    use_in_this_thread(spark)
    return spark


def _warm(weblogs: Weblogs, spark: SparkSession) -> None:
    from ottla.pipeline.spark.session import use_in_this_thread

    use_in_this_thread(spark)
    weblogs.warm(spark)


def _missing() -> str:
    """What Spark needs and is not here; empty if it has everything."""
    from ottla.pipeline.spark.java import JavaMissing, java_home
    from ottla.pipeline.spark.session import SparkMissing, running_session

    try:
        running_session()
        java_home()
    except (SparkMissing, JavaMissing) as missing:
        return str(missing)
    return ""


def _write_results(results: Results) -> None:
    columns = ["minute", "requests", "visitors", "ok", "redirected", "refused", "errors"]
    rows = [[minutes[name] for name in columns] for _, minutes in sorted(results.minutes.items())]
    write_table(columns, rows, "Minutes")
    if results.pages:
        newest = max(results.pages)
        pages = [[page["page"], page["requests"]] for page in results.pages[newest]]
        write_table(["page", "requests"], pages, f"Top pages of {newest}")
    for alert in results.alerts:
        write_line(alert_sentence(alert))


# The broker


def _address(listen: str) -> str:
    """Where clients find the broker that is to listen there; Failure if somebody else does."""
    try:
        ((host, port),) = parse_servers(listen)
    except (Misuse, ValueError):
        raise Misuse(f"--listen takes HOST:PORT, not '{listen}'") from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                raise Failure(
                    f"{host}:{port} is in use; stop what listens there, or choose another with --listen"
                ) from None
            raise Failure(f"cannot listen at {listen}: {problem.strerror}") from None
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"


@contextmanager
def _broker(address: str, data: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`ottla serve` meanwhile, in a process of its own that outlives this one in no case."""
    command = [sys.executable, "-m", "ottla.cli.main", "serve", "--listen", address]
    # Whoever tries a first consumer need not wait 3 s, as with Kafka's quick start.
    command += ["--set", QUICK_REBALANCE]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "--data", str(data)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a terminal's Ctrl-C is for the demo, which stops it last
            preexec_fn=_end_with_parent,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_broker(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if takes_connections(parse_servers(address)[0]):
            return
        time.sleep(0.02)
    raise Failure(f"the broker did not start: {_last_line(log)}")


def _end_with_parent() -> None:
    """In the new process: a signal when the demo dies, so that a killed one leaves no broker behind."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line), f"see {log}")
    return last.removeprefix("ottla: ")
