"""Writing: DataFrames to topics, in batch and streaming queries."""
