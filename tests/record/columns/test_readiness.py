"""How the compiled kernels come into a process: in the background, from the cache, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ottla

# The cache is filled once.
pytestmark = pytest.mark.xdist_group("kernel-cache")

PRELUDE = """
import sys, time
from ottla.record.batch import Record, build_batch
from ottla.record.columns import compile_kernels, decode
from ottla.record.columns.kernels import readiness

batch = build_batch([Record(n, 1_800_000_000_000, None, b"v" * 100) for n in range(1000)])

def rows():
    return sum(decoded.rows.num_rows for decoded in decode(batch))

def read_much():
    for _ in range(readiness.WORTH_LOADING // len(batch) + 1):
        assert rows() == 1000
"""


def run(script: str, cache: Path, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        env={**os.environ, "OTTLA_CACHE_DIR": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A process that reads much: its cache, empty before, and what it printed."""
    cache = tmp_path_factory.mktemp("cache")
    script = """
        import threading
        read_much()
        (fetching,) = [t for t in threading.enumerate() if t.name == "ottla-kernels"]
        print(rows(), readiness.kernels_for(0))  # plain as yet
        fetching.join()
        print(rows(), readiness.kernels_for(0) is not None)
    """
    return cache, run(script, cache)


@pytest.fixture(scope="module")
def filled(reader: tuple[Path, str]) -> Path:
    """A cache that another process has filled."""
    return reader[0]


def test_a_short_command_never_meets_the_compiler(tmp_path: Path) -> None:
    assert run("print(rows(), 'numba' in sys.modules)", tmp_path) == "1000 False"
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_process_that_reads_much_gets_the_kernels_in_the_background(
    reader: tuple[Path, str],
) -> None:
    cache, printed = reader
    assert printed == "1000 None\n1000 True"
    assert list(cache.glob("kernels-*/**/*.nbi")), "nothing was cached"


@pytest.mark.long
def test_what_is_in_the_cache_is_not_compiled_again(filled: Path) -> None:
    script = """
        assert compile_kernels()
        kernels = readiness.kernels_for(0)
        print(sum(kernels.decode_records.stats.cache_hits.values()),
              sum(kernels.decode_records.stats.cache_misses.values()))
        import numba
        print(numba.config.CACHE_DIR == "", rows())
    """
    assert run(script, filled) == "1 0\nTrue 1000"


@pytest.mark.long
def test_a_damaged_cache_is_compiled_again_or_done_without(filled: Path, tmp_path: Path) -> None:
    script = "print(compile_kernels() in (True, False), rows())"
    for index in filled.glob("kernels-*/**/*.nb*"):
        copy = tmp_path / index.relative_to(filled)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(b"damaged")
    assert run(script, tmp_path) == "True 1000"


@pytest.mark.long
def test_without_a_folder_to_write_to(tmp_path: Path) -> None:
    file = tmp_path / "a file, no folder"
    file.touch()
    assert run("print(compile_kernels(), rows())", file / "cache") == "True 1000"


@pytest.mark.long
def test_without_numba(tmp_path: Path) -> None:
    hidden = "sys.modules['numba'] = None\n"
    script = hidden + "print(compile_kernels())\nread_much()\nprint(rows())"
    assert run(script, tmp_path) == "False\n1000"


def test_of_several_that_find_the_cache_empty_one_compiles(tmp_path: Path) -> None:
    with (tmp_path / "compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "ottla.record.columns.kernels.compile", str(tmp_path)]
        with subprocess.Popen(command) as second:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(0.5)
            (tmp_path / "ready").touch()  # as the first one does in the end
            lock.close()
            assert second.wait(60) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compiling", "ready"]


def test_another_place_has_a_cache_of_its_own(tmp_path: Path) -> None:
    """numba looks for the file that was compiled, wherever its code is the same."""
    script = "print(readiness.cache_folder().name)"
    copied = tmp_path / "elsewhere"
    shutil.copytree(Path(ottla.__file__).parent, copied / "ottla")
    assert run(script, tmp_path, PYTHONPATH=str(copied)) != run(script, tmp_path)


def test_switched_off(tmp_path: Path) -> None:
    script = "print(compile_kernels(), rows(), 'numba' in sys.modules)"
    assert run(script, tmp_path, OTTLA_KERNELS="off") == "False 1000 False"
