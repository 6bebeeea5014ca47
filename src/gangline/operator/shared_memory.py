"""Memory at /dev/shm for the main container: an ``emptyDir`` of medium ``Memory``.

Container engines provide 64 MiB there, too little for data loaders and for checkpoints in memory. A
volume also keeps its content when the container restarts. Pods of ElasticJobs get one, those of
other kinds by an annotation on the job. A volume that the user mounts there takes precedence.
"""

import posixpath

from gangline.api.kubeflow import SHARED_MEMORY_ANNOTATION
from gangline.operator import template
from gangline.operator.job import Manifest, ReplicaRole, NormalizedJob

SHARED_MEMORY_PATH = "/dev/shm"
_SHARED_MEMORY_VOLUME = "gangline-shared-memory"


def with_shared_memory(job: NormalizedJob, role: ReplicaRole, pod: Manifest) -> Manifest:
    """Mount memory in the pod of a role, if the job requests it and nothing is mounted there."""
    written = job.meta.annotations.get(SHARED_MEMORY_ANNOTATION)
    enabled = role.name in job.kind.shared_memory_roles if written is None else written != "false"
    if not enabled or _has_shared_memory(pod, job.kind.container):
        return pod
    limit = {} if written in (None, "true") else {"sizeLimit": written}
    volume = {"name": _SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", **limit}}
    mount = {"name": _SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY_PATH}
    return template.with_volume(pod, job.kind.container, volume, mount)


def _has_shared_memory(pod: Manifest, container: str) -> bool:
    """Return whether a volume is mounted there, or the pod shares the IPC namespace of the node."""
    trains = template.main_container(pod, container)
    if not trains or template.pod_spec(pod).get("hostIPC"):
        return True
    mounts = trains.get("volumeMounts") or []
    places = (posixpath.normpath(str(each.get("mountPath"))) for each in mounts)
    return any(
        place in (SHARED_MEMORY_PATH, posixpath.dirname(SHARED_MEMORY_PATH)) for place in places
    )
