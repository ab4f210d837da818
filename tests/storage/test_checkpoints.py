"""Checkpoints and the other small files, against what Kafka 4.3.1 wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage import checkpoints
from ottla.storage.errors import CorruptCheckpoint, FolderLocked
from ottla.storage.files import OS_FILES

TOPIC_ID = bytes.fromhex("38f1d6561ab9491893a1513dd987e9da")
KAFKA_METADATA = b"version: 0\ntopic_id: OPHWVhq5SRiToVE92Yfp2g"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


class TestOffsets:
    def test_are_kafkas(self, path: Path) -> None:
        content = b"0\n3\n__transaction_state 42 0\ntxn 1 1561\nplain 0 6000\n"
        path.write_bytes(content)
        offsets = checkpoints.read_offsets(str(path))
        assert offsets == {("__transaction_state", 42): 0, ("txn", 1): 1561, ("plain", 0): 6000}
        checkpoints.write_offsets(str(path), offsets)
        assert path.read_bytes() == content
        assert os.listdir(path.parent) == ["file"]

    def test_none(self, path: Path) -> None:
        assert checkpoints.read_offsets(str(path)) == {}
        path.write_bytes(b"")  # as Kafka creates them
        assert checkpoints.read_offsets(str(path)) == {}
        checkpoints.write_offsets(str(path), {})
        assert path.read_bytes() == b"0\n0\n"
        assert checkpoints.read_offsets(str(path)) == {}

    @pytest.mark.parametrize(
        "content",
        [
            b"0\n1\nt 0 12",
            b"0\n1\n",
            b"0\n2\nt 0 12\n",
            b"0\n1\nt 0 12\nt 1 5\n",
            b"0\n1\nt 0\n",
            b"0\n1\nt 0 1 2\n",
            b"0\n1\nt 0 x\n",
            b"0\n1\nt x 0\n",
            b"0\n1\nt 0 -1\n",
            b"0\n1\nt -1 0\n",
            b"0\n1\nt 0 9223372036854775808\n",
            b"0\n2\nt 0 1\nt 0 2\n",
            b"0\n1\n\n",
            b"0\n\n",
            b"0\n",
            b"0",
            b"1\n0\n",
            b"garbage",
            b"garbage\ngarbage\n",
            b"\0" * 4096,
            b"0\n1\n\xff 0 1\n",
        ],
    )
    def test_damage(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(CorruptCheckpoint) as error:
            checkpoints.read_offsets(str(path))
        assert error.value.path == str(path)

    @given(
        st.dictionaries(
            st.tuples(st.text("abcXYZ019._-", min_size=1, max_size=20), st.integers(0, 2**31 - 1)),
            st.integers(0, 2**63 - 1),
        )
    )
    def test_what_is_written_is_read(
        self, tmp_path_factory: pytest.TempPathFactory, offsets: dict[tuple[str, int], int]
    ) -> None:
        path = tmp_path_factory.mktemp("c") / "c"
        lines = (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
        path.write_bytes(checkpoints.format_checkpoint(lines))
        assert checkpoints.read_offsets(str(path)) == offsets

    def test_every_cut_is_noticed(self, path: Path) -> None:
        whole = b"0\n2\ntopic 0 1234\nother 11 5678\n"
        for size in range(1, len(whole)):
            path.write_bytes(whole[:size])
            with pytest.raises(CorruptCheckpoint):
                checkpoints.read_offsets(str(path))


class TestPartitionMetadata:
    @pytest.mark.parametrize("sync", [True, False])
    def test_is_kafkas(self, path: Path, sync: bool) -> None:
        path.write_bytes(KAFKA_METADATA + b" and something longer that was there before")
        checkpoints.write_partition_metadata(str(path), TOPIC_ID, sync=sync)
        assert path.read_bytes() == KAFKA_METADATA
        assert checkpoints.read_partition_metadata(str(path)) == TOPIC_ID
        assert os.listdir(path.parent) == ["file"]

    def test_there_may_be_none(self, path: Path) -> None:
        assert checkpoints.read_partition_metadata(str(path)) is None

    def test_a_last_newline_does_not_matter(self, path: Path) -> None:
        path.write_bytes(KAFKA_METADATA + b"\n")
        assert checkpoints.read_partition_metadata(str(path)) == TOPIC_ID

    @given(st.binary(min_size=16, max_size=16))
    def test_any_topic_id(self, tmp_path_factory: pytest.TempPathFactory, topic_id: bytes) -> None:
        path = tmp_path_factory.mktemp("p") / "p"
        checkpoints.write_partition_metadata(str(path), topic_id, sync=False)
        if any(topic_id):
            assert checkpoints.read_partition_metadata(str(path)) == topic_id

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"version: 0",
            b"topic_id: OPHWVhq5SRiToVE92Yfp2g",
            b"version: 1\ntopic_id: OPHWVhq5SRiToVE92Yfp2g",
            b"version: 0\ntopic_id: OPHWVhq5SRiToVE92Yfp2",
            b"version: 0\ntopic_id: OPHWVhq5SRiToVE92Yfp2gA",
            b"version: 0\ntopic_id: OPHWVhq5SRiToVE92Yfp2g==",
            b"version: 0\ntopic_id: OPHWVhq5SRiToVE92Yfp2h",  # spare bits that are not zero
            b"version: 0\ntopic_id: OPHWVhq5SR!ToVE92Yfp2g",
            b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
            b"version: 0\nversion: 0\ntopic_id: OPHWVhq5SRiToVE92Yfp2g",
            b"nonsense",
            b"\xff\xff",
            b"\0" * 43,
        ],
    )
    def test_damage(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(CorruptCheckpoint):
            checkpoints.read_partition_metadata(str(path))

    def test_a_topic_id_has_16_bytes(self, path: Path) -> None:
        with pytest.raises(ValueError, match="16 bytes"):
            checkpoints.write_partition_metadata(str(path), b"short")
        assert not path.exists()


class TestCleanShutdown:
    def test_is_kafkas(self, path: Path) -> None:
        assert checkpoints.read_clean_shutdown(str(path)) is None
        checkpoints.write_clean_shutdown(str(path), 11)
        assert path.read_bytes() == b'{"version":0,"brokerEpoch":11}'
        assert checkpoints.read_clean_shutdown(str(path)) == 11

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[]", b"{}", b'{"brokerEpoch":"x"}', b'{"brokerEpoch":true}', b"\xff"],
    )
    def test_without_an_epoch_it_is_still_clean(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        assert checkpoints.read_clean_shutdown(str(path)) == -1


class TestFolderIdentity:
    def test_reads_kafkas(self, path: Path) -> None:
        path.write_bytes(
            b"#\n#Sun Nov 15 08:35:09 UTC 2026\nnode.id=1\ndirectory.id=Hzqry2OHS86EWI45yhbIhQ\n"
            b"version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
        )
        assert checkpoints.read_folder_identity(str(path)) == {
            "node.id": "1",
            "directory.id": "Hzqry2OHS86EWI45yhbIhQ",
            "version": "1",
            "cluster.id": "MkU3OEVBNTcwNTJENDM2Qk",
        }

    def test_reads_what_it_wrote(self, path: Path) -> None:
        assert checkpoints.read_folder_identity(str(path)) is None
        identity = {"version": "1", "cluster.id": "a=b:c", "node.id": "0"}
        checkpoints.write_folder_identity(str(path), identity)
        assert checkpoints.read_folder_identity(str(path)) == identity

    @pytest.mark.parametrize(
        "identity",
        [{"a b": "c"}, {"a": "b\nc"}, {"a": "b\\"}, {"a": " b"}, {"#a": "b"}, {"a=": "b"}],
    )
    def test_what_needs_escapes_is_refused(self, path: Path, identity: dict[str, str]) -> None:
        with pytest.raises(ValueError, match="escapes"):
            checkpoints.write_folder_identity(str(path), identity)
        assert not path.exists()

    @pytest.mark.parametrize(
        "content", [b"", b"#\n", b"node.id", b"=1\n", b"a=1\na=2\n", b"a=\\u0041\n", b"\xff"]
    )
    def test_damage(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(CorruptCheckpoint):
            checkpoints.read_folder_identity(str(path))


def test_a_locked_folder_keeps_others_out(tmp_path: Path) -> None:
    lock = checkpoints.lock_folder(str(tmp_path))
    with pytest.raises(FolderLocked) as refused:
        checkpoints.lock_folder(str(tmp_path))
    assert refused.value.folder == str(tmp_path)
    OS_FILES.close(lock)
    OS_FILES.close(checkpoints.lock_folder(str(tmp_path)))
    assert os.listdir(tmp_path) == [".lock"]
