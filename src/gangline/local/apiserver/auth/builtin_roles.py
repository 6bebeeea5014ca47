"""The roles and bindings of a new cluster, with the rules of Kubernetes (``bootstrappolicy``).

``view``, ``edit`` and ``admin`` have no rules of their own: they aggregate the roles with their
label, among them those of Gangline's kinds. ``view`` reads neither Secrets nor roles and opens no
stream, because all three give further rights.

kube-scheduler and kube-controller-manager have roles for when they run beside this cluster. The
roles of single controllers (``system:controller:…``) are left out: without
``--use-service-account-credentials``, no controller uses them.
"""

from collections.abc import Iterator, Sequence

from gangline.api.job_resources import (
    CLUSTER_TRAINING_RUNTIMES,
    JOB_ADVICE,
    JOB_KINDS,
    POD_GROUPS,
    QUEUES,
    SCALE_PLANS,
    TRAINING_RUNTIMES,
)
from gangline.local.apiserver.auth.rules import FULL_AUTHORITY
from gangline.local.apiserver.core.registry import Json

READ = ("get", "list", "watch")
SCHEDULER, VOLUMES = "system:kube-scheduler", "system:volume-scheduler"
CONTROLLERS = "system:kube-controller-manager"


def _rule(
    group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()
) -> Json:
    named = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs), **named}


def _leader_election(name: str) -> list[Json]:
    group = "coordination.k8s.io"
    return [
        _rule(group, ("leases",), ("create",)),
        _rule(group, ("leases",), ("get", "list", "update", "watch"), (name,)),
        _rule(group, ("leasecandidates",), ("create", "delete", "deletecollection", "get", "list",
                                            "patch", "update", "watch")),
    ]  # fmt: skip


_EVENTS = [
    _rule(group, ("events",), ("create", "patch", "update")) for group in ("", "events.k8s.io")
]
_REVIEWS = [
    _rule("authentication.k8s.io", ("tokenreviews",), ("create",)),
    _rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
]

COMPONENT_RULES = {
    SCHEDULER: [
        *_EVENTS,
        *_leader_election("kube-scheduler"),
        _rule("", ("namespaces", "nodes", "replicationcontrollers", "services"), READ),
        _rule("", ("pods",), ("delete", *READ)),
        _rule("", ("bindings", "pods/binding"), ("create",)),
        _rule("", ("pods/status",), ("patch", "update")),
        _rule("", ("persistentvolumeclaims", "persistentvolumes"), READ),
        _rule("apps", ("replicasets", "statefulsets"), READ),
        _rule("extensions", ("replicasets",), READ),
        _rule("policy", ("poddisruptionbudgets",), READ),
        _rule("storage.k8s.io", ("csidrivers", "csinodes", "csistoragecapacities",
                                 "volumeattachments"), READ),
        _rule("resource.k8s.io", ("deviceclasses", "devicetaintrules", "resourceslices"), READ),
        _rule("resource.k8s.io", ("resourceclaims",), (*READ, "patch", "update")),
        _rule("resource.k8s.io", ("resourceclaims/status",), ("patch", "update")),
        _rule("", ("pods/finalizers",), ("update",)),
        *_REVIEWS,
    ],
    VOLUMES: [
        _rule("", ("persistentvolumes",), (*READ, "patch", "update")),
        _rule("storage.k8s.io", ("storageclasses",), READ),
        _rule("", ("persistentvolumeclaims",), (*READ, "patch", "update")),
    ],
    CONTROLLERS: [
        *_EVENTS,
        *_leader_election("kube-controller-manager"),
        _rule("", ("secrets", "serviceaccounts"), ("create",)),
        _rule("", ("secrets",), ("delete",)),
        _rule("", ("configmaps", "namespaces", "secrets", "serviceaccounts"), ("get",)),
        _rule("", ("secrets", "serviceaccounts"), ("update",)),
        *_REVIEWS,
        _rule("*", ("*",), ("list", "watch")),
        _rule("", ("serviceaccounts/token",), ("create",)),
    ],
}  # fmt: skip
"""Rules by ClusterRole."""
COMPONENT_USERS = {SCHEDULER: SCHEDULER, VOLUMES: SCHEDULER, CONTROLLERS: CONTROLLERS}
"""The user to whom each role is bound."""


