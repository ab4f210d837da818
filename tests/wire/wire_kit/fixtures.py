"""Fixtures that the tests of wire and client share; their conftest files import them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .certificates import Certificates, make_certificates
from .kafka import Kafka, running_kafka


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Kafka]:
    """Apache Kafka with every kind of listener; skipped where there is no Java."""
    with running_kafka(tmp_path_factory.mktemp("kafka"), certificates) as process:
        yield process
