"""What an MPIJob's launcher may do: run commands in the job's own workers, and nothing else.

A job without workers grants nothing; upstream's role then has an empty list of names, which means
every pod of the namespace.
"""

from collections.abc import Sequence

from gangline.operator.job import Manifest, TrainingJob

_GROUP = "rbac.authorization.k8s.io"


def account(job: TrainingJob, name: str) -> Manifest:
    """The account that the launcher runs as."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "labels": {"app": job.name}},
    }


def grants(
    job: TrainingJob, name: str, account: str, workers: Sequence[str], *, wait: bool
) -> list[Manifest]:
    """The right to run commands in these pods, as a role and its binding; none without pods.

    Args:
        job: the job.
        name: of the role and the binding.
        account: who gets the right.
        workers: the names of the pods.
        wait: whether the launcher waits for the pods by itself, as upstream's ``kubectl-delivery``
            does, and needs to watch pods for that.
    """
    if not workers:
        return []
    named = {"apiGroups": [""], "resourceNames": list(workers)}
    rules: list[Manifest] = [
        {**named, "resources": ["pods"], "verbs": ["get"]},
        # Over a WebSocket an API server asks for "get", over SPDY (and newer ones always) "create".
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
