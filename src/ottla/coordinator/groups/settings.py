"""The broker settings that groups live by, and those that a group may have of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

# What a group may be configured with by itself (resources of type GROUP).
SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"


class ConsumerGroupTimes(NamedTuple):
    """Timeouts and intervals of consumer groups, in milliseconds."""

    session_timeout: int
    heartbeat_interval: int
    # From one target assignment to the next, so that many members that come at once cost only a few.
    assignment_interval: int


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Each field has the name (and the default) of the broker's setting, with _ for every dot."""

    group_consumer_assignment_interval_ms: int = 1_000
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_assignment_interval_ms: int = 15_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_session_timeout_ms: int = 45_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    group_min_session_timeout_ms: int = 6_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_check_interval_ms: int = 600_000
    offsets_retention_minutes: int = 7 * 24 * 60

    @classmethod
    def from_config(cls, config: object) -> GroupSettings:
        """The settings out of a broker's configuration, which has attributes of the same names."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @property
    def upgrades(self) -> bool:
        """A classic group may become a consumer group while it has members."""
        return self.group_consumer_migration_policy.lower() in ("upgrade", "bidirectional")

    @property
    def downgrades(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("downgrade", "bidirectional")

    def consumer_times(self, own: Mapping[str, str]) -> ConsumerGroupTimes:
        """The times of a group with settings of its own. These were checked when they were made; should
        the broker's limits have changed since, the nearest value that they allow counts."""
        times = ConsumerGroupTimes(
            self.group_consumer_session_timeout_ms,
            self.group_consumer_heartbeat_interval_ms,
            self.group_consumer_assignment_interval_ms,
        )
        if not own:
            return times
        return ConsumerGroupTimes(
            _within(
                own.get(SESSION_TIMEOUT, times.session_timeout),
                self.group_consumer_min_session_timeout_ms,
                self.group_consumer_max_session_timeout_ms,
            ),
            _within(
                own.get(HEARTBEAT_INTERVAL, times.heartbeat_interval),
                self.group_consumer_min_heartbeat_interval_ms,
                self.group_consumer_max_heartbeat_interval_ms,
            ),
            _within(
                own.get(ASSIGNMENT_INTERVAL, times.assignment_interval),
                self.group_consumer_min_assignment_interval_ms,
                self.group_consumer_max_assignment_interval_ms,
            ),
        )


def _within(value: str | int, least: int, most: int) -> int:
    return min(max(int(value), least), most)
