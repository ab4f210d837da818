"""A broker for the collector's tests, and a topic and a folder for each."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from collect_kit import Collecting

from ottla import Admin
from ottla.testing import BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        yield process


@pytest.fixture
def collecting(broker: BrokerProcess, tmp_path: Path) -> Collecting:
    """A topic of one partition and an empty folder."""
    topic = f"logs-{uuid.uuid4().hex[:12]}"
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    folder = tmp_path / "log"
    folder.mkdir()
    return Collecting(broker.bootstrap, topic, folder)
