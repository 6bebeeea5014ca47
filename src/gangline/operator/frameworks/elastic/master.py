"""The master of an ElasticJob: its pod template and its objects.

The user's template under ``dlrover-master`` is merged over a default one, field by field; most jobs
have none. The master stores its journal in a ConfigMap of the job, publishes facts in a second one
and reads tuning from a third. Its service account may write only the first two, and events. It may
read the job's PodGroup, where the scheduler asks for a save before an eviction.
"""

from collections.abc import Mapping

from gangline.api.jobs.elastic import CONTAINER, MASTER, master_name
from gangline.api.jobs.training_facts import FACTS_LABEL, facts_name, tuning_name
from gangline.api.resources import POD_GROUPS
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.elastic.pods import PORT, SECRET_KEY, secret_name
from gangline.operator.model import pod_template
from gangline.operator.model.job import Manifest, NormalizedJob
from gangline.operator.model.plan import RANDOM_VALUE

_RBAC = "rbac.authorization.k8s.io"
_RESOURCES: Mapping[str, Mapping[str, str]] = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"memory": "2Gi"},
}
_POD_ADDRESS = kubeflow.field_variable("GANGLINE_POD_IP", "status.podIP")


def master_template(
    name: str, namespace: str, workers: int, user_template: Manifest, image: str, workers_image: str
) -> Manifest:
    """Build the master's pod template; the administrator's ``image`` may be empty."""
    theirs = pod_template.main_container(user_template, CONTAINER)
    container: Manifest = {
        "name": CONTAINER,
        "image": image or workers_image,
        "resources": {kind: dict(amounts) for kind, amounts in _RESOURCES.items()},
        # Copies the reason of a failure to the job's status, such as an image without Gangline.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    has_command = bool(theirs.get("command") or theirs.get("args"))
    if not has_command:
        container["command"] = _command(name, namespace, workers)
    container |= {key: value for key, value in theirs.items() if value}
    if not has_command:
        container["env"] = [_POD_ADDRESS, *(theirs.get("env") or [])]
    others = [
        container
        for container in pod_template.list_containers(user_template)
        if container is not theirs
    ]
    spec = {**pod_template.pod_spec(user_template), "containers": [container, *others]}
    if not pod_template.service_account(user_template):
        spec["serviceAccountName"] = master_name(name)
    return {**user_template, "spec": spec}


def _command(name: str, namespace: str, workers: int) -> list[str]:
    return [
        "python",
        "-m",
        "gangline.elastic.master",
        # Pods may share the node's network, where the port must not be open to others.
        f"--host=$({_POD_ADDRESS['name']})",
        f"--port={PORT}",
        f"--namespace={namespace}",
        f"--job_name={name}",
        f"--node_num={workers}",
        f"--journal-configmap={namespace}/{master_name(name)}",
    ]


def master_objects(job: NormalizedJob) -> list[Manifest]:
    name = master_name(job.name)
    facts, tuning = facts_name(job.name), tuning_name(job.name)
    meta = {"name": name}
    needed: list[Manifest] = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret_name(job)},
            "type": "Opaque",
            "stringData": {SECRET_KEY: RANDOM_VALUE},
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": facts, "labels": {FACTS_LABEL: "true"}},
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": tuning}},
    ]
    role = job.find_role(MASTER)
    if role and pod_template.service_account(role.template) != name:
        return needed

    def rule(group: str, resource: str, names: list[str], *verbs: str) -> Manifest:
        named = {"resourceNames": names} if names else {}
        return {"apiGroups": [group], **named, "resources": [resource], "verbs": [*verbs]}

    rules = [
        rule("", "configmaps", [name, facts], "get", "patch", "update"),
        rule("", "configmaps", [tuning], "get", "watch"),
        rule(POD_GROUPS.group, POD_GROUPS.plural, [job.name], "get", "watch"),
        rule("", "events", [], "create", "patch"),
    ]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": job.meta.namespace}
    return [
        *needed,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [subject],
        },
    ]
