"""AlterUserScramCredentials: passwords of users, salted by the client (KIP-554).

- All changes of one user are made, or none; the controller makes them.
- Iterations from 4096 to 16384; a salt of at least 12 bytes (Kafka takes shorter ones).

Versions: v0
"""

from __future__ import annotations

from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message


@handles(AlterUserScramCredentialsRequest, versions=(0, 0), by_controller=True)
async def alter_user_scram_credentials(
    request: Request[AlterUserScramCredentialsRequest],
) -> AlterUserScramCredentialsResponse:
    from ottla.cluster.decisions.users import ScramChange  # not at the start of a broker

    message = request.message
    changes = [ScramChange(each.name, each.mechanism) for each in message.deletions]
    changes += [
        ScramChange(each.name, each.mechanism, each.iterations, each.salt, each.salted_password)
        for each in message.upsertions
    ]
    results = await request.broker.controller.alter_scram(changes)
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=each.user,
                error_code=0 if each.error is None else each.error.code,
                error_message=None if each.error is None else error_message(each.error),
            )
            for each in results
        ]
    )
