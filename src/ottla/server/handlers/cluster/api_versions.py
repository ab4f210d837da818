"""ApiVersions: what this broker speaks; the first thing clients ask.

- A version that this broker does not know is answered with UNSUPPORTED_VERSION in a version 0 body
  that lists ApiVersions itself, so that the client can ask again (see Reactor.refuse_version).
- The response header is the old one in all versions.
- Finalized features tell clients which protocols are switched on.

Versions:
  v1  throttle time
  v3  flexible; the client tells its software and version; features in tagged fields
  v4  supported features may begin at version 0
"""

from __future__ import annotations

import re

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from ottla.server.api import Request, handles

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiVersionsRequest, versions=(0, 4))
def api_versions(request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:
    broker, message = request.broker, request.message
    if request.version >= 3:
        name, version = message.client_software_name, message.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        request.connection.software_name = name
        request.connection.software_version = version
    image = broker.image
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=api.lowest, max_version=api.highest)
            for key, api in broker.apis.items()
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=known.minimum, max_version=known.maximum)
            for name, known in broker.supported_features.items()
            # Before v4 clients refused a range that begins at 0.
            if known.minimum > 0 or request.version >= 4
        ],
        finalized_features_epoch=image.version,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in image.features.items()
            if level > 0
        ],
    )
