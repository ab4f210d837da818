"""The checks at the end: what the writers were promised against what the log holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from durability_kit.wire import Wire
from durability_kit.writers import UNKNOWN, Account, Tail, Target, Writer, checksum, stamp_of
from ottla.record.batch import records


def check_promises(wire: Wire, writers: Sequence[Writer], tails: Iterable[Tail] = ()) -> int:
    """Every record that a writer sent is there, once, in its order, where it was acknowledged; and
    nothing else is. The number of records."""
    targets = sorted({target for writer in writers for target in writer.accounts})
    watched = {tail.target: tail for tail in tails}
    total = 0
    for target in targets:
        accounts = {
            writer.number: writer.accounts[target]
            for writer in writers
            if target in writer.accounts
        }
        total += _check_partition(wire, target, accounts, watched.get(target))
    return total


def _check_partition(
    wire: Wire, target: Target, accounts: dict[int, Account], tail: Tail | None
) -> int:
    following = dict.fromkeys(accounts, 0)
    offset = 0
    served = dict(tail.seen) if tail is not None else {}
    for batch in wire.batches(*target):
        assert batch.base_offset == offset, f"{target}: {batch.base_offset} follows {offset - 1}"
        if tail is not None:
            seen = served.pop(batch.base_offset, None)
            assert seen in (None, checksum(batch.data)), f"{target}: {offset} was served otherwise"
        for record in records(batch.data):
            assert record.offset == offset
            assert record.value is not None
            writer, number = stamp_of(record.value)
            expected = following[writer]
            assert number == expected, (
                f"{target}: at offset {offset} stands record {number} of writer {writer}, "
                f"which should be {expected}"
            )
            promised = accounts[writer].offsets[number]
            assert promised in (UNKNOWN, offset), (
                f"{target}: record {number} of writer {writer} stands at {offset} "
                f"and was acknowledged at {promised}"
            )
            following[writer] = number + 1
            offset += 1
    for writer, account in accounts.items():
        assert following[writer] == account.sent, (
            f"{target}: {account.sent - following[writer]} records of writer {writer} are lost"
        )
        assert account.acknowledged == account.sent, f"{target}: writer {writer} is not finished"
    assert not served, f"{target}: batches at {sorted(served)[:5]} were served and are gone"
    return offset


def check_end(wire: Wire, writers: Sequence[Writer]) -> None:
    """Right after a start: no log ends before a record that was acknowledged."""
    for writer in writers:
        for target, account in writer.accounts.items():
            promised = account.last_acknowledged_offset
            _, end = wire.bounds(*target)
            assert end > promised, f"{target} ends at {end}, {promised} was acknowledged"
