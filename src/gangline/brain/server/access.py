"""Who asks, and what may be shown: TokenReview and SubjectAccessReview of the API server."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gangline.api.job_resources import JOB_KINDS
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient

TOKEN_REVIEWS: Resource[dict[str, Any]] = Resource(
    dict[str, Any], "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False
)
ACCESS_REVIEWS: Resource[dict[str, Any]] = Resource(
    dict[str, Any],
    "authorization.k8s.io",
    "v1",
    "subjectaccessreviews",
    "SubjectAccessReview",
    namespaced=False,
)
CACHE_S = 60.0
MAX_CACHED = 10_000
_PLURALS = {kind.identity: kind.resource for kind in JOB_KINDS}


class NotAuthenticated(Exception):
    """The request has no valid token."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The user behind a request. None as ``name`` is a user of this machine, who may see all."""

    name: str | None
    groups: tuple[str, ...] = ()
    uid: str = ""


LOCAL = Asker(None)


class AccessChecks:
    """Reviews with a short memory: a page of history asks for the same rights a hundred times."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._askers: dict[str, tuple[Asker, float]] = {}
        self._rights: dict[tuple[Asker, str, str, str], tuple[bool, float]] = {}

    async def asker(self, headers: Mapping[str, str]) -> Asker:
        """Return the user of the token.

        Raises:
            NotAuthenticated: there is no token, or it is not valid.
            ApiError: the API server cannot check it.
        """
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise NotAuthenticated("send a token of the cluster as Authorization: Bearer TOKEN")
        known = self._askers.get(token)
        if known and time.monotonic() - known[1] < CACHE_S:
            return known[0]
        review = await self._client.create(TOKEN_REVIEWS, {"spec": {"token": token.strip()}})
        status = review.get("status") or {}
        if not status.get("authenticated"):
            raise NotAuthenticated("the token is not valid in this cluster")
        user = status.get("user") or {}
        asker = Asker(
            str(user.get("username", "")),
            tuple(user.get("groups") or ()),
            str(user.get("uid", "")),
        )
        if len(self._askers) > MAX_CACHED:
            self._askers.clear()
        self._askers[token] = (asker, time.monotonic())
        return asker

    async def may(self, asker: Asker, verb: str, kind: str, namespace: str) -> bool:
        """Return whether a user has a right on a job kind in a namespace.

        Raises:
            ApiError: the API server cannot check it.
        """
        if asker.name is None:
            return True
        resource = _PLURALS.get(kind)
        if resource is None:
            return False
        key = (asker, verb, kind, namespace)
        known = self._rights.get(key)
        if known and time.monotonic() - known[1] < CACHE_S:
            return known[0]
        spec = {
            "user": asker.name,
            "groups": list(asker.groups),
            "uid": asker.uid,
            "resourceAttributes": {
                "namespace": namespace,
                "verb": verb,
                "group": resource.group,
                "resource": resource.plural,
            },
        }
        review = await self._client.create(ACCESS_REVIEWS, {"spec": spec})
        allowed = bool((review.get("status") or {}).get("allowed"))
        if len(self._rights) > MAX_CACHED:
            self._rights.clear()
        self._rights[key] = (allowed, time.monotonic())
        return allowed
