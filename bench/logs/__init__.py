"""Logs: much that is stored, read from the disk, compacted, deleted, synced."""
