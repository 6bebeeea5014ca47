"""``--set PATH=VALUE``: change fields of a manifest from the command line."""

import copy
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import click

from gangline.api.resources import CUSTOM_RESOURCES

_STEP = re.compile(r"((?:\\.|[^.\[\]\\])+)|\[(\d+)\]")


def apply_changes(manifests: list[dict[str, Any]], changes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects with the fields set in every object of our own kinds.

    If there is no such object, the fields are set in all objects. Values are parsed as YAML: ``3``
    is
    a number.
    """
    if not changes:
        return manifests
    ours = {(each.api_version, each.kind) for each in CUSTOM_RESOURCES}
    changed = copy.deepcopy(manifests)
    meant = [each for each in changed if (each["apiVersion"], each["kind"]) in ours] or changed
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path:
            raise _wrong(change, "write PATH=VALUE, such as spec.runPolicy.backoffLimit=3")
        for manifest in meant:
            _set(manifest, _steps(change, path), _value(change, text), change)
    return changed


def _steps(change: str, path: str) -> list[str | int]:
    steps: list[str | int] = []
    at = 0
    while at < len(path):
        at += path[at] == "."
        found = _STEP.match(path, at)
        if found is None:
            raise _wrong(change, "write names with '.' between them, and [0] for a place in a list")
        name, place = found.groups()
        steps.append(re.sub(r"\\(.)", r"\1", name) if place is None else int(place))
        at = found.end()
    return steps


def _value(change: str, text: str) -> Any:
    import yaml  # noqa: PLC0415

    try:
        return yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise _wrong(change, "the value is no YAML; put it in quotes") from error


def _set(manifest: Any, steps: list[str | int], value: Any, change: str) -> None:
    place = manifest
    for step, after in pairwise(steps):
        if isinstance(step, str) and isinstance(place, dict):
            if place.get(step) is None:
                place[step] = [] if isinstance(after, int) else {}
            place = place[step]
        else:
            place = _element(place, step, change)
    last = steps[-1]
    if isinstance(last, str) and isinstance(place, dict):
        place[last] = value
    elif isinstance(last, int) and isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        _element(place, last, change)
        place[last] = value


def _element(place: Any, step: str | int, change: str) -> Any:
    if not isinstance(place, list) or not isinstance(step, int) or step >= len(place):
        kind = "a list" if isinstance(place, list) else "no list"
        raise _wrong(change, f"there is no {step!r}: it is {kind} there")
    return place[step]


def _wrong(change: str, remedy: str) -> click.BadParameter:
    return click.BadParameter(f"{change!r}: {remedy}", param_hint="--set")
