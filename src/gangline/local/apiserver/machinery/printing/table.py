"""Server-side printing: objects as rows of a ``meta.k8s.io/v1`` Table, which kubectl prints as is.

A ``TablePrinter`` has the columns of a kind and a function that returns the cells of one object.
Built-in kinds have their own printers, custom kinds those of ``additionalPrinterColumns``. All
other kinds show name and age. Columns with a priority above zero appear with ``-o wide``.
Printers of kinds without workloads (nodes, events, volumes, roles, definitions) are here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gangline.api.cluster.workload import INITIALLY_SCHEDULED
from gangline.api.jsonpath import JSONPath, JSONPathError
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.machinery.printing.printer import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    TableColumn,
    TablePrinter,
    format_age,
    has_deletion_timestamp,
    join_or_none,
    make_columns,
    make_printer,
    object_age,
    object_name,
)
from gangline.local.apiserver.machinery.printing.stored import stored_printers
from gangline.local.apiserver.machinery.printing.workloads import POD_PRINTERS, WORKLOAD_PRINTERS
from gangline.local.apiserver.machinery.schema.nodes import Json

__all__ = [
    "TableColumn",
    "TablePrinter",
    "find_printer",
    "partial_object_metadata",
    "partial_object_metadata_list",
    "render_table",
]

ROLE_LABEL = "node-role.kubernetes.io/"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _group_policy(obj: Json) -> str:
    policy = subobject(obj, "spec", "schedulingPolicy")
    gang = policy.get("gang")
    return f"gang/{gang.get('minCount')}" if isinstance(gang, dict) else next(iter(policy), "")


def _claim_state(obj: Json) -> str:
    status = subobject(obj, "status")
    if not status.get("allocation"):
        return "pending"
    states = ["allocated", *(["reserved"] if status.get("reservedFor") else [])]
    return ",".join([*(["deleted"] if obj["metadata"].get("deletionTimestamp") else []), *states])


def _group_scheduled(obj: Json) -> str:
    conditions = objects_in(subobject(obj, "status").get("conditions"))
    states = (c.get("status") for c in conditions if c.get("type") == INITIALLY_SCHEDULED)
    return str(next(states, UNKNOWN))


def _node(obj: Json, now: datetime) -> list[Any]:
    status, machine = subobject(obj, "status"), subobject(obj, "status", "nodeInfo")
    addresses = {
        address.get("type"): address.get("address")
        for address in objects_in(status.get("addresses"))
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
    conditions = objects_in(subobject(obj, "status").get("conditions"))
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), None)
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


def _claim_text(obj: Json) -> str:
    claim = subobject(obj, "spec", "claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _class_name(obj: Json) -> str:
    default = subobject(obj, "metadata", "annotations").get(DEFAULT_CLASS) == "true"
    return f"{object_name(obj)} (default)" if default else object_name(obj)


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


_EVENT = TablePrinter(
    make_columns(
        "Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source",
        "Message", "+First Seen", "+Count", "+Name",
    ),
    _event,
)  # fmt: skip

CLUSTER_PRINTERS: Mapping[tuple[str, str], TablePrinter] = {
    ("", "ConfigMap"): make_printer(
        "Name",
        ("Data", lambda obj: len(subobject(obj, "data")) + len(subobject(obj, "binaryData"))),
        "Age",
    ),
    ("", "Event"): _EVENT,
    ("", "Node"): TablePrinter(
        make_columns(
            "Name", "Status", "Roles", "Age", "Version", "+Internal-IP", "+External-IP",
            "+OS-Image", "+Kernel-Version", "+Container-Runtime",
        ),
        _node,
    ),
    ("", "PersistentVolume"): make_printer(
        "Name",
        ("Capacity", "spec.capacity.storage"),
        ("Access Modes", lambda obj: _modes(subobject(obj, "spec").get("accessModes"))),
        ("Reclaim Policy", "spec.persistentVolumeReclaimPolicy"),
        ("Status", _volume_phase),
        ("Claim", _claim_text),
        ("StorageClass", "spec.storageClassName"),
        ("Reason", "status.reason"),
        "Age",
        ("+VolumeMode", lambda obj: subobject(obj, "spec").get("volumeMode", "<unset>")),
    ),
    ("", "PersistentVolumeClaim"): TablePrinter(
        make_columns(
            "Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "Age",
            "+VolumeMode",
        ),
        _claim,
    ),
    ("", "Secret"): make_printer(
        "Name", ("Type", "type"), ("Data", lambda obj: len(subobject(obj, "data"))), "Age"
    ),
    ("events.k8s.io", "Event"): _EVENT,
    ("scheduling.k8s.io", "PodGroup"): make_printer(
        "Name",
        ("Policy", _group_policy),
        ("Scheduled", _group_scheduled),
        ("Workload", "spec.workloadRef.workloadName"),
        "Age",
    ),
    ("resource.k8s.io", "ResourceClaim"): make_printer("Name", ("State", _claim_state), "Age"),
    ("storage.k8s.io", "StorageClass"): make_printer(
        ("Name", _class_name),
        ("Provisioner", "provisioner"),
        ("ReclaimPolicy", lambda obj: obj.get("reclaimPolicy", "Delete")),
        ("VolumeBindingMode", lambda obj: obj.get("volumeBindingMode", "Immediate")),
        ("AllowVolumeExpansion", lambda obj: bool(obj.get("allowVolumeExpansion"))),
        "Age",
    ),
}  # fmt: skip


META = "meta.k8s.io/v1"

BUILT_IN: Mapping[tuple[str, str], TablePrinter] = {
    **POD_PRINTERS,
    **WORKLOAD_PRINTERS,
    **CLUSTER_PRINTERS,
}
NAME_AND_AGE = TablePrinter((NAME, AGE), lambda obj, now: [object_name(obj), object_age(obj, now)])


def find_printer(
    group: str, kind: str, additional_columns: Sequence[Json] | None = None
) -> TablePrinter:
    """Return the printer of a kind: its CRD's columns, the built-in ones, or name and age."""
    if additional_columns:
        return _crd_printer(additional_columns)
    printer = BUILT_IN.get((group, kind)) or stored_printers().get((group, kind))
    return printer or NAME_AND_AGE


