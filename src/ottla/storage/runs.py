"""The runs of a broker that a data folder knows of: a list of names in the file `.runs`.

Names are `NUMBER-RANDOM`, one in a line, in the order of their numbers. The last is the run that wrote
the file. Before it stand those that the cluster may have heard of last: the run that it told of when
the broker started, and all after that, which may have ended before they were taken in. What the names
are good for: cluster/membership/runs.py.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

# Runs that a file names at most. Only a broker that fails time and again in the middle of its start has
# more than two; the oldest is kept, without which the others would look newer than they are.
MOST_RUNS = 50

_NAME = re.compile(rb"[1-9][0-9]{0,17}-[0-9a-f]{16}", re.ASCII)


def parse(data: bytes) -> tuple[str, ...]:
    """The names in a file; none if it makes no sense."""
    lines = data.splitlines()
    return tuple(each.decode() for each in lines) if all(map(_NAME.fullmatch, lines)) else ()


def render(names: Sequence[str]) -> bytes:
    return "".join(f"{each}\n" for each in names).encode()


def number(run: str) -> int:
    """The number in a run's name."""
    return int(run.partition("-")[0])


def known_to_all(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The runs that all folders know of. What came before the first in its list a folder knew once."""
    if not lists or not all(lists):
        return ()
    oldest = min(lists, key=lambda names: number(names[-1]))
    return tuple(
        run
        for run in oldest
        if all(run in names or number(run) < number(names[0]) for names in lists)
    )


def with_next(former: Sequence[str], last: str) -> list[str]:
    """The former runs that have to be remembered, and the name of a new one, above all of them and
    above `last`, which the cluster names ("" if it names none)."""
    kept = list(former)
    if last in kept:
        kept = kept[kept.index(last) :]
    if len(kept) >= MOST_RUNS:
        kept = [kept[0], *kept[-MOST_RUNS + 2 :]]
    following = 1 + max([number(each) for each in (*former, last) if each], default=0)
    return [*kept, f"{following}-{secrets.token_hex(8)}"]
