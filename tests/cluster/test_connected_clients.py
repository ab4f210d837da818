"""Who is connected to the brokers of a cluster: each tells its own, and knows the others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cluster_kit.scene import PARTITIONS, TOPIC, Scene, wait_until

from ottla import Admin, Producer


@pytest.mark.timeout(300)
def test_a_client_of_three_brokers_and_the_brokers_themselves(scene: Scene) -> None:
    with (
        Admin(scene.bootstrap) as admin,
        Producer(scene.bootstrap, client_id="of-all-leaders") as producer,
    ):
        for partition in range(PARTITIONS):
            producer.send(TOPIC, b"x", partition=partition).result(60)
        leaders = {scene.leader(partition) for partition in range(PARTITIONS)}
        found = admin.list_clients(client_id="of-all-leaders", topic=TOPIC)
        assert [each.broker for each in found] == sorted(leaders)
        assert {each.producing for each in found} == {(TOPIC,)}
        # A number is one of the broker's: that of another may be the same.
        assert len({(each.broker, each.connection) for each in found}) == len(leaders)

        controller = scene.controller()
        following = [each for each in admin.list_clients() if each.role == "follower"]
        assert {(each.peer_broker, each.broker) for each in following} == {
            (follower, leader)
            for leader in leaders
            for follower in scene.numbers
            if follower != leader
        }
        for each in following:
            assert TOPIC in each.reading
            assert each.client_id == f"broker-{each.peer_broker}-fetcher"
            assert each.is_controller == (each.peer_broker == controller)
        asked = [each for each in admin.list_clients() if each.role == "broker"]
        assert all(each.peer_broker != each.broker for each in asked)

        # The command asks all of them, whichever it is given.
        command = [sys.executable, "-m", "ottla.cli.main", "client", "list", "--json"]
        server = ["--server", scene.address(scene.numbers[0])]
        told = json.loads(
            subprocess.run([*command, *server], check=True, capture_output=True).stdout
        )
        assert {each["broker"] for each in told} == set(scene.numbers)

        # One that is away has no clients.
        dead = next(each for each in scene.numbers if each != controller)
        scene.cluster.kill(dead)

        def away() -> bool:
            listed = admin.list_clients()
            return dead not in {each.broker for each in listed} and dead not in {
                each.peer_broker for each in listed
            }

        wait_until("its clients and connections are gone", away)
