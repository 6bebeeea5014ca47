"""Checks before submission: do the referenced claims, secrets, classes and queues exist?

If the user may not read a kind, its references are not checked.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangline.api.job_resources import TRAIN_JOBS
from gangline.api.jobs.training_runtime import CLUSTER_TRAINING_RUNTIME, TRAINING_RUNTIME
from gangline.api.volcano.scheduling import QUEUE_NAME_ANNOTATION

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RequiredObject:
    """An object that a manifest refers to and does not contain."""

    kind: str
    name: str
    namespace: str = ""


_KINDS = {
    "PersistentVolumeClaim": (
        "PERSISTENT_VOLUME_CLAIMS", "'gangline data list' shows existing claims",
    ),
    "Secret": (
        "SECRETS",
        "create it first: 'kubectl create secret generic {name} --from-literal=KEY=VALUE'",
    ),
    "ConfigMap": (
        "CONFIG_MAPS", "create it first: 'kubectl create configmap {name} --from-file=FILE'",
    ),
    "PriorityClass": (
        "PRIORITY_CLASSES", "'kubectl get priorityclasses' shows existing classes",
    ),
    "Queue": ("QUEUES", "'gangline queue list' shows existing queues"),
    CLUSTER_TRAINING_RUNTIME: (
        "CLUSTER_TRAINING_RUNTIMES",
        "'kubectl get clustertrainingruntimes' shows existing runtimes",
    ),
    TRAINING_RUNTIME: (
        "TRAINING_RUNTIMES", "'kubectl get trainingruntimes' shows existing runtimes",
    ),
}  # fmt: skip
"""Constant in ``gangline.api.resources`` and remedy, by kind."""
_DEFAULT_QUEUE = "default"
_CLUSTER_SCOPED = frozenset(("PriorityClass", "Queue", CLUSTER_TRAINING_RUNTIME))
_BUILT_IN_CLASSES = frozenset(("system-cluster-critical", "system-node-critical"))


async def find_missing(
    client: "ApiClient", manifests: Sequence[Manifest], namespace: str
) -> list[str]:
    """Return a sentence for each referenced object that does not exist."""
    required = sorted(
        find_required_objects(manifests, namespace), key=lambda entry: (entry.kind, entry.name)
    )
    exist = await asyncio.gather(*(_exists(client, entry) for entry in required))
    return [_sentence(entry) for entry, exists in zip(required, exist, strict=True) if not exists]


def find_required_objects(manifests: Sequence[Manifest], namespace: str) -> set[RequiredObject]:
    """Return the objects that manifests refer to and do not contain."""
    included = {(manifest["kind"], manifest["metadata"].get("name", "")) for manifest in manifests}
    required: set[RequiredObject] = set()
    for manifest in manifests:
        where = str(manifest["metadata"].get("namespace") or namespace)
        for kind, name in (*_named(manifest), *_queue(manifest)):
            if not name or (kind, name) in included:
                continue
            required.add(RequiredObject(kind, name, "" if kind in _CLUSTER_SCOPED else where))
    return required


def _queue(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the queue of a TrainJob, which is an annotation."""
    if manifest["kind"] == TRAIN_JOBS.kind:
        annotations = manifest["metadata"].get("annotations") or {}
        queue = str(annotations.get(QUEUE_NAME_ANNOTATION) or "")
        yield "Queue", "" if queue == _DEFAULT_QUEUE else queue


def _named(node: Any) -> Iterator[tuple[str, str]]:
    """Yield references in an object; the fields that refer to other objects have fixed names."""
    if isinstance(node, list):
        for reference in node:
            yield from _named(reference)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if isinstance(value, dict) and not value.get("optional"):
            yield from _reference(key, value)
        if key == "imagePullSecrets" and isinstance(value, list):
            yield from (("Secret", str(reference.get("name", ""))) for reference in value)
        if key in {"priorityClassName", "priorityClass"} and value not in _BUILT_IN_CLASSES:
            yield "PriorityClass", str(value)
        if key == "schedulingPolicy" and isinstance(value, dict):
            queue = str(value.get("queue") or "")
            yield "Queue", "" if queue == _DEFAULT_QUEUE else queue
        if not isinstance(value, dict) or not value.get("optional"):
            yield from _named(value)


def _reference(key: str, value: Manifest) -> Iterator[tuple[str, str]]:
    match key:
        case "runtimeRef":
            kind = str(value.get("kind") or CLUSTER_TRAINING_RUNTIME)
            if kind in _KINDS:
                yield kind, str(value.get("name", ""))
        case "persistentVolumeClaim":
            yield "PersistentVolumeClaim", str(value.get("claimName", ""))
        case "secretKeyRef" | "secretRef":
            yield "Secret", str(value.get("name", ""))
        case "secret":
            yield "Secret", str(value.get("secretName") or value.get("name") or "")
        case "configMapKeyRef" | "configMapRef" | "configMap":
            yield "ConfigMap", str(value.get("name", ""))


async def _exists(client: "ApiClient", required: RequiredObject) -> bool:
    from gangline.api import resources
    from gangline.kube.errors import Forbidden, NotFound

    resource = getattr(resources, _KINDS[required.kind][0])
    try:
        await client.get(resource, required.name, required.namespace or None)
    except NotFound:
        return False
    except Forbidden:
        pass
    return True


def _sentence(required: RequiredObject) -> str:
    where = f" in namespace {required.namespace!r}" if required.namespace else ""
    remedy = _KINDS[required.kind][1].format(name=required.name)
    return f"there is no {required.kind} {required.name!r}{where}; {remedy}"
