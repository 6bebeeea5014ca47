"""The roles of kube-scheduler and kube-controller-manager, when they run beside this cluster.

The rules are those of Kubernetes (``bootstrappolicy``), and the bindings give them to the users
that Kubernetes has for these programs. The roles of single controllers (``system:controller:…``)
are left out: without ``--use-service-account-credentials``, no controller uses them.
"""

from collections.abc import Sequence

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
        _rule("resource.k8s.io", ("deviceclasses", "resourceslices"), READ),
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
