"""Runs the core suite on every other Python from 3.11 on that this machine has.

    python tools/other_pythons.py                 all that are found
    python tools/other_pythons.py PYTHON ...      these

The core suite is what stands or falls with the interpreter: record batches and their kernels, the
protocol, storage, the cluster's decisions, and the broker on its event loop. A Python is looked for as
python3.N on PATH and among pyenv's versions. Each gets an environment of its own in .venv/pythons, with
the versions of the lock file. A version that is not found is named with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".venv" / "pythons"
MINORS = (11, 12, 13, 14)
CORE = (
    "tests/record",
    "tests/protocol",
    "tests/storage",
    "tests/cluster_model",
    "tests/server",
)
COMPILE = "from ottla.record.columns.kernels.readiness import compile_kernels; compile_kernels()"
ASK = "import sys; print('%d.%d.%d' % sys.version_info[:3])"


def candidates(minor: int) -> list[str]:
    """Where a Python 3.MINOR may be; pyenv's newest comes first among pyenv's."""
    on_path = shutil.which(f"python3.{minor}")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(root.glob(f"versions/3.{minor}.*/bin/python"), key=_release, reverse=True)
    return ([on_path] if on_path else []) + [str(path) for path in installed]


def _release(python: Path) -> tuple[int, ...]:
    """(3, 12, 1) of …/3.12.1/bin/python; of a release that is no number, less than of any other."""
    parts = python.parent.parent.name.split(".")
    return tuple(int(part) if part.isdigit() else -1 for part in parts)


def version_of(python: str) -> str | None:
    """Its version, or None if it does not run: pyenv's shims exist for versions not switched on."""
    try:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def found() -> list[str]:
    """One Python of every minor version but the one that runs this; says why where there is none."""
    pythons = []
    for minor in MINORS:
        if minor == sys.version_info.minor:
            continue
        running = next((path for path in candidates(minor) if version_of(path)), None)
        if running is None:
            print(
                f"python 3.{minor}: skipped: neither python3.{minor} on PATH nor one of pyenv's runs"
            )
        else:
            pythons.append(running)
    return pythons


def run_core_suite(python: str) -> bool:
    version = version_of(python)
    if version is None:
        print(f"{python} does not run")
        return False
    environment = ENVIRONMENTS / version
    print(f"python {version}: the core suite, in {environment.relative_to(ROOT)}", flush=True)
    if not (environment / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", environment], check=True)
    own = environment / "bin" / "python"
    install = [own, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run(
        [*install, "--constraint", "constraints.txt", "--editable", ".[test]"], cwd=ROOT, check=True
    )
    # A new environment has no compiled kernels, and the time to compile them is no test's.
    subprocess.run([own, "-c", COMPILE], cwd=ROOT, check=True)
    tests = [own, "-m", "pytest", "-q", "-rfERs", "-n", "4", "-m", "not soak and not long", *CORE]
    tests += ["--reruns", os.environ.get("RERUNS", "0")]
    # Hundreds of processes start, which load what was compiled before.
    settings = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(tests, cwd=ROOT, check=False, env=settings)
    print(f"python {version}: {'passed' if done.returncode == 0 else 'FAILED'}", flush=True)
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    passed = [run_core_suite(python) for python in arguments or found()]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
