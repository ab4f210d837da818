"""A cluster on this machine: broker processes and a ZooKeeper, all in one folder.

    with LocalCluster(tmp_path / "cluster", base_port=None) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})

Processes that are started inside of such a block end with the program, even if it is killed.
`ottla cluster` is this class with words: what `start` starts without a block outlives the program. What
there is of a cluster, with its ports, is in the folder, so that the next command finds it:

    cluster.json     ports, process ids and settings (ClusterState)
    cluster.lock     held by the command that changes something
    moves.lock       held by the command that moves partitions
    zookeeper/       the ZooKeeper's data and log, unless another one is used
    broker-N/        the data of broker N
    logs/            what the brokers log
"""

from ottla.testing.cluster.local import BASE_PORT, LocalCluster
from ottla.testing.cluster.state import HOST, ClusterError, ClusterState
from ottla.testing.cluster.status import ClusterStatus

__all__ = [
    "BASE_PORT",
    "HOST",
    "ClusterError",
    "ClusterState",
    "ClusterStatus",
    "LocalCluster",
]
