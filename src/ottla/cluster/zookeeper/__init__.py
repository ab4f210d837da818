"""The coordination store of a cluster: ZooKeeper 3.6 or later, through kazoo.

kazoo is imported when a store starts, not with this package.
"""

from ottla.cluster.zookeeper.address import Address, parse_address
from ottla.cluster.zookeeper.security import Credentials, Scheme, Tls
from ottla.cluster.zookeeper.store import ZooKeeperStore

__all__ = ["Address", "Credentials", "Scheme", "Tls", "ZooKeeperStore", "parse_address"]
