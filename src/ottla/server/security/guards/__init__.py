"""What each API is checked for before, and in part after, its handler is called.

A guard stands before a handler that knows nothing of it: it takes out of the request what the client
may not do, lets the handler answer the rest, and adds the refusals to the answer. `table.py` has the
guard of every API; without an authorizer it is not imported.
"""
