"""Builds what a release consists of, and says what is left to do: `make release`.

    python tools/release.py              the version in src/ottla/version.py, into dist/
    python tools/release.py --into DIR

A release is a commit whose version has no `.dev` in it, with a date in CHANGELOG.md. From it come the
source archive and the wheel. What has been released is written down in tools/releases.toml, for whoever
has the history without its tags, and the next version begins as `.dev0`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTED = Path("tools/releases.toml")
VERSION_FILE = Path("src/ottla/version.py")
CHANGELOG = Path("CHANGELOG.md")


@dataclass(frozen=True)
class Release:
    """A version that was released."""

    version: str
    date: date
    commit: str  # in full

    @property
    def tag(self) -> str:
        return f"v{self.version}"


class NotReady(Exception):
    """Why nothing can be released; one sentence that says what to do."""


def releases(root: Path = ROOT) -> list[Release]:
    """What has been released, oldest first."""
    listed = tomllib.loads((root / LISTED).read_text())["release"]
    return [Release(each["version"], each["date"], each["commit"]) for each in listed]


def version_in(text: str) -> str:
    """The version that the text of version.py gives."""
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise NotReady(f"{VERSION_FILE} has no version")
    return found.group(1)


def date_of(version: str, changelog: str) -> date:
    """When the changelog says that a version was released."""
    heading = re.search(rf"^## {re.escape(version)} \((.*)\)$", changelog, re.MULTILINE)
    if heading is None:
        raise NotReady(f"{CHANGELOG} has no heading '## {version} (…)'")
    try:
        return date.fromisoformat(heading.group(1))
    except ValueError:
        raise NotReady(
            f"{CHANGELOG} has '{heading.group(1)}' where the date of {version} is to stand"
        ) from None


def release_of(root: Path = ROOT) -> Release:
    """What this tree would be released as; NotReady if it cannot be."""
    version = version_in((root / VERSION_FILE).read_text())
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReady(f"{version} is no version to release: set another in {VERSION_FILE}")
    if version in (each.version for each in releases(root)):
        raise NotReady(f"{version} has been released: {LISTED} has it")
    released = date_of(version, (root / CHANGELOG).read_text())
    if _run(root, "git", "status", "--porcelain"):
        raise NotReady("there are changes that are not committed")
    return Release(version, released, _run(root, "git", "rev-parse", "HEAD"))


def build(release: Release, into: Path, root: Path = ROOT) -> list[Path]:
    """The source archive and the wheel."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel"]
    _run(root, *hatchling, "-d", str(into))
    return sorted(into.glob(f"ottla-{release.version}[.-]*"))


def _run(root: Path, *command: str) -> str:
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotReady(f"there is no {command[0]} here") from None
    if done.returncode:
        raise NotReady(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/release.py", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="DIR")
    into = parser.parse_args(words).into.absolute()
    try:
        release = release_of()
        files = build(release, into)
    except NotReady as reason:
        print(f"nothing was released: {reason}", file=sys.stderr)
        return 1
    for path in files:
        print(path)
    major, minor, _ = release.version.split(".")
    print(
        f"""
Set the tag:

    git tag {release.tag} {release.commit}

and write the release down in {LISTED}, with {major}.{int(minor) + 1}.0.dev0 in {VERSION_FILE}:

    [[release]]
    version = "{release.version}"
    date = {release.date}
    commit = "{release.commit}"
"""
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
