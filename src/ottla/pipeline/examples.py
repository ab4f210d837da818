"""The examples: programs that are meant to be read and copied, and that `ottla demo` runs.

They are in the repository's examples/, and in the wheel as files. They are no modules of Ottla: a
program that wants to import one calls `make_importable` first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ottla


def examples_folder() -> Path:
    """Where the examples are: in an installed package, or in the repository around its source."""
    package = Path(ottla.__file__).resolve().parent
    candidates = (package / "examples", package.parent.parent / "examples")
    for folder in candidates:
        if (folder / "weblogs").is_dir():
            return folder
    raise FileNotFoundError(f"the examples are missing: {' and '.join(map(str, candidates))}")


def make_importable() -> None:
    """From now on an example is imported by its name, as in `import weblogs`."""
    folder = str(examples_folder())
    if folder not in sys.path:
        sys.path.insert(0, folder)
