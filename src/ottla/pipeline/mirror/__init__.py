"""Topics of one cluster copied to another."""
