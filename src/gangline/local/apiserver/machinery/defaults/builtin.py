"""Defaults of the built-in kinds, as Kubernetes sets them.

Custom kinds get the defaults of their schema (``StructuralSchema``). The functions change the
object in place, never overwrite a given value, and leave values of the wrong type to validation.
"""

import base64
from collections.abc import Callable, Mapping
from typing import TypeAlias

from gangline.api.cluster.admission import GROUP as ADMISSION
from gangline.api.meta.json_objects import fill_absent, objects_in, subobject
from gangline.local.apiserver.machinery.defaults import other_components, workloads
from gangline.local.apiserver.machinery.defaults.jobs import default_job
from gangline.local.apiserver.machinery.defaults.pods import (
    canonicalize_pod_spec,
    canonicalize_quantities,
    default_pod,
    default_template,
    qos_class,
)
from gangline.local.apiserver.machinery.schema.nodes import Json, copy_json

__all__ = ["apply_builtin_defaults", "apply_priority", "initial_status", "normalize_builtin"]

Defaulter: TypeAlias = Callable[[Json], None]

SESSION_AFFINITY_SECONDS = 10_800
NAME_LABEL = "kubernetes.io/metadata.name"
RBAC = "rbac.authorization.k8s.io"
DEFAULT_METRIC: Json = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}
GATED_CONDITION: Json = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
"""The condition of a new pod with scheduling gates, without times as on Kubernetes."""
DAEMON_SET_COUNTS = (
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
)
PERCENT_POLICY: Json = {"type": "Percent", "value": 100, "periodSeconds": 15}
DEFAULT_SCALING_RULES: Mapping[str, Json] = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, PERCENT_POLICY],
    },
    "scaleDown": {"selectPolicy": "Max", "policies": [PERCENT_POLICY]},
}


def apply_builtin_defaults(group: str, kind: str, obj: Json) -> None:
    """Normalize and default an object of a built-in kind in place. Other kinds stay unchanged."""
    normalize_builtin(group, kind, obj)
    defaulter = DEFAULTERS.get((group, kind))
    if defaulter is not None:
        defaulter(obj)


def normalize_builtin(group: str, kind: str, obj: Json) -> None:
    """Rewrite given values in the form in which they are stored, in place. Nothing is added.

    Quantities get their canonical form (``1000m`` of cpu is ``1``), ``stringData`` becomes
    ``data``. An applied configuration is normalized first. Otherwise it would seem to change fields
    of others.
    """
    match (group, kind):
        case ("", "Pod"):
            canonicalize_pod_spec(subobject(obj, "spec"))
        case ("apps", "Deployment" | "ReplicaSet") | ("batch", "Job"):
            canonicalize_pod_spec(subobject(obj, "spec", "template", "spec"))
        case ("", "PersistentVolume"):
            canonicalize_quantities(subobject(obj, "spec").get("capacity"))
        case ("", "PersistentVolumeClaim"):
            canonicalize_quantities(subobject(obj, "spec", "resources").get("requests"))
        case ("", "Secret"):
            _encode_string_data(obj)


def apply_priority(pod: Json, classes: Mapping[str, Json], default_class: Json | None) -> bool:
    """Set the priority of a pod from its class, or from the cluster's default class.

    Returns False if the named class does not exist. Kubernetes refuses such a pod.
    """
    spec = subobject(pod, "spec")
    name = spec.get("priorityClassName")
    chosen = classes.get(name) if name else default_class
    if chosen is None:
        return not name
    spec["priorityClassName"] = chosen["metadata"]["name"]
    spec["priority"] = chosen.get("value", 0)
    spec["preemptionPolicy"] = chosen.get("preemptionPolicy", "PreemptLowerPriority")
    return True


def initial_status(group: str, kind: str, obj: Json) -> Json | None:
    """Return the status of a new object of a built-in kind, or None if the kind has none."""
    match (group, kind):
        case ("", "Pod"):
            spec = subobject(obj, "spec")
            gated = {"conditions": [dict(GATED_CONDITION)]} if spec.get("schedulingGates") else {}
            return {"phase": "Pending", "qosClass": qos_class(spec), **gated}
        case ("", "Namespace"):
            return {"phase": "Active"}
        case ("", "PersistentVolume" | "PersistentVolumeClaim"):
            return {"phase": "Pending"}
        case ("", "Service"):
            return {"loadBalancer": {}}
        case ("apps", "ReplicaSet"):
            return {"replicas": 0}
        case ("apps", "StatefulSet"):
            return {"replicas": 0, "availableReplicas": 0}
        case ("apps", "DaemonSet"):
            return dict.fromkeys(DAEMON_SET_COUNTS, 0)
        case ("apps", "Deployment") | ("batch", "Job"):
            return {}
    return None


