"""Pods of a TrainJob: the labels and host names that a JobSet gives them."""

import hashlib
from collections.abc import Mapping

from gangline.api.jobs.training_runtime import LAUNCHER, NODE
from gangline.api.trainer.effective import EffectiveJob, EffectiveRole, pod_name
from gangline.api.trainer.policy import HOST_FILE_PATH, INDEX_KEY
from gangline.operator.frameworks.mpi.ssh import ROOT_SSH_PATH, with_keys
from gangline.operator.model import pod_template
from gangline.operator.model.job import Manifest, NormalizedJob

JOB_SET = "jobset.sigs.k8s.io/"
JOB_SET_NAME = f"{JOB_SET}jobset-name"
HOST_FILE = "hostfile"

_KEY_MODES: Mapping[str, int] = {"id_rsa": 0o640, "id_rsa.pub": 0o644, "authorized_keys": 0o644}
_ROOT_KEY_MODES: Mapping[str, int] = {**_KEY_MODES, "id_rsa": 0o600}
"""OpenSSH refuses a key of its user that others can read. Other users read it by their group."""
_HOST_FILE_VOLUME = "mpi-hostfile"


def host_file_name(job: str) -> str:
    return f"{job}-mpi-hostfile"


def batch_job_name(job: str, role: str) -> str:
    """Return the name of the batch Job that a JobSet would make."""
    return f"{job}-{role}-0"


def job_set_labels(
    job: NormalizedJob, merged: EffectiveJob, role: EffectiveRole, index: int, attempt: int
) -> dict[str, str]:
    """Return the labels that JobSet and batch Job give a pod; they are its annotations too."""
    name = batch_job_name(job.name, role.name)
    group = [each.name for each in merged.roles if each.group == role.group]
    names = [each.name for each in merged.roles]
    key = hashlib.sha1(f"{job.meta.namespace}/{name}".encode(), usedforsecurity=False).hexdigest()
    values = {
        "jobset-name": job.name,
        "jobset-uid": job.meta.uid,
        "replicatedjob-name": role.name,
        "replicatedjob-replicas": "1",
        "global-replicas": str(len(names)),
        "restart-attempt": str(attempt),
        "job-index": "0",
        "job-global-index": str(names.index(role.name)),
        "job-key": key,
        "group-name": role.group,
        "group-replicas": str(len(group)),
        "job-group-index": str(group.index(role.name)),
        **({"coordinator": merged.coordinator} if merged.coordinator else {}),
    }
    return {
        **{f"{JOB_SET}{name}": value for name, value in values.items()},
        INDEX_KEY: str(index),
        "batch.kubernetes.io/job-name": name,
        "job-name": name,
    }


def with_host_name(
    merged: EffectiveJob, role: EffectiveRole, index: int, pod: Manifest
) -> Manifest:
    """Give a pod its name below the headless service, unless the runtime disables names."""
    network = merged.spec.template.spec.network
    if network and network.enable_dns_hostnames is False:
        return pod
    name = pod_name(merged.name, role.name, index)
    return pod_template.with_spec(pod, hostname=name, subdomain=merged.subdomain)


def with_mpi_files(
    job: NormalizedJob, merged: EffectiveJob, role: EffectiveRole, pod: Manifest
) -> Manifest:
    """Mount the key pair in the pods of an MPI job, and the host file in its launcher."""
    mpi = merged.mpi
    if mpi is None or role.name not in (NODE, LAUNCHER):
        return pod
    path = mpi.ssh_auth_mount_path or ROOT_SSH_PATH
    pod = with_keys(job, pod, NODE, path, _ROOT_KEY_MODES if path == ROOT_SSH_PATH else _KEY_MODES)
    if role.name != LAUNCHER:
        return pod
    items = [{"key": HOST_FILE, "path": HOST_FILE}]
    source = {"name": host_file_name(job.name), "items": items}
    folder = HOST_FILE_PATH.rpartition("/")[0]
    mount = {"name": _HOST_FILE_VOLUME, "mountPath": folder}
    volume = {"name": _HOST_FILE_VOLUME, "configMap": source}
    return pod_template.with_volume(pod, NODE, volume, mount)
