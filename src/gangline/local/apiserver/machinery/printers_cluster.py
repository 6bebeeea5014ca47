"""Printers of nodes, namespaces, configuration, events, volumes, roles and definitions."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gangline.api.admission import GROUP as ADMISSION
from gangline.local.apiserver.machinery.durations import UNKNOWN, age
from gangline.local.apiserver.machinery.json_objects import objects, part
from gangline.local.apiserver.machinery.printer import (
    NONE,
    Printer,
    columns,
    created_age,
    deleting,
    joined,
    name_of,
)
from gangline.local.apiserver.machinery.schemas import Json

ROLE_LABEL = "node-role.kubernetes.io/"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _node(obj: Json, now: datetime) -> list[Any]:
    status, machine = part(obj, "status"), part(obj, "status", "nodeInfo")
    addresses = {of.get("type"): of.get("address") for of in objects(status.get("addresses"))}
    return [
        name_of(obj),
        _node_status(obj),
        _node_roles(part(obj, "metadata", "labels")),
        created_age(obj, now),
        machine.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        machine.get("osImage") or UNKNOWN,
        machine.get("kernelVersion") or UNKNOWN,
        machine.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _node_status(obj: Json) -> str:
    conditions = objects(part(obj, "status").get("conditions"))
    ready = next((each for each in conditions if each.get("type") == "Ready"), None)
    states = [
        "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    ]
    if part(obj, "spec").get("unschedulable"):
        states.append("SchedulingDisabled")
    return ",".join(states)


def _node_roles(labels: Json) -> str:
    roles = {name.removeprefix(ROLE_LABEL) for name in labels if name.startswith(ROLE_LABEL)}
    if role := labels.get("kubernetes.io/role"):
        roles.add(role)
    return joined(sorted(roles - {""}))


def _namespace(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), part(obj, "status").get("phase", ""), created_age(obj, now)]


def _config_map(obj: Json, now: datetime) -> list[Any]:
    count = len(part(obj, "data")) + len(part(obj, "binaryData"))
    return [name_of(obj), count, created_age(obj, now)]


def _secret(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("type", ""), len(part(obj, "data")), created_age(obj, now)]


def _service_account(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), len(obj.get("secrets") or []), created_age(obj, now)]


def _event(obj: Json, now: datetime) -> list[Any]:
    """Return the cells of an event of either API group; events.k8s.io renamed most fields."""
    series = part(obj, "series")
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp") or first
    last = series.get("lastObservedTime") or last
    involved = part(obj, "involvedObject") or part(obj, "regarding")
    source = part(obj, "source") or part(obj, "deprecatedSource")
    origin = [source.get("component") or obj.get("reportingController"), source.get("host")]
    count = series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1
    message = str(obj.get("message") or obj.get("note") or "").strip()
    return [
        age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        ", ".join(filter(None, origin)),
        message,
        age(first, now),
        count,
        name_of(obj),
    ]


def _modes(modes: Iterable[str] | None) -> str:
    return ",".join(ACCESS_MODES.get(mode, mode) for mode in modes or [])


def _volume_phase(obj: Json) -> str:
    return "Terminating" if deleting(obj) else str(part(obj, "status").get("phase", ""))


def _volume(obj: Json, now: datetime) -> list[Any]:
    spec, claim = part(obj, "spec"), part(obj, "spec", "claimRef")
    return [
        name_of(obj),
        part(spec, "capacity").get("storage", ""),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        _volume_phase(obj),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        part(obj, "status").get("reason", ""),
        created_age(obj, now),
        spec.get("volumeMode", "<unset>"),
    ]


def _claim(obj: Json, now: datetime) -> list[Any]:
    spec, status = part(obj, "spec"), part(obj, "status")
    bound = bool(spec.get("volumeName"))
    return [
        name_of(obj),
        _volume_phase(obj),
        spec.get("volumeName", ""),
        part(status, "capacity").get("storage", "") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName", ""),
        created_age(obj, now),
        spec.get("volumeMode", "<unset>"),
    ]


def _storage_class(obj: Json, now: datetime) -> list[Any]:
    default = part(obj, "metadata", "annotations").get(DEFAULT_CLASS) == "true"
    return [
        f"{name_of(obj)} (default)" if default else name_of(obj),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion")),
        created_age(obj, now),
    ]


def _lease(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), part(obj, "spec").get("holderIdentity", ""), created_age(obj, now)]


def _priority_class(obj: Json, now: datetime) -> list[Any]:
    value, everyone = obj.get("value", 0), bool(obj.get("globalDefault"))
    preemption = obj.get("preemptionPolicy", "")
    return [name_of(obj), value, everyone, created_age(obj, now), preemption]


def _created_at(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), part(obj, "metadata").get("creationTimestamp", "")]


def _role_binding(obj: Json, now: datetime) -> list[Any]:
    role = part(obj, "roleRef")
    text = f"{role.get('kind', '')}/{role.get('name', '')}"
    return [name_of(obj), text, created_age(obj, now)]


def _webhooks(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), len(obj.get("webhooks") or ()), created_age(obj, now)]


RBAC = "rbac.authorization.k8s.io"
_EVENT = Printer(
    columns(
        "Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source",
        "Message", "+First Seen", "+Count", "+Name",
    ),
    _event,
)  # fmt: skip
_CREATED_AT = Printer(columns("Name", "Created At"), _created_at)
_BINDING = Printer(columns("Name", "Role", "Age"), _role_binding)
_WEBHOOKS = Printer(columns("Name", "Webhooks", "Age"), _webhooks)

CLUSTER_PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "ConfigMap"): Printer(columns("Name", "Data", "Age"), _config_map),
    ("", "Event"): _EVENT,
    ("", "Namespace"): Printer(columns("Name", "Status", "Age"), _namespace),
    ("", "Node"): Printer(
        columns(
            "Name", "Status", "Roles", "Age", "Version", "+Internal-IP", "+External-IP",
            "+OS-Image", "+Kernel-Version", "+Container-Runtime",
        ),
        _node,
    ),
    ("", "PersistentVolume"): Printer(
        columns(
            "Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim",
            "StorageClass", "Reason", "Age", "+VolumeMode",
        ),
        _volume,
    ),
    ("", "PersistentVolumeClaim"): Printer(
        columns(
            "Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "Age",
            "+VolumeMode",
        ),
        _claim,
    ),
    ("", "Secret"): Printer(columns("Name", "Type", "Data", "Age"), _secret),
    ("", "ServiceAccount"): Printer(columns("Name", "Secrets", "Age"), _service_account),
    (ADMISSION, "MutatingWebhookConfiguration"): _WEBHOOKS,
    (ADMISSION, "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _CREATED_AT,
    ("coordination.k8s.io", "Lease"): Printer(columns("Name", "Holder", "Age"), _lease),
    ("events.k8s.io", "Event"): _EVENT,
    (RBAC, "ClusterRole"): _CREATED_AT,
    (RBAC, "ClusterRoleBinding"): _BINDING,
    (RBAC, "Role"): _CREATED_AT,
    (RBAC, "RoleBinding"): _BINDING,
    ("scheduling.k8s.io", "PriorityClass"): Printer(
        columns("Name", "Value", "Global-Default", "Age", "+PreemptionPolicy"), _priority_class
    ),
    ("storage.k8s.io", "StorageClass"): Printer(
        columns(
            "Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion",
            "Age",
        ),
        _storage_class,
    ),
}  # fmt: skip
