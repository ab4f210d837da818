"""Work that must not hold up the event loop: slow writes, cold reads, worker processes."""
