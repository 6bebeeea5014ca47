"""The roles and bindings of a new cluster, with the rules of Kubernetes (``bootstrappolicy``).

They are the table ``builtin_roles.toml``, and the rules for Gangline's own kinds. A role has
``rules``, whose lists are texts of words (``names`` are resource names, ``paths`` non-resource
URLs); ``aggregate_to`` names the roles that include them. It is bound to ``users`` and ``groups``.
``view``, ``edit`` and ``admin`` have no rules of their own (``aggregates``). ``view`` reads neither
Secrets nor roles and opens no stream, because all three give further rights.

kube-scheduler and kube-controller-manager have roles for when they run beside this cluster. The
roles of single controllers (``system:controller:…``) are left out: without
``--use-service-account-credentials``, no controller uses them.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources

from gangline.api.job_resources import (
    CLUSTER_TRAINING_RUNTIMES,
    JOB_ADVICE,
    JOB_KINDS,
    POD_GROUPS,
    QUEUES,
    SCALE_PLANS,
    TRAINING_RUNTIMES,
)
from gangline.local.apiserver.core.registry import Json

RBAC = "rbac.authorization.k8s.io"
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
"""The annotation of built-in roles. The value ``false`` excludes a role from reconciliation."""
PUBLIC_PATHS = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_AGGREGATE = f"{RBAC}/aggregate-to-"
_FIELDS = {"group": "apiGroups", "resources": "resources", "names": "resourceNames",
           "paths": "nonResourceURLs", "verbs": "verbs"}  # fmt: skip
READ, WRITE = "get list watch", "create delete deletecollection patch update"


@cache
def _table() -> Mapping[str, Json]:
    text = resources.files(__package__).joinpath("builtin_roles.toml").read_text()
    return tomllib.loads(text)


def _rule(written: Mapping[str, str]) -> Json:
    return {_FIELDS[name]: text.split() or [""] for name, text in written.items()}


def _job_rule(group: str, plurals: Sequence[str], verbs: str) -> Json:
    return _rule({"group": group, "resources": " ".join(plurals), "verbs": verbs})


def _resources_by_group(*, with_status: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the namespaced resources that users of Gangline write, by group."""
    by_group: dict[str, list[str]] = {}
    for resource in (*(kind.resource for kind in JOB_KINDS), SCALE_PLANS, POD_GROUPS):
        listed = by_group.setdefault(resource.group, [])
        listed.append(resource.plural)
        if with_status:
            listed.append(f"{resource.plural}/status")
    for kind in JOB_KINDS:
        if kind.is_scalable:
            by_group[kind.resource.group].append(f"{kind.resource.plural}/scale")
    by_group[TRAINING_RUNTIMES.group].append(TRAINING_RUNTIMES.plural)
    for group, listed in sorted(by_group.items()):
        yield group, sorted(listed)


def _job_view_rules() -> list[Json]:
    """Return the rules that let ``view`` read jobs, runtimes, advice, pod groups and queues."""
    rules = [_job_rule(group, plurals, READ) for group, plurals in
             _resources_by_group(with_status=True)]  # fmt: skip
    advice = _job_rule(JOB_ADVICE.group, (JOB_ADVICE.plural, f"{JOB_ADVICE.plural}/status"), READ)
    queues = _job_rule(QUEUES.group, (QUEUES.plural, f"{QUEUES.plural}/status"), READ)
    runtimes = _job_rule(CLUSTER_TRAINING_RUNTIMES.group, (CLUSTER_TRAINING_RUNTIMES.plural,), READ)
    return [*rules, advice, queues, runtimes]


def _job_edit_rules() -> list[Json]:
    """Return the rules that let ``edit`` write jobs and pod groups.

    Queues divide the cluster among namespaces, so that only an administrator writes them.
    """
    return [
        _job_rule(group, plurals, WRITE)
        for group, plurals in _resources_by_group(with_status=False)
    ]


def _role(name: str, rules: Sequence[Json], aggregate_to: Sequence[str] = ()) -> Json:
    labels = _LABELS | {f"{_AGGREGATE}{target}": "true" for target in aggregate_to}
    return _object("ClusterRole", name, labels) | {"rules": list(rules)}


def _object(kind: str, name: str, labels: dict[str, str]) -> Json:
    meta = {"name": name, "labels": dict(labels), "annotations": {AUTOUPDATE: "true"}}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta}


def builtin_roles() -> list[Json]:
    """Return the ClusterRoles of a new cluster."""
    roles = [
        _role("gangline:aggregate-to-edit", _job_edit_rules(), ("edit",)),
        _role("gangline:aggregate-to-view", _job_view_rules(), ("view",)),
    ]
    for name, fields in _table().items():
        role = _role(name, [*map(_rule, fields.get("rules", ()))], fields.get("aggregate_to", ()))
        if fields.get("aggregates"):
            selector = {"matchLabels": {f"{_AGGREGATE}{name}": "true"}}
            role["aggregationRule"] = {"clusterRoleSelectors": [selector]}
        roles.append(role)
    return roles


def builtin_bindings() -> list[Json]:
    """Return the ClusterRoleBindings of a new cluster."""
    return [
        _object("ClusterRoleBinding", name, _LABELS)
        | {
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [
                {"apiGroup": RBAC, "kind": kind, "name": subject}
                for kind, of_kind in (("Group", "groups"), ("User", "users"))
                for subject in fields.get(of_kind, ())
            ],
        }
        for name, fields in _table().items()
        if "groups" in fields or "users" in fields
    ]