def render_table(
    printer: TablePrinter,
    objects: Iterable[Json],
    *,
    now: datetime,
    include_object: str = "Metadata",
    metadata: Json | None = None,
    with_columns: bool = True,
) -> Json:
    """Return the Table of a list of objects.

    ``include_object`` is None, Metadata or Object, as in the request. ``metadata`` is that of the
    list. All but the first event of a watch omit the columns.
    """
    return {
        "kind": "Table",
        "apiVersion": META,
        "metadata": metadata or {},
        "columnDefinitions": [column.definition() for column in printer.columns]
        if with_columns
        else [],
        "rows": [_row(printer, obj, now, include_object) for obj in objects],
    }


def partial_object_metadata(obj: Json) -> Json:
    metadata = obj.get("metadata", {})
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": metadata}


def partial_object_metadata_list(object_list: Json) -> Json:
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": META,
        "metadata": object_list.get("metadata", {}),
        "items": [partial_object_metadata(item) for item in object_list.get("items", [])],
    }


def _row(printer: TablePrinter, obj: Json, now: datetime, include_object: str) -> Json:
    row: Json = {"cells": printer.cells(obj, now)}
    if conditions := printer.conditions(obj):
        row["conditions"] = conditions
    if include_object == "Object":
        row["object"] = obj
    elif include_object != "None":
        row["object"] = partial_object_metadata(obj)
    return row


def _crd_printer(definitions: Sequence[Json]) -> TablePrinter:
    columns = [NAME]
    paths: list[tuple[str, JSONPath | None]] = []
    for definition in definitions:
        kind = definition.get("type", "string")
        text, priority = definition.get("description", ""), definition.get("priority", 0)
        columns.append(
            TableColumn(
                definition.get("name", ""), kind, definition.get("format", ""), text, priority
            )
        )
        paths.append((kind, _path(definition.get("jsonPath", ""))))

    def cells(obj: Json, now: datetime) -> list[Any]:
        return [object_name(obj), *(_crd_cell(kind, path, obj, now) for kind, path in paths)]

    return TablePrinter(tuple(columns), cells)


def _path(text: str) -> JSONPath | None:
    try:
        return JSONPath(text)
    except JSONPathError:
        return None  # One invalid column must not hide the objects: it stays empty.


def _crd_cell(kind: str, path: JSONPath | None, obj: Json, now: datetime) -> Any:
    values = path.find(obj) if path else []
    if not values or values[0] is None:
        return None
    first = values[0]
    match kind:
        case "date":
            return format_age(first, now)
        case "integer" if isinstance(first, float):
            return int(first)
        case "integer" | "number":
            return first if isinstance(first, int | float) else None
        case "boolean":
            return first if isinstance(first, bool) else None
    return " ".join(map(_text, values))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
