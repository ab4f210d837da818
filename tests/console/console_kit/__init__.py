"""A console in a process of its own, and requests to it."""
