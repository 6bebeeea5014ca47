"""Owned objects of a job besides pods and services, such as its ConfigMap: create, update, delete.

An annotation with a digest of the content shows whether an object is current. So the content need
not be stored, and fields that the API server adds make no difference. An object of the job without
the annotation was created by an upstream operator: pods may depend on its content, so it is never
changed.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from gangline.operator.engine import manifests
from gangline.operator.model import labels
from gangline.operator.model.job import (
    CleanPodPolicy,
    Manifest,
    NormalizedJob,
    OwnsObjects,
    implements,
)
from gangline.operator.model.plan import (
    UNWATCHED,
    OwnedObject,
    PlannedCreation,
    PlannedPatch,
    TargetKind,
)
from gangline.operator.model.replicas import ReplicaGang

CONTENT_ANNOTATION = "gangline.dev/content"
"""Annotation: the digest of the content with which the object was created."""

_FRAME = ("apiVersion", "kind", "metadata")


def desired_objects(job: NormalizedJob, gang: ReplicaGang) -> list[PlannedCreation]:
    rules = job.rules
    listed = rules.owned_objects(job, gang) if implements(rules, OwnsObjects) else []
    return [
        PlannedCreation(TargetKind(manifest["kind"]), _with_metadata(job, manifest))
        for manifest in listed
    ]


def missing_objects(
    desired: Iterable[PlannedCreation], observed: Iterable[OwnedObject]
) -> list[PlannedCreation]:
    """List the objects to create; those that cannot be read are excluded."""
    there = {(extra.target, extra.metadata.name) for extra in observed}
    seen = (each for each in desired if each.target not in UNWATCHED)
    return [each for each in seen if (each.target, each.name) not in there]


def prepend_unwatched(
    desired: Iterable[PlannedCreation], creations: tuple[PlannedCreation, ...]
) -> tuple[PlannedCreation, ...]:
    """Put objects that cannot be read before pods that need them: they may not exist."""
    if not any(each.target is TargetKind.POD for each in creations):
        return creations
    return (*(each for each in desired if each.target in UNWATCHED), *creations)


def update_patches(
    desired: Iterable[PlannedCreation], observed: Iterable[OwnedObject]
) -> list[PlannedPatch]:
    """List the patches that make objects current."""
    seen = {(extra.target, extra.metadata.name): extra for extra in observed}
    patches = []
    for creation in desired:
        extra = seen.get((creation.target, creation.name))
        if extra is None or extra.metadata.deletion_timestamp is not None:
            continue
        content = creation.manifest["metadata"]["annotations"][CONTENT_ANNOTATION]
        before = extra.metadata.annotations.get(CONTENT_ANNOTATION)
        if before not in (None, content):
            patches.append(
                PlannedPatch(creation.target, creation.name, _update_operations(creation.manifest))
            )
    return patches


def obsolete_objects(
    desired: Iterable[PlannedCreation], observed: Iterable[OwnedObject]
) -> list[OwnedObject]:
    """List the objects that a running job no longer needs, except those of an upstream operator."""
    names = {(creation.target, creation.name) for creation in desired}
    return [
        extra
        for extra in observed
        if (extra.target, extra.metadata.name) not in names
        and CONTENT_ANNOTATION in extra.metadata.annotations
    ]


def obsolete_after_end(
    policy: CleanPodPolicy, observed: Iterable[OwnedObject]
) -> list[OwnedObject]:
    """List the objects to delete when the job has finished.

    Retained pods may still read theirs, but a finished job must not be scaled.
    """
    everything = policy is CleanPodPolicy.ALL
    return [extra for extra in observed if everything or extra.target is TargetKind.AUTOSCALER]


def _with_metadata(job: NormalizedJob, manifest: Manifest) -> Manifest:
    meta: Manifest = manifest["metadata"]
    own = {labels.JOB_NAME: job.name, labels.OPERATOR_NAME: job.kind.controller}
    return {
        **manifest,
        "metadata": {
            "name": meta["name"],
            "namespace": job.meta.namespace,
            "labels": {**(meta.get("labels") or {}), **own},
            "annotations": {
                **(meta.get("annotations") or {}),
                CONTENT_ANNOTATION: _digest(manifest),
            },
            "ownerReferences": [manifests.owner_reference(job)],
        },
    }


def _digest(manifest: Manifest) -> str:
    written = msgspec.json.encode(manifest, order="deterministic")
    return hashlib.sha256(written).hexdigest()[:16]


def _update_operations(manifest: Manifest) -> list[Manifest]:
    pointer = CONTENT_ANNOTATION.replace("/", "~1")
    content = manifest["metadata"]["annotations"][CONTENT_ANNOTATION]
    digest = {"op": "add", "path": f"/metadata/annotations/{pointer}", "value": content}
    fields = [name for name in manifest if name not in _FRAME]
    return [
        *({"op": "add", "path": f"/{name}", "value": manifest[name]} for name in fields),
        digest,
    ]
