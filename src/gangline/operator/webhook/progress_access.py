"""Who may report the progress of a job: its own pods, by a token of their ServiceAccount.

The kubelet writes the token into the pod. Its audience names the job, so it is of no use elsewhere.
The API server checks it (TokenReview) and names the pod to which it is bound, and the controller of
this pod must be the job: another pod of the namespace may request a token of that audience too.

Results are cached for a minute, also refusals. A token that does not even claim the audience is
refused without a request.
"""

import asyncio
import base64
import binascii
import hashlib
import time
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gangline.api.jobs.kind import JobKind
from gangline.api.jobs.progress import token_audience
from gangline.api.meta.json_objects import subobject
from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
CACHE_S = 60.0
MAX_CACHED = 10_000
REVIEWS_IN_FLIGHT = 16
_POD_METADATA = Resource(Object, PODS.group, PODS.version, PODS.plural, PODS.kind)
_CLAIM = "authentication.kubernetes.io/pod-"


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """A job that reports."""

    kind: JobKind = field(compare=False)
    namespace: str
    name: str
    uid: str = ""


class ReportAuthorizer:
    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._cache: dict[bytes, tuple[str, float]] = {}
        self._limiter = asyncio.Semaphore(REVIEWS_IN_FLIGHT)

    async def authorize(self, header: str, job: JobIdentity) -> JobIdentity | None:
        """Return the job with the uid for which the token was issued; None if it is not the token
        of one of its pods. Raises ApiError: the API server cannot check it.
        """
        scheme, _, token = header.partition(" ")
        audience = token_audience(job.kind.resource, job.namespace, job.name)
        if scheme != "Bearer" or audience not in _claimed_audiences(token):
            return None
        key = hashlib.sha256(f"{audience} {token}".encode()).digest()
        uid, until = self._cache.get(key, ("", 0.0))
        if time.monotonic() >= until:
            async with self._limiter:
                uid = await self._review(token, audience, job)
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[key] = uid, time.monotonic() + CACHE_S
        return replace(job, uid=uid) if uid else None

    async def _review(self, token: str, audience: str, job: JobIdentity) -> str:
        """Return the uid of the job whose pod has the token; empty if it is not this job."""
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        status = subobject(
            await self._client.request_json("POST", TOKEN_REVIEWS, body=review), "status"
        )
        # A server that does not know audiences returns none.
        if not status.get("authenticated") or audience not in (status.get("audiences") or ()):
            return ""
        user = subobject(status, "user")
        if not str(user.get("username")).startswith(f"system:serviceaccount:{job.namespace}:"):
            return ""
        extra = subobject(user, "extra")
        name, uid = (next(iter(extra.get(f"{_CLAIM}{part}") or ()), "") for part in ("name", "uid"))
        if not name:
            return ""
        try:
            pod = await self._client.get(_POD_METADATA, name, job.namespace)
        except NotFound:
            return ""
        owner, resource = pod.metadata.controller, job.kind.resource
        if pod.metadata.uid != uid or owner is None or owner.name != job.name:
            return ""
        group = owner.api_version.rpartition("/")[0]
        return owner.uid if (group, owner.kind) == (resource.group, resource.kind) else ""


def _claimed_audiences(token: str) -> tuple[Any, ...]:
    """Return the audiences in a token whose signature is not checked yet; none if it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3 or not token.isascii():
        return ()
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = msgspec.json.decode(payload)
    except (binascii.Error, ValueError, RecursionError, msgspec.DecodeError):
        return ()
    given = claims.get("aud") if isinstance(claims, dict) else None
    return tuple(given) if isinstance(given, list) else (given,)
