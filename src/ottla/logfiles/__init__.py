"""Log folders as files, for reading only: names, segments, batches, checkpoints of offsets.

Whoever looks at a log's files without being the broker that writes them (the command line, Spark's
data source) and the broker itself know them by this room, so that there is one pattern for a folder's
name and one walk along a segment. Nothing is ever written here, and no state is kept.
"""
