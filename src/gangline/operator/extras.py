"""Further objects of a job, such as its ConfigMap: made, brought up to date, removed.

Whether one is up to date is read off an annotation with a digest of its content, so that nothing
of the content has to be remembered and what the API server adds to it is no difference. An object
of the job without the annotation was made by an upstream operator: pods may live by what it says,
and it is left as it is.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from gangline.operator import build, labels
from gangline.operator.decision import UNSEEN, Creation, Extra, Patch, Target
from gangline.operator.job import CleanPodPolicy, MakesObjects, Manifest, TrainingJob, offers
from gangline.operator.replicas import Gang

CONTENT = "gangline.dev/content"
"""Annotation: the digest of what the object was made with."""

_FRAME = ("apiVersion", "kind", "metadata")


def wanted(job: TrainingJob, gang: Gang) -> list[Creation]:
    """List the objects that the job needs now, complete."""
    rules = job.rules
    listed = rules.objects(job, gang) if offers(rules, MakesObjects) else []
    return [Creation(Target(manifest["kind"]), _complete(job, manifest)) for manifest in listed]


def missing(wanted: Iterable[Creation], found: Iterable[Extra]) -> list[Creation]:
    """List what is not there, as far as that can be seen."""
    there = {(extra.target, extra.metadata.name) for extra in found}
    seen = (each for each in wanted if each.target not in UNSEEN)
    return [each for each in seen if (each.target, each.name) not in there]


def with_unseen(
    wanted: Iterable[Creation], creations: tuple[Creation, ...]
) -> tuple[Creation, ...]:
    """Put what cannot be seen before pods that may need it: nobody knows whether it is there."""
    if not any(each.target is Target.POD for each in creations):
        return creations
    return (*(each for each in wanted if each.target in UNSEEN), *creations)


def updates(wanted: Iterable[Creation], found: Iterable[Extra]) -> list[Patch]:
    """Bring objects to their wanted content."""
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
    """List the objects that a running job no longer needs; an upstream operator's stay."""
    names = {(creation.target, creation.name) for creation in wanted}
    return [
        extra
        for extra in found
        if (extra.target, extra.metadata.name) not in names
        and CONTENT in extra.metadata.annotations
    ]


def unwanted_after_end(policy: CleanPodPolicy, found: Iterable[Extra]) -> list[Extra]:
    """List the objects that go when the job has finished.

    Pods that stay may still read theirs; but nobody shall scale a job that has ended.
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
    told = {"op": "add", "path": f"/metadata/annotations/{pointer}", "value": content}
    fields = [name for name in manifest if name not in _FRAME]
    return [
        *({"op": "add", "path": f"/{name}", "value": manifest[name]} for name in fields),
        told,
    ]
