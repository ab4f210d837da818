"""One partition's log: its state, and what is done to it."""