RBAC = "rbac.authorization.k8s.io"
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
"""The annotation of built-in roles. The value ``false`` excludes a role from reconciliation."""
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_AGGREGATE = f"{RBAC}/aggregate-to-"


WRITE = ("create", "delete", "deletecollection", "patch", "update")
READ_WRITE = (*WRITE, *READ)

PUBLIC_PATHS = ("/healthz", "/livez", "/readyz", "/version", "/version/")
DISCOVERY_PATHS = (
    "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz",
    "/version", "/version/",
)  # fmt: skip
MONITORING_PATHS = (
    "/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/slis", "/readyz",
    "/readyz/*",
)  # fmt: skip


def _paths(paths: Sequence[str]) -> Json:
    return {"nonResourceURLs": list(paths), "verbs": ["get"]}


VIEW_RULES = [
    _rule("", ("configmaps", "endpoints", "persistentvolumeclaims",
               "persistentvolumeclaims/status", "pods", "replicationcontrollers",
               "replicationcontrollers/scale", "serviceaccounts", "services", "services/status"),
          READ),
    _rule("", ("bindings", "events", "limitranges", "namespaces/status", "pods/log", "pods/status",
               "replicationcontrollers/status", "resourcequotas", "resourcequotas/status"), READ),
    _rule("", ("namespaces",), READ),
    _rule("discovery.k8s.io", ("endpointslices",), READ),
    _rule("apps", ("controllerrevisions", "daemonsets", "daemonsets/status", "deployments",
                   "deployments/scale", "deployments/status", "replicasets", "replicasets/scale",
                   "replicasets/status", "statefulsets", "statefulsets/scale",
                   "statefulsets/status"), READ),
    _rule("autoscaling", ("horizontalpodautoscalers", "horizontalpodautoscalers/status"), READ),
    _rule("batch", ("cronjobs", "cronjobs/status", "jobs", "jobs/status"), READ),
    _rule("extensions", ("daemonsets", "daemonsets/status", "deployments", "deployments/scale",
                         "deployments/status", "ingresses", "ingresses/status", "networkpolicies",
                         "replicasets", "replicasets/scale", "replicasets/status",
                         "replicationcontrollers/scale"), READ),
    _rule("policy", ("poddisruptionbudgets", "poddisruptionbudgets/status"), READ),
    _rule("networking.k8s.io", ("ingresses", "ingresses/status", "networkpolicies"), READ),
    _rule("resource.k8s.io", ("resourceclaims", "resourceclaims/status", "resourceclaimtemplates"),
          READ),
]  # fmt: skip
EDIT_RULES = [
    _rule("", ("pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets",
               "services/proxy"), READ),
    _rule("", ("serviceaccounts",), ("impersonate",)),
    _rule("", ("pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"), WRITE),
    _rule("", ("pods/eviction",), ("create",)),
    _rule("", ("configmaps", "events", "persistentvolumeclaims", "replicationcontrollers",
               "replicationcontrollers/scale", "secrets", "serviceaccounts", "services",
               "services/proxy"), WRITE),
    _rule("", ("serviceaccounts/token",), ("create",)),
    _rule("apps", ("daemonsets", "deployments", "deployments/rollback", "deployments/scale",
                   "replicasets", "replicasets/scale", "statefulsets", "statefulsets/scale"),
          WRITE),
    _rule("autoscaling", ("horizontalpodautoscalers",), WRITE),
    _rule("batch", ("cronjobs", "jobs"), WRITE),
    _rule("extensions", ("daemonsets", "deployments", "deployments/rollback", "deployments/scale",
                         "ingresses", "networkpolicies", "replicasets", "replicasets/scale",
                         "replicationcontrollers/scale"), WRITE),
    _rule("policy", ("poddisruptionbudgets",), WRITE),
    _rule("networking.k8s.io", ("ingresses", "networkpolicies"), WRITE),
    _rule("resource.k8s.io", ("resourceclaims", "resourceclaimtemplates"), WRITE),
    _rule("coordination.k8s.io", ("leases",), READ_WRITE),
]  # fmt: skip
ADMIN_RULES = [
    _rule("authorization.k8s.io", ("localsubjectaccessreviews",), ("create",)),
    _rule(RBAC, ("rolebindings", "roles"), READ_WRITE),
]
BASIC_USER_RULES = [
    _rule("authorization.k8s.io", ("selfsubjectaccessreviews", "selfsubjectrulesreviews"),
          ("create",)),
    _rule("authentication.k8s.io", ("selfsubjectreviews",), ("create",)),
]  # fmt: skip
AUTH_DELEGATOR_RULES = [
    _rule("authentication.k8s.io", ("tokenreviews",), ("create",)),
    _rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
]
METRICS_READER_RULES = [_rule("metrics.k8s.io", ("nodes", "pods"), READ)]


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


