"""Background work on logs: flush, checkpoints, retention, compaction, folders without a topic."""
