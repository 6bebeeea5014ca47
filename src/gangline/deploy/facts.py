"""Reads from a cluster what the checks before an installation judge."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

from gangline.deploy.chart import ClusterCapabilities, Manifest, ReleaseSettings
from gangline.deploy.manifests import (
    ObjectIdentity,
    collection_path,
    group_of,
    identity_of,
    object_path,
    plural_of,
)
from gangline.deploy.preflight import UPSTREAM_OPERATOR, InstallationFacts
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import ApiError, Forbidden, NotFound, Unreachable

T = TypeVar("T")

FIELD_MANAGER = "gangline-deploy"
_CONCURRENCY = 8
"""Requests at a time: a busy API server must not notice an installation."""
_VERBS = ("get", "create", "patch")
_COMPONENTS = ("gangline-operator", "gangline-scheduler", UPSTREAM_OPERATOR)


async def read_capabilities(client: ApiClient) -> ClusterCapabilities:
    """Return the API versions that the server serves.

    Raises:
        ApiError: discovery fails.
    """
    groups = await client.request_json("GET", "/apis")
    versions = {"v1"} | {
        version["groupVersion"] for group in groups["groups"] for version in group["versions"]
    }
    return ClusterCapabilities(frozenset(versions))


async def read_facts(
    client: ApiClient, objects: Sequence[Manifest], release: ReleaseSettings
) -> InstallationFacts:
    """Read what the checks need; facts that the user may not read are left out.

    Raises:
        Unreachable: the server does not answer.
    """
    version = await client.request_json("GET", "/version")
    minor = "".join(filter(str.isdigit, str(version.get("minor", "0")))) or "0"
    facts = InstallationFacts(str(version.get("gitVersion", "")), int(minor))
    reader = _Reader(client)
    namespace = await reader.get(_namespace(release))
    if namespace is not None:
        facts.namespace_labels = namespace["metadata"].get("labels") or {}
    facts.existing = await reader.existing(objects)
    facts.denied = await reader.denied(objects)
    facts.deployments = await reader.deployments()
    # Objects cannot be tried in a namespace that does not exist.
    trials = [
        object_
        for object_ in objects
        if namespace is not None or object_["metadata"].get("namespace") != release.namespace
    ]
    facts.refused = await reader.refused(trials)
    return facts


async def read_existing(
    client: ApiClient, objects: Sequence[Manifest]
) -> dict[ObjectIdentity, Manifest]:
    """Return those of the objects that exist, as they are in the cluster."""
    return await _Reader(client).existing(objects)


def _namespace(release: ReleaseSettings) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": release.namespace}}


class _Reader:
    """Sends the questions, a few at a time."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def get(self, manifest: Manifest) -> Manifest | None:
        try:
            stored = await self._client.request_json("GET", object_path(manifest))
        except (NotFound, Forbidden):
            return None
        assert isinstance(stored, dict)
        return stored

    async def existing(self, objects: Sequence[Manifest]) -> dict[ObjectIdentity, Manifest]:
        stored = await self._gather(self.get(object_) for object_ in objects)
        return {
            identity_of(manifest): live
            for manifest, live in zip(objects, stored, strict=True)
            if live is not None
        }

    async def denied(self, objects: Sequence[Manifest]) -> list[str]:
        """Return the rights that applying these objects needs and the user lacks."""
        needs = sorted(
            {
                (
                    group_of(object_["apiVersion"]),
                    object_["kind"],
                    object_["metadata"].get("namespace", ""),
                )
                for object_ in objects
            }
        )
        asked = [(verb, *need) for need in needs for verb in _VERBS]
        answers = await self._gather(self._may(*question) for question in asked)
        lacking: dict[str, list[str]] = {}
        for (verb, group, kind, namespace), allowed in zip(asked, answers, strict=True):
            if not allowed:
                resource = f"{plural_of(kind)}{f'.{group}' if group else ''}"
                place = f" in {namespace}" if namespace else ""
                lacking.setdefault(f"{resource}{place}", []).append(verb)
        return [f"{'/'.join(verbs)} {resource}" for resource, verbs in lacking.items()]

    async def _may(self, verb: str, group: str, kind: str, namespace: str) -> bool:
        attributes = {"verb": verb, "group": group, "resource": plural_of(kind)}
        if namespace:
            attributes["namespace"] = namespace
        try:
            return await self._client.is_allowed(**attributes)
        except Unreachable:
            raise
        except ApiError:
            return True  # The trial of each object reports what is missing.

    async def deployments(self) -> list[tuple[str, str]]:
        """Return namespace and name of operators and schedulers in all namespaces."""
        deployments = await self._gather(self._deployments_named(name) for name in _COMPONENTS)
        return [deployment for part in deployments for deployment in part]

    async def _deployments_named(self, name: str) -> list[tuple[str, str]]:
        path = collection_path("apps/v1", "Deployment")
        selector = {"fieldSelector": f"metadata.name={name}"}
        try:
            answer = await self._client.request_json("GET", path, params=selector)
        except Forbidden:
            return []
        return [(item["metadata"]["namespace"], name) for item in answer["items"]]

    async def refused(self, objects: Sequence[Manifest]) -> dict[ObjectIdentity, str]:
        """Try each object without storing it; return those that the server refuses."""
        answers = await self._gather(self._try(object_) for object_ in objects)
        return {
            identity_of(manifest): why
            for manifest, why in zip(objects, answers, strict=True)
            if why
        }

    async def _try(self, manifest: Manifest) -> str:
        try:
            await apply_manifest(self._client, manifest, dry_run=True)
        except Unreachable:
            raise
        except ApiError as error:
            return str(error)
        return ""

    async def _gather(self, questions: Iterable[Awaitable[T]]) -> list[T]:
        async def limited(question: Awaitable[T]) -> T:
            async with self._slots:
                return await question

        return await asyncio.gather(*(limited(pending) for pending in questions))


async def apply_manifest(
    client: ApiClient, manifest: Manifest, *, dry_run: bool = False, manager: str = FIELD_MANAGER
) -> Any:
    """Apply an object; fields of other managers are taken over.

    Raises:
        ApiError: the server refuses it.
    """
    params = {"fieldManager": manager, "force": "true"}
    if dry_run:
        params["dryRun"] = "All"
    return await client.request_json(
        "PATCH",
        object_path(manifest),
        body=manifest,
        params=params,
        content_type=PatchKind.APPLY.value,
    )
