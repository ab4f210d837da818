"""Segments of a log: their files, one of them, and all that a log has."""
