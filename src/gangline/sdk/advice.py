"""Advice and history of the Brain: stored advice from the API server, history over HTTP."""

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gangline.api.brain.job_advice import AdviceItem, JobAdvice
from gangline.api.job_resources import JOB_ADVICE, MAIN_CONTAINERS
from gangline.api.jobs.kind import JobKind
from gangline.api.resource_list import CPU, MEMORY, format_resource
from gangline.api.resources import CONFIG_MAPS
from gangline.display import error_text
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound

if TYPE_CHECKING:
    import ssl

    from aiohttp import ClientSession

BRAIN_URL_VARIABLE = "GANGLINE_BRAIN_URL"
BRAIN_CONFIG_MAP = "gangline-brain"
"""ConfigMap with the address of the Brain, under ``url``."""
BRAIN_NAMESPACES = ("kube-system", "gangline-system")
TIMEOUT_S = 20.0
_MIB = 2**20
_RESOURCES = {"memory": MEMORY, "cpu": CPU}


class BrainUnavailable(Exception):
    """The Brain cannot be found or does not answer; the message has a remedy."""


class NotInHistory(BrainUnavailable):
    """The history does not have this job, or it may not be seen."""


async def job_advice(client: ApiClient, namespace: str, job: str) -> JobAdvice | None:
    """Return the advice on a job; None if there is none, or no Brain was installed."""
    try:
        return await client.get(JOB_ADVICE, job, namespace)
    except NotFound:
        return None


async def list_advice(client: ApiClient, namespace: str | None) -> list[JobAdvice]:
    """Return all advice of one namespace, or of all; empty if no Brain was installed."""
    try:
        return (await client.list(JOB_ADVICE, namespace)).items
    except NotFound:
        return []


def advised_patch(
    kind: JobKind, job: Mapping[str, Any], items: Sequence[AdviceItem]
) -> list[dict[str, Any]]:
    """Return the JSON patch that writes advice into a manifest of a job.

    Only numbers that a manifest has a field for are part of it: workers, memory and CPU. Advice for
    a single rank is not, because ranks share a template.

    Args:
        kind: the kind of the job.
        job: the manifest.
        items: the advice.
    """
    operations: list[dict[str, Any]] = []
    for item in items:
        if item.value is None or item.rank is not None:
            continue
        path, spec = _role(kind, job, item.role or "worker")
        if spec is None:
            continue
        if item.what == "workers":
            operations.append(_set(f"{path}/replicas", "replicas" in spec, round(item.value)))
        elif item.what in _RESOURCES:
            operations += _set_resource(path, spec, _RESOURCES[item.what], round(item.value))
    return operations


def _role(kind: JobKind, job: Mapping[str, Any], role: str) -> tuple[str, Mapping[str, Any] | None]:
    spec = job.get("spec") or {}
    if not kind.replica_specs_field:
        return f"/spec/{role}", spec.get(role)
    first, *others = kind.replica_specs_field.split("_")
    field = first + "".join(map(str.capitalize, others))
    roles = spec.get(field) or {}
    name = next((candidate for candidate in roles if candidate.lower() == role.lower()), None)
    return f"/spec/{field}/{name}", roles[name] if name else None


def _set(path: str, exists: bool, value: Any) -> dict[str, Any]:
    return {"op": "replace" if exists else "add", "path": path, "value": value}


