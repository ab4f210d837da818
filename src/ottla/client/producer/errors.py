"""What goes wrong with a transaction on the client's side."""

from __future__ import annotations

from ottla.client.errors import OttlaError


class InvalidTransactionState(OttlaError):
    """The call does not fit the state of the transaction: a mistake of the program."""


class TransactionFailed(OttlaError):
    """The transaction cannot be committed: abort it. `__cause__` is what went wrong, if anything."""

    def __init__(self, transactional_id: str, problem: OttlaError | None) -> None:
        reason = "it was aborted" if problem is None else f"it failed: {problem}"
        super().__init__(f"the transaction of '{transactional_id}' has to end: {reason}")
        self.transactional_id = transactional_id
        self.problem = problem
