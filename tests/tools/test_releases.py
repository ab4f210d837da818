"""What was released is written down, and stays true; what is not ready is not released."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ottla import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_tool", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["release_tool"] = module
    spec.loader.exec_module(module)
    return module


def git(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True, check=False)


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".dev")[0].split(".")))


def test_the_list(tool: ModuleType) -> None:
    listed = tool.releases()
    assert listed
    assert [number(each.version) for each in listed] == sorted(
        {number(each.version) for each in listed}
    )
    changelog = (ROOT / "CHANGELOG.md").read_text()
    for each in listed:
        assert re.fullmatch(r"[0-9a-f]{40}", each.commit)
        assert tool.date_of(each.version, changelog) == each.date
    # What is being worked on comes after all that there was.
    assert number(__version__) > number(listed[-1].version)


def test_commits_have_their_versions(tool: ModuleType) -> None:
    for each in tool.releases():
        if git("cat-file", "-e", f"{each.commit}^{{commit}}").returncode:
            pytest.skip(f"the history with {each.tag} is not here")
        shown = git("show", f"{each.commit}:{tool.VERSION_FILE}")
        assert tool.version_in(shown.stdout) == each.version
        tagged = git("rev-parse", "--verify", "--quiet", f"{each.tag}^{{commit}}")
        assert tagged.stdout.strip() in ("", each.commit)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository in which version 1.2.0 could be released."""
    for path, text in {
        "src/ottla/version.py": '__version__ = "1.2.0"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.0 (2031-05-06)\n",
        "tools/releases.toml": '[[release]]\nversion = "1.1.0"\ndate = 2030-01-02\n'
        f'commit = "{"0" * 40}"\n',
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    git("init", "--quiet", cwd=tmp_path)
    commit(tmp_path)
    return tmp_path


def commit(tree: Path) -> None:
    git("add", "--all", cwd=tree)
    names = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com"]
    done = git(*names, "commit", "--quiet", "--message", "A state", cwd=tree)
    assert done.returncode == 0, done.stderr


def test_a_tree_that_is_ready(tool: ModuleType, tree: Path) -> None:
    release = tool.release_of(tree)
    assert (release.tag, str(release.date)) == ("v1.2.0", "2031-05-06")
    assert release.commit == git("rev-parse", "HEAD", cwd=tree).stdout.strip()


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("src/ottla/version.py", '__version__ = "1.2.0.dev0"\n', "no version to release"),
        ("src/ottla/version.py", '__version__ = "1.1.0"\n', "has been released"),
        ("src/ottla/version.py", '__version__ = "1.3.0"\n', "no heading '## 1.3.0"),
        ("CHANGELOG.md", "## 1.2.0 (unreleased)\n", "'unreleased' where the date"),
    ],
)
def test_a_tree_that_is_not(
    tool: ModuleType, tree: Path, path: str, text: str, reason: str
) -> None:
    (tree / path).write_text(text)
    commit(tree)
    with pytest.raises(tool.NotReady, match=re.escape(reason)):
        tool.release_of(tree)


def test_changes_that_are_not_committed(tool: ModuleType, tree: Path) -> None:
    (tree / "another").write_text("file")
    with pytest.raises(tool.NotReady, match="not committed"):
        tool.release_of(tree)


def test_this_tree_says_why_it_is_not_released(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tools/release.py", "--into", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ".dev" not in __version__:
        pytest.skip("this commit is a release")
    assert done.returncode == 1
    assert done.stderr.startswith("nothing was released: ")
    assert not list(tmp_path.iterdir())
