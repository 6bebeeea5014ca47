"""Defaults of the built-in kinds, as Kubernetes sets them.

Custom kinds get the defaults of their schema (``StructuralSchema``). Those of built-in kinds are in
``defaults.toml``: a section has those of the kinds in its title, by the path of the object that
gets them (``[]`` stands for all items of a list), after ``|`` only if a field of it has one of the
values. Empty texts and lists are absent ones, as in Go, but for fields with ``?`` after their name,
which are pointers there; zero is one for fields with ``!``. The functions add what depends on more.
All change the object in place, never overwrite a given value, and leave values of the wrong type
to validation.

The sections ``PodSpec`` and ``Container`` are for pods and all templates of pods. A pod also gets
requests from limits, service links, a service account and the tolerations for failed nodes. No
controller of this cluster acts on StatefulSets, DaemonSets and CronJobs; controllers that do, such
as those of kube-controller-manager, read the defaulted fields without a check for their absence.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from gangline.api.core.workloads import JOB_UID_LABEL
from gangline.api.meta.json_objects import fill_absent, objects_in, subobject
from gangline.api.quantity import Quantity, quantity_or_none
from gangline.local.apiserver.machinery.kind_tables import (
    GroupKind,
    RulePlace,
    parse_place,
    read_kind_table,
    values_at,
)
from gangline.local.apiserver.machinery.schema.nodes import Json, copy_json

__all__ = [
    "POD_TEMPLATES",
    "apply_builtin_defaults",
    "apply_priority",
    "initial_pod_status",
    "normalize_builtin",
]

Defaulter: TypeAlias = Callable[[Json], None]

NAME_LABEL = "kubernetes.io/metadata.name"
GATED_CONDITION: Json = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
"""The condition of a new pod with scheduling gates, without times as on Kubernetes."""


def apply_builtin_defaults(group: str, kind: str, obj: Json) -> None:
    """Normalize and default an object of a built-in kind in place. Other kinds stay unchanged."""
    normalize_builtin(group, kind, obj)
    _apply_table((group, kind), obj)
    path = POD_TEMPLATES.get((group, kind), ())
    if path and (spec := subobject(obj, *path, "spec")):
        default_pod_spec(spec)
    if (defaulter := DEFAULTERS.get((group, kind))) is not None:
        defaulter(obj)


def _apply_table(kind: GroupKind, obj: Json) -> None:
    for place, defaults in _table().get(kind, ()):
        for _, target, _ in values_at(obj, place.path):
            if not isinstance(target, dict) or not place.applies_to(target):
                continue
            for key, default in defaults.items():
                name = key.rstrip("?!")
                value = target.get(name)
                is_empty = name == key and value in ("", []) and type(value) is type(default)
                if value is None or is_empty or (key.endswith("!") and not value):
                    target[name] = copy_json(default)


class _DefaultRule(NamedTuple):
    place: RulePlace
    defaults: Json


@cache
def _table() -> Mapping[GroupKind, list[_DefaultRule]]:
    table: dict[GroupKind, list[_DefaultRule]] = {}
    for kind, rules in read_kind_table(__package__, "defaults.toml"):
        listed = table.setdefault(kind, [])
        listed += [_DefaultRule(parse_place(key), defaults) for key, defaults in rules.items()]
    return table


def normalize_builtin(group: str, kind: str, obj: Json) -> None:
    """Rewrite given values in the form in which they are stored, in place: ``stringData`` becomes
    ``data``. Nothing is added.

    An applied configuration is normalized first. Otherwise it would seem to change fields of
    others.
    """
    if (group, kind) == ("", "Secret"):
        _encode_string_data(obj)


def apply_priority(obj: Json, classes: Mapping[str, Json], default_class: Json | None) -> bool:
    """Set the priority of a pod or PodGroup from its class, or from the cluster's default class.

    Returns False if the named class does not exist. Kubernetes refuses such an object.
    """
    spec = subobject(obj, "spec")
    name = spec.get("priorityClassName")
    chosen = classes.get(name) if name else default_class
    if chosen is None:
        return not name
    spec["priorityClassName"] = chosen["metadata"]["name"]
    spec["priority"] = chosen.get("value", 0)
    spec["preemptionPolicy"] = chosen.get("preemptionPolicy", "PreemptLowerPriority")
    return True


def initial_pod_status(pod: Json) -> Json:
    spec = subobject(pod, "spec")
    gated = {"conditions": [dict(GATED_CONDITION)]} if spec.get("schedulingGates") else {}
    return {"phase": "Pending", "qosClass": qos_class(spec), **gated}


NODE_FAILURE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
NODE_FAILURE_TOLERATION_SECONDS = 300


def all_containers(spec: Json) -> Iterator[Json]:
    yield from objects_in(spec.get("initContainers"))
    yield from objects_in(spec.get("containers"))


def default_pod(pod: Json) -> None:
    """Set the defaults of a new pod in place."""
    spec = subobject(pod, "spec")
    if not spec:
        return
    default_pod_spec(spec)
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = spec["serviceAccount"] = "default"
    for container in all_containers(spec):
        _requests_from_limits(container)
    _add_node_failure_tolerations(spec)
    if "priority" not in spec and "priorityClassName" not in spec:
        spec["priority"] = 0
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def default_pod_spec(spec: Json) -> None:
    """Set the defaults that pods and pod templates share, in place."""
    # The deprecated field is an alias: it counts where the other is empty, and shows the same name.
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in all_containers(spec):
        _default_container(container, host_network=spec.get("hostNetwork") is True)
    for volume in objects_in(spec.get("volumes")):
        if all(source is None for name, source in volume.items() if name != "name"):
            volume["emptyDir"] = {}
    _apply_table(("", "PodSpec"), spec)


_IMAGE = re.compile(
    r"(?=[^:@]{1,255})([a-zA-Z0-9][\w.-]*(:\d+)?/)?[a-z0-9]+(([._]|__|-+|/)[a-z0-9]+)*(:[\w.-]+)?",
    re.ASCII,
)


def default_pull_policy(image: str) -> str:
    """Return the default pull policy: ``Always`` for ``latest``, ``IfNotPresent`` for any other
    tag, for a digest, and for what cannot be the name of an image.
    """
    if not _IMAGE.fullmatch(image):
        return "IfNotPresent"
    _, _, tag = image.rsplit("/", 1)[-1].partition(":")
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_container(container: Json, host_network: bool) -> None:
    image = container.get("image")
    policy = default_pull_policy(image) if isinstance(image, str) else "IfNotPresent"
    fill_absent(container, {"imagePullPolicy": policy})
    if host_network:
        for port in objects_in(container.get("ports")):
            if "containerPort" in port:
                fill_absent(port, {"hostPort": port["containerPort"]})
    _apply_table(("", "Container"), container)


def _requests_from_limits(container: Json) -> None:
    resources = subobject(container, "resources")
    if limits := subobject(resources, "limits"):
        fill_absent(resources, {"requests": {}})
        if isinstance(resources["requests"], dict):
            fill_absent(resources["requests"], limits)


def _add_node_failure_tolerations(spec: Json) -> None:
    tolerations = spec.setdefault("tolerations", [])
    if not isinstance(tolerations, list):
        return
    for key in NODE_FAILURE_TAINTS:
        if not any(_tolerates(toleration, key) for toleration in objects_in(tolerations)):
            toleration = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations.append({**toleration, "tolerationSeconds": NODE_FAILURE_TOLERATION_SECONDS})


def _tolerates(toleration: Json, key: str) -> bool:
    same_key = toleration.get("key") in (key, None, "")
    return same_key and toleration.get("effect") in ("NoExecute", None, "")


COMPUTE_RESOURCES = ("cpu", "memory")


def qos_class(spec: Json) -> str:
    """Return Guaranteed, Burstable or BestEffort, from the containers' requests and limits."""
    resources = [subobject(container, "resources") for container in all_containers(spec)]
    requests = [_compute_quantities(subobject(amounts, "requests")) for amounts in resources]
    limits = [_compute_quantities(subobject(amounts, "limits")) for amounts in resources]
    if not any((*requests, *limits)):
        return "BestEffort"
    complete = all(len(amounts) == len(COMPUTE_RESOURCES) for amounts in limits)
    equal = all({**top, **low} == top for low, top in zip(requests, limits, strict=True))
    return "Guaranteed" if complete and equal else "Burstable"


