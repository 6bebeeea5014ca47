"""Memory at /dev/shm for the main container: an ``emptyDir`` of medium ``Memory``.

Container engines provide 64 MiB there, too little for data loaders and for checkpoints in memory. A
volume also keeps its content when the container restarts. Pods of ElasticJobs get one, those of
other kinds by an annotation on the job. A volume that the user mounts there takes precedence.
"""

import posixpath

from gangline.api.kubeflow import SHARED_MEMORY_ANNOTATION
from gangline.operator import template
from gangline.operator.job import Manifest, Role, TrainingJob

PATH = "/dev/shm"
_NAME = "gangline-shared-memory"


def with_shared_memory(job: TrainingJob, role: Role, pod: Manifest) -> Manifest:
    """Mount memory in the pod of a role, if the job requests it and nothing is mounted there."""
    written = job.meta.annotations.get(SHARED_MEMORY_ANNOTATION)
    enabled = role.name in job.kind.shares_memory if written is None else written != "false"
    if not enabled or _has_some(pod, job.kind.container):
        return pod
    limit = {} if written in (None, "true") else {"sizeLimit": written}
    volume = {"name": _NAME, "emptyDir": {"medium": "Memory", **limit}}
    mount = {"name": _NAME, "mountPath": PATH}
    return template.with_volume(pod, job.kind.container, volume, mount)


def _has_some(pod: Manifest, container: str) -> bool:
    """Return whether a volume is mounted there, or the pod shares the IPC namespace of the node."""
    trains = template.main_container(pod, container)
    if not trains or template.pod_spec(pod).get("hostIPC"):
        return True
    mounts = trains.get("volumeMounts") or []
    places = (posixpath.normpath(str(each.get("mountPath"))) for each in mounts)
    return any(place in (PATH, posixpath.dirname(PATH)) for place in places)
