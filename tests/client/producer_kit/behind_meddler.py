"""Fixtures for producers whose broker stands behind a meddler."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from ottla import Admin
from ottla.testing import BrokerProcess
from producer_kit.meddler import Fate, Meddler


@pytest.fixture(scope="module")
def meddled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Meddler, BrokerProcess]]:
    data = tmp_path_factory.mktemp("meddled") / "data"
    with Meddler() as meddler:
        settings = {"advertised.listeners": f"PLAINTEXT://{meddler.address}"}
        with BrokerProcess(data, settings=settings) as process:
            meddler.forward_to(process.port)
            yield meddler, process


@pytest.fixture
def meddler(meddled: tuple[Meddler, BrokerProcess]) -> Meddler:
    meddled[0].begin(lambda _: Fate.FORWARD)
    return meddled[0]


@pytest.fixture
def topic(meddled: tuple[Meddler, BrokerProcess]) -> str:
    name = f"meddled-{uuid.uuid4().hex[:10]}"
    with Admin(meddled[0].address) as admin:
        admin.create_topic(name, partitions=1)
    return name
