"""Patches of a job's own metadata."""

from gangline.api.jobs.kubeflow import MANAGED_BY_US
from gangline.api.jobs.versions import VERSION_ANNOTATION
from gangline.operator.model.job import Manifest, NormalizedJob
from gangline.operator.model.plan import PlannedPatch, TargetKind


def remove_finalizers(job: NormalizedJob) -> tuple[PlannedPatch, ...]:
    """Remove the finalizers of an upstream operator that may not run any more."""
    found = job.meta.finalizers
    remaining = [name for name in found if name not in job.kind.finalizers]
    if len(remaining) == len(found):
        return ()
    path = "/metadata/finalizers"
    operations: list[Manifest] = [
        {"op": "test", "path": path, "value": list(found)},
        {"op": "replace", "path": path, "value": remaining},
    ]
    return (PlannedPatch(TargetKind.JOB, job.name, operations),)


def store_version(job: NormalizedJob) -> PlannedPatch | None:
    """Store the version in which a job was written, while the job still shows it."""
    several = bool(job.kind.entry.other_versions)
    ours = job.policy.managed_by in (None, MANAGED_BY_US)
    if not several or not ours or job.is_deleting or VERSION_ANNOTATION in job.meta.annotations:
        return None
    path = "/metadata/annotations"
    version: Manifest = {"path": path, "value": {VERSION_ANNOTATION: job.api_version}}
    if job.meta.annotations:
        pointer = VERSION_ANNOTATION.replace("/", "~1")
        version = {"path": f"{path}/{pointer}", "value": job.api_version}
    return PlannedPatch(
        TargetKind.JOB,
        job.name,
        [
            {
                "op": "replace",
                "path": "/metadata/resourceVersion",
                "value": job.meta.resource_version,
            },
            {"op": "add", **version},
        ],
    )
