"""Owned objects of a job besides pods and services, such as its ConfigMap: create, update, delete.

An annotation with a digest of the content shows whether an object is current. So the content need
not be stored, and fields that the API server adds make no difference. An object of the job without
the annotation was created by an upstream operator: pods may depend on its content, so it is never
changed.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from gangline.operator import build, labels
from gangline.operator.decision import UNSEEN, Creation, Extra, Patch, Target
from gangline.operator.job import CleanPodPolicy, MakesObjects, Manifest, TrainingJob, offers
from gangline.operator.replicas import Gang

CONTENT = "gangline.dev/content"
"""Annotation: the digest of the content with which the object was created."""

_FRAME = ("apiVersion", "kind", "metadata")


def wanted(job: TrainingJob, gang: Gang) -> list[Creation]:
    rules = job.rules
    listed = rules.objects(job, gang) if offers(rules, MakesObjects) else []
    return [Creation(Target(manifest["kind"]), _complete(job, manifest)) for manifest in listed]


def missing(wanted: Iterable[Creation], found: Iterable[Extra]) -> list[Creation]:
    """List the objects to create; those that cannot be read are excluded."""
    there = {(extra.target, extra.metadata.name) for extra in found}
    seen = (each for each in wanted if each.target not in UNSEEN)
    return [each for each in seen if (each.target, each.name) not in there]


def with_unseen(
    wanted: Iterable[Creation], creations: tuple[Creation, ...]
) -> tuple[Creation, ...]:
    """Put objects that cannot be read before pods that need them: they may not exist."""
    if not any(each.target is Target.POD for each in creations):
        return creations
    return (*(each for each in wanted if each.target in UNSEEN), *creations)


def updates(wanted: Iterable[Creation], found: Iterable[Extra]) -> list[Patch]:
    """List the patches that make objects current."""
    seen = {(extra.target, extra.metadata.name): extra for extra in found}
    patches = []
    for creation in wanted:
        extra = seen.get((creation.target, creation.name))
        if extra is None or extra.metadata.deletion_timestamp is not None:
            continue
        content = creation.manifest["metadata"]["annotations"][CONTENT]
        before = extra.metadata.annotations.get(CONTENT)
        if before not in (None, content):
            patches.append(Patch(creation.target, creation.name, _operations(creation.manifest)))
    return patches


def unwanted(wanted: Iterable[Creation], found: Iterable[Extra]) -> list[Extra]:
    """List the objects that a running job no longer needs, except those of an upstream operator."""
    names = {(creation.target, creation.name) for creation in wanted}
    return [
        extra
        for extra in found
        if (extra.target, extra.metadata.name) not in names
        and CONTENT in extra.metadata.annotations
    ]


def unwanted_after_end(policy: CleanPodPolicy, found: Iterable[Extra]) -> list[Extra]:
    """List the objects to delete when the job has finished.

    Retained pods may still read theirs, but a finished job must not be scaled.
    """
    everything = policy is CleanPodPolicy.ALL
    return [extra for extra in found if everything or extra.target is Target.AUTOSCALER]


def _complete(job: TrainingJob, manifest: Manifest) -> Manifest:
    meta: Manifest = manifest["metadata"]
    own = {labels.JOB_NAME: job.name, labels.OPERATOR_NAME: job.kind.controller}
    return {
        **manifest,
        "metadata": {
            "name": meta["name"],
            "namespace": job.meta.namespace,
            "labels": {**(meta.get("labels") or {}), **own},
            "annotations": {**(meta.get("annotations") or {}), CONTENT: _digest(manifest)},
            "ownerReferences": [build.owner(job)],
        },
    }


def _digest(manifest: Manifest) -> str:
    written = msgspec.json.encode(manifest, order="deterministic")
    return hashlib.sha256(written).hexdigest()[:16]


def _operations(manifest: Manifest) -> list[Manifest]:
    pointer = CONTENT.replace("/", "~1")
    content = manifest["metadata"]["annotations"][CONTENT]
    digest = {"op": "add", "path": f"/metadata/annotations/{pointer}", "value": content}
    fields = [name for name in manifest if name not in _FRAME]
    return [
        *({"op": "add", "path": f"/{name}", "value": manifest[name]} for name in fields),
        digest,
    ]
