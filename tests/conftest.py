"""How a run is dealt out to its workers (`pytest -n 6 --dist loadgroup --no-loadscope-reorder`).

Most tests wait: for clients of other makers, for timeouts, for brokers to start. So there are more
workers than cores, and two things are seen to:

- tests that share what is slow to start (a Spark session, Apache Kafka, clients in JVMs) are a group
  (xdist_group), and one worker runs the whole of it;
- what takes longest comes first, so that in the end no worker is left alone with it.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

# Kits that tests of several folders use. They are packages beside the tests of their own; with pytest's
# importlib mode nothing else puts them on the path.
for kit in ("wire", "storage", "cluster_model", "record", "replication", "cluster", "server"):
    sys.path.insert(0, str(Path(__file__).resolve().parent / kit))

# What they assert is told in full, as in a test.
pytest.register_assert_rewrite(
    "storage_kit", "store_kit", "simulation_kit", "replica_kit", "cluster_kit", "server_kit"
)

from wire_kit.fixtures import certificates, kafka  # noqa: E402 - found only now

__all__ = ["certificates", "kafka"]

# How long one example takes says something of the machine, not of the code. `make test` tries some
# examples of what must always hold; `make test-long` tries the same tests with more of them
# (--hypothesis-profile ottla-long).
hypothesis.settings.register_profile("ottla", deadline=None, max_examples=30)
hypothesis.settings.register_profile("ottla-long", deadline=None, max_examples=100)
hypothesis.settings.load_profile("ottla")

HERE = Path(__file__).resolve().parent

# Groups, files and folders in the order in which they are begun; all others come after them.
FIRST = (
    "spark",
    "spark-programs",
    "interop/test_franz_go.py",
    "apache-kafka",
    "interop/test_exactly_once.py",
    "interop/test_rebalances.py",
    "cross-reading",
    "pipeline/",
    "interop/",
    "cluster/",
    "local-cluster",
    "console",
    "durability/",
    "client/",
    "collect/",
    "cli/",
)


def pytest_configure(config: pytest.Config) -> None:
    # Shells start what runs in the background with Ctrl-C ignored, and programs pass this on to those
    # they start: to the commands that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # xdist 3.8 appends a test's group to this, by which its controller knows it. pytest 9.2 keeps the
    # id elsewhere: each worker would then start a Spark and a Kafka of its own.
    if config.getoption("dist", None) == "loadgroup" and not hasattr(pytest.Item, "_nodeid"):
        raise pytest.UsageError(
            f"pytest-xdist's groups do nothing with pytest {pytest.__version__}: install pytest<9.2"
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    # What is collected stays to the end. Looking through all of it for garbage, again and again while
    # it grows and in every test that has garbage collected, is a good part of a run's time.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    # Before xdist looks at the groups ...
    for item in items:
        if _needs_apache_kafka(item):
            item.add_marker(pytest.mark.xdist_group("apache-kafka"))
        if _needs_zookeeper(item):
            item.add_marker(pytest.mark.xdist_group("zookeeper"))
    yield
    # ... and after pytest has put those together that share fixtures.
    items.sort(key=_rank)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """What went wrong in tests that were run again: that they passed then does not say it."""
    reruns = terminalreporter.stats.get("rerun", [])
    if reruns:
        terminalreporter.section("RERUNS")
    for report in reruns:
        terminalreporter.section(f"rerun: {report.when} of {report.nodeid}", "_")
        report.toterminal(config.get_terminal_writer())


def _needs_apache_kafka(item: pytest.Item) -> bool:
    if "kafka" in getattr(item, "fixturenames", ()):
        return True
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("kind") == "kafka"


def _needs_zookeeper(item: pytest.Item) -> bool:
    if "zookeeper" in getattr(item, "fixturenames", ()):
        return True
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "zookeeper" in str(callspec.params.get("stores"))


def _rank(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    place = item.path.relative_to(HERE).as_posix()
    for rank, name in enumerate(FIRST):
        if place.startswith(name) or (group is not None and name in group.args):
            return rank
    return len(FIRST)
