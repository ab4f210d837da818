"""A SPARK_HOME from which Spark's Python processes start in a fraction of the time.

Spark starts a Python process for each thing that a Python data source does: looking it up, making it,
planning, writing, committing, and the daemon of the tasks. Before all else, each has `pyspark.zip` of
SPARK_HOME on its path, where Python finds no compiled modules: every one of them compiles PySpark anew,
for half a second. Without that file they find PySpark where it is installed. So, on this machine and
with this Python, Spark is given a folder with links to all that its home has and it needs, but that.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HOME: Final = "SPARK_HOME"
_LINKED: Final = ("bin", "conf", "jars", "sbin")
_ZIP: Final = Path("python", "lib", "pyspark.zip")


@contextmanager
def home_without_zip(
    master: str, environment: MutableMapping[str, str] = os.environ
) -> Iterator[Path | None]:
    """SPARK_HOME is such a folder inside of this block, unless another one was chosen."""
    python = environment.get("PYSPARK_PYTHON")
    chosen = HOME in environment or python not in (None, sys.executable)
    home = None if chosen or not master.startswith("local") else _folder()
    if home is None:
        yield None
        return
    environment[HOME] = str(home)
    try:
        yield home
    finally:
        del environment[HOME]


def _folder() -> Path | None:
    """The folder, made if need be; None where Spark's home is not that of an installed package."""
    found = find_spec("pyspark")
    installed = None if found is None or found.origin is None else Path(found.origin).parent
    if installed is None or not ((installed / _ZIP).exists() and (installed / "jars").is_dir()):
        return None
    # One for each installation, as there may be several; it stays, for others may be using it.
    name = hashlib.sha256(str(installed).encode()).hexdigest()[:12]
    parent = Path(tempfile.gettempdir()) / f"ottla-spark-{os.getuid()}"
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        if parent.is_symlink() or parent.stat().st_uid != os.getuid():
            return None  # somebody else's
        home = parent / name
        home.mkdir(exist_ok=True)
        for each in _LINKED:
            try:
                (home / each).symlink_to(installed / each)
            except FileExistsError:
                continue
    except OSError:
        return None  # it is only faster with it
    return home
