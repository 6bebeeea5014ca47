"""Versions of one kind: one is stored, all are served and accepted.

Custom kinds convert by changing ``apiVersion`` (strategy None), or a webhook has done it before.
Two built-in kinds differ between versions: Event (core/v1 is stored; events.k8s.io/v1 renames its
fields) and HorizontalPodAutoscaler (autoscaling/v2 is stored; v1 has CPU utilization as its only
metric).
"""

from collections.abc import Callable, Iterable

from gangline.api.meta.json_objects import subobject
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.negotiation import encode_json, read_json
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.machinery.schema.nodes import copy_json

# core/v1 name -> events.k8s.io/v1 name
EVENT_NAMES = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
)


AUTOSCALER = "HorizontalPodAutoscaler"
CPU_TARGET_FIELD = "targetCPUUtilizationPercentage"
CPU_CURRENT_FIELD = "currentCPUUtilizationPercentage"
CONDITIONS = "conditions"
CONDITIONS_ANNOTATION = "autoscaling.alpha.kubernetes.io/conditions"
METRICS_ANNOTATION = "autoscaling.alpha.kubernetes.io/metrics"
BEHAVIOR_ANNOTATION = "autoscaling.alpha.kubernetes.io/behavior"


def to_stored(kind: ServedKind, obj: Json) -> Json:
    """Convert an object of this version to the stored version."""
    if kind.is_stored_form or kind.conversion_webhook is not None:
        return obj
    if kind.group == "events.k8s.io":
        return _rename_fields(obj, "v1", [(new, old) for old, new in EVENT_NAMES])
    if kind.kind == AUTOSCALER:
        obj = _autoscaler_to_v2(obj)
    return {**obj, "apiVersion": f"{kind.group}/{kind.storage_version}"}


def from_stored(kind: ServedKind, obj: Json) -> Json:
    """Convert a stored object to this version, and set defaults that its schema had not then."""
    if kind.serves_stored_bytes:
        return obj
    if kind.custom:
        obj = {**copy_json(obj), "apiVersion": kind.api_version}
        kind.schema.apply_defaults(obj)
        return obj
    if kind.group == "events.k8s.io":
        return _rename_fields(obj, kind.api_version, EVENT_NAMES)
    if kind.kind == AUTOSCALER:
        obj = _autoscaler_to_v1(obj)
    return {**obj, "apiVersion": kind.api_version}


def make_converter(kind: ServedKind) -> Callable[[bytes], bytes] | None:
    """Return ``from_stored`` as a function on bytes, or None if no conversion is needed."""
    if kind.serves_stored_bytes:
        return None
    return lambda body: encode_json(from_stored(kind, read_json(body)))


def _rename_fields(obj: Json, api_version: str, names: Iterable[tuple[str, str]]) -> Json:
    table = dict(names)
    renamed = {table.get(name, name): value for name, value in obj.items()}
    renamed["apiVersion"] = api_version
    return renamed


def _autoscaler_to_v2(autoscaler: Json) -> Json:
    spec = autoscaler.get("spec")
    if not isinstance(spec, dict):
        return autoscaler
    notes = dict(subobject(autoscaler.get("metadata"), "annotations"))
    notes.pop(CONDITIONS_ANNOTATION, None)
    metrics, behavior = (
        _parse_annotation(notes.pop(METRICS_ANNOTATION, None)),
        _parse_annotation(notes.pop(BEHAVIOR_ANNOTATION, None)),
    )
    listed = metrics if isinstance(metrics, list) else []
    if CPU_TARGET_FIELD in spec:
        target = {"type": "Utilization", "averageUtilization": spec[CPU_TARGET_FIELD]}
        listed = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}, *listed]
    changed = {name: value for name, value in spec.items() if name != CPU_TARGET_FIELD}
    if listed:
        changed["metrics"] = listed
    if isinstance(behavior, dict):
        changed["behavior"] = behavior
    return _with_annotations({**autoscaler, "spec": changed}, notes)


def _autoscaler_to_v1(autoscaler: Json) -> Json:
    spec = autoscaler.get("spec")
    if not isinstance(spec, dict):
        return autoscaler
    # Stored metrics may have any shape: a metric of another shape is preserved as it is.
    listed = spec.get("metrics")
    share, others = None, []
    for metric in listed if isinstance(listed, list) else []:
        resource = subobject(metric, "resource")
        utilization = subobject(resource, "target").get("averageUtilization")
        if share is None and utilization and resource.get("name") == "cpu":
            share = utilization
        else:
            others.append(metric)
    changed = {name: spec[name] for name in spec if name not in ("metrics", "behavior")}
    if share is not None:
        changed[CPU_TARGET_FIELD] = share
    notes = dict(subobject(autoscaler.get("metadata"), "annotations"))
    # Annotations hold what v1 has no fields for, so that writing v1 back loses nothing.
    conditions = subobject(autoscaler, "status").get(CONDITIONS)
    behavior = spec.get("behavior")
    for note, value in (
        (METRICS_ANNOTATION, others),
        (BEHAVIOR_ANNOTATION, behavior),
        (CONDITIONS_ANNOTATION, conditions),
    ):
        if value:
            notes[note] = encode_json(value).decode()
    changes: Json = {"spec": changed}
    if isinstance(status := autoscaler.get("status"), dict):
        changes["status"] = _status_to_v1(status)
    return _with_annotations({**autoscaler, **changes}, notes)


def _status_to_v1(status: Json) -> Json:
    """Return the v1 status: CPU utilization is the only metric."""
    listed = status.get("currentMetrics")
    resources = [subobject(m, "resource") for m in (listed if isinstance(listed, list) else ())]
    seen = [subobject(r, "current").get("averageUtilization")
            for r in resources if r.get("name") == "cpu"]  # fmt: skip
    rest = {
        name: value for name, value in status.items() if name not in ("currentMetrics", CONDITIONS)
    }
    return rest | ({CPU_CURRENT_FIELD: seen[0]} if seen and seen[0] is not None else {})


def _parse_annotation(text: object) -> object:
    try:
        return read_json(text.encode()) if isinstance(text, str) else None
    except StatusError:
        return None


def _with_annotations(obj: Json, notes: Json) -> Json:
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or notes == (meta.get("annotations") or {}):
        return obj
    rest = {name: value for name, value in meta.items() if name != "annotations"}
    return {**obj, "metadata": rest | ({"annotations": notes} if notes else {})}
