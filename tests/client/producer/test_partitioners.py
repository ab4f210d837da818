"""Partitioners: the same partitions as the Java client, even shares, columns as single records."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import ConfigurationError
from ottla.client.producer.murmur2 import murmur2, murmur2_column, partition_of
from ottla.client.producer.partitioners import Partitioner, checked, partitioner_for

# Recorded from org.apache.kafka.common.utils.Utils of kafka-clients 4.3.1: the key in hex, murmur2, and
# toPositive(murmur2) modulo 7 and modulo 1000.
JAVA = [
    ("", 275646681, 2, 681),
    ("61", -1563381124, 5, 524),
    ("6162", 316155434, 0, 434),
    ("616263", 479470107, 4, 107),
    ("61626364", -1323649548, 5, 100),
    ("6162636465", 461995741, 4, 741),
    ("3231", -973932308, 3, 340),
    ("666f6f626172", -790332482, 0, 166),
    ("612d6c6974746c652d6269742d6c6f6e672d737472696e67", -985981536, 1, 112),
    ("612d6c6974746c652d6269742d6c6f6e6765722d737472696e67", -1486304829, 0, 819),
    (
        "6c6b6a683233346c68396669756839307932336f697568736166756a6861646f66323239706872396831396838396838",
        -58897971,
        3,
        677,
    ),
    ("6b65792d30", 29210041, 0, 41),
    ("6b65792d31", 193331640, 5, 640),
    ("c3a9e4b8ad", -289825924, 6, 724),
    ("", 275646681, 2, 681),
    ("35", 55100550, 1, 550),
    ("f78a", 1288432276, 5, 276),
    ("e1bbe7", -983584298, 5, 350),
    ("28c0450c", -392157833, 5, 815),
    ("e43c084f4b", 650222576, 3, 576),
    ("839dee466d85", 609540322, 6, 322),
    ("be6a61aa9a0c61", -2055415863, 5, 785),
    ("bd6743e7dc978573", 496582918, 6, 918),
    ("998e685e885cb361f8", -2143606509, 0, 139),
    ("20bebfb01100b2765457", 1749477346, 1, 346),
    ("0f406cc8e3a188fff11059", 239636182, 2, 182),
    ("6fbce62655dfbd6f83b89670", -715584511, 4, 137),
    ("d6d9f9bf52d83deedc0bf66205", 1343331766, 0, 766),
    ("16ad682d8c478a26f45027984959", 434214673, 4, 673),
    ("dd53b3351a572b40f27f72d37f347b", -221833639, 3, 9),
    ("9979162cfa959d2832a46196d92c3046", 1156755985, 0, 985),
    ("97e953c0026cc4a45eb32f92829e8d14ee", 963358898, 5, 898),
    ("edc93517ef7da4c0ce2972cc9b060b08b646", -2060683994, 4, 654),
    ("f3a3a05bb102f732ed235bd1283ed5021192ed", 1371039565, 0, 565),
    ("754300c523675af9b6c4a514cacaa1b6a7367388", 2095085038, 4, 38),
    ("53ee067b87849adf0100aa4a52cc32388c082af3d5", 1894527541, 4, 541),
    ("bcc00bd26fae51303f23fba277b4e0602cbf7e5e9ba8", -853930442, 1, 206),
    ("daa9395cbb3cb06feaf2456f0a5717a6b5bb127579092b", -273274790, 4, 858),
    ("831b0279bb5070f331dc11786481868c3667cbd3ed409109", -297435578, 3, 70),
    ("1e01aa26a3d1750dfb4178d5d1a3e2c95da3d6759f5be1c2c7", 525227248, 0, 248),
    ("801aa2a1c6b52a321eac46580edde42d2e8a65f64ba69ddd914f", -2088283788, 6, 860),
    ("8934917ca07a548c5dcdc46ba917160239c103a2db67f4c18eef29", -1836837953, 3, 695),
    ("2fa68ba1aa5db9501dfbfb1177b555921451ec577ca9fa5e105f6c4a", 2061413336, 3, 336),
    ("db3d2fdfc7b360271f6244ce3d236f400c2ec09dc6814b62dd03d65fbe", -1741989593, 1, 55),
]


@pytest.mark.parametrize(("key", "hashed", "of_7", "of_1000"), JAVA)
def test_one_key_as_in_java(key: str, hashed: int, of_7: int, of_1000: int) -> None:
    data = bytes.fromhex(key)
    assert murmur2(data) == hashed % 2**32
    assert (partition_of(data, 7), partition_of(data, 1000)) == (of_7, of_1000)


def test_a_column_of_keys_as_in_java() -> None:
    keys = pa.array([b"before", *(bytes.fromhex(key) for key, *_ in JAVA)]).slice(1)
    assert murmur2_column(keys).tolist() == [hashed % 2**32 for _, hashed, *_ in JAVA]
    chosen = partitioner_for("murmur2", 1000).many(keys, np.zeros(len(JAVA)), 7, range(7))
    assert chosen.tolist() == [of_7 for *_, of_7, _ in JAVA]


@given(st.lists(st.none() | st.binary(max_size=40), max_size=60), st.integers(0, 5))
def test_a_column_is_hashed_as_its_keys_are(keys: list[bytes | None], skip: int) -> None:
    column = pa.array([b"x"] * skip + keys, pa.binary()).slice(skip)
    hashes = murmur2_column(column).tolist()
    for key, hashed in zip(keys, hashes, strict=True):
        if key is not None:
            assert hashed == murmur2(key)


def test_long_columns_are_hashed_in_blocks() -> None:
    keys = [f"key-{number}".encode() for number in range(40_000)]
    assert murmur2_column(pa.array(keys)).tolist() == [murmur2(key) for key in keys]


ALL = ["murmur2_random", "consistent_random", "sticky", "round_robin", "random"]


@pytest.mark.parametrize("name", ALL)
@given(st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=30), st.integers(1, 9))
def test_every_partitioner_stays_within_the_partitions(
    name: str, keys: list[bytes | None], count: int
) -> None:
    chosen = partitioner_for(name, 50).many(
        pa.array(keys, pa.binary()), np.full(len(keys), 20), count, range(count)
    )
    assert chosen.dtype == np.int32
    assert len(chosen) == len(keys)
    assert all(0 <= each < count for each in chosen.tolist())


@pytest.mark.parametrize("name", ["murmur2", "consistent"])
def test_the_same_key_always_goes_to_the_same_partition(name: str) -> None:
    partitioner = partitioner_for(name, 10)
    keys = [b"a", b"b", None, b"", b"a"]
    column = partitioner.many(pa.array(keys), np.full(5, 100), 5, range(5)).tolist()
    single = [partitioner.one(key, 100, 5, range(5)) for key in keys if key is not None]
    assert [column[0], column[1], column[3], column[4]] == single
    assert column[0] == column[4]


def test_librdkafkas_own_hash() -> None:
    partitioner = partitioner_for("consistent", 10)
    assert partitioner.one(b"some key", 1, 1000, []) == zlib.crc32(b"some key") % 1000


def _single(partitioner: Partitioner, sizes: list[int], count: int) -> list[int]:
    return [partitioner.one(None, size, count, range(count)) for size in sizes]


def _column(partitioner: Partitioner, sizes: list[int], count: int) -> list[int]:
    return partitioner.many(None, np.array(sizes), count, range(count)).tolist()


@pytest.mark.parametrize("choose", [_single, _column])
def test_sticky_fills_a_batch_before_it_moves_on(choose: Any) -> None:
    chosen = choose(partitioner_for("sticky", 100), [40] * 9, 4)
    runs = [chosen[0:3], chosen[3:6], chosen[6:9]]
    # 40 + 40 is below 100, so a third one goes there; then another partition has its turn.
    assert all(len(set(run)) == 1 for run in runs)
    assert runs[0][0] != runs[1][0] != runs[2][0]


def test_sticky_gives_all_partitions_an_even_share() -> None:
    chosen = _column(partitioner_for("sticky", 1000), [100] * 100_000, 4)
    shares = Counter(chosen)
    assert max(shares.values()) < 1.2 * min(shares.values())


def test_partitions_without_a_leader_are_passed_over() -> None:
    for name in ("sticky", "round_robin", "random"):
        chosen = partitioner_for(name, 10).many(None, np.full(200, 10), 4, [1, 3])
        assert set(chosen.tolist()) == {1, 3}


def test_round_robin_takes_turns_across_calls() -> None:
    partitioner = partitioner_for("round_robin", 10)
    chosen = _single(partitioner, [1] * 3, 3) + _column(partitioner, [1] * 6, 3)
    assert Counter(chosen) == {0: 3, 1: 3, 2: 3}
    assert [(each - chosen[0]) % 3 for each in chosen] == [0, 1, 2] * 3


def test_a_function_over_columns() -> None:
    def by_length(keys: pa.Array, count: int) -> Any:
        return [len(key or b"") % count for key in keys.to_pylist()]

    partitioner = partitioner_for(by_length, 10)
    assert partitioner.many(pa.array([b"", b"a", None]), np.zeros(3), 5, []).tolist() == [0, 1, 0]
    assert partitioner.one(b"four", 1, 5, []) == 4


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ([0], ValueError, "for 2 records"),
        ([0, 5], ValueError, "partition 5 is not one of the topic's 5"),
        ([-1, 0], ValueError, "partition -1"),
        ([0.5, 1.0], TypeError, "whole numbers"),
        (pa.array([None, 1]), ValueError, "null"),
    ],
)
def test_what_a_function_may_not_give(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        checked(wrong, 2, 5)


def test_an_unknown_partitioner() -> None:
    with pytest.raises(ConfigurationError, match="murmur2_random"):
        partitioner_for("nonsense", 1)
