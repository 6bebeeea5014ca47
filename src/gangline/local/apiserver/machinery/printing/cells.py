"""Printers of the table ``columns.toml``, and the functions of their cells.

A section has the columns of the kinds in its title, after the name of the object. The source of a
column (but of Age) is a path, or a function of ``_CELLS`` and the path of its value; after ``|``
stands what is shown if the value is absent, or what the function needs beside it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, TypeAlias

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.machinery.kind_tables import GroupKind, read_kind_table
from gangline.local.apiserver.machinery.printing.printer import (
    NONE,
    UNKNOWN,
    TablePrinter,
    find_condition,
    format_age,
    format_selector,
    has_deletion_timestamp,
    join_or_none,
    make_columns,
    object_age,
    object_name,
)
from gangline.local.apiserver.machinery.schema.nodes import Json

__all__ = ["table_printers"]

ROLE_LABEL = "node-role.kubernetes.io/"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
ITEMS_SHOWN = 3
METRICS_SHOWN = 2
UNKNOWN_STATUS = "Unknown"


CellFunction: TypeAlias = Callable[[Json, datetime], Any]


@cache
def table_printers() -> Mapping[GroupKind, TablePrinter]:
    printers = {}
    for kind, columns in read_kind_table(__package__, "columns.toml"):
        sources = {"Name": columns.get("Name", ""), **columns}
        cells = [_cell(name, source) for name, source in sources.items()]
        printers[kind] = TablePrinter(make_columns(*sources), partial(_row, cells))
    return printers


def _row(cells: Sequence[CellFunction], obj: Json, now: datetime) -> list[Any]:
    return [cell(obj, now) for cell in cells]


def _cell(column: str, source: str) -> CellFunction:
    """Return the function of a column."""
    if not source:
        return object_age if column == "Age" else lambda obj, now: object_name(obj)
    text, bar, more = source.partition(" | ")
    more = more if bar else NONE
    function, _, path = text.rpartition(" ")
    if not function and path in _CELLS:
        function, path = path, ""
    *parents, name = path.split(".")

    def cell(obj: Json, now: datetime) -> Any:
        value = subobject(obj, *parents).get(name) if path else obj
        if not function:
            return _plain(value, more)
        try:
            return _CELLS[function](value, more)
        except (AttributeError, TypeError):
            return NONE  # nobody validates what the writers of a status send

    return cell


def _plain(value: Any, absent: str) -> Any:
    if value not in (None, ""):
        return value
    return json.loads(absent) if absent in ("0", "1", "true", "false") else absent


def _of_quota(limits: bool) -> Callable[[Any, str], Any]:
    def cell(status: Any, _: str) -> str:
        hard, used = subobject(status or {}, "hard"), subobject(status or {}, "used")
        chosen = (name for name in sorted(hard) if name.startswith("limits") == limits)
        return ", ".join(f"{name}: {used.get(name, '')}/{hard[name]}" for name in chosen)

    return cell


def _age(time: Any, absent: str) -> str:
    return format_age(time, datetime.now(UTC)) if time else absent


def _ready(obj: Any, _: str) -> str:
    replicas = subobject(obj, "spec").get("replicas", 1)
    return f"{subobject(obj, 'status').get('readyReplicas', 0)}/{replicas}"


def _hosts(rules: Any, _: str) -> str:
    hosts = [rule["host"] for rule in objects_in(rules) if rule.get("host")]
    return _first(hosts, ITEMS_SHOWN) if hosts else "*"


def _addresses(ingress: Any, _: str) -> str:
    return ",".join(str(one.get("ip") or one.get("hostname")) for one in objects_in(ingress))


def _controller(owners: Any, _: str) -> str:
    owner = next((owner for owner in objects_in(owners) if owner.get("controller")), None)
    if owner is None:
        return NONE
    group = str(owner.get("apiVersion")).rpartition("/")[0]
    kind = str(owner.get("kind")).lower()
    return f"{kind}.{group}/{owner.get('name')}" if group else f"{kind}/{owner.get('name')}"


def _subjects(subjects: Any, kind: str) -> str:
    prefix = "{namespace}/" if kind == "ServiceAccount" else ""
    return ", ".join(
        (prefix + "{name}").format_map({"namespace": "", **subject})
        for subject in objects_in(subjects)
        if subject.get("kind") == kind
    )


def _available(conditions: Any, _: str) -> str:
    condition = find_condition(conditions, "Available")
    status = condition.get("status", UNKNOWN_STATUS)
    is_explained = condition and status != "True"
    return f"{status} ({condition.get('reason')})" if is_explained else str(status)


def _signing(conditions: Any, _: str) -> str:
    types = [condition.get("type") for condition in objects_in(conditions)]
    state = next((kind for kind in ("Denied", "Approved") if kind in types), "Pending")
    return state + (",Failed" if "Failed" in types else "")


def _parts(value: Any, names: str) -> str:
    return "/".join(str(value.get(name, "")) for name in names.split()) if value else "<unset>"


def _group_policy(policy: Any, _: str) -> str:
    policy = policy or {}
    gang = policy.get("gang")
    return f"gang/{gang.get('minCount')}" if isinstance(gang, dict) else next(iter(policy), "")


def _claim_state(obj: Json, _: str) -> str:
    status = subobject(obj, "status")
    if not status.get("allocation"):
        return "pending"
    states = ["allocated", *(["reserved"] if status.get("reservedFor") else [])]
    return ",".join([*(["deleted"] if obj["metadata"].get("deletionTimestamp") else []), *states])


def _address(addresses: Any, type_: str) -> str:
    given = [one.get("address", NONE) for one in objects_in(addresses) if one.get("type") == type_]
    return given[-1] if given else NONE


def _node_status(obj: Json, _: str) -> str:
    ready = find_condition(subobject(obj, "status").get("conditions"), "Ready")
    state = "Ready" if ready.get("status") == "True" else "NotReady"
    cordoned = subobject(obj, "spec").get("unschedulable")
    return (state if ready else UNKNOWN_STATUS) + (",SchedulingDisabled" if cordoned else "")


def _node_roles(labels: Any, _: str) -> str:
    labels = labels or {}
    roles = {name.removeprefix(ROLE_LABEL) for name in labels if name.startswith(ROLE_LABEL)}
    if role := labels.get("kubernetes.io/role"):
        roles.add(role)
    return join_or_none(sorted(roles - {""}))


def _modes(modes: Any, _: str) -> str:
    return ",".join(ACCESS_MODES.get(mode, mode) for mode in modes or [])


def _volume_phase(obj: Json, _: str) -> str:
    phase = "Terminating" if has_deletion_timestamp(obj) else subobject(obj, "status").get("phase")
    return str(phase or "")


def _class_name(obj: Json, _: str) -> str:
    default = subobject(obj, "metadata", "annotations").get(DEFAULT_CLASS) == "true"
    return f"{object_name(obj)} (default)" if default else object_name(obj)


def _port_text(port: Json) -> str:
    number, protocol = port.get("port"), port.get("protocol", "TCP")
    node_port = port.get("nodePort")
    return f"{number}:{node_port}/{protocol}" if node_port else f"{number}/{protocol}"


def _external_addresses(obj: Json, _: str) -> str:
    spec = subobject(obj, "spec")
    kind = spec.get("type", "ClusterIP")
    if kind == "ExternalName":
        return str(spec.get("externalName", NONE))
    addresses = list(spec.get("externalIPs") or [])
    if kind == "LoadBalancer":
        ingress = objects_in(subobject(obj, "status", "loadBalancer").get("ingress"))
        given = [address.get("ip") or address.get("hostname") or "" for address in ingress]
        return join_or_none([*given, *addresses]) if given or addresses else "<pending>"
    return join_or_none(addresses)


def _endpoints_text(subsets: Any, _: str) -> str:
    addresses = []
    for subset in objects_in(subsets):
        ports = objects_in(subset.get("ports"))
        for address in objects_in(subset.get("addresses")):
            ip = address.get("ip", "")
            addresses += [f"{ip}:{port.get('port')}" for port in ports] or [ip]
    return _first(addresses, ITEMS_SHOWN)


def _first(texts: list[str], shown: int, separator: str = ",") -> str:
    more = len(texts) - shown
    return join_or_none(texts[:shown], separator) + (f" + {more} more..." if more > 0 else "")


def _slice_ports(ports: Any, _: str) -> str:
    ports = [port.get("port", "*") for port in objects_in(ports)]
    return join_or_none(ports) if ports else "<unset>"


def _slice_addresses(endpoints: Any, _: str) -> str:
    addresses = [
        address for endpoint in objects_in(endpoints) for address in endpoint.get("addresses", [])
    ]
    return _first(addresses, ITEMS_SHOWN)


def _job_state(obj: Json, _: str) -> str:
    if has_deletion_timestamp(obj):
        return "Terminating"
    conditions = subobject(obj, "status").get("conditions")
    states = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")
    true = (s for s in states if find_condition(conditions, s).get("status") == "True")
    return next(true, "Running")


def _job_duration(status: Any, _: str) -> str:
    status = status or {}
    start, end = status.get("startTime"), status.get("completionTime")
    if not start:
        return ""
    return format_age(start, datetime.fromisoformat(end) if end else datetime.now(UTC))


def _metrics_text(obj: Json, _: str) -> str:
    spec, status = subobject(obj, "spec"), subobject(obj, "status")
    if share := spec.get("targetCPUUtilizationPercentage"):  # autoscaling/v1 has no other metric
        seen_share = status.get("currentCPUUtilizationPercentage")
        return f"cpu: {'<unknown>' if seen_share is None else f'{seen_share}%'}/{share}%"
    seen = objects_in(status.get("currentMetrics"))
    metrics = objects_in(spec.get("metrics"))
    texts = [
        _metric_text(metric, seen[index] if index < len(seen) else {})
        for index, metric in enumerate(metrics)
    ]
    return _first(texts, METRICS_SHOWN, ", ")


def _metric_text(metric: Json, seen: Json) -> str:
    source = str(metric.get("type", ""))
    source = source[:1].lower() + source[1:]
    name = subobject(metric, source).get("name") or subobject(metric, source, "metric").get(
        "name", ""
    )
    target, current = subobject(metric, source, "target"), subobject(seen, source, "current")
    if "averageUtilization" in target:
        share = current.get("averageUtilization")
        shown = "<unknown>" if share is None else f"{share}%"
        return f"{name}: {shown}/{target['averageUtilization']}%"
    field = "averageValue" if "averageValue" in target else "value"
    average = " (avg)" if field == "averageValue" and source in ("object", "external") else ""
    return f"{name}: {current.get(field, '<unknown>')}/{target.get(field, '<auto>')}{average}"


def _if_bound(shown: Callable[[Json], str]) -> Callable[[Any, str], str]:
    """A cell of a claim that is empty until the claim has a volume."""
    return lambda claim, _: shown(claim) if subobject(claim, "spec").get("volumeName") else ""


def _completions(job: Json, _: str) -> str:
    spec, succeeded = subobject(job, "spec"), subobject(job, "status").get("succeeded", 0)
    desired, parallelism = spec.get("completions"), spec.get("parallelism", 1)
    if desired is None:
        desired = f"1 of {parallelism}" if parallelism > 1 else "1"
    return f"{succeeded}/{desired}"


def _cluster_ip(spec: Any, _: str) -> str:
    spec = spec or {}
    return NONE if spec.get("type") == "ExternalName" else spec.get("clusterIP") or NONE


_CELLS: Mapping[str, Callable[[Any, str], Any]] = {
    "address": _address,
    "addresses": _addresses,
    "bound-capacity": _if_bound(
        lambda claim: subobject(claim, "status", "capacity").get("storage", "")
    ),
    "bound-modes": _if_bound(
        lambda claim: _modes(subobject(claim, "status").get("accessModes"), "")
    ),
    "claim": lambda claim, _: _parts(claim, "namespace name") if claim else "",
    "claim-state": _claim_state,
    "class-name": _class_name,
    "cluster-ip": _cluster_ip,
    "completions": _completions,
    "condition": lambda conditions, type_: find_condition(conditions, type_).get("status", UNKNOWN),
    "age": _age,
    "audiences": lambda tokens, _: (
        ",".join(str(token.get("audience")) for token in objects_in(tokens)) or "<unset>"
    ),
    "available": _available,
    "controller": _controller,
    "count": lambda items, _: len(items or ()),
    "data": lambda obj, _: len(subobject(obj, "data")) + len(subobject(obj, "binaryData")),
    "duration": _job_duration,
    "each": lambda items, name: join_or_none(item.get(name, "") for item in objects_in(items)),
    "endpoints": _endpoints_text,
    "external": _external_addresses,
    "hosts": _hosts,
    "labels": lambda labels, _: format_selector({"matchLabels": labels}),
    "limits": _of_quota(limits=True),
    "list": lambda items, _: join_or_none(items or ()),
    "job-state": _job_state,
    "metrics": _metrics_text,
    "modes": _modes,
    "node-status": _node_status,
    "policy": _group_policy,
    "parts": _parts,
    "ports": lambda tls, _: "80, 443" if tls else "80",
    "ready": _ready,
    "requests": _of_quota(limits=False),
    "roles": _node_roles,
    "selector": lambda selector, _: format_selector(selector or {}),
    "service": lambda value, _: _parts(value, "namespace name") if value else "Local",
    "service-ports": lambda ports, _: join_or_none(map(_port_text, objects_in(ports))),
    "signing": _signing,
    "slice-addresses": _slice_addresses,
    "slice-ports": _slice_ports,
    "subjects": _subjects,
    "title": lambda value, absent: str(_plain(value, absent)),
    "volume-phase": _volume_phase,
}
