"""Priority levels: which requests compete with each other for seats.

As in Kubernetes, administrators (``system:masters``) are exempt, and nodes and components of the
system do not compete with service accounts, nor these with other users. Within a level each user is
one flow, and flows are served in turn.
"""

from dataclasses import dataclass

from gangline.local.apiserver.auth.pki import ADMIN_GROUP
from gangline.local.apiserver.core.request import RequestUser

NODES_GROUP = "system:nodes"
SERVICE_ACCOUNTS_GROUP = "system:serviceaccounts"
SYSTEM_SERVICE_ACCOUNTS_GROUP = "system:serviceaccounts:kube-system"
AUTHENTICATED_GROUP = "system:authenticated"
SYSTEM_USER_PREFIX = "system:"
"""Reserved names; service accounts and the anonymous user have the prefix too."""


@dataclass(frozen=True, slots=True)
class PriorityLevel:
    """The seats of one class of requests."""

    name: str
    seats: int = 0
    """Requests in execution; 0 means no limit."""
    user_seats: int = 0
    """Seats of one user, so that a few slow requests of one user do not occupy all of them."""
    user_queue: int = 0
    """Requests of one user that wait for a seat; further ones are answered with 429."""
    user_streams: int = 0
    """Watches, logs, exec and port forwardings of one user at a time; 0 means no limit."""
    user_body_bytes: int = 0
    """Bytes of request bodies of one user at a time; 0 means no limit."""
    user_connections: int = 0
    """Open connections of one user; 0 means no limit."""


EXEMPT = PriorityLevel("exempt")
SYSTEM = PriorityLevel("system", 100, 50, 500, 2000, 128 << 20, 4000)
WORKLOAD_LOW = PriorityLevel("workload-low", 60, 20, 200, 500, 32 << 20, 1000)
GLOBAL_DEFAULT = PriorityLevel("global-default", 60, 20, 200, 500, 32 << 20, 1000)
CATCH_ALL = PriorityLevel("catch-all", 10, 5, 20, 10, 4 << 20)
"""Users without authentication."""


def priority_level(user: RequestUser) -> PriorityLevel:
    """Return the level of a user's requests."""
    groups = user.groups
    if ADMIN_GROUP in groups:
        return EXEMPT
    if NODES_GROUP in groups or SYSTEM_SERVICE_ACCOUNTS_GROUP in groups:
        return SYSTEM
    if SERVICE_ACCOUNTS_GROUP in groups:
        return WORKLOAD_LOW
    if AUTHENTICATED_GROUP not in groups:
        return CATCH_ALL
    return SYSTEM if user.name.startswith(SYSTEM_USER_PREFIX) else GLOBAL_DEFAULT
