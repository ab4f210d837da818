"""Records of partitions: written, read, looked up, deleted."""
