"""Printers of nodes, namespaces, configuration, events, volumes, roles and definitions."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gangline.api.cluster.admission import GROUP as ADMISSION
from gangline.local.apiserver.machinery.json_objects import iter_objects, subobject
from gangline.local.apiserver.machinery.printing.printer import (
    NONE,
    UNKNOWN,
    TablePrinter,
    format_age,
    has_deletion_timestamp,
    join_or_none,
    make_columns,
    object_age,
    object_name,
)
from gangline.local.apiserver.machinery.schema.nodes import Json

ROLE_LABEL = "node-role.kubernetes.io/"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _node(obj: Json, now: datetime) -> list[Any]:
    status, machine = subobject(obj, "status"), subobject(obj, "status", "nodeInfo")
    addresses = {
        address.get("type"): address.get("address")
        for address in iter_objects(status.get("addresses"))
    }
    return [
        object_name(obj),
        _node_status(obj),
        _node_roles(subobject(obj, "metadata", "labels")),
        object_age(obj, now),
        machine.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        machine.get("osImage") or UNKNOWN,
        machine.get("kernelVersion") or UNKNOWN,
        machine.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _node_status(obj: Json) -> str:
    conditions = iter_objects(subobject(obj, "status").get("conditions"))
    ready = next((each for each in conditions if each.get("type") == "Ready"), None)
    states = [
        "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    ]
    if subobject(obj, "spec").get("unschedulable"):
        states.append("SchedulingDisabled")
    return ",".join(states)


def _node_roles(labels: Json) -> str:
    roles = {name.removeprefix(ROLE_LABEL) for name in labels if name.startswith(ROLE_LABEL)}
    if role := labels.get("kubernetes.io/role"):
        roles.add(role)
    return join_or_none(sorted(roles - {""}))


def _namespace(obj: Json, now: datetime) -> list[Any]:
    return [object_name(obj), subobject(obj, "status").get("phase", ""), object_age(obj, now)]


def _config_map(obj: Json, now: datetime) -> list[Any]:
    count = len(subobject(obj, "data")) + len(subobject(obj, "binaryData"))
    return [object_name(obj), count, object_age(obj, now)]


def _secret(obj: Json, now: datetime) -> list[Any]:
    return [
        object_name(obj),
        obj.get("type", ""),
        len(subobject(obj, "data")),
        object_age(obj, now),
    ]


def _service_account(obj: Json, now: datetime) -> list[Any]:
    return [object_name(obj), len(obj.get("secrets") or []), object_age(obj, now)]


def _event(obj: Json, now: datetime) -> list[Any]:
    """Return the cells of an event of either API group; events.k8s.io renamed most fields."""
    series = subobject(obj, "series")
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp") or first
    last = series.get("lastObservedTime") or last
    involved = subobject(obj, "involvedObject") or subobject(obj, "regarding")
    source = subobject(obj, "source") or subobject(obj, "deprecatedSource")
    origin = [source.get("component") or obj.get("reportingController"), source.get("host")]
    count = series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1
    message = str(obj.get("message") or obj.get("note") or "").strip()
    return [
        format_age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        ", ".join(filter(None, origin)),
        message,
        format_age(first, now),
        count,
        object_name(obj),
    ]


def _modes(modes: Iterable[str] | None) -> str:
    return ",".join(ACCESS_MODES.get(mode, mode) for mode in modes or [])


def _volume_phase(obj: Json) -> str:
    return (
        "Terminating"
        if has_deletion_timestamp(obj)
        else str(subobject(obj, "status").get("phase", ""))
    )


def _volume(obj: Json, now: datetime) -> list[Any]:
    spec, claim = subobject(obj, "spec"), subobject(obj, "spec", "claimRef")
    return [
        object_name(obj),
        subobject(spec, "capacity").get("storage", ""),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        _volume_phase(obj),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        subobject(obj, "status").get("reason", ""),
        object_age(obj, now),
        spec.get("volumeMode", "<unset>"),
    ]


def _claim(obj: Json, now: datetime) -> list[Any]:
    spec, status = subobject(obj, "spec"), subobject(obj, "status")
    bound = bool(spec.get("volumeName"))
    return [
        object_name(obj),
        _volume_phase(obj),
        spec.get("volumeName", ""),
        subobject(status, "capacity").get("storage", "") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName", ""),
        object_age(obj, now),
        spec.get("volumeMode", "<unset>"),
    ]


def _storage_class(obj: Json, now: datetime) -> list[Any]:
    default = subobject(obj, "metadata", "annotations").get(DEFAULT_CLASS) == "true"
    return [
        f"{object_name(obj)} (default)" if default else object_name(obj),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion")),
        object_age(obj, now),
    ]


def _lease(obj: Json, now: datetime) -> list[Any]:
    return [
        object_name(obj),
        subobject(obj, "spec").get("holderIdentity", ""),
        object_age(obj, now),
    ]


def _priority_class(obj: Json, now: datetime) -> list[Any]:
    value, everyone = obj.get("value", 0), bool(obj.get("globalDefault"))
    preemption = obj.get("preemptionPolicy", "")
    return [object_name(obj), value, everyone, object_age(obj, now), preemption]


def _created_at(obj: Json, now: datetime) -> list[Any]:
    return [object_name(obj), subobject(obj, "metadata").get("creationTimestamp", "")]


def _role_binding(obj: Json, now: datetime) -> list[Any]:
    role = subobject(obj, "roleRef")
    text = f"{role.get('kind', '')}/{role.get('name', '')}"
    return [object_name(obj), text, object_age(obj, now)]


def _webhooks(obj: Json, now: datetime) -> list[Any]:
    return [object_name(obj), len(obj.get("webhooks") or ()), object_age(obj, now)]


RBAC = "rbac.authorization.k8s.io"
_EVENT = TablePrinter(
    make_columns(
        "Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source",
        "Message", "+First Seen", "+Count", "+Name",
    ),
    _event,
)  # fmt: skip
_CREATED_AT = TablePrinter(make_columns("Name", "Created At"), _created_at)
_BINDING = TablePrinter(make_columns("Name", "Role", "Age"), _role_binding)
_WEBHOOKS = TablePrinter(make_columns("Name", "Webhooks", "Age"), _webhooks)

CLUSTER_PRINTERS: Mapping[tuple[str, str], TablePrinter] = {
    ("", "ConfigMap"): TablePrinter(make_columns("Name", "Data", "Age"), _config_map),
    ("", "Event"): _EVENT,
    ("", "Namespace"): TablePrinter(make_columns("Name", "Status", "Age"), _namespace),
    ("", "Node"): TablePrinter(
        make_columns(
            "Name", "Status", "Roles", "Age", "Version", "+Internal-IP", "+External-IP",
            "+OS-Image", "+Kernel-Version", "+Container-Runtime",
        ),
        _node,
    ),
    ("", "PersistentVolume"): TablePrinter(
        make_columns(
            "Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim",
            "StorageClass", "Reason", "Age", "+VolumeMode",
        ),
        _volume,
    ),
    ("", "PersistentVolumeClaim"): TablePrinter(
        make_columns(
            "Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "Age",
            "+VolumeMode",
        ),
        _claim,
    ),
    ("", "Secret"): TablePrinter(make_columns("Name", "Type", "Data", "Age"), _secret),
    ("", "ServiceAccount"): TablePrinter(make_columns("Name", "Secrets", "Age"), _service_account),
    (ADMISSION, "MutatingWebhookConfiguration"): _WEBHOOKS,
    (ADMISSION, "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _CREATED_AT,
    ("coordination.k8s.io", "Lease"): TablePrinter(make_columns("Name", "Holder", "Age"), _lease),
    ("events.k8s.io", "Event"): _EVENT,
    (RBAC, "ClusterRole"): _CREATED_AT,
    (RBAC, "ClusterRoleBinding"): _BINDING,
    (RBAC, "Role"): _CREATED_AT,
    (RBAC, "RoleBinding"): _BINDING,
    ("scheduling.k8s.io", "PriorityClass"): TablePrinter(
        make_columns("Name", "Value", "Global-Default", "Age", "+PreemptionPolicy"), _priority_class
    ),
    ("storage.k8s.io", "StorageClass"): TablePrinter(
        make_columns(
            "Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion",
            "Age",
        ),
        _storage_class,
    ),
}  # fmt: skip
