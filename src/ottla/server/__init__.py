"""The reactor: listeners, connections, delayed operations, and a handler for each API."""
