"""The Python of Spark's tasks, where it is sent along with the job.

With `spark.archives=environment.tar.gz#environment` every executor has the folder `environment` where it
runs, and PYSPARK_PYTHON=./environment/bin/python is the Python of its tasks. The same command plans a
Python data source, on the driver, which has no such folder: there it is the driver's own Python that
is wanted. So the command becomes a name, and the PATH leads to the one or the other: the folder of the
environment comes first, then that of the driver's Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

PYTHON: Final = "PYSPARK_PYTHON"
EXECUTOR_PATH: Final = "spark.executorEnv.PATH"
# For what the Python of tasks may start; the PATH of the nodes is not known here.
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def settings_for_sent_python(
    settings: Mapping[str, str], environment: MutableMapping[str, str] = os.environ
) -> dict[str, str]:
    """Spark's settings that are needed for the Python in `environment`, which changes with them.

    None are where that Python is a name or an absolute path, or is there on the driver, too.
    """
    python = Path(environment[PYTHON])
    if python.is_absolute() or len(python.parts) == 1 or python.exists():
        return {}
    own = Path(sys.executable).parent
    if not (own / python.name).exists():
        return {}  # Spark will say that the command is missing
    environment[PYTHON] = python.name
    environment["PATH"] = f"{own}{os.pathsep}{environment.get('PATH', _SYSTEM_PATH)}"
    # Spark gives this one to the Python on the driver, too, which finds its environment by it.
    return {EXECUTOR_PATH: f"./{python.parent}:{own}:{settings.get(EXECUTOR_PATH, _SYSTEM_PATH)}"}
