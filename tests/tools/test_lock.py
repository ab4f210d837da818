"""The lock file: a version for everything that pyproject.toml asks for, and nothing about its maker."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = {
    str(requirement): requirement
    for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for line in group
    if (requirement := Requirement(line)).name != PROJECT["name"]
}
LINES = [
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
]


def locked() -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in LINES:
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@pytest.mark.parametrize("asked", ASKED)
def test_everything_asked_for_is_locked_within_its_range(asked: str) -> None:
    requirement = ASKED[asked]
    versions = locked().get(canonicalize_name(requirement.name), [])
    assert versions, f"{requirement.name} is not in constraints.txt: run `make lock`"
    for pinned in versions:
        (specifier,) = pinned.specifier
        assert specifier.operator == "=="
        assert requirement.specifier.contains(specifier.version), f"{pinned}: run `make lock`"


def test_names_and_versions_alone() -> None:
    """No options, addresses or paths of the machine on which the lock was made."""
    pinned = re.compile(r"[a-z0-9._-]+==[A-Za-z0-9.!+]+( ; [a-z_0-9A-Z'\"<>=!. ()-]+)?")
    assert [line for line in LINES if pinned.fullmatch(line) is None] == []
