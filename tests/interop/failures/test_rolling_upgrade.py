"""Brokers of a released version and of this tree, side by side in one cluster, while clients work.

The release is the newest of tools/releases.toml: its wheel is built from the commit that is named there
and installed into an environment of its own. Its brokers are exchanged for those of the tree one at a
time, then back, then forth again, before any level of a feature is raised. Nothing is lost, or there
twice, what each client wrote stays in order, and no client (Java's, librdkafka, franz-go, Ottla's) is
told of an error. A level that only a later version knows is raised, holds the release off, and is
lowered again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop_kit.steady_load import KINDS, PARTITIONS, SteadyLoad

from ottla import Admin, __version__
from ottla.client.errors import OttlaError
from ottla.testing import BrokerDied, BrokerProcess
from ottla.testing.zookeeper import ZooKeeperProcess

ROOT = Path(__file__).resolve().parents[3]
BROKERS = 3
PATIENCE = 90.0
SOME_KINDS = ("confluent-kafka", "ottla")
SETTINGS = {
    "default.replication.factor": str(BROKERS),
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "6",
}


FEATURE = "ottla.version"
# The tree, as it will be with the next level of its feature.
LATER = f"""
from dataclasses import replace
from ottla.cli.main import main
from ottla.server.broker import SUPPORTED_FEATURES

known = SUPPORTED_FEATURES["{FEATURE}"]
SUPPORTED_FEATURES["{FEATURE}"] = replace(known, maximum=known.maximum + 1)
main()
"""


def run(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Release:
    version: str
    commit: str


def newest_release() -> Release:
    listed = tomllib.loads((ROOT / "tools" / "releases.toml").read_text())["release"]
    return Release(listed[-1]["version"], listed[-1]["commit"])


def has_history(release: Release) -> bool:
    """Whether the commit of a release is here: not in a source archive, nor in a shallow clone."""
    if shutil.which("git") is None:
        return False
    asked = ["git", "cat-file", "-e", f"{release.commit}^{{commit}}"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, check=False)
    return found.returncode == 0


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment into which the release is installed."""
    release = newest_release()
    if not has_history(release):
        pytest.skip(f"the history with commit {release.commit} ({release.version}) is not here")
    folder = tmp_path_factory.mktemp("release")
    source = folder / "source"
    source.mkdir()
    run("git", "archive", "--output", folder / "source.tar", release.commit)
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
    where, version = run(
        python, "-c", "import ottla; print(ottla.__file__, ottla.__version__)", cwd=folder
    ).split()
    assert Path(where).is_relative_to(own), f"the release is at {where}"
    assert version == release.version
    assert version != __version__, "this is the release itself, and not what comes after it"
    return python


class VersionedBroker(BrokerProcess):
    """A broker whose version is that of the Python it runs in."""

    python = Path(sys.executable)
    before: tuple[str, ...] = ()  # what is run in place of `-m ottla.cli.main`

    def command(self) -> list[str]:
        words = super().command()[1:]
        if self.before:
            assert words[:2] == ["-m", "ottla.cli.main"]
            words = [*self.before, *words[2:]]
        return [str(self.python), *words]


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


def cluster(command: str, bootstrap: str, *words: str, fails: bool = False) -> str:
    """`ottla cluster COMMAND` of the tree; what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "cluster", command, *words, "--yes",
         "--server", bootstrap],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    told = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, told
    return told


def exchange(broker: VersionedBroker, python: Path, before: tuple[str, ...] = ()) -> None:
    broker.stop()
    broker.python, broker.before = python, before
    broker.start()


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
                exchange(broker, python)
                wait_until_in_sync(bootstrap)
                load.wait_for_progress()
            # What only the tree knows is not in use.
            with Admin(bootstrap) as admin:
                assert in_use(admin) == founded
        # No way back from here, if the tree has new levels.
        cluster("upgrade", bootstrap)
        with Admin(bootstrap) as admin:
            assert all(each.level == each.highest for each in admin.describe_features().values())
        load.wait_for_progress()
    assert load.check(bootstrap) > 0
    print(*load.table(), sep="\n")


@pytest.mark.long
@pytest.mark.timeout(600, func_only=True)
def test_a_level_that_only_a_later_version_knows(
    brokers: list[VersionedBroker], released: Path, tmp_path: Path
) -> None:
    bootstrap = ",".join(each.bootstrap for each in brokers)
    with Admin(bootstrap) as admin:
        for topic in SteadyLoad.topics_of(SOME_KINDS):
            admin.create_topic(topic, PARTITIONS, BROKERS)
        level = in_use(admin)[FEATURE]
    tree = Path(sys.executable)
    first, *others = brokers
    load = SteadyLoad(bootstrap, SOME_KINDS, tmp_path / "clients")
    with load:
        exchange(first, tree, ("-c", LATER))
        wait_until_in_sync(bootstrap)
        # Two of the three could not read what is written at that level.
        assert "supports levels" in cluster(
            "upgrade", bootstrap, f"{FEATURE}={level + 1}", fails=True
        )
        for broker in others:
            exchange(broker, tree, ("-c", LATER))
            wait_until_in_sync(bootstrap)
        load.wait_for_progress()
        cluster("upgrade", bootstrap)
        with Admin(bootstrap) as admin:
            assert in_use(admin)[FEATURE] == level + 1
        load.wait_for_progress()
        first.stop()
        first.python, first.before = released, ()
        with pytest.raises(BrokerDied, match=f"'{FEATURE}' at level {level + 1}"):
            first.start()
        load.wait_for_progress()
        # The way back is to lower it.
        assert "not allow a downgrade" in cluster(
            "upgrade", bootstrap, f"{FEATURE}={level}", fails=True
        )
        cluster("downgrade", bootstrap, f"{FEATURE}={level}")
        first.start()
        wait_until_in_sync(bootstrap)
        for broker in others:
            exchange(broker, released)
            wait_until_in_sync(bootstrap)
        with Admin(bootstrap) as admin:
            assert in_use(admin)[FEATURE] == level
        load.wait_for_progress()
    assert load.check(bootstrap) > 0
