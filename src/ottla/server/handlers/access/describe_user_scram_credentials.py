"""DescribeUserScramCredentials: which users have passwords for which mechanisms (KIP-554).

- Never the passwords, nor what is kept of them.
- No users named: all of them.

Versions: v0
"""

from __future__ import annotations

from collections import Counter

from ottla.cluster.metadata import ClusterImage, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.turns import Steps


@handles(DescribeUserScramCredentialsRequest, versions=(0, 0))
def describe_user_scram_credentials(
    request: Request[DescribeUserScramCredentialsRequest],
) -> Steps[Outcome]:
    image = request.broker.image
    asked = [each.name for each in request.message.users or ()]
    if not asked:
        asked = sorted(name for kind, name in image.configs if kind is ResourceType.USER)
    times = Counter(asked)
    response = DescribeUserScramCredentialsResponse(error_message=None)
    for user in times:
        response.results.append(_described(image, user, times[user]))
        yield
    return response


def _described(image: ClusterImage, user: str, times: int) -> DescribeUserScramCredentialsResult:
    from ottla.cluster.security.credentials import ScramCredential, UnreadableCredential
    from ottla.protocol.scram import SCRAM_NUMBERS

    result = DescribeUserScramCredentialsResult(user=user, error_message=None)
    if times > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        )
        return result
    stored = image.config(ResourceType.USER, user)
    for number, mechanism in SCRAM_NUMBERS.items():
        if mechanism in stored:
            try:
                iterations = ScramCredential.parse(stored[mechanism]).iterations
            except UnreadableCredential:
                continue
            result.credential_infos.append(CredentialInfo(mechanism=number, iterations=iterations))
    if not result.credential_infos:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
    return result
