"""Manifests of the pods of a Job."""

from copy import deepcopy
from typing import Any

from gangline.local.controllers.jobs.types import FINALIZER, INDEX, RAW_JOBS, RawJob
from gangline.local.controllers.replica_sets.plan import controller_reference

_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def build_job_pod(job: RawJob, index: int | None) -> dict[str, Any]:
    """Return the manifest of a pod, with ``index`` for a Job in the mode Indexed."""
    template = deepcopy(job.spec.template)
    given, name = template.get("metadata") or {}, job.metadata.name
    labels = dict(given.get("labels") or {})
    for key, value in (("controller-uid", job.metadata.uid), ("job-name", name)):
        labels[key] = labels[f"batch.kubernetes.io/{key}"] = value
    annotations = dict(given.get("annotations") or {})
    spec = template.get("spec") or {}
    prefix = f"{name}-"
    if index is not None:
        prefix = f"{name}-{index}-"
        labels[INDEX] = annotations[INDEX] = str(index)
        spec.setdefault("hostname", f"{name}-{index}")
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
            _add_index_variable(container)
    metadata: dict[str, Any] = {
        "generateName": prefix,
        "namespace": job.metadata.namespace,
        "labels": labels,
        "finalizers": [*(given.get("finalizers") or ()), FINALIZER],
        "ownerReferences": [controller_reference(RAW_JOBS.api_version, RAW_JOBS.kind, job)],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _add_index_variable(container: dict[str, Any]) -> None:
    env = container.setdefault("env", [])
    if all(each.get("name") != _INDEX_VARIABLE for each in env):
        source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        env.append({"name": _INDEX_VARIABLE, "valueFrom": source})
