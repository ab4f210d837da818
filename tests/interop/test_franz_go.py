"""franz-go's own test suite against our broker, and against three of them that hold every partition
together; a selection of it over TLS, SCRAM, and SCRAM within TLS (`FRANZ_GO_RUN=.`: all of it)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop_kit.franz_go_suite import TIME_LIMIT, run_suite
from interop_kit.running_cluster import BROKERS, running_cluster

# The kit of the server's tests has the broker.
sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))

from server_kit.secured_process import (
    SASL_PLAIN,
    SASL_TLS,
    SECRET,
    TLS,
    USER,
    Secured,
    secured_process,
)

from ottla.testing import BrokerProcess


@pytest.mark.long
@pytest.mark.timeout(TIME_LIMIT + 60, func_only=True)
def test_franz_go_is_content(fresh_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    run_suite(fresh_broker().bootstrap, 1, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(TIME_LIMIT + 60, func_only=True)
def test_franz_go_is_content_with_a_cluster(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        run_suite(cluster.bootstrap, BROKERS, tmp_path)


# Groups, transactions, patterns, large records, and refusals of passwords.
SELECTED = (
    "TestSCRAMAuth|TestTxnEtl|TestGroupSimple|TestConsumeRegex$|TestClient_Produce|TestIssue8"
)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_process(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.mark.long
@pytest.mark.timeout(TIME_LIMIT + 60, func_only=True)
@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [(TLS, ""), (SASL_PLAIN, "SCRAM-SHA-256"), (SASL_TLS, "SCRAM-SHA-512")],
)
def test_franz_go_is_content_with_security(
    protocol: str, mechanism: str, secured: Secured, tmp_path: Path
) -> None:
    security = {"KGO_TEST_SCRAM_SEEDS": secured.address(SASL_PLAIN)}
    if protocol.endswith("SSL"):
        security["KGO_TEST_TLS"] = f"ca:{secured.authority.file}"
    if protocol == TLS:
        security["KGO_TEST_TLS"] += f",cert:{secured.certificate},key:{secured.certificate}"
    if mechanism:
        security["KGO_TEST_SCRAM"] = f"{USER}:{SECRET}:{mechanism.rpartition('-')[2]}"
    run_suite(secured.address(protocol), 1, tmp_path, security=security, selected=SELECTED)
