"""Guards that are broken on purpose, one at a time, for the simulator to find.

Each mutation takes the place of one guard in the code that decides. `first_caught` runs seeds until
one of them breaks a promise; a mutation that no seed catches says that the simulator is too kind.
"""

# Each module registers its own, in the order of the table in docs/reliability.md.
# isort: off
from simulation_kit.mutations import (
    partitions,
    controllers,
    coordinators,
    flushing,
    moves,
)
from simulation_kit.mutations.registry import MUTATIONS, first_caught
# isort: on

__all__ = [
    "MUTATIONS",
    "controllers",
    "coordinators",
    "first_caught",
    "flushing",
    "moves",
    "partitions",
]
