"""One round of each fault: it happens while clients work, the cluster goes on, and is whole again.

Each is called with the number of the round, so that rounds hit different partitions.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from cluster_kit.scene import PARTITIONS, SESSION_SECONDS, Scene
from cluster_kit.workload import Workload

Fault = Callable[[Scene, Workload, int], None]


def kill_of_a_leader(scene: Scene, workload: Workload, count: int) -> None:
    """In every second round when it has records that no follower has. It must not have acknowledged
    them, for nobody will ever see them."""
    leader = scene.leader(count % PARTITIONS)
    followers = [each for each in scene.numbers if each != leader] if count % 2 else []
    for follower in followers:
        scene.signal(follower, signal.SIGSTOP)
    if followers:
        workload.quiet_for(SESSION_SECONDS / 4)
    scene.cluster.kill(leader)
    for follower in followers:
        scene.signal(follower, signal.SIGCONT)
    workload.wait_for_progress()
    scene.cluster.start()
    _recovered(scene, workload)


def kill_of_a_follower(scene: Scene, workload: Workload, count: int) -> None:
    leader = scene.leader(count % PARTITIONS)
    _kill(scene, workload, next(each for each in scene.numbers if each != leader))


def kill_of_the_controller(scene: Scene, workload: Workload, count: int) -> None:
    _kill(scene, workload, scene.controller())


def _kill(scene: Scene, workload: Workload, broker: int) -> None:
    scene.cluster.kill(broker)
    workload.wait_for_progress()
    scene.cluster.start()
    _recovered(scene, workload)


def kill_of_zookeeper(scene: Scene, workload: Workload, count: int) -> None:
    """For a moment."""
    scene.cluster.kill("zookeeper")
    scene.cluster.start()
    _recovered(scene, workload)


def kill_of_zookeeper_and_a_leader(scene: Scene, workload: Workload, count: int) -> None:
    """For longer than a session lives; nobody can be told of the leader's death."""
    leader = scene.leader(count % PARTITIONS)
    scene.cluster.kill("zookeeper")
    scene.cluster.kill(leader)
    workload.quiet_for(SESSION_SECONDS * 2)
    scene.cluster.start()
    _recovered(scene, workload)


def kill_of_all_brokers_at_once(scene: Scene, workload: Workload, count: int) -> None:
    # None of them sees another die.
    for broker in scene.numbers:
        scene.signal(broker, signal.SIGSTOP)
    for broker in scene.numbers:
        scene.cluster.kill(broker)
    scene.cluster.start()
    _recovered(scene, workload)


def kill_of_everything(scene: Scene, workload: Workload, count: int) -> None:
    for broker in scene.numbers:
        scene.cluster.kill(broker)
    scene.cluster.kill("zookeeper")
    scene.cluster.start()
    _recovered(scene, workload)


def pause_of_a_leader(scene: Scene, workload: Workload, count: int) -> None:
    """For longer than its session lives: another leads when it wakes."""
    partition = count % PARTITIONS
    leader = scene.leader(partition)
    scene.signal(leader, signal.SIGSTOP)
    scene.leader(partition, other_than=leader, ask=scene.others(leader))
    workload.wait_for_progress()
    scene.signal(leader, signal.SIGCONT)
    _recovered(scene, workload)


def pause_of_the_controller(scene: Scene, workload: Workload, count: int) -> None:
    controller = scene.controller()
    scene.signal(controller, signal.SIGSTOP)
    workload.quiet_for(SESSION_SECONDS * 1.5)
    workload.wait_for_progress()
    scene.signal(controller, signal.SIGCONT)
    _recovered(scene, workload)


def rolling_restart(scene: Scene, workload: Workload, count: int) -> None:
    """In good order: leaders move first, so that no client is told of an error."""
    before = len(workload.write_errors)
    for broker in scene.numbers:
        workload.wait_for_progress()
        assert scene.cluster.stop([broker]) == [str(broker)]
        workload.wait_for_progress()
        scene.cluster.start()
        _recovered(scene, workload)
    assert workload.write_errors[before:] == []


def _recovered(scene: Scene, workload: Workload) -> None:
    workload.wait_for_progress()
    scene.wait_until_in_sync()


# In this order: a leader that is killed in the second round has records that no follower has.
SHORT: tuple[Fault, ...] = (kill_of_the_controller, kill_of_a_leader)
LONG: tuple[Fault, ...] = (
    kill_of_a_follower,
    kill_of_zookeeper,
    kill_of_zookeeper_and_a_leader,
    kill_of_all_brokers_at_once,
    kill_of_everything,
    pause_of_a_leader,
    pause_of_the_controller,
    rolling_restart,
)


def run(scene: Scene, workload: Workload, faults: list[Fault]) -> None:
    """One after the other, while the workload runs."""
    with workload:
        for count, fault in enumerate(faults):
            workload.wait_for_progress()
            print(f"round {count}: {fault.__name__}")
            fault(scene, workload, count)
