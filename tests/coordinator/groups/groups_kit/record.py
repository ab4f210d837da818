"""Write the answers of scenarios anew, as a running broker (Apache Kafka) gives them.

PYTHONPATH=tests/coordinator/groups python -m groups_kit.record HOST:PORT FILE...
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from groups_kit.scenarios import Run, read
from groups_kit.sockets import Sockets, prepare


def main() -> None:
    address, *files = sys.argv[1:]
    host, _, port = address.rpartition(":")
    prepare(host, int(port))
    # Kafka loads the fifty partitions of the offsets topic in its own time.
    time.sleep(5)
    for name in files:
        path = Path(name)
        introduction, scenarios = read(path)
        texts = [introduction]
        for scenario in scenarios:
            mark = os.urandom(4).hex()
            target = Sockets(host, int(port), patience=0.5)
            print(scenario.title)
            texts.append(Run(scenario, target, lambda group, mark=mark: f"{group}-{mark}").text())
            target.close()
        path.write_text("\n\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
