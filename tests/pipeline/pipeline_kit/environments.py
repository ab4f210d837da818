"""Python environments other than the one of the tests, as the nodes of a cluster have them.

Ottla is installed there from a wheel, as pip does it. What Ottla needs (pyarrow, numba: half a
gigabyte) is borrowed from the environment of the tests by path, which costs nothing; the tests' own
copy of Ottla, an editable one, is not seen by that way.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def build_wheel(folder: Path) -> Path:
    """Ottla's wheel, built from this repository."""
    pip = [sys.executable, "-m", "pip", "wheel", *_PLAIN, "--no-build-isolation"]
    _run([*pip, "--wheel-dir", folder, REPOSITORY])
    (wheel,) = folder.glob("ottla-*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path) -> Path:
    """A virtual environment with this wheel."""
    _run([sys.executable, "-m", "venv", "--without-pip", folder])
    pip = [sys.executable, "-m", "pip", "--python", python_of(folder)]
    _run([*pip, "install", *_PLAIN, "--no-index", wheel])
    borrowed = site_packages_of(folder) / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def site_packages_of(environment: Path) -> Path:
    (folder,) = environment.glob("lib/python*/site-packages")
    return folder


def forbid_kernel_cache(environment: Path) -> None:
    """No folder for compiled kernels beside their source, not even for root: a file is in its place."""
    place = site_packages_of(environment) / "ottla" / "record" / "columns" / "__pycache__"
    shutil.rmtree(place, ignore_errors=True)
    place.touch()


def pack(environment: Path, archive: Path) -> Path:
    """The environment as an archive for `--archives`."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(environment, arcname=".")
    return archive


_PLAIN = ["--quiet", "--disable-pip-version-check", "--no-deps"]


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
