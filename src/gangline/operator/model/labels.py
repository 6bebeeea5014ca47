"""Labels, annotations and object names that tie pods, services and pod groups to their job.

They are those of upstream. Tools that select by them (Arena, Katib, the Kubeflow SDK) keep working,
and pods of the upstream operator are recognised.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gangline.api import job_names
from gangline.api.meta.objects import ObjectMeta

JOB_NAME = job_names.JOB_NAME_LABEL
OPERATOR_NAME = job_names.OPERATOR_LABEL
REPLICA_TYPE = job_names.ROLE_LABEL
REPLICA_INDEX = job_names.INDEX_LABEL
JOB_ROLE = "training.kubeflow.org/job-role"
MASTER_ROLE = "master"

POD_GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
"""Pod annotation: the pod group of the pod."""

TASK_SPEC_ANNOTATION = "volcano.sh/task-spec"
"""Pod annotation: the pod's role in its gang."""


def replica_name(job: str, role: str, index: int) -> str:
    """Return the name of a replica's pod and service: ``digits-worker-3``."""
    return f"{job}-{role.lower()}-{index}".replace("/", "-")


def replica_labels(job: str, controller: str, role: str, index: int) -> dict[str, str]:
    """Return the labels of a replica's pod and service, which are also the service's selector."""
    return {
        JOB_NAME: job,
        OPERATOR_NAME: controller,
        REPLICA_TYPE: role.lower(),
        REPLICA_INDEX: str(index),
    }


def annotation_path(name: str) -> str:
    """Return the path of an annotation in a JSON patch."""
    return f"/metadata/annotations/{name.replace('/', '~1')}"


def annotation_operations(
    current: Mapping[str, str], desired: Mapping[str, str], names: Iterable[str]
) -> list[dict[str, Any]]:
    """List the JSON patch operations that give the annotations of these names their values.

    Race: another writer may add another annotation concurrently, so only these are patched.
    """
    changed = [name for name in names if desired.get(name, "") != current.get(name, "")]
    if changed and not current:
        return [{"op": "add", "path": "/metadata/annotations", "value": desired}]
    return [
        {"op": "add", "path": annotation_path(name), "value": desired[name]}
        if name in desired
        else {"op": "remove", "path": annotation_path(name)}
        for name in changed
    ]


def parse_replica_labels(meta: ObjectMeta) -> tuple[str, int] | None:
    """Parse the lower-case role and the index from labels; None if they name no replica."""
    role = meta.labels.get(REPLICA_TYPE, "")
    # Upstream's MPIJob launchers have no index, because a job has only one.
    index = job_names.index_text(meta) or ("0" if role == "launcher" else "")
    if not role or not index.isascii() or not index.isdigit():
        return None
    return role, int(index)
