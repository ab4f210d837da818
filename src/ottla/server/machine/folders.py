"""The data folders of several brokers of one machine. On the way of every start, so cheap to import."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from ottla.logfiles.names import FOLDER_IDENTITY

if TYPE_CHECKING:
    from ottla.server.configuration.broker_config import BrokerConfig

# In a data folder: those of the brokers after the first. No partition's folder can have this name.
OTHERS: Final = "brokers"
# In the folder of a cluster of this machine (ottla.testing.cluster).
_CLUSTER: Final = "cluster.json"


class BrokersMissing(Exception):
    """A data folder holds logs of brokers that are not to be started, or a cluster; the sentence says
    which."""


def check_folders(config: BrokerConfig, count: int) -> None:
    """BrokersMissing if the data folders hold logs of other brokers than those that start now."""
    wanted = range(config.node_id, config.node_id + count)
    for folder in config.log_dirs:
        if _is_of_cluster(folder):
            raise BrokersMissing(
                f"{folder} is the folder of a cluster, whose brokers have their data in folders in it: "
                f"start it with `ottla cluster start --data {folder}`, or serve from another folder"
            )
        missing = [each for each in _brokers_in(folder) if each not in wanted]
        if not missing:
            continue
        which = ", ".join(map(str, missing))
        those = "broker" if len(missing) == 1 else "brokers"
        if missing[0] < wanted.start:
            advice = f"start it with --node-id {missing[0] - 1} or lower"
        else:
            advice = f"start it with --brokers {missing[-1] - config.node_id + 1}"
        raise BrokersMissing(
            f"{folder} has data of {those} {which} too, in {os.path.join(folder, OTHERS)}, and "
            f"nobody would serve it: {advice}"
        )


def make_folders(config: BrokerConfig) -> None:
    """The folders of the first broker, closed to other users of the machine, before another broker makes
    them on the way to its own. What is in the way, the brokers say themselves."""
    for folder in config.log_dirs:
        with contextlib.suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)


def _is_of_cluster(folder: str) -> bool:
    """Whether `ottla cluster` keeps a cluster there, and no broker its logs. One that did would take the
    folders of the others, `broker-N`, for logs of a topic."""
    names = (_CLUSTER, FOLDER_IDENTITY)
    found = [os.path.exists(os.path.join(folder, name)) for name in names]
    return found == [True, False]


def _brokers_in(folder: str) -> list[int]:
    try:
        names = os.listdir(os.path.join(folder, OTHERS))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())
