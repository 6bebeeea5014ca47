"""Which objects of other operators are adopted, and by which patch of their metadata.

Pods and services of current upstream operators need no patch: labels and owner are the same. No
patch restarts anything, and each contains the observed uid and resource version, so it cannot
change another object:

- Objects of a Kubeflow operator from before labels had a prefix, or of a PaddleJob operator, whose
  labels never name the job, get our labels: role and index are parsed from the object's name.
- *Orphans* have our labels and no controller (``kubectl delete --cascade=orphan``). A job of the
  same name becomes their owner, except of pods that have ended: a new job is not finished because
  an earlier one was.
- Pods without a gang whose job has a pod group join it, or their replacements would wait for a gang
  that never becomes complete.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gangline.api.meta.objects import Object, ObjectMeta, OwnerReference
from gangline.operator.model import labels
from gangline.operator.model.job import JobKindInfo, Manifest
from gangline.operator.model.plan import TargetKind
from gangline.operator.model.replicas import ObservedPod

PADDLE_LABEL = "paddle-res-name"
LEGACY_ROLE_LABEL = "job-role"
_NOT_ADOPTED = f"!{labels.JOB_NAME}"
PADDLE_SELECTOR = f"{PADDLE_LABEL},{_NOT_ADOPTED}"
LEGACY_GROUP_LABEL = ("group-name", "kubeflow.org")
LEGACY_SELECTOR = f"{'='.join(LEGACY_GROUP_LABEL)},job-name,{_NOT_ADOPTED}"

_REPLICA_TARGETS = frozenset({TargetKind.POD, TargetKind.SERVICE})

KindTable = Mapping[tuple[str, str], JobKindInfo]
"""The kinds that this operator runs, by group and kind."""


def kind_table(kinds: Iterable[JobKindInfo]) -> KindTable:
    return {(kind.resource.group, kind.kind): kind for kind in kinds}


def kind_of(owner: OwnerReference | None, kinds: KindTable) -> JobKindInfo | None:
    return kinds.get((owner.api_version.rpartition("/")[0], owner.kind)) if owner else None


def is_foreign(meta: ObjectMeta) -> bool:
    is_upstream = PADDLE_LABEL in meta.labels or LEGACY_GROUP_LABEL in meta.labels.items()
    return is_upstream and labels.JOB_NAME not in meta.labels


def parse_replica_name(name: str, job: str) -> tuple[str, int] | None:
    """Parse role and index from an object's name; None if no replica of the job has this name."""
    role, _, index = name.removeprefix(f"{job}-").rpartition("-")
    if not name.startswith(f"{job}-") or not role.isalpha():
        return None
    return (role, int(index)) if index.isascii() and index.isdigit() else None


def adoption_labels(
    target: TargetKind, meta: ObjectMeta, kinds: KindTable
) -> dict[str, str] | None:
    """Return our labels for an upstream operator's object; None if no job of ours owns it."""
    owner = meta.controller
    kind = kind_of(owner, kinds)
    if owner is None or kind is None:
        return None
    if target not in _REPLICA_TARGETS:
        return {labels.JOB_NAME: owner.name, labels.OPERATOR_NAME: kind.controller}
    replica = parse_replica_name(meta.name, owner.name)
    if replica is None:
        return None
    own = labels.replica_labels(owner.name, kind.controller, *replica)
    if target is TargetKind.POD and meta.labels.get(LEGACY_ROLE_LABEL) == labels.MASTER_ROLE:
        own[labels.JOB_ROLE] = labels.MASTER_ROLE
    return own


def label_patch(
    target: TargetKind,
    meta: ObjectMeta,
    kinds: KindTable,
    selector: Mapping[str, str] | None = None,
) -> Manifest | None:
    """Return the patch that adds our labels to an upstream operator's object; None if not needed.

    The selector of an old service becomes our labels, which replacements of old pods have as well.
    """
    own = adoption_labels(target, meta, kinds)
    if own is None:
        return None
    patch = _metadata_patch(meta, labels=own)
    if selector and "job-name" in selector:
        dropped: Manifest = dict.fromkeys(set(selector) - set(own))
        patch["spec"] = {"selector": {**dropped, **own}}
    return patch


def is_orphan(meta: ObjectMeta) -> bool:
    """Return whether an object has our labels, no controller, and is not being deleted."""
    is_named = {labels.JOB_NAME, labels.OPERATOR_NAME} <= meta.labels.keys()
    return is_named and meta.controller is None and meta.deletion_timestamp is None


def is_claimable(item: Object) -> bool:
    """Return whether a job of its name may adopt an object: an orphan, and not a finished pod."""
    return is_orphan(item.metadata) and not (isinstance(item, ObservedPod) and item.is_finished)


def is_given_group(group: Object) -> bool:
    """Return whether a user created a pod group: a job of its name uses it as it is."""
    meta = group.metadata
    return meta.controller is None and not is_orphan(meta) and meta.deletion_timestamp is None


def owner_patch(meta: ObjectMeta, owner: Manifest) -> Manifest:
    others = [msgspec.to_builtins(reference) for reference in meta.owner_references]
    return _metadata_patch(meta, ownerReferences=[*others, owner])


def lacks_gang(pod: ObservedPod) -> bool:
    return (
        labels.POD_GROUP_ANNOTATION not in pod.metadata.annotations
        and labels.parse_replica_labels(pod.metadata) is not None
        and not pod.is_terminating
        and not pod.is_finished
    )


def gang_patch(pod: ObservedPod) -> Manifest:
    meta = pod.metadata
    gang = {
        labels.POD_GROUP_ANNOTATION: meta.labels[labels.JOB_NAME],
        labels.TASK_SPEC_ANNOTATION: meta.labels[labels.REPLICA_TYPE],
    }
    return _metadata_patch(meta, annotations=gang)


def _metadata_patch(meta: ObjectMeta, **metadata: object) -> Manifest:
    seen = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    return {"metadata": {**seen, **metadata}}
