"""Transactions: the state machine of a partition of `__transaction_state`.

Nothing is imported here: a broker starts without the machine (`shard`), and knows only its `settings`.
"""
