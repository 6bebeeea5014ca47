"""Which objects that this operator did not make it takes over, and by which patch. Pure.

Pods and services by an upstream operator of today are ours as they are: labels and owner are the
same. Others need a patch of their metadata, and never a restart:

- made by a Kubeflow operator before it put a prefix before its labels, or by a PaddleJob operator,
  which never named the job in a label: they get our labels. Role and index are read off the name,
  which all operators build alike;
- *orphans*: our labels, nobody's controller (after ``kubectl delete --cascade=orphan``, say), and
  a job of that name: they get the job as their owner, as a ReplicaSet takes pods that it finds.
  Not pods that have ended: a new job is not finished because a former one was;
- pods without a gang whose job has a pod group: they join it, or their replacements would wait
  for a gang that never fills.

Each patch names uid and version of what was seen, so that it changes nothing else.
"""

from collections.abc import Mapping

import msgspec

from gangline.api.meta import Object, ObjectMeta, OwnerReference
from gangline.operator import labels
from gangline.operator.decision import Target
from gangline.operator.job import Kind, Manifest
from gangline.operator.replicas import Pod

PADDLE_LABEL = "paddle-res-name"
OLD_ROLE = "job-role"
_WITHOUT_OURS = f"!{labels.JOB_NAME}"
PADDLE_SELECTOR = f"{PADDLE_LABEL},{_WITHOUT_OURS}"
OLD_GROUP = ("group-name", "kubeflow.org")
OLD_SELECTOR = f"{'='.join(OLD_GROUP)},job-name,{_WITHOUT_OURS}"

_OF_A_REPLICA = frozenset({Target.POD, Target.SERVICE})

KindTable = Mapping[tuple[str, str], Kind]
"""The kinds that this operator runs, by group and kind."""


def kind_of(owner: OwnerReference | None, kinds: KindTable) -> Kind | None:
    """Find the kind of the job that controls an object, if it is one of ours."""
    return kinds.get((owner.api_version.rpartition("/")[0], owner.kind)) if owner else None


def is_foreign(meta: ObjectMeta) -> bool:
    """Say whether an object has an upstream operator's labels and not ours yet."""
    found = PADDLE_LABEL in meta.labels or OLD_GROUP in meta.labels.items()
    return found and labels.JOB_NAME not in meta.labels


def replica_in_name(name: str, job: str) -> tuple[str, int] | None:
    """Read role and index off an object's name; None if it is not a replica's of this job."""
    role, _, index = name.removeprefix(f"{job}-").rpartition("-")
    if not name.startswith(f"{job}-") or not role.isalpha():
        return None
    return (role, int(index)) if index.isascii() and index.isdigit() else None


def our_labels(target: Target, meta: ObjectMeta, kinds: KindTable) -> dict[str, str] | None:
    """Return the labels that an upstream operator's object lacks; None if it is not ours."""
    owner = meta.controller
    kind = kind_of(owner, kinds)
    if owner is None or kind is None:
        return None
    if target not in _OF_A_REPLICA:
        return {labels.JOB_NAME: owner.name, labels.OPERATOR_NAME: kind.controller}
    replica = replica_in_name(meta.name, owner.name)
    if replica is None:
        return None
    found = labels.replica_labels(owner.name, kind.controller, *replica)
    if target is Target.POD and meta.labels.get(OLD_ROLE) == labels.MASTER_ROLE:
        found[labels.JOB_ROLE] = labels.MASTER_ROLE
    return found


def labelled(
    target: Target,
    meta: ObjectMeta,
    kinds: KindTable,
    selector: Mapping[str, str] | None = None,
) -> Manifest | None:
    """Return the patch that makes an upstream operator's object ours; None if there is none.

    Args:
        target: what it is.
        meta: its metadata.
        kinds: the kinds that we run.
        selector: what an old service selects by. It is turned to our labels, which pods that we
            make in the place of old ones have as well.
    """
    found = our_labels(target, meta, kinds)
    if found is None:
        return None
    patch = _patch(meta, labels=found)
    if selector and "job-name" in selector:
        dropped: Manifest = dict.fromkeys(set(selector) - set(found))
        patch["spec"] = {"selector": {**dropped, **found}}
    return patch


def is_orphan(meta: ObjectMeta) -> bool:
    """Say whether nobody manages an object with our labels that is to stay."""
    named = labels.JOB_NAME in meta.labels and labels.OPERATOR_NAME in meta.labels
    return named and meta.controller is None and meta.deletion_timestamp is None


def is_claimable(item: Object) -> bool:
    """Say whether a job of its name takes an object: an orphan, and no pod that has ended."""
    return is_orphan(item.metadata) and not (isinstance(item, Pod) and item.over)


def claimed(meta: ObjectMeta, owner: Manifest) -> Manifest:
    """Return the patch that makes a job the controller of an orphan."""
    others = [msgspec.to_builtins(reference) for reference in meta.owner_references]
    return _patch(meta, ownerReferences=[*others, owner])


def is_outside_gang(pod: Pod) -> bool:
    """Say whether a pod of a job that may still run belongs to no gang."""
    return (
        labels.GROUP_NAME not in pod.metadata.annotations
        and labels.replica_of(pod.metadata) is not None
        and not pod.terminating
        and not pod.over
    )


def joined(pod: Pod) -> Manifest:
    """Return the patch that puts a pod in its job's gang."""
    meta = pod.metadata
    gang = {
        labels.GROUP_NAME: meta.labels[labels.JOB_NAME],
        labels.TASK_SPEC: meta.labels[labels.REPLICA_TYPE],
    }
    return _patch(meta, annotations=gang)


def _patch(meta: ObjectMeta, **metadata: object) -> Manifest:
    seen = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    return {"metadata": {**seen, **metadata}}
