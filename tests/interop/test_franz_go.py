"""franz-go's own test suite, the most demanding one that a client brings, against our broker, and
against three of them that hold every partition together.

The version is the one that go/go.mod pins for the other tests with franz-go; its sources come as a Go
module. Nothing may fail, and what is skipped is named here, with the reason.

FRANZ_GO_RUN is a pattern for `go test -run`, to look at one test.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from interop_kit import toolchain
from interop_kit.running_cluster import BROKERS, running_cluster

from ottla.testing import BrokerProcess

MODULE = "github.com/twmb/franz-go"
RECORDS = 10_000
# The suite takes two minutes on two cores that have nothing else to do.
TIME_LIMIT = 600

SKIPPED = {
    # Kafka, too:
    "TestSCRAMAuth": "needs a listener with SCRAM",
    "TestSCRAMAuthBadCredentials": "needs a listener with SCRAM",
    "TestIssueProduceBrokerTooOldFailsRecords": "is for brokers without Produce 2",
    # Queues come later:
    "TestConsumeRegexShareSkipsInternal": "share groups",
    "TestShareGroup": "share groups",
    "TestShareGroupAckOnClose": "share groups",
    "TestShareGroupETL": "share groups",
    "TestShareGroupOffsetsAdmin": "share groups",
}
FEWEST_PASSED = 440


@pytest.mark.long
@pytest.mark.timeout(TIME_LIMIT + 60, func_only=True)
def test_franz_go_is_content(fresh_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    run_suite(fresh_broker().bootstrap, 1, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(TIME_LIMIT + 60, func_only=True)
def test_franz_go_is_content_with_a_cluster(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        run_suite(cluster.bootstrap, BROKERS, tmp_path)


def run_suite(bootstrap: str, replicas: int, folder: Path) -> None:
    go, package = toolchain.go_suite(MODULE, "pkg/kgo")
    only = os.environ.get("FRANZ_GO_RUN")
    command = [go, "test", "-json", "-count=1", "-vet=off", f"-timeout={TIME_LIMIT}s"]
    command += [f"-run={only}"] if only else []
    environment = {
        **os.environ,
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": str(replicas),
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
    }
    outcome: dict[str, str] = {}
    said: defaultdict[str, list[str]] = defaultdict(list)
    with (folder / "errors").open("w+") as errors:
        suite = subprocess.Popen(
            [*command, "."], cwd=package, env=environment, stdout=subprocess.PIPE, stderr=errors
        )
        # Its own time limit ends the suite, but not a compiler that hangs.
        watch = threading.Timer(TIME_LIMIT + 30, suite.kill)
        watch.start()
        try:
            assert suite.stdout is not None
            for line in suite.stdout:
                event = json.loads(line)
                test = event.get("Test", "")
                if event["Action"] in ("output", "build-output"):
                    said[test].append(event["Output"])
                elif event["Action"] in ("pass", "fail", "skip"):
                    outcome[test] = event["Action"]
        finally:
            watch.cancel()
            suite.kill()
            suite.wait()
        errors.seek(0)
        said[""].append(errors.read())
    package_outcome = outcome.pop("", "none")
    counts = Counter(outcome.values())
    print(f"franz-go: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    failed = [test for test, result in outcome.items() if result == "fail"]
    # A panic or the end of time leaves tests without an outcome; the package then tells.
    bad = failed + [test for test in said if test and test not in outcome]
    bad += [""] if package_outcome != "pass" else []
    assert not bad, "\n".join(
        f"{test or 'the suite'}:\n{''.join(said[test])[-3000:]}" for test in bad
    )
    skipped = {test for test, result in outcome.items() if result == "skip"}
    unexpected = skipped - SKIPPED.keys()
    assert not unexpected, "\n".join(f"{test}: {''.join(said[test])}" for test in unexpected)
    if not only:
        assert counts["pass"] >= FEWEST_PASSED
        assert skipped == SKIPPED.keys(), "no longer skipped: take it off the list"
