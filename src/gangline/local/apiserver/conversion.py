"""Versions of one kind: what is stored in one is shown and accepted in the others.

Custom kinds convert by name alone (strategy None). Of the built-in kinds two have two faces: Event
(core/v1, which is stored, and events.k8s.io/v1, which says the same in other words) and the
autoscaler (autoscaling/v2, and v1, which knows no measure but the processor's load).
"""

from collections.abc import Callable, Iterable

from gangline.local.apiserver.negotiation import encode, read_json
from gangline.local.apiserver.registry import Json, Kind

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
SHARE = "targetCPUUtilizationPercentage"


def is_stored_form(kind: Kind) -> bool:
    """Whether objects are stored just as this version shows them."""
    return not kind.storage_version or kind.storage_version == kind.version


def to_stored(kind: Kind, obj: Json) -> Json:
    """Bring an object of this version into the stored one."""
    if is_stored_form(kind):
        return obj
    if kind.group == "events.k8s.io":
        return _renamed(obj, "v1", [(new, old) for old, new in EVENT_NAMES])
    if kind.kind == AUTOSCALER:
        obj = _with_metrics(obj)
    return {**obj, "apiVersion": f"{kind.group}/{kind.storage_version}"}


def from_stored(kind: Kind, obj: Json) -> Json:
    """Bring a stored object into this version."""
    if is_stored_form(kind):
        return obj
    if kind.group == "events.k8s.io":
        return _renamed(obj, kind.api_version, EVENT_NAMES)
    if kind.kind == AUTOSCALER:
        obj = _without_metrics(obj)
    return {**obj, "apiVersion": kind.api_version}


def shaper(kind: Kind) -> Callable[[bytes], bytes] | None:
    """``from_stored`` on bytes; None when there is nothing to do."""
    if is_stored_form(kind):
        return None
    return lambda body: encode(from_stored(kind, read_json(body)))


def _renamed(obj: Json, api_version: str, names: Iterable[tuple[str, str]]) -> Json:
    table = dict(names)
    renamed = {table.get(name, name): value for name, value in obj.items()}
    renamed["apiVersion"] = api_version
    return renamed


def _with_metrics(autoscaler: Json) -> Json:
    spec = autoscaler.get("spec")
    if not isinstance(spec, dict) or SHARE not in spec:
        return autoscaler
    target = {"type": "Utilization", "averageUtilization": spec[SHARE]}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    rest = {name: value for name, value in spec.items() if name != SHARE}
    return {**autoscaler, "spec": {**rest, "metrics": [metric]}}


def _without_metrics(autoscaler: Json) -> Json:
    spec = autoscaler.get("spec")
    if not isinstance(spec, dict):
        return autoscaler
    # The metrics are stored as they came: what has another shape is no share.
    listed = spec.get("metrics")
    metrics = listed if isinstance(listed, list) else []
    resources = [_part(metric, "resource") for metric in metrics]
    shares = [
        _part(resource, "target").get("averageUtilization")
        for resource in resources
        if resource.get("name") == "cpu"
    ]
    rest = {name: value for name, value in spec.items() if name != "metrics"}
    return {**autoscaler, "spec": rest | ({SHARE: shares[0]} if shares and shares[0] else {})}


def _part(value: object, name: str) -> Json:
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}