def job_view_rules() -> list[Json]:
    """Return the rules that let ``view`` read jobs, runtimes, advice, pod groups and queues."""
    rules = [_rule(group, plurals, READ) for group, plurals in
             _resources_by_group(with_status=True)]  # fmt: skip
    advice = _rule(JOB_ADVICE.group, (JOB_ADVICE.plural, f"{JOB_ADVICE.plural}/status"), READ)
    queues = _rule(QUEUES.group, (QUEUES.plural, f"{QUEUES.plural}/status"), READ)
    runtimes = _rule(CLUSTER_TRAINING_RUNTIMES.group, (CLUSTER_TRAINING_RUNTIMES.plural,), READ)
    return [*rules, advice, queues, runtimes]


def job_edit_rules() -> list[Json]:
    """Return the rules that let ``edit`` write jobs and pod groups.

    Queues divide the cluster among namespaces, so that only an administrator writes them.
    """
    return [
        _rule(group, plurals, WRITE) for group, plurals in _resources_by_group(with_status=False)
    ]


def _role(name: str, rules: Sequence[Json], aggregate_to: Sequence[str] = ()) -> Json:
    labels = _LABELS | {f"{_AGGREGATE}{target}": "true" for target in aggregate_to}
    return _object("ClusterRole", name, labels) | {"rules": list(rules)}


def _aggregated(name: str, aggregate_to: Sequence[str] = ()) -> Json:
    selector = {"matchLabels": {f"{_AGGREGATE}{name}": "true"}}
    return _role(name, (), aggregate_to) | {"aggregationRule": {"clusterRoleSelectors": [selector]}}


def _object(kind: str, name: str, labels: dict[str, str]) -> Json:
    meta = {"name": name, "labels": dict(labels), "annotations": {AUTOUPDATE: "true"}}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta}


def builtin_roles() -> list[Json]:
    """Return the ClusterRoles of a new cluster."""
    return [
        _role("cluster-admin", FULL_AUTHORITY),
        _role("system:aggregate-to-admin", ADMIN_RULES, ("admin",)),
        _role("system:aggregate-to-edit", EDIT_RULES, ("edit",)),
        _role("system:aggregate-to-view", VIEW_RULES, ("view",)),
        _role("system:aggregated-metrics-reader", METRICS_READER_RULES, ("view",)),
        _role("gangline:aggregate-to-edit", job_edit_rules(), ("edit",)),
        _role("gangline:aggregate-to-view", job_view_rules(), ("view",)),
        _aggregated("view", ("edit",)),
        _aggregated("edit", ("admin",)),
        _aggregated("admin"),
        _role("system:auth-delegator", AUTH_DELEGATOR_RULES),
        _role("system:basic-user", BASIC_USER_RULES),
        _role("system:discovery", [_paths(DISCOVERY_PATHS)]),
        _role("system:monitoring", [_paths(MONITORING_PATHS)]),
        _role("system:public-info-viewer", [_paths(PUBLIC_PATHS)]),
        *(_role(name, rules) for name, rules in COMPONENT_RULES.items()),
    ]


def builtin_bindings() -> list[Json]:
    """Return the ClusterRoleBindings of a new cluster."""
    groups = {
        "cluster-admin": ("system:masters",),
        "system:basic-user": ("system:authenticated",),
        "system:discovery": ("system:authenticated",),
        "system:monitoring": ("system:monitoring",),
        "system:public-info-viewer": ("system:authenticated", "system:unauthenticated"),
    }
    users = [_binding(name, "User", (user,)) for name, user in COMPONENT_USERS.items()]
    return [_binding(name, "Group", listed) for name, listed in groups.items()] + users


def _binding(name: str, kind: str, subjects: Sequence[str]) -> Json:
    return _object("ClusterRoleBinding", name, _LABELS) | {
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": RBAC, "kind": kind, "name": subject} for subject in subjects],
    }
