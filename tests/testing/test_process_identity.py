"""ProcessIdentity: a signal reaches the process that was meant, or none."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ottla.testing import process_identity
from ottla.testing.process_identity import identify, runs, send, wait_for_end


@pytest.fixture(params=["as the system has it", "without descriptors", "by ps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways of systems other than Linux as well."""
    if request.param != "as the system has it":
        monkeypatch.setattr(process_identity, "_open", lambda _: None)
    if request.param == "by ps":
        monkeypatch.setattr(process_identity, "_started", process_identity._started_by_ps)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for the end of its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("way")
def test_a_process_is_known_until_its_end(child: subprocess.Popen[bytes]) -> None:
    identity = identify(child.pid)
    assert identity is not None
    assert runs(identity)
    assert identify(child.pid) == identity
    assert not wait_for_end(identity, 0.01)
    assert send(identity, signal.SIGKILL)
    assert wait_for_end(identity, 30)
    # Nobody has asked for its exit status yet: a zombie does not run.
    assert not runs(identity)
    assert identify(child.pid) is None
    child.wait()
    assert not send(identity, signal.SIGKILL)
    assert wait_for_end(identity, 30)


def test_a_program_with_many_open_files_can_wait(child: subprocess.Popen[bytes]) -> None:
    """`select` takes no descriptor above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"no more than {hard} files may be open here")
    identity = identify(child.pid)
    assert identity is not None
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    first = os.open(os.devnull, os.O_RDONLY)
    others: list[int] = []
    try:
        while (others[-1] if others else first) < 1024:
            others.append(os.dup(first))
        assert not wait_for_end(identity, 0.01)
        child.kill()
        assert wait_for_end(identity, 30)
    finally:
        for descriptor in (first, *others):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("way")
def test_another_process_with_the_same_id_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    identity = identify(child.pid)
    assert identity is not None
    earlier = identity._replace(started="an earlier boot")
    assert not runs(earlier)
    assert not send(earlier, signal.SIGKILL)
    assert wait_for_end(earlier, 0)
    assert child.poll() is None


def test_an_odd_name_does_not_confuse() -> None:
    """The name of a process stands in parentheses in /proc, and may contain some."""
    program = (
        "import sys, pathlib; pathlib.Path('/proc/self/comm').write_text(') Z 1 ('); print();"
        "sys.stdout.flush(); sys.stdin.read()"
    )
    if not os.path.exists("/proc/self/comm"):
        pytest.skip("there is no /proc here")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = identify(process.pid)
        assert identity is not None
        assert runs(identity)
        process.kill()
