"""Installs, upgrades and removes a release with server-side apply.

Objects of a release carry the labels ``app.kubernetes.io/part-of: gangline`` and
``app.kubernetes.io/managed-by: gangline-deploy``. What an upgrade no longer renders is deleted.
CRDs, the namespace and volumes stay: they have the data of users.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from gangline.api.job_resources import JOB_KINDS
from gangline.deploy.adoption import HELM_MANAGER, without_installers
from gangline.deploy.chart import Manifest
from gangline.deploy.facts import FIELD_MANAGER, apply_manifest
from gangline.deploy.manifests import (
    KEEP,
    KIND_VERSIONS,
    MANAGED_BY,
    PART_OF,
    ObjectIdentity,
    collection_path,
    identity_of,
    object_path,
    sort_objects,
)
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import ApiError, Forbidden, Invalid, NotFound

PROBE_KIND = "PyTorchJob"
_PROBE_PATH = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"
_PROBE_POLL_S = 0.5
_KEPT = ("Namespace", "CustomResourceDefinition")
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_TERMINAL = ("Succeeded", "Failed")
Report = Callable[[str], None]


async def install(
    client: ApiClient,
    objects: Sequence[Manifest],
    skipped: Iterable[ObjectIdentity],
    report: Report,
) -> None:
    """Apply the objects in their order, then delete what the release no longer has.

    Raises:
        ApiError: the server refused an object; those before it are applied.
    """
    left = frozenset(skipped)
    for manifest in objects:
        if (identity := identity_of(manifest)) in left:
            continue
        await apply_manifest(client, manifest)
        report(f"applied {identity}")
    wanted = {identity_of(object_) for object_ in objects}
    surplus = [owned for owned in await owned_objects(client) if identity_of(owned) not in wanted]
    await _delete(client, surplus, report)


async def adopt(client: ApiClient, objects: Sequence[Manifest], report: Report) -> None:
    """Apply the marks of Helm; other installers own no field of the objects afterwards.

    Raises:
        ApiError: the server refused an object; those before it are handed over.
    """
    for manifest in objects:
        applied = (await apply_manifest(client, manifest, manager=HELM_MANAGER))["metadata"]
        managed = applied.get("managedFields") or []
        kept = without_installers(managed)
        if kept != managed:
            metadata = {"resourceVersion": applied["resourceVersion"], "managedFields": kept}
            await client.request_json(
                "PATCH",
                object_path(manifest),
                body={"metadata": metadata},
                content_type=PatchKind.MERGE.value,
            )
        report(f"adopted {identity_of(manifest)}")


async def uninstall(client: ApiClient, report: Report) -> list[ObjectIdentity]:
    """Delete the objects of the release, webhooks first; return what is left on purpose."""
    owned = await owned_objects(client)
    await _delete(client, owned, report)
    return [identity_of(object_) for object_ in owned if is_kept(object_)]


async def _delete(client: ApiClient, objects: Sequence[Manifest], report: Report) -> None:
    """Delete in the opposite order of creation, but no call must go to a service that is gone."""
    backwards = list(reversed(sort_objects(objects)))
    webhooks = [backward for backward in backwards if backward["kind"] in _WEBHOOKS]
    for manifest in [*webhooks, *(backward for backward in backwards if backward not in webhooks)]:
        if is_kept(manifest):
            continue
        with suppress(NotFound):
            body = {"propagationPolicy": "Background"}
            await client.request_json("DELETE", object_path(manifest), body=body)
            report(f"deleted {identity_of(manifest)}")


def is_kept(manifest: Manifest) -> bool:
    annotations = manifest["metadata"].get("annotations") or {}
    return manifest["kind"] in _KEPT or KEEP in annotations


async def owned_objects(client: ApiClient) -> list[Manifest]:
    """Return the objects that this program has installed, of kinds that the server has."""
    selector = f"{PART_OF}=gangline,{MANAGED_BY}={FIELD_MANAGER}"
    jobs = []
    for kind, versions in KIND_VERSIONS.items():
        for version in versions:
            path = collection_path(version, kind)
            try:
                listing = await client.request_json("GET", path, params={"labelSelector": selector})
            except (NotFound, Forbidden):
                continue
            jobs += [{"apiVersion": version, "kind": kind, **item} for item in listing["items"]]
            break
    return jobs


async def unfinished_jobs(client: ApiClient) -> list[str]:
    """Return jobs that have neither succeeded nor failed, as ``kind namespace/name``."""
    objects = []
    for kind in JOB_KINDS:
        resource = kind.resource
        path = f"/apis/{resource.group}/{resource.version}/{resource.plural}"
        try:
            listing = await client.request_json("GET", path, params={"limit": "500"})
        except (NotFound, Forbidden):
            continue
        objects += [
            f"{kind.identity} {item['metadata']['namespace']}/{item['metadata']['name']}"
            for item in listing["items"]
            if not _is_finished(item.get("status") or {})
        ]
    return objects


def _is_finished(status: dict[str, Any]) -> bool:
    conditions = status.get("conditions") or ()
    ended = any(
        condition.get("type") in (*_TERMINAL, "Complete") and condition.get("status") == "True"
        for condition in conditions
    )
    phase = status.get("phase")
    if isinstance(phase, dict):
        phase = phase.get("phase")
    return ended or phase in (*_TERMINAL, "Completed")


def _wrong_job() -> dict[str, Any]:
    """Return a job that the schema of the CRD allows and the webhook refuses: two masters."""
    pod = {"containers": [{"name": "pytorch", "image": "none"}]}
    masters = {"replicas": 2, "template": {"spec": pod}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": PROBE_KIND,
        "metadata": {"generateName": "gangline-deploy-"},
        "spec": {"pytorchReplicaSpecs": {"Master": masters}},
    }


async def find_webhook_fault(client: ApiClient, namespace: str, timeout_s: float) -> str:
    """Return why the webhook does not check jobs, or "" once it does.

    API servers notice a new webhook after a delay, so this asks again for ``timeout_s``.
    """
    fault = ""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await client.request_json(
                        "POST",
                        _PROBE_PATH.format(namespace),
                        body=_wrong_job(),
                        params={"dryRun": "All"},
                    )
                    fault = "the API server cannot reach it"
                except Invalid:
                    return ""
                except ApiError as error:
                    fault = str(error)
                await asyncio.sleep(_PROBE_POLL_S)
    except TimeoutError:
        return fault or "the API server does not answer"
