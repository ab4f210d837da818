"""A whole cluster in one process: see world.py."""
