"""Brokers of a released version and of this tree, side by side in one cluster, while clients work.

The release is the newest tag (v1.2.3): its wheel is built, installed into an environment of its own, and
its brokers are exchanged for those of the tree one at a time, then back, then forth again, before any
level of a feature is raised. Nothing is lost and no client is told of an error. As long as there is no
tag it is the wheel of the tree itself, which shows the way, and nothing of two versions.
"""

from __future__ import annotations

import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from interop_kit.steady_load import PARTITIONS, SteadyLoad

from ottla import Admin
from ottla.client.errors import OttlaError
from ottla.testing import BrokerProcess
from ottla.testing.zookeeper import ZooKeeperProcess

ROOT = Path(__file__).resolve().parents[2]
BROKERS = 3
PATIENCE = 90.0
KINDS = ("confluent-kafka", "ottla")
SETTINGS = {
    "default.replication.factor": str(BROKERS),
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "6",
}


def run(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def newest_release() -> str | None:
    """The newest tag of a version that this tree comes from; None without one."""
    found = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() if found.returncode == 0 else None


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment into which the release is installed."""
    folder = tmp_path_factory.mktemp("release")
    source = ROOT
    tag = newest_release()
    if tag is not None:
        source = folder / "source"
        source.mkdir()
        run("git", "archive", "--output", folder / "source.tar", tag)
        run("tar", "-xf", folder / "source.tar", "-C", source)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    (wheel,) = folder.glob("ottla-*.whl")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    # What Ottla needs is taken from where the tests have it. Folders that are named by a line of text
    # are not searched for more such lines, by which this tree would come along.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = environment / "lib" / version / "site-packages"
    others = [each for each in sys.path if each.endswith("site-packages")]
    (own / "needed.pth").write_text("\n".join(others) + "\n")
    run(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python,
        "install", "--quiet", "--no-deps", "--no-index", wheel,
    )  # fmt: skip
    where = run(python, "-c", "import ottla; print(ottla.__file__)", cwd=folder)
    assert Path(where).is_relative_to(own), f"the release is at {where}"
    print(f"the release is {tag or 'the wheel of this tree'}")
    return python


class VersionedBroker(BrokerProcess):
    """A broker whose version is that of the Python it runs in."""

    python = Path(sys.executable)

    def command(self) -> list[str]:
        return [str(self.python), *super().command()[1:]]


@pytest.fixture
def brokers(tmp_path: Path, released: Path) -> Iterator[list[VersionedBroker]]:
    """A cluster of the release."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperProcess(tmp_path / "zookeeper"))
        started: list[VersionedBroker] = []
        for number in range(1, BROKERS + 1):
            settings = {
                **SETTINGS,
                "node.id": str(number),
                "zookeeper.connect": f"{zookeeper.address}/ottla",
            }
            broker = VersionedBroker(tmp_path / f"broker-{number}", settings=settings)
            broker.python = released
            stack.callback(broker.kill)
            started.append(broker.start())
        yield started


def wait_until_in_sync(bootstrap: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with Admin(bootstrap) as admin:
                topics = admin.list_topics(internal=True)
            missing = [
                f"{topic.name}-{each.partition}"
                for topic in topics
                for each in topic.partitions
                if len(each.in_sync) < BROKERS
            ]
        except OttlaError as error:
            missing = [str(error)]
        if not missing:
            return
        assert time.monotonic() < deadline, f"not in sync: {missing}"
        time.sleep(0.2)


def in_use(admin: Admin) -> dict[str, int]:
    return {name: each.level for name, each in admin.describe_features().items() if each.level}


@pytest.mark.long
@pytest.mark.timeout(600, func_only=True)
def test_up_and_down_and_up_again(
    brokers: list[VersionedBroker], released: Path, tmp_path: Path
) -> None:
    bootstrap = ",".join(each.bootstrap for each in brokers)
    with Admin(bootstrap) as admin:
        for topic in SteadyLoad.topics_of(KINDS):
            admin.create_topic(topic, PARTITIONS, BROKERS)
        founded = in_use(admin)
    tree = Path(sys.executable)
    load = SteadyLoad(bootstrap, KINDS, tmp_path / "clients")
    with load:
        for python in (tree, released, tree):
            for broker in brokers:
                broker.stop()
                broker.python = python
                broker.start()
                wait_until_in_sync(bootstrap)
                load.wait_for_progress()
            # What only the tree knows is not in use.
            with Admin(bootstrap) as admin:
                assert in_use(admin) == founded
        # No way back from here, if the tree has new levels.
        run(sys.executable, "-m", "ottla.cli.main", "cluster", "upgrade", "--yes", "--server",
            bootstrap)  # fmt: skip
        with Admin(bootstrap) as admin:
            assert all(each.level == each.highest for each in admin.describe_features().values())
        load.wait_for_progress()
    assert load.check(bootstrap) > 0
    print(*load.table(), sep="\n")
