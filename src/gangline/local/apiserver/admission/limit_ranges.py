"""LimitRanges: the amounts that containers get which name none, and the bounds of a namespace.

Source of the rules: https://kubernetes.io/docs/concepts/policy/limit-range
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.machinery.defaults import all_containers
from gangline.local.apiserver.quota import Usage, container_limits, pod_total, quantities

ANNOTATION = "kubernetes.io/limit-ranger"
"""Tells what was set in a pod."""
_DEFAULTS = (("request", "requests", "defaultRequest"), ("limit", "limits", "default"))

Resources: TypeAlias = tuple[str, Usage, Usage]
"""What a bound applies to, its requests and its limits."""


def apply_limit_ranges(ranges: Iterable[Json], pod: Json) -> None:
    """Give the containers of a pod the amounts that they do not name, in place."""
    defaults: dict[str, Json] = {field: {} for _, field, _ in _DEFAULTS}
    for _, item in _items(ranges, "Container"):
        for _, field, source in _DEFAULTS:
            defaults[field] = subobject(item, source) | defaults[field]
    notes = []
    spec = subobject(pod, "spec")
    listed = [("container", each) for each in objects_in(spec.get("containers"))]
    listed += [("init container", each) for each in objects_in(spec.get("initContainers"))]
    for role, container in listed:
        for word, field, _ in _DEFAULTS:
            resources = container.get("resources")
            written = subobject(container, "resources", field)
            missing = {n: value for n, value in defaults[field].items() if n not in written}
            if missing and isinstance(resources, dict | None):
                container["resources"] = {**(resources or {}), field: {**written, **missing}}
                names = ", ".join(sorted(missing))
                notes.append(f"{names} {word} for {role} {container.get('name')}")
    metadata = pod["metadata"]
    if notes and isinstance(metadata.get("annotations"), dict | None):
        note = {ANNOTATION: f"LimitRanger plugin set: {'; '.join(notes)}"}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **note}


def violated_bounds(ranges: Iterable[Json], kind: str, obj: Json) -> list[str]:
    """Return what a pod or a claim violates; empty for one within all bounds."""
    ranges = list(ranges)
    violated = []
    for type_, resources in _bounded(kind, obj):
        for name, item in _items(ranges, type_):
            violated += [f"{text} (LimitRange {name})" for text in _violations(item, resources)]
    return violated


def _bounded(kind: str, obj: Json) -> Iterator[tuple[str, Resources]]:
    spec = subobject(obj, "spec")
    if kind == "PersistentVolumeClaim":
        requests = quantities(subobject(spec, "resources", "requests"))
        yield kind, (kind, requests, requests)
        return
    for container in all_containers(spec):
        requests = _requests(container)
        yield "Container", ("Container", requests, container_limits(container))
    yield "Pod", ("Pod", pod_total(spec, _requests), pod_total(spec, container_limits))


def _violations(item: Json, of: Resources) -> Iterator[str]:
    what, requests, limits = of
    named = (("request", requests), ("limit", limits))
    # A minimum requires a request, a maximum a limit; the other amount is bounded where it is.
    for word, bound, amounts in (("minimum", "min", named), ("maximum", "max", named[::-1])):
        for name, value in sorted(quantities(subobject(item, bound)).items()):
            shown = f"{word} {name} usage per {what} is {value}"
            if name not in amounts[0][1]:
                yield f"{shown}. No {amounts[0][0]} is specified"
                continue
            for field, usage in amounts:
                amount = usage.get(name, value)
                if amount < value if bound == "min" else amount > value:
                    yield f"{shown}, but {field} is {amount}"
                    break
    for name, value in sorted(quantities(subobject(item, "maxLimitRequestRatio")).items()):
        shown = f"{name} max limit to request ratio per {what} is {value}, but"
        if not requests.get(name) or name not in limits:
            yield f"{shown} no request is specified or request is 0"
        elif limits[name].nano * 10**9 > value.nano * requests[name].nano:
            yield f"{shown} provided ratio is {limits[name].nano / requests[name].nano:f}"


def _requests(container: Json) -> Usage:
    """Return the requests alone: a limit in the place of one was made a request before."""
    return quantities(subobject(container, "resources", "requests"))


def _items(ranges: Iterable[Json], type_: str) -> Iterator[tuple[str, Json]]:
    for limit_range in ranges:
        for item in objects_in(subobject(limit_range, "spec").get("limits")):
            if item.get("type") == type_:
                yield str(limit_range["metadata"]["name"]), item
