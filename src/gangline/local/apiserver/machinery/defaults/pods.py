"""Defaults of pods: spec, containers, probes, volumes, the values set by admission, the QoS class.

A pod template gets ``default_pod_spec``. A pod also gets requests from limits, service links, a
service account and the tolerations for failed nodes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gangline.api.meta.json_objects import fill_absent, objects_in, subobject
from gangline.api.quantity import Quantity, canonical_quantity, quantity_or_none
from gangline.local.apiserver.machinery.schema.nodes import Json

SPEC_DEFAULTS: Mapping[str, Any] = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "terminationGracePeriodSeconds": 30,
    "schedulerName": "default-scheduler",
}
CONTAINER_DEFAULTS: Mapping[str, Any] = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
PROBE_DEFAULTS: Mapping[str, Any] = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
NODE_FAILURE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
NODE_FAILURE_TOLERATION_SECONDS = 300
DEFAULT_FILE_MODE = 0o644
DEFAULT_TOKEN_SECONDS = 3600


def all_containers(spec: Json) -> Iterator[Json]:
    yield from objects_in(spec.get("initContainers"))
    yield from objects_in(spec.get("containers"))


def default_pod(pod: Json) -> None:
    """Set the defaults of a new pod in place."""
    spec = subobject(pod, "spec")
    if not spec:
        return
    default_pod_spec(spec)
    fill_absent(spec, {"enableServiceLinks": True, "serviceAccountName": "default"})
    # Older clients read the deprecated field.
    spec["serviceAccount"] = spec["serviceAccountName"]
    for container in all_containers(spec):
        _requests_from_limits(container)
    _add_node_failure_tolerations(spec)
    if "priority" not in spec and "priorityClassName" not in spec:
        spec["priority"] = 0
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def default_pod_spec(spec: Json) -> None:
    """Set the defaults that pods and pod templates share, in place."""
    fill_absent(spec, SPEC_DEFAULTS)
    fill_absent(spec, {"securityContext": {}})
    for container in all_containers(spec):
        _default_container(container, host_network=spec.get("hostNetwork") is True)
    for volume in objects_in(spec.get("volumes")):
        _default_volume(volume)


def default_template(template: Json) -> None:
    if spec := subobject(template, "spec"):
        default_pod_spec(spec)


def canonicalize_quantities(quantities: Any) -> None:
    """Rewrite the values of a resource list in place: ``"1000m"`` becomes ``"1"``."""
    if isinstance(quantities, dict):
        for name, value in quantities.items():
            if quantity_or_none(value) is not None:
                quantities[name] = canonical_quantity(value)


def canonicalize_pod_spec(spec: Json) -> None:
    for container in all_containers(spec):
        resources = subobject(container, "resources")
        canonicalize_quantities(resources.get("limits"))
        canonicalize_quantities(resources.get("requests"))
    canonicalize_quantities(spec.get("overhead"))


def default_pull_policy(image: str) -> str:
    """Return the default pull policy: ``Always`` for ``latest``, ``IfNotPresent`` for any other
    tag.
    """
    if "@" in image:
        return "IfNotPresent"
    _, _, tag = image.rsplit("/", 1)[-1].partition(":")
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_container(container: Json, host_network: bool) -> None:
    image = container.get("image")
    policy = default_pull_policy(image) if isinstance(image, str) else "IfNotPresent"
    fill_absent(container, {**CONTAINER_DEFAULTS, "imagePullPolicy": policy})
    fill_absent(container, {"resources": {}})
    for port in objects_in(container.get("ports")):
        fill_absent(port, {"protocol": "TCP"})
        if host_network and "containerPort" in port:
            fill_absent(port, {"hostPort": port["containerPort"]})
    for variable in objects_in(container.get("env")):
        if field := subobject(variable, "valueFrom", "fieldRef"):
            fill_absent(field, {"apiVersion": "v1"})
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe := subobject(container, name):
            # In a probe, zero means an absent value.
            probe.update(
                {key: value for key, value in PROBE_DEFAULTS.items() if not probe.get(key)}
            )
            _default_http(subobject(probe, "httpGet"))
    for hook in ("postStart", "preStop"):
        _default_http(subobject(container, "lifecycle", hook, "httpGet"))


def _default_http(action: Json) -> None:
    if action:
        fill_absent(action, {"path": "/", "scheme": "HTTP"})


def _requests_from_limits(container: Json) -> None:
    resources = subobject(container, "resources")
    if limits := subobject(resources, "limits"):
        fill_absent(resources, {"requests": {}})
        if isinstance(resources["requests"], dict):
            fill_absent(resources["requests"], limits)


def _default_volume(volume: Json) -> None:
    if all(source is None for name, source in volume.items() if name != "name"):
        volume["emptyDir"] = {}
    for kind in ("secret", "configMap", "projected", "downwardAPI"):
        if isinstance(volume.get(kind), dict):
            fill_absent(volume[kind], {"defaultMode": DEFAULT_FILE_MODE})
    if isinstance(volume.get("hostPath"), dict):
        fill_absent(volume["hostPath"], {"type": ""})
    _default_field_refs(subobject(volume, "downwardAPI"))
    for source in objects_in(subobject(volume, "projected").get("sources")):
        _default_field_refs(subobject(source, "downwardAPI"))
        if token := subobject(source, "serviceAccountToken"):
            fill_absent(token, {"expirationSeconds": DEFAULT_TOKEN_SECONDS})
    if claim := subobject(volume, "ephemeral", "volumeClaimTemplate", "spec"):
        fill_absent(claim, {"volumeMode": "Filesystem"})


def _default_field_refs(source: Json) -> None:
    for item in objects_in(source.get("items")):
        if field := subobject(item, "fieldRef"):
            fill_absent(field, {"apiVersion": "v1"})


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
    requests = [_compute_quantities(subobject(each, "requests")) for each in resources]
    limits = [_compute_quantities(subobject(each, "limits")) for each in resources]
    if not any((*requests, *limits)):
        return "BestEffort"
    complete = all(len(each) == len(COMPUTE_RESOURCES) for each in limits)
    equal = all({**top, **low} == top for low, top in zip(requests, limits, strict=True))
    return "Guaranteed" if complete and equal else "Burstable"


def _compute_quantities(of: Mapping[str, Any]) -> dict[str, Quantity]:
    found = {name: quantity_or_none(of.get(name, 0)) for name in COMPUTE_RESOURCES}
    return {name: value for name, value in found.items() if value}
