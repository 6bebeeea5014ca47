"""The rights of an MPIJob's launcher: to run commands in the job's own workers, and nothing else.

A job without workers gets no rights. Upstream's role then has an empty list of names, which means
every pod of the namespace.
"""

from collections.abc import Sequence

from gangline.operator.job import Manifest, NormalizedJob

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

    Args:
        job: the job.
        name: the name of the role and the binding.
        account: the service account that gets the right.
        workers: the names of the pods.
        wait: whether the launcher itself waits for the pods, as upstream's ``kubectl-delivery``
            does, and therefore needs the right to watch pods.
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
