"""Transactions: the state machine behind a partition of `__transaction_state`.

Nothing is imported here: a broker starts without the machine (`shard`), and knows only its `settings`.
"""