def _compute_quantities(of: Mapping[str, Any]) -> dict[str, Quantity]:
    quantities = {name: quantity_or_none(of.get(name, 0)) for name in COMPUTE_RESOURCES}
    return {name: value for name, value in quantities.items() if value}


BATCH = "batch.kubernetes.io"


def default_job(obj: Json) -> None:
    """Set the defaults of a Job. Without a number of pods, one has to succeed."""
    spec = subobject(obj, "spec")
    if "parallelism" not in spec and "completions" not in spec:
        spec["completions"] = 1
    _apply_table(("batch", "JobSpec"), spec)
    if not spec["manualSelector"]:
        _generate_selector(obj, spec)
    _labels_of_template(obj)


def _labels_of_template(obj: Json) -> None:
    """Give an object without labels those of its pods."""
    metadata, labels = subobject(obj, "metadata"), subobject(obj, "spec", "template", "metadata")
    if metadata and labels.get("labels") and not metadata.get("labels"):
        metadata["labels"] = copy_json(labels["labels"])


def _generate_selector(obj: Json, spec: Json) -> None:
    """Select the pods by the uid of the Job, which no other pod has."""
    metadata, template = subobject(obj, "metadata"), spec.get("template")
    uid, name = metadata.get("uid"), metadata.get("name")
    if not uid or not name or not isinstance(template, dict):
        return
    fill_absent(spec, {"selector": {"matchLabels": {JOB_UID_LABEL: uid}}})
    fill_absent(template, {"metadata": {}})
    fill_absent(subobject(template, "metadata"), {"labels": {}})
    labels = subobject(template, "metadata", "labels")
    for key, value in (("controller-uid", uid), ("job-name", name)):
        fill_absent(labels, {key: value, f"{BATCH}/{key}": value})


