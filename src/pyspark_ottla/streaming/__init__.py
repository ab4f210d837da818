"""The streaming reader: its plan, its offsets, and the groups that it commits to."""
