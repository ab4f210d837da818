"""Break each guard on purpose, and see the simulator find it.

`python tests/replication/test_mutations.py` prints the table of docs/reliability.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent / "storage"), str(HERE.parent / "cluster_model")]

from simulation_kit.mutations import MUTATIONS, first_caught  # noqa: E402 - found only now

SEEDS = 1000


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_guard_is_found(name: str) -> None:
    assert first_caught(MUTATIONS[name], SEEDS) is not None


def test_the_documentation_lists_all_of_them() -> None:
    written = (HERE.parent.parent / "docs" / "reliability.md").read_text()
    section = written[written.index("## Mutations") :]
    assert [each.what for each in MUTATIONS.values() if each.what not in section] == []


if __name__ == "__main__":
    print("| guard that is broken | seed | what the simulator says |\n|---|---|---|")
    for each in MUTATIONS.values():
        found = first_caught(each, SEEDS)
        seed, words = found if found is not None else ("none", "")
        print(f"| {each.what} | {seed} | {words} |", flush=True)