def _service(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(spec, {"type": "ClusterIP", "sessionAffinity": "None"})
    if spec["sessionAffinity"] == "ClientIP":
        fill_absent(
            spec,
            {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": SESSION_AFFINITY_SECONDS}}},
        )
    if spec["type"] in ("NodePort", "LoadBalancer"):
        fill_absent(spec, {"externalTrafficPolicy": "Cluster"})
    if spec["type"] != "ExternalName":
        fill_absent(spec, {"internalTrafficPolicy": "Cluster"})
    for port in objects_in(spec.get("ports")):
        fill_absent(port, {"protocol": "TCP"})
        # In a Service, zero and the empty string mean an absent value.
        if port.get("targetPort") in (None, 0, "") and "port" in port:
            port["targetPort"] = port["port"]


def _endpoints(obj: Json) -> None:
    for subset in objects_in(obj.get("subsets")):
        for port in objects_in(subset.get("ports")):
            fill_absent(port, {"protocol": "TCP"})


def _endpoint_slice(obj: Json) -> None:
    # kubectl describe fails on services whose slices have ports without a name.
    for port in objects_in(obj.get("ports")):
        fill_absent(port, {"name": "", "protocol": "TCP"})


def _deployment(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(spec, {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600})
    fill_absent(spec, {"strategy": {}})
    if isinstance(strategy := spec["strategy"], dict):
        fill_absent(strategy, {"type": "RollingUpdate"})
        if strategy["type"] == "RollingUpdate":
            fill_absent(strategy, {"rollingUpdate": {}})
            fill_absent(
                subobject(strategy, "rollingUpdate"), {"maxUnavailable": "25%", "maxSurge": "25%"}
            )
    default_template(subobject(spec, "template"))


def _replica_set(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(spec, {"replicas": 1})
    default_template(subobject(spec, "template"))


def _namespace(obj: Json) -> None:
    fill_absent(obj, {"spec": {}})
    if isinstance(obj["spec"], dict):
        fill_absent(obj["spec"], {"finalizers": ["kubernetes"]})
    metadata = subobject(obj, "metadata")
    if name := metadata.get("name"):
        fill_absent(metadata, {"labels": {}})
        subobject(metadata, "labels").setdefault(NAME_LABEL, name)


def _secret(obj: Json) -> None:
    fill_absent(obj, {"type": "Opaque"})


def _encode_string_data(obj: Json) -> None:
    texts = obj.get("stringData")
    if isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values()):
        del obj["stringData"]
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        if encoded:
            obj["data"] = {**subobject(obj, "data"), **encoded}


def _persistent_volume(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(spec, {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"})
    if isinstance(spec.get("hostPath"), dict):
        fill_absent(spec["hostPath"], {"type": ""})


def _claim(obj: Json) -> None:
    fill_absent(subobject(obj, "spec"), {"volumeMode": "Filesystem"})


def _binding(obj: Json) -> None:
    reference = subobject(obj, "roleRef")
    if reference and not reference.get("apiGroup"):
        reference["apiGroup"] = RBAC
    for subject in objects_in(obj.get("subjects")):
        if subject.get("kind") in ("User", "Group") and not subject.get("apiGroup"):
            subject["apiGroup"] = RBAC


def _definition(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(spec, {"conversion": {"strategy": "None"}})
    names = subobject(spec, "names")
    if isinstance(kind := names.get("kind"), str):
        fill_absent(names, {"singular": kind.lower(), "listKind": f"{kind}List"})


def _priority_class(obj: Json) -> None:
    fill_absent(obj, {"preemptionPolicy": "PreemptLowerPriority"})


def _storage_class(obj: Json) -> None:
    fill_absent(obj, {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})


def _autoscaler(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(spec, {"minReplicas": 1})
    if not spec.get("metrics"):
        spec["metrics"] = [copy_json(DEFAULT_METRIC)]
    behavior = spec.get("behavior")
    if isinstance(behavior, dict):
        for direction, rules in DEFAULT_SCALING_RULES.items():
            fill_absent(behavior, {direction: {}})
            fill_absent(subobject(behavior, direction), copy_json(rules))


def _webhooks(obj: Json) -> None:
    mutating = obj.get("kind") == "MutatingWebhookConfiguration"
    for hook in objects_in(obj.get("webhooks")):
        fill_absent(
            hook,
            {
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "timeoutSeconds": 10,
            },
        )
        if mutating:
            fill_absent(hook, {"reinvocationPolicy": "Never"})
        for rule in objects_in(hook.get("rules")):
            fill_absent(rule, {"scope": "*"})
        service = subobject(hook, "clientConfig").get("service")
        if isinstance(service, dict):
            fill_absent(service, {"port": 443})


DEFAULTERS: Mapping[tuple[str, str], Defaulter] = {
    ("", "Endpoints"): _endpoints,
    ("", "Namespace"): _namespace,
    ("", "PersistentVolume"): _persistent_volume,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "Pod"): default_pod,
    ("", "Secret"): _secret,
    ("", "Service"): _service,
    (ADMISSION, "MutatingWebhookConfiguration"): _webhooks,
    (ADMISSION, "ValidatingWebhookConfiguration"): _webhooks,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
    ("apps", "Deployment"): _deployment,
    ("apps", "ReplicaSet"): _replica_set,
    ("autoscaling", "HorizontalPodAutoscaler"): _autoscaler,
    ("batch", "Job"): default_job,
    ("discovery.k8s.io", "EndpointSlice"): _endpoint_slice,
    (RBAC, "ClusterRoleBinding"): _binding,
    (RBAC, "RoleBinding"): _binding,
    ("scheduling.k8s.io", "PriorityClass"): _priority_class,
    ("storage.k8s.io", "StorageClass"): _storage_class,
    **other_components.DEFAULTERS,
    **workloads.DEFAULTERS,
}
"""Default functions by group and kind."""
