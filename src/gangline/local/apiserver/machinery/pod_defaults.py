"""Defaults of pods: spec, containers, probes and volumes, and the values set by admission.

A pod template gets ``default_pod_spec``. A pod also gets requests from limits, service links, a
service account and the tolerations for failed nodes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gangline.local.apiserver.machinery.amounts import canonicalize
from gangline.local.apiserver.machinery.json_objects import fill, objects, part
from gangline.local.apiserver.machinery.schemas import Json

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
NODE_TROUBLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
NODE_TROUBLE_SECONDS = 300
MODE = 0o644
TOKEN_SECONDS = 3600


def all_containers(spec: Json) -> Iterator[Json]:
    yield from objects(spec.get("initContainers"))
    yield from objects(spec.get("containers"))


def default_pod(pod: Json) -> None:
    """Set the defaults of a new pod in place."""
    spec = part(pod, "spec")
    if not spec:
        return
    default_pod_spec(spec)
    fill(spec, {"enableServiceLinks": True, "serviceAccountName": "default"})
    # Older clients read the deprecated field.
    spec["serviceAccount"] = spec["serviceAccountName"]
    for container in all_containers(spec):
        _requests_from_limits(container)
    _tolerate_node_trouble(spec)
    if "priority" not in spec and "priorityClassName" not in spec:
        spec["priority"] = 0
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def default_pod_spec(spec: Json) -> None:
    """Set the defaults that pods and pod templates share, in place."""
    fill(spec, SPEC_DEFAULTS)
    fill(spec, {"securityContext": {}})
    for container in all_containers(spec):
        _default_container(container, host_network=spec.get("hostNetwork") is True)
    for volume in objects(spec.get("volumes")):
        _default_volume(volume)


def default_template(template: Json) -> None:
    if spec := part(template, "spec"):
        default_pod_spec(spec)


def canonicalize_pod_spec(spec: Json) -> None:
    for container in all_containers(spec):
        resources = part(container, "resources")
        canonicalize(resources.get("limits"))
        canonicalize(resources.get("requests"))
    canonicalize(spec.get("overhead"))


def pull_policy(image: str) -> str:
    """Return the default pull policy: ``Always`` for ``latest``, ``IfNotPresent`` for any other
    tag.
    """
    if "@" in image:
        return "IfNotPresent"
    _, _, tag = image.rsplit("/", 1)[-1].partition(":")
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_container(container: Json, host_network: bool) -> None:
    image = container.get("image")
    policy = pull_policy(image) if isinstance(image, str) else "IfNotPresent"
    fill(container, {**CONTAINER_DEFAULTS, "imagePullPolicy": policy})
    fill(container, {"resources": {}})
    for port in objects(container.get("ports")):
        fill(port, {"protocol": "TCP"})
        if host_network and "containerPort" in port:
            fill(port, {"hostPort": port["containerPort"]})
    for variable in objects(container.get("env")):
        if field := part(variable, "valueFrom", "fieldRef"):
            fill(field, {"apiVersion": "v1"})
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe := part(container, name):
            # In a probe, zero means an absent value.
            probe.update(
                {key: value for key, value in PROBE_DEFAULTS.items() if not probe.get(key)}
            )
            _default_http(part(probe, "httpGet"))
    for hook in ("postStart", "preStop"):
        _default_http(part(container, "lifecycle", hook, "httpGet"))


def _default_http(action: Json) -> None:
    if action:
        fill(action, {"path": "/", "scheme": "HTTP"})


def _requests_from_limits(container: Json) -> None:
    resources = part(container, "resources")
    if limits := part(resources, "limits"):
        fill(resources, {"requests": {}})
        if isinstance(resources["requests"], dict):
            fill(resources["requests"], limits)


def _default_volume(volume: Json) -> None:
    if all(source is None for name, source in volume.items() if name != "name"):
        volume["emptyDir"] = {}
    for kind in ("secret", "configMap", "projected", "downwardAPI"):
        if isinstance(volume.get(kind), dict):
            fill(volume[kind], {"defaultMode": MODE})
    if isinstance(volume.get("hostPath"), dict):
        fill(volume["hostPath"], {"type": ""})
    _default_field_refs(part(volume, "downwardAPI"))
    for source in objects(part(volume, "projected").get("sources")):
        _default_field_refs(part(source, "downwardAPI"))
        if token := part(source, "serviceAccountToken"):
            fill(token, {"expirationSeconds": TOKEN_SECONDS})
    if claim := part(volume, "ephemeral", "volumeClaimTemplate", "spec"):
        fill(claim, {"volumeMode": "Filesystem"})


def _default_field_refs(source: Json) -> None:
    for item in objects(source.get("items")):
        if field := part(item, "fieldRef"):
            fill(field, {"apiVersion": "v1"})


def _tolerate_node_trouble(spec: Json) -> None:
    tolerations = spec.setdefault("tolerations", [])
    if not isinstance(tolerations, list):
        return
    for key in NODE_TROUBLE:
        if not any(_tolerates(toleration, key) for toleration in objects(tolerations)):
            toleration = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations.append({**toleration, "tolerationSeconds": NODE_TROUBLE_SECONDS})


def _tolerates(toleration: Json, key: str) -> bool:
    same_key = toleration.get("key") in (key, None, "")
    return same_key and toleration.get("effect") in ("NoExecute", None, "")
