"""Consumer groups and their offsets: the state machine of a partition of `__consumer_offsets`.

Nothing is imported here: a broker starts without the machine (`shard`), and knows only its `settings`.
"""
