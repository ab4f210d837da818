"""Leader epochs: the answers of Kafka's cache, its file, and a naive model beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.storage.errors import CorruptCheckpoint
from ottla.storage.files import Files
from ottla.storage.log.leader_epochs import UNDEFINED, LeaderEpochs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leader-epoch-checkpoint"


@pytest.fixture
def epochs(path: Path) -> LeaderEpochs:
    return LeaderEpochs(str(path))


def loaded(path: Path) -> LeaderEpochs:
    epochs = LeaderEpochs(str(path))
    epochs.load()
    return epochs


class TestEndOffset:
    def test_of_an_empty_log_is_undefined(self, epochs: LeaderEpochs) -> None:
        for epoch in (-2, -1, 0, 5):
            assert epochs.end_offset_for(epoch, 33) == UNDEFINED == (-1, -1)

    def test_of_the_latest_epoch_is_the_log_end(self, epochs: LeaderEpochs) -> None:
        epochs.assign(2, 10)
        assert epochs.end_offset_for(2, 33) == (2, 33)

    def test_of_a_later_epoch_and_of_none_is_undefined(self, epochs: LeaderEpochs) -> None:
        epochs.assign(2, 10)
        assert epochs.end_offset_for(3, 33) == UNDEFINED
        assert epochs.end_offset_for(-1, 33) == UNDEFINED

    def test_of_an_earlier_epoch_is_the_start_of_the_next(self, epochs: LeaderEpochs) -> None:
        for epoch, start in ((2, 10), (4, 20), (7, 30)):
            epochs.assign(epoch, start)
        assert epochs.end_offset_for(2, 99) == (2, 20)
        assert epochs.end_offset_for(4, 99) == (4, 30)

    def test_of_a_skipped_epoch_is_that_of_the_one_before(self, epochs: LeaderEpochs) -> None:
        for epoch, start in ((2, 10), (4, 20), (7, 30)):
            epochs.assign(epoch, start)
        assert epochs.end_offset_for(3, 99) == (2, 20)
        assert epochs.end_offset_for(6, 99) == (4, 30)

    def test_of_an_epoch_before_all_is_the_first_start(self, epochs: LeaderEpochs) -> None:
        for epoch, start in ((2, 10), (4, 20)):
            epochs.assign(epoch, start)
        assert epochs.end_offset_for(0, 99) == (0, 10)
        assert epochs.end_offset_for(1, 99) == (1, 10)


class TestAssign:
    def test_the_first_start_of_an_epoch_stays(self, epochs: LeaderEpochs) -> None:
        assert epochs.assign(1, 5)
        assert not epochs.assign(1, 5)
        assert not epochs.assign(1, 9)
        assert list(epochs.entries()) == [(1, 5)]

    def test_an_epoch_without_records_gives_way(self, epochs: LeaderEpochs) -> None:
        epochs.assign(1, 5)
        epochs.assign(2, 5)
        assert list(epochs.entries()) == [(2, 5)]

    @pytest.mark.parametrize(
        ("epoch", "start", "left"),
        [
            (4, 35, [(1, 10), (2, 20), (3, 30), (4, 35)]),
            (4, 25, [(1, 10), (2, 20), (4, 25)]),
            (4, 5, [(4, 5)]),
            (2, 40, [(1, 10), (2, 40)]),
            (2, 15, [(1, 10), (2, 15)]),
            (3, 25, [(1, 10), (2, 20), (3, 25)]),
            (0, 40, [(0, 40)]),
        ],
    )
    def test_what_contradicts_the_new_one_goes(
        self, epochs: LeaderEpochs, epoch: int, start: int, left: list[tuple[int, int]]
    ) -> None:
        for known in (1, 2, 3):
            epochs.assign(known, known * 10)
        assert epochs.assign(epoch, start)
        assert list(epochs.entries()) == left
        assert epochs.latest_epoch == epoch

    @pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
    def test_nonsense_is_refused(self, epochs: LeaderEpochs, epoch: int, start: int) -> None:
        with pytest.raises(ValueError, match="cannot begin"):
            epochs.assign(epoch, start)


class TestTruncation:
    @pytest.fixture
    def three(self, epochs: LeaderEpochs) -> LeaderEpochs:
        for epoch, start in ((2, 6), (3, 8), (4, 11)):
            epochs.assign(epoch, start)
        epochs.write()
        return epochs

    @pytest.mark.parametrize(
        ("offset", "left"),
        [
            (-1, [(2, 6), (3, 8), (4, 11)]),
            (12, [(2, 6), (3, 8), (4, 11)]),
            (11, [(2, 6), (3, 8)]),
            (9, [(2, 6), (3, 8)]),
            (8, [(2, 6)]),
            (6, []),
            (0, []),
        ],
    )
    def test_from_the_end(
        self, three: LeaderEpochs, offset: int, left: list[tuple[int, int]]
    ) -> None:
        three.truncate_from_end(offset)
        assert list(three.entries()) == left
        assert three.latest_epoch == (left[-1][0] if left else -1)
        assert three.changed == (len(left) < 3)

    @pytest.mark.parametrize(
        ("offset", "left"),
        [
            (0, [(2, 6), (3, 8), (4, 11)]),
            (6, [(2, 6), (3, 8), (4, 11)]),
            (7, [(2, 7), (3, 8), (4, 11)]),
            (8, [(3, 8), (4, 11)]),
            (9, [(3, 9), (4, 11)]),
            (11, [(4, 11)]),
            (50, [(4, 50)]),
        ],
    )
    def test_from_the_start(
        self, three: LeaderEpochs, offset: int, left: list[tuple[int, int]]
    ) -> None:
        three.truncate_from_start(offset)
        assert list(three.entries()) == left
        assert three.latest_epoch == 4
        assert three.changed == (left != [(2, 6), (3, 8), (4, 11)])

    def test_clear(self, three: LeaderEpochs, path: Path) -> None:
        three.clear()
        assert (list(three.entries()), three.latest_epoch) == ([], -1)
        three.write()
        assert path.read_bytes() == b"0\n0\n"


def test_epoch_for_offset(epochs: LeaderEpochs) -> None:
    assert epochs.epoch_for_offset(0) == -1
    for epoch, start in ((2, 6), (4, 11)):
        epochs.assign(epoch, start)
    assert [epochs.epoch_for_offset(offset) for offset in (0, 5, 6, 10, 11, 99)] == [
        -1, -1, 2, 2, 4, 4,
    ]  # fmt: skip


def test_previous_epoch(epochs: LeaderEpochs) -> None:
    for epoch, start in ((2, 6), (4, 11)):
        epochs.assign(epoch, start)
    assert [epochs.previous_epoch(epoch) for epoch in (1, 2, 3, 4, 5)] == [-1, -1, 2, 2, 4]


class TestFile:
    def test_is_kafkas(self, epochs: LeaderEpochs, path: Path) -> None:
        epochs.assign(0, 0)
        epochs.assign(3, 2500)
        epochs.write()
        assert path.read_bytes() == b"0\n2\n0 0\n3 2500\n"
        again = loaded(path)
        assert list(again.entries()) == [(0, 0), (3, 2500)]
        assert again.latest_epoch == 3
        assert not again.changed

    def test_there_is_none_before_the_first_entry(self, epochs: LeaderEpochs, path: Path) -> None:
        epochs.load()
        epochs.write()
        epochs.truncate_from_end(0)
        epochs.clear()
        epochs.write()
        assert epochs.take_changes() is None
        assert not path.exists()

    def test_is_written_once_for_a_change(self, epochs: LeaderEpochs, path: Path) -> None:
        epochs.assign(1, 1)
        assert epochs.take_changes() == b"0\n1\n1 1\n"
        assert epochs.take_changes() is None
        epochs.assign(1, 7)
        assert epochs.take_changes() is None

    def test_a_failed_write_can_be_repeated(self, path: Path) -> None:
        class FullDisk(Files):
            def replace_file(self, path: str, *parts: object) -> None:
                raise OSError("full")

        epochs = LeaderEpochs(str(path), FullDisk())
        epochs.assign(1, 1)
        with pytest.raises(OSError, match="full"):
            epochs.write()
        epochs.files = Files()
        epochs.write()
        assert path.read_bytes() == b"0\n1\n1 1\n"

    def test_one_without_bytes_has_no_entries(self, path: Path) -> None:
        path.write_bytes(b"")
        assert list(loaded(path).entries()) == []

    @pytest.mark.parametrize(
        "content",
        [
            b"0\n2\n0 0\n3 2500",  # cut
            b"0\n2\n0 0\n3 2",
            b"0\n2\n0 0\n",
            b"0\n1\n0 0\n3 2500\n",
            b"0\n",
            b"0",
            b"\n",
            b"1\n1\n0 0\n",
            b"zero\n1\n0 0\n",
            b"0\none\n0 0\n",
            b"0\n-1\n",
            b"0\n1\n0\n",
            b"0\n1\n0 0 0\n",
            b"0\n1\n0 x\n",
            b"0\n1\n-1 0\n",
            b"0\n1\n0 -5\n",
            b"0\n1\n0 +5\n",
            b"0\n1\n0 1_0\n",
            b"0\n1\n0 99999999999999999999\n",
            b"0\n2\n3 10\n3 20\n",
            b"0\n2\n3 10\n2 20\n",
            b"0\n2\n3 10\n4 10\n",
            b"0\n2\n3 10\n4 9\n",
            b"\xff\xfe\0",
            b"\0" * 100,
        ],
    )
    def test_damage(self, epochs: LeaderEpochs, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        epochs.assign(9, 9)
        with pytest.raises(CorruptCheckpoint) as error:
            epochs.load()
        assert error.value.path == str(path)
        assert list(epochs.entries()) == [(9, 9)]


class EpochsAgainstAMap(RuleBasedStateMachine):
    @initialize(folder=st.none())
    def start(self, folder: None) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "leader-epoch-checkpoint"
        self.epochs = LeaderEpochs(str(self.path), NoSync())
        self.model: dict[int, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule(epoch=st.integers(0, 12), start=st.integers(0, 40))
    def assign(self, epoch: int, start: int) -> None:
        self.epochs.assign(epoch, start)
        latest = max(self.model, default=None)
        if latest is not None and latest == epoch and start >= self.model[latest]:
            return
        self.model = {e: s for e, s in self.model.items() if e < epoch and s < start}
        self.model[epoch] = start

    @rule(offset=st.integers(0, 45))
    def from_end(self, offset: int) -> None:
        self.epochs.truncate_from_end(offset)
        self.model = {e: s for e, s in self.model.items() if s < offset}

    @rule(offset=st.integers(0, 45))
    def from_start(self, offset: int) -> None:
        self.epochs.truncate_from_start(offset)
        before = [e for e, s in self.model.items() if s <= offset]
        if before:
            self.model = {e: s for e, s in self.model.items() if s > offset}
            self.model[max(before)] = offset

    @rule()
    def restart(self) -> None:
        self.epochs.write()
        self.epochs = LeaderEpochs(str(self.path), NoSync())
        self.epochs.load()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        entries = sorted(self.model.items())
        assert list(self.epochs.entries()) == entries
        assert self.epochs.latest_epoch == max(self.model, default=-1)
        for offset in range(0, 46, 5):
            assert self.epochs.epoch_for_offset(offset) == max(
                (e for e, s in entries if s <= offset), default=-1
            )
        for epoch in range(14):
            above = [s for e, s in entries if e > epoch]
            if epoch == max(self.model, default=-1):
                expected = epoch, 1000
            elif not above:
                expected = UNDEFINED
            else:
                expected = max((e for e, _ in entries if e <= epoch), default=epoch), above[0]
            assert self.epochs.end_offset_for(epoch, 1000) == expected


class NoSync(Files):
    def fsync(self, fd: int) -> None:  # type: ignore[override]
        pass

    def fsync_folder(self, path: str) -> None:
        pass


EpochsAgainstAMap.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestEpochsAgainstAMap = EpochsAgainstAMap.TestCase
