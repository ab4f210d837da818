"""The store of a single node: a tree in memory, made durable by SQLite."""
