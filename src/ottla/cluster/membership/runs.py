"""Whether a broker's data folders are those of its last run: an old copy that was put back is found out.

A run is one process of a broker with its data folders, from its start to its end; it may register
several times. It has a name, `NUMBER-RANDOM`, whose number is above those of all runs before it. The
name is written into each data folder, for good, before the broker registers with it, and nothing of a
run is written to a log before it was registered. The cluster knows the name of the last run that was
taken in.

So folders that do not know that run are older than it: whatever was written in it they lack. A process
that ends between the note in its folders and its registration does no harm: the folders know of one run
too many, and tell all that they know.

Folders that know later runs only are newer than the metadata, which come from an old copy themselves.
They lack nothing.

What is not found out: a copy that was made *during* the last run, put back before the next.
"""

from __future__ import annotations


def number(run: str) -> int:
    """The number in a run's name."""
    return int(run.partition("-")[0])


def may_lack_records(last: str, run: str, former: tuple[str, ...]) -> bool:
    """Whether folders that know the runs `former`, and are in `run` now, lack what was written in
    `last`, the last run that the cluster knows of. Who names no runs, an older version, is trusted."""
    if not last or not run or last == run or last in former:
        return False
    return not former or number(former[0]) <= number(last)
