"""The broker settings that groups live by."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Each field has the name (and the default) of the broker's setting, with _ for every dot."""

    group_initial_rebalance_delay_ms: int = 3_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    group_min_session_timeout_ms: int = 6_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_check_interval_ms: int = 600_000
    offsets_retention_minutes: int = 7 * 24 * 60

    @classmethod
    def taken_from(cls, config: object) -> GroupSettings:
        """The settings out of a broker's configuration, which has attributes of the same names."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
