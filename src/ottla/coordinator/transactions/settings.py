"""The broker settings that transactions live by."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Each field has the name (and the default) of the broker's setting, with _ for every dot."""

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_max_timeout_ms: int = 900_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_two_phase_commit_enable: bool = True
    transactional_id_expiration_ms: int = 604_800_000

    @classmethod
    def from_config(cls, config: object) -> TransactionSettings:
        """The settings out of a broker's configuration, which has attributes of the same names."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})
