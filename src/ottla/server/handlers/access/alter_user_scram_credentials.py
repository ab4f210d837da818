"""AlterUserScramCredentials: passwords of users, salted by the client (KIP-554).

- All changes of one user are made, or none; the controller makes them.
- Iterations from 4096 to 16384; a salt of at least 12 bytes (Kafka takes shorter ones).

Versions: v0
"""

from __future__ import annotations

from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.portions import one_by_one, portions
from ottla.server.turns import Turns, in_turns


@handles(AlterUserScramCredentialsRequest, versions=(0, 0), by_controller=True)
async def alter_user_scram_credentials(
    request: Request[AlterUserScramCredentialsRequest],
) -> AlterUserScramCredentialsResponse:
    from ottla.cluster.decisions.users import (
        ScramChange,
        UserResult,
    )  # not at the start of a broker

    response = AlterUserScramCredentialsResponse()
    turns = Turns()
    changes: list[ScramChange] = []
    for gone in request.message.deletions:
        changes.append(ScramChange(gone.name, gone.mechanism))
        await turns.pause()
    for each in request.message.upsertions:
        changes.append(
            ScramChange(each.name, each.mechanism, each.iterations, each.salt, each.salted_password)
        )
        await turns.pause()
    found = await in_turns(
        portions(changes, lambda one: (one.user, one.mechanism), lambda one: one.user)
    )
    for some in one_by_one(found):
        try:
            results = await request.broker.controller.alter_scram(some)
        except ProtocolError as error:
            refusal = error.with_traceback(None)
            results = [
                UserResult(user, refusal) for user in dict.fromkeys(one.user for one in some)
            ]
        response.results += [
            AlterUserScramCredentialsResult(
                user=each.user,
                error_code=0 if each.error is None else each.error.code,
                error_message=None if each.error is None else error_message(each.error),
            )
            for each in results
        ]
        await turns.pause()
    return response
