"""franz-go's own test suite, the most demanding one that a client brings, run against brokers.

The version is the one that go/go.mod pins for the other tests with franz-go; its sources come as a Go
module. Nothing may fail, and what is skipped is named here, with the reason.

Its clients can speak TLS (KGO_TEST_TLS), and no SASL: KGO_TEST_SCRAM is for one test of its own, which
asks KGO_TEST_SCRAM_SEEDS. Against a listener with SASL the rest of the suite fails as soon as it creates
a topic, with Kafka as well. So it is compiled with one file replaced, in which all clients use the
mechanism that KGO_TEST_SCRAM names.

FRANZ_GO_RUN is a pattern for `go test -run`, to look at one test; `.` is all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from interop_kit import toolchain

MODULE = "github.com/twmb/franz-go"
RECORDS = 10_000
FEW_RECORDS = 1_000  # where some tests are selected
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
SKIPPED_WITHOUT_SCRAM = ("TestSCRAMAuth", "TestSCRAMAuthBadCredentials")
FEWEST_PASSED = 440
# Tests that fail at times on any cluster, and how: they have to pass in one of some tries.
RACES = {
    "Test848RegexBrokerResolves": "stops when it has read as many topics as it wrote to, and takes "
    "__consumer_offsets for one of them, which may come from its leader before the others do",
}
TRIES = 5


def run_suite(
    bootstrap: str,
    replicas: int,
    folder: Path,
    *,
    security: Mapping[str, str] | None = None,
    selected: str = ".",
) -> None:
    """Run the suite, or the tests of it that a pattern selects; `security` is what its environment has
    for that. The folder is the test's own."""
    go, package = toolchain.go_suite(MODULE, "pkg/kgo")
    only = os.environ.get("FRANZ_GO_RUN", selected)
    is_whole = only == "."
    command = [go, "test", "-json", "-count=1", "-vet=off", f"-timeout={TIME_LIMIT}s"]
    command += [] if is_whole else [f"-run={only}"]
    security = security or {}
    if "KGO_TEST_SCRAM" in security:
        command += [f"-overlay={_with_sasl(package, folder)}"]
    environment = {
        **os.environ,
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": str(replicas),
        "KGO_TEST_RECORDS": str(RECORDS if is_whole else FEW_RECORDS),
        "KGO_LOG_LEVEL": "none",
        **security,
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
    if is_whole and failed and set(bad) - {""} <= RACES.keys():
        for test in failed:
            print(f"{test} once more: it {RACES[test]}")
            alone = partial(run_suite, security=security, selected=f"^{test}$")
            _pass_in_some_try(partial(alone, bootstrap, replicas, folder))
        bad = []
    assert not bad, "\n".join(
        f"{test or 'the suite'}:\n{''.join(said[test])[-3000:]}" for test in bad
    )
    skipped = {test for test, result in outcome.items() if result == "skip"}
    unexpected = skipped - SKIPPED.keys()
    assert not unexpected, "\n".join(f"{test}: {''.join(said[test])}" for test in unexpected)
    assert counts["pass"] >= (FEWEST_PASSED if is_whole else 1)
    if is_whole:
        expected = {name for name in SKIPPED if name not in SKIPPED_WITHOUT_SCRAM or not security}
        assert expected <= skipped, "no longer skipped: take it off the list"


def _pass_in_some_try(run: Callable[[], None]) -> None:
    for left in reversed(range(TRIES)):
        try:
            run()
            return
        except AssertionError:
            if not left:
                raise


# After this its clients have their TLS.
_TLS_OPTION = "\t\topts = append(opts, DialTLSConfig(testCert))\n\t}\n"
_SASL_OPTION = "\tif saslScram != nil {\n\t\topts = append(opts, SASL(saslScram))\n\t}\n"


def _with_sasl(package: Path, folder: Path) -> Path:
    """What `go test -overlay` takes: the suite's clients with SASL."""
    original = package / "helpers_test.go"
    before, option, after = original.read_text().partition(_TLS_OPTION)
    assert option, "the suite makes its clients in another way"
    replaced = folder / original.name
    replaced.write_text(f"{before}{option}{_SASL_OPTION}{after}")
    overlay = folder / "overlay.json"
    overlay.write_text(json.dumps({"Replace": {str(original): str(replaced)}}))
    return overlay
