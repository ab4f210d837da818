"""What each of several brokers of one machine is configured with."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ottla.server.configuration.broker_config import BrokerConfig, load
from ottla.server.machine.folders import BrokersMissing, check_folders, make_folders
from ottla.server.machine.plan import plan, socket_path
from ottla.settings import BrokerLayers, InvalidSetting


def configuration(**settings: str) -> BrokerConfig:
    assignments = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    return load(environment={}, assignments=assignments)


def planned(count: int, **settings: str) -> list[BrokerConfig]:
    return [
        BrokerConfig(BrokerLayers(static=each.static))
        for each in plan(configuration(**settings), count)
    ]


def test_the_first_broker_is_where_a_single_one_would_be() -> None:
    single = configuration(log_dirs="a,b")
    first, second, third = planned(3, log_dirs="a,b")
    assert (first.node_id, first.log_dirs, first.listeners) == (
        single.node_id,
        single.log_dirs,
        single.listeners,
    )
    assert [each.node_id for each in (second, third)] == [2, 3]
    assert [each.listeners[0].port for each in (second, third)] == [9093, 9094]
    assert second.log_dirs == ("a/brokers/2", "b/brokers/2")
    assert third.log_dirs == ("a/brokers/3", "b/brokers/3")


def test_every_address_counts_up_and_port_0_stays() -> None:
    brokers = planned(
        2,
        broker_id="7",
        listeners="A://:9000,B://[::1]:0",
        advertised_listeners="A://outside:80,B://inside:0",
        listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT",
        metrics_listener="[::1]:9100",
    )
    assert [each.node_id for each in brokers] == [7, 8]
    assert [[one.port for one in each.listeners] for each in brokers] == [[9000, 0], [9001, 0]]
    assert [[str(one) for one in each.advertised_listeners] for each in brokers] == [
        ["A://outside:80", "B://inside:0"],
        ["A://outside:81", "B://inside:0"],
    ]
    assert [each.metrics_listener for each in brokers] == [("::1", 9100), ("::1", 9101)]


def test_all_share_a_rack_and_the_users_counts() -> None:
    assert {each.broker_rack for each in planned(2)} == {socket.gethostname()}
    assert {each.broker_rack for each in planned(2, broker_rack="r1")} == {"r1"}


def test_ports_that_would_meet_are_refused() -> None:
    names = "A:PLAINTEXT,B:PLAINTEXT"
    listeners = "A://:9000,B://:9002"
    assert len(planned(2, listeners=listeners, listener_security_protocol_map=names)) == 2
    with pytest.raises(
        InvalidSetting, match="port 9002 would be that of B of broker 1 and of A of"
    ):
        planned(3, listeners=listeners, listener_security_protocol_map=names)


@pytest.mark.parametrize(
    ("others", "first", "count", "sentence"),
    [
        ([], 1, 1, None),
        ([2], 1, 2, None),
        ([2], 1, 5, None),
        ([2], 1, 1, "data of broker 2 too, .* start it with --brokers 2$"),
        ([2, 3, 5], 1, 2, "data of brokers 3, 5 too, .* start it with --brokers 5$"),
        ([2], 5, 2, "data of broker 2 too, .* start it with --node-id 1 or lower$"),
    ],
)
def test_a_folder_whose_brokers_would_be_missing_is_refused(
    tmp_path: Path, others: list[int], first: int, count: int, sentence: str | None
) -> None:
    for number in others:
        (tmp_path / "brokers" / str(number)).mkdir(parents=True)
    (tmp_path / "brokers-7").mkdir()  # a partition
    config = configuration(log_dirs=str(tmp_path), node_id=str(first))
    if sentence is None:
        check_folders(config, count)
    else:
        with pytest.raises(BrokersMissing, match=sentence):
            check_folders(config, count)


def test_the_folder_of_a_cluster_is_no_data_folder(tmp_path: Path) -> None:
    """`broker-1` in it is no partition of a topic."""
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "cluster.json").touch()
    config = configuration(log_dirs=str(tmp_path), node_id="1")
    for count in (1, 2):
        with pytest.raises(BrokersMissing, match=r"folder of a cluster, .* `ottla cluster start"):
            check_folders(config, count)
    # A broker that has its logs there, too, is not kept from them.
    (tmp_path / "meta.properties").touch()
    check_folders(config, 1)


def test_folders_are_closed_to_others_whoever_comes_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "file" / "c"]
    make_folders(load(environment={}, data=",".join(map(str, folders))))
    assert [each.stat().st_mode & 0o777 for each in folders[:2]] == [0o700, 0o700]


def test_a_socket_whose_path_would_be_too_long_is_elsewhere(tmp_path: Path) -> None:
    long = socket_path(str(tmp_path / ("a" * 100)))
    assert len(long) < 100
    folder = Path(long).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
