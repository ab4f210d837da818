"""Log compaction: of each key, only the last record stays for good.

    plan         what is dirty, what may be cleaned, which segments become one (pure)
    offset_map   key → offset of its last record, in bounded memory
    transactions which batches were aborted, which markers have nothing left to mark (pure)
    filter       one batch in, what is left of it out (pure)
    rewrite      the work: segment files in, `.cleaned` files out; runs in a worker process
    swap         the new segments in the place of the old ones, on the log's thread

A log is compacted in passes. Each reads the dirty part (from the offset where the last pass stopped) up
to where the map is full, and then rewrites the log from its start: a record stays unless the map
knows a later one of its key. Offsets never change.
"""
