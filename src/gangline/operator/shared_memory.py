"""Memory at /dev/shm for the container that trains: an ``emptyDir`` of medium ``Memory``.

Container engines give 64 MiB there, too little for data loaders and for checkpoints in memory; and
what a volume holds is still there when the container was started again. Pods of ElasticJobs get
one, those of other kinds by an annotation on the job. Who mounts something there keeps it.
"""

import posixpath

from gangline.api.kubeflow import SHARED_MEMORY_ANNOTATION
from gangline.operator import template
from gangline.operator.job import Manifest, Role, TrainingJob

PATH = "/dev/shm"
_NAME = "gangline-shared-memory"


def with_shared_memory(job: TrainingJob, role: Role, pod: Manifest) -> Manifest:
    """Mount memory in the pod of a role, if the job wants it and nothing is there."""
    written = job.meta.annotations.get(SHARED_MEMORY_ANNOTATION)
    wanted = role.name in job.kind.shares_memory if written is None else written != "false"
    if not wanted or _has_some(pod, job.kind.container):
        return pod
    limit = {} if written in (None, "true") else {"sizeLimit": written}
    volume = {"name": _NAME, "emptyDir": {"medium": "Memory", **limit}}
    mount = {"name": _NAME, "mountPath": PATH}
    return template.with_volume(pod, job.kind.container, volume, mount)


def _has_some(pod: Manifest, container: str) -> bool:
    """Whether something is mounted there, or the node's own is meant."""
    trains = template.main_container(pod, container)
    if not trains or template.pod_spec(pod).get("hostIPC"):
        return True
    mounts = trains.get("volumeMounts") or []
    places = (posixpath.normpath(str(each.get("mountPath"))) for each in mounts)
    return any(place in (PATH, posixpath.dirname(PATH)) for place in places)