def _set_resource(
    path: str, spec: Mapping[str, Any], resource: str, amount: int
) -> list[dict[str, Any]]:
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
    if not containers:
        return []
    named = (
        i for i, container in enumerate(containers) if container.get("name") in MAIN_CONTAINERS
    )
    index = next(named, 0)
    where = f"{path}/template/spec/containers/{index}/resources"
    resources = containers[index].get("resources")
    # Whole mebibytes are what people write; rounding down could be too little.
    amount = -(-amount // _MIB) * _MIB if resource == MEMORY else amount
    written = format_resource(resource, amount)
    # Memory: the limit equals the request, so that a pod cannot take what others requested.
    fields = ("requests", "limits") if resource == MEMORY else ("requests",)
    if not resources:
        return [_set(where, False, {field: {resource: written} for field in fields})]
    operations = []
    for field in fields:
        present = resources.get(field)
        if not present:
            operations.append(_set(f"{where}/{field}", False, {resource: written}))
        else:
            operations.append(_set(f"{where}/{field}/{resource}", resource in present, written))
    return operations


async def find_brain(client: ApiClient, given: str = "") -> str:
    """Return the URL of the Brain: as given, from ``GANGLINE_BRAIN_URL``, else as it published it.

    Raises:
        BrainUnavailable: none is known.
    """
    if url := given or os.environ.get(BRAIN_URL_VARIABLE, ""):
        return url.rstrip("/")
    for namespace in BRAIN_NAMESPACES:
        try:
            published = await client.get(CONFIG_MAPS, BRAIN_CONFIG_MAP, namespace)
        except ApiError:
            continue
        if url := published.data.get("url", ""):
            return url.rstrip("/")
    raise BrainUnavailable(
        "no history of jobs was found: 'gangline up' keeps one if gangline[brain] is installed, "
        "'gangline up --brain' and 'gangline brain' also advise; or give "
        f"its address with --brain URL or {BRAIN_URL_VARIABLE}"
    )


async def brain_problem(client: ApiClient) -> str:
    """Return what the Brain reports about its history; empty if all is well, or no Brain runs."""
    for namespace in BRAIN_NAMESPACES:
        try:
            published = await client.get(CONFIG_MAPS, BRAIN_CONFIG_MAP, namespace)
        except ApiError:
            continue
        return published.data.get("problem", "")
    return ""


async def brain_token(client: ApiClient, url: str) -> str:
    """Return the token of the kubeconfig for a Brain that asks for it; never for plain HTTP."""
    if not url.startswith("https://"):
        return ""
    credential = await client.config.credentials.current()
    scheme, _, token = credential.authorization.partition(" ")
    return token if scheme.lower() == "bearer" else ""


@cache
def public_authorities() -> "ssl.SSLContext":
    """Return a context that trusts the system's authorities, which takes 60 ms to read."""
    import ssl

    return ssl.create_default_context()


class BrainClient:
    """The HTTP API of a Brain. Use as ``async with BrainClient(url, token) as brain``."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url, self._token = url.rstrip("/"), token
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        is_encrypted = self.url.startswith("https://")
        connector = TCPConnector(ssl=public_authorities()) if is_encrypted else None
        self._session = ClientSession(
            timeout=ClientTimeout(TIMEOUT_S), headers=headers, connector=connector
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def history(self, **filters: str | int) -> dict[str, Any]:
        """Return ``jobs``, the number of ``hidden`` ones, and the parameters of the ``next`` page.

        Args:
            filters: ``namespace``, ``name``, ``owner``, ``stem``, ``kind``, ``queue``, ``outcome``,
                ``since`` and ``until`` (milliseconds since 1970), ``after``, ``limit``.
        """
        return await self._request("GET", "/v1/history", params=filters)

    async def run(self, namespace: str, job: str) -> dict[str, Any]:
        """Return the last ``job`` of this name with its ``segments`` and ``pods``."""
        return await self._request("GET", f"/v1/jobs/{namespace}/{job}/history")

    async def record(self, namespace: str, job: str, uid: str = "") -> dict[str, Any]:
        """Return how a ``job`` went: its ``record``, ``spec``, and ``logs`` of failed replicas.

        ``record`` is None if the job has none any more. Without ``uid`` it is the last job of the
        name.
        """
        params = {"uid": uid} if uid else {}
        return await self._request("GET", f"/v1/jobs/{namespace}/{job}/record", params=params)

    async def usage(
        self, by: str = "queue", namespaces: Sequence[str] = (), **times: int
    ) -> dict[str, Any]:
        """Return ``rows``: what jobs used by ``queue``, ``owner``, ``kind``, ``namespace`` or
        ``month``.

        Args:
            by: what to sum up by.
            namespaces: only jobs of these; none: of all.
            times: ``since`` and ``until``, milliseconds since 1970; jobs count at their end.
        """
        params = [("by", by), *(("namespace", name) for name in namespaces), *times.items()]
        return await self._request("GET", "/v1/usage", params=params)

    async def advise(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``items`` on a manifest that is not submitted, and the number of ``runs``."""
        return await self._request("POST", "/v1/advice", json=manifest)

    async def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        from aiohttp import ClientError

        assert self._session is not None, "use the client as context manager"
        try:
            async with self._session.request(method, self.url + path, **options) as response:
                text = await response.text()
                if response.status == 404:
                    raise NotInHistory(text or "it is not in the history")
                if response.status >= 400:
                    raise BrainUnavailable(f"the Brain at {self.url}: {text or response.reason}")
                body = json.loads(text)
        except (ClientError, TimeoutError, ValueError) as error:
            reason = error_text(error)
            raise BrainUnavailable(f"the Brain at {self.url} does not answer: {reason}") from error
        assert isinstance(body, dict)
        return body
