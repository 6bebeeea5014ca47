"""The ConfigMap files and RBAC objects of an MPIJob's launcher.

The files are mounted in ``/etc/mpi``. The launcher may run commands in the job's own workers, and
nothing else. A job without workers gets no rights. Upstream's role then has an empty list of names,
which means every pod of the namespace.

What both versions of MPIJob share: the names of their objects, and how the Launcher decides.
"""

import shlex
from collections.abc import Mapping, Sequence

from gangline.api.jobs.mpi import CONTAINER, FILES_PATH
from gangline.operator.frameworks import kubeflow
from gangline.operator.model import pod_template
from gangline.operator.model.job import Manifest, NormalizedJob, ReplicaRole
from gangline.operator.model.labels import replica_name
from gangline.operator.policies.replica_tracker import ReplicaTracker

LAUNCHER, WORKER = "Launcher", "Worker"
NO_GPUS: Mapping[str, str] = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
"""A launcher that is no host of processes sees no GPUs."""
EXECUTABLE, READABLE = 0o555, 0o444

CONFIG_VOLUME = "mpi-job-config"


class LauncherRules(kubeflow.LeadingRoleRules, ReplicaTracker):
    """The rules of MPIJobs of any version: the Launcher decides how the job runs and ends."""

    __slots__ = ()
    leaders = (LAUNCHER,)

    def pod_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        """Return the name of a pod; that of the only launcher has no index, as in upstream."""
        if role.name == LAUNCHER and index == 0:
            return launcher_name(job)
        return replica_name(job.name, role.name, index)

    def service_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        return self.pod_name(job, role, index)


def config_name(job: NormalizedJob) -> str:
    return f"{job.name}-config"


def launcher_name(job: NormalizedJob) -> str:
    """Return the name of the launcher's pod and service, and of its account and role."""
    return f"{job.name}-launcher"


def worker_names(job: NormalizedJob) -> list[str]:
    return [replica_name(job.name, WORKER, index) for index in range(job.count(WORKER))]


def config_map(job: NormalizedJob, files: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_name(job), "labels": {"app": job.name}},
        "data": dict(files),
    }


def with_files(pod: Manifest, job: NormalizedJob, path: str, modes: Mapping[str, int]) -> Manifest:
    items = [{"key": name, "path": name, "mode": mode} for name, mode in modes.items()]
    volume = {"name": CONFIG_VOLUME, "configMap": {"name": config_name(job), "items": items}}
    mount = {"name": CONFIG_VOLUME, "mountPath": path}
    return pod_template.with_volume(pod, CONTAINER, volume, mount)


_GROUP = "rbac.authorization.k8s.io"


def service_account(job: NormalizedJob, name: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "labels": {"app": job.name}},
    }


def exec_role(
    job: NormalizedJob, name: str, account: str, workers: Sequence[str], *, wait: bool
) -> list[Manifest]:
    """Build the role and binding for running commands in these pods; empty without pods.

    With ``wait`` the launcher itself waits for the pods, as upstream's ``kubectl-delivery`` does,
    and needs the right to watch pods.
    """
    if not workers:
        return []
    named = {"apiGroups": [""], "resourceNames": list(workers)}
    rules: list[Manifest] = [
        {**named, "resources": ["pods"], "verbs": ["get"]},
        # An API server checks "get" for WebSockets, "create" for SPDY; newer ones always "create".
        {**named, "resources": ["pods/exec"], "verbs": ["create", "get"]},
    ]
    if wait:
        rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]})
    meta = {"name": name, "labels": {"app": job.name}}
    return [
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": name},
            "subjects": [
                {"kind": "ServiceAccount", "name": account, "namespace": job.meta.namespace}
            ],
        },
    ]


TOOLS_PATH = "/opt/kube"
"""Directory in which an init container may put ``kubectl``."""
HOST_FILE = "hostfile"
DISCOVERY_SCRIPT = "discover_hosts.sh"
EXEC_SCRIPT = "kubexec.sh"
EXEC_CLIENT = "kubexec.py"

_KUBEXEC = """\
#!/bin/sh
# Stands in for rsh: kubexec.sh HOST COMMAND... runs the command in the worker pod of that name.
pod=$1
shift
for kubectl in {tools}/kubectl "$(command -v kubectl)"; do
    if [ -x "$kubectl" ]; then
        exec "$kubectl" exec "$pod" --container {container} -- /bin/sh -c "$*"
    fi
done
for python in python3 python; do
    if command -v "$python" >/dev/null; then
        exec "$python" {mount}/{client} "$pod" {container} /bin/sh -c "$*"
    fi
done
echo "kubexec.sh: cannot reach $pod: the launcher's image has neither kubectl nor Python" >&2
exit 127
"""


def exec_script(container: str) -> str:
    return _KUBEXEC.format(
        tools=TOOLS_PATH, mount=FILES_PATH, client=EXEC_CLIENT, container=shlex.quote(container)
    )


def format_host_file(hosts: Sequence[str], slots: int) -> str:
    return "".join(f"{host} slots={slots}\n" for host in hosts)


def discovery_script(hosts: Sequence[str], slots: int) -> str:
    """Return the script with which elastic Horovod discovers the running hosts."""
    return "#!/bin/sh\n" + "".join(f"echo {host}:{slots}\n" for host in hosts)
