"""Requests at full speed or at a fixed rate, and who waits for their answers."""