def _replication_controller(obj: Json) -> None:
    spec = subobject(obj, "spec")
    labels = subobject(spec, "template", "metadata").get("labels")
    if labels and spec.get("selector") in (None, {}):
        spec["selector"] = copy_json(labels)
    _labels_of_template(obj)


def _service(obj: Json) -> None:
    for port in objects_in(subobject(obj, "spec").get("ports")):
        # In a Service, zero and the empty string mean an absent value.
        if port.get("targetPort") in (None, 0, "") and "port" in port:
            port["targetPort"] = port["port"]


def _limit_range(obj: Json) -> None:
    """A limit is the largest one, a request the limit, otherwise the smallest one."""
    for item in objects_in(subobject(obj, "spec").get("limits")):
        amounts = (item.get(name) for name in ("max", "min", "default", "defaultRequest"))
        if item.get("type") == "Container" and all(
            isinstance(each, dict | None) for each in amounts
        ):
            limits = subobject(item, "max") | subobject(item, "default")
            requests = subobject(item, "min") | limits | subobject(item, "defaultRequest")
            item.update({"default": limits} if limits else {})
            item.update({"defaultRequest": requests} if requests else {})


def _namespace(obj: Json) -> None:
    metadata = subobject(obj, "metadata")
    if name := metadata.get("name"):
        fill_absent(metadata, {"labels": {}})
        subobject(metadata, "labels").setdefault(NAME_LABEL, name)


def _encode_string_data(obj: Json) -> None:
    texts, data = obj.get("stringData"), obj.get("data")
    if not isinstance(data, dict | None):
        return
    if isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values()):
        del obj["stringData"]
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        if encoded:
            obj["data"] = (data or {}) | encoded


def _definition(obj: Json) -> None:
    names = subobject(obj, "spec", "names")
    if isinstance(kind := names.get("kind"), str):
        fill_absent(names, {"singular": kind.lower(), "listKind": f"{kind}List"})


DEFAULTERS: Mapping[tuple[str, str], Defaulter] = {
    ("", "LimitRange"): _limit_range,
    ("", "Namespace"): _namespace,
    ("", "Pod"): default_pod,
    ("", "ReplicationController"): _replication_controller,
    ("", "Service"): _service,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
    ("batch", "Job"): default_job,
}
"""Defaults that depend on other fields, by group and kind."""
POD_TEMPLATES: Mapping[GroupKind, Sequence[str]] = {
    ("", "PodTemplate"): ("template",),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        (
            ("", "ReplicationController"), ("apps", "DaemonSet"), ("apps", "Deployment"),
            ("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("batch", "Job"),
        ),
        ("spec", "template"),
    ),
}  # fmt: skip
"""Paths of pod templates."""
