"""Impersonation: a request that acts as another user, by its ``Impersonate-`` headers.

As in Kubernetes, the sender needs the verb ``impersonate`` on the user or service account, on each
group, on the UID and on each extra value. Members of ``system:masters`` have all of these.
"""

from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from gangline.local.apiserver.auth.rbac import Authorizer
from gangline.local.apiserver.auth.rules import AccessAttributes
from gangline.local.apiserver.core.errors import bad_request
from gangline.local.apiserver.core.request import ANONYMOUS, AUTHENTICATED, RequestUser

EXTRA_PREFIX = "impersonate-extra-"
UNAUTHENTICATED = ANONYMOUS.groups[0]
_GROUP = "authentication.k8s.io"


class Impersonator:
    """Returns the user that a request acts as."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def impersonated(
        self, sender: RequestUser, headers: Iterable[tuple[str, str]]
    ) -> RequestUser | None:
        """Return the user that the headers name; None if they name none.

        Raises:
            StatusError: 403, the sender may not impersonate this user. 400, the headers name a
                group, a UID or an extra value without a user.
        """
        requested = _requested_user(headers)
        if requested is None:
            return None
        for attributes in _required_rights(requested):
            self._authorizer.require(sender, attributes)
        return _completed(requested)


def _requested_user(headers: Iterable[tuple[str, str]]) -> RequestUser | None:
    name = uid = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}
    for header, value in headers:
        match header.lower():
            case "impersonate-user":
                name = name or value
            case "impersonate-uid":
                uid = uid or value
            case "impersonate-group":
                groups.append(value)
            case other if other.startswith(EXTRA_PREFIX):
                extra.setdefault(unquote(other.removeprefix(EXTRA_PREFIX)), []).append(value)
    if not name:
        if uid or groups or extra:
            raise bad_request(
                "the headers Impersonate-Group, Impersonate-Uid and Impersonate-Extra- require "
                "the header Impersonate-User"
            )
        return None
    frozen = tuple((key, tuple(values)) for key, values in extra.items())
    return RequestUser(name, tuple(groups), uid, frozen)


def _required_rights(user: RequestUser) -> Iterator[AccessAttributes]:
    account = service_account_of(user.name)
    if account is not None:
        namespace, name = account
        yield AccessAttributes("impersonate", "", "serviceaccounts", "", namespace, name)
    else:
        yield AccessAttributes("impersonate", "", "users", name=user.name)
    for group in user.groups:
        yield AccessAttributes("impersonate", "", "groups", name=group)
    for key, values in user.extra:
        for value in values:
            yield AccessAttributes("impersonate", _GROUP, "userextras", key, name=value)
    if user.uid:
        yield AccessAttributes("impersonate", _GROUP, "uids", name=user.uid)


def _completed(user: RequestUser) -> RequestUser:
    """Return the user with the groups that every user of its sort has."""
    groups = list(user.groups)
    account = service_account_of(user.name)
    if account is not None and not groups:
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{account[0]}"]
    if user.name == ANONYMOUS.name:
        added = UNAUTHENTICATED
    else:
        added = "" if UNAUTHENTICATED in groups else AUTHENTICATED
    if added and added not in groups:
        groups.append(added)
    return RequestUser(user.name, tuple(groups), user.uid, user.extra)


def service_account_of(name: str) -> tuple[str, str] | None:
    """Return the namespace and name of a service account's user name; None for other users."""
    match name.split(":"):
        case ["system", "serviceaccount", namespace, account] if namespace and account:
            return namespace, account
    return None
