"""Objects from files: YAML or JSON, several objects in one file, lists; errors have a location.

``apply_changes`` implements ``--set PATH=VALUE``.
"""

import copy
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from gangline.api.job_resources import find_job_kind
from gangline.api.meta.resource import Resource
from gangline.api.resources import BUILT_IN_RESOURCES, CUSTOM_RESOURCES
from gangline.api.validation.validate import check_manifest
from gangline.api.yaml_text import InvalidYamlError, load_yaml_documents
from gangline.cli.errors import CommandError, ExitCode

_STEP = re.compile(r"((?:\\.|[^.\[\]\\])+)|\[(\d+)\]")


def apply_changes(manifests: list[dict[str, Any]], changes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects with the fields set in every object of our own kinds.

    If there is no such object, the fields are set in all objects. Values are parsed as YAML: ``3``
    is a number.
    """
    if not changes:
        return manifests
    ours = {(resource.api_version, resource.kind) for resource in CUSTOM_RESOURCES}
    changed = copy.deepcopy(manifests)
    meant = [
        resource for resource in changed if (resource["apiVersion"], resource["kind"]) in ours
    ] or changed
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
        match = _STEP.match(path, at)
        if match is None:
            raise _wrong(change, "write names with '.' between them, and [0] for a place in a list")
        name, place = match.groups()
        steps.append(re.sub(r"\\(.)", r"\1", name) if place is None else int(place))
        at = match.end()
    return steps


def _value(change: str, text: str) -> Any:
    import yaml

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


STDIN = "-"
MAX_BYTES = 16 << 20
"""Limit for one file: a data file that was named by mistake is refused before it is parsed."""


def read_manifests(source: str) -> list[dict[str, Any]]:
    """Read all objects of a file (``-``: standard input).

    Raises:
        CommandError: the file cannot be read, or a document is not an object; has its location.
    """
    try:
        documents = load_yaml_documents(_text(source))
    except InvalidYamlError as error:
        raise _usage(f"{_name(source)} is not valid YAML: {error}") from error
    objects = [
        _check_object(object_, where)
        for number, document in enumerate(documents, 1)
        for object_, where in _expand_list(document, f"{_name(source)}, document {number}")
    ]
    if not objects:
        raise _usage(f"{_name(source)} has no object: write one with apiVersion and kind")
    return objects


def check_manifests(manifests: Iterable[dict[str, Any]]) -> list[str]:
    """Refuse objects with errors that can be found without the cluster.

    Returns warnings about fields of valid objects that probably do not have the intended effect.

    Raises:
        CommandError: lists every error with its field and the expected value.
    """
    lines: list[str] = []
    warnings: list[str] = []
    for manifest in manifests:
        problems = check_manifest(manifest)
        name = f"{manifest['kind']} {manifest['metadata'].get('name', '')!r}"
        warnings += [f"{name}: {warning}" for warning in problems.warnings]
        if problems.errors:
            lines.append(f"{name} has {_mistakes(len(problems.errors))}:")
            lines += [f"  {error}" for error in problems.errors]
    if lines:
        raise _usage("\n".join(lines))
    return warnings


def _mistakes(count: int) -> str:
    return "1 error" if count == 1 else f"{count} errors"


def _text(source: str) -> str:
    try:
        if source == STDIN:
            return sys.stdin.read()
        path = Path(source)
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            raise _usage(f"{source} is larger than {MAX_BYTES >> 20} MiB: is it a manifest?")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _usage(f"no file {source}") from None
    except UnicodeDecodeError:
        raise _usage(f"{_name(source)} is not text (UTF-8): is it a manifest?") from None
    except OSError as error:
        raise _usage(f"cannot read {source}: {error.strerror}") from error


def _expand_list(document: Any, where: str) -> Iterator[tuple[Any, str]]:
    """Yield the objects of a document with their locations; a ``List`` has several."""
    if not isinstance(document, dict) or document.get("kind") != "List":
        yield document, where
        return
    items = document.get("items") or []
    if not isinstance(items, list):
        raise _usage(f"{where}: items of a List must be a list; write '- ' before each object")
    for number, item in enumerate(items):
        yield item, f"{where}, items[{number}]"


def _check_object(document: Any, where: str) -> dict[str, Any]:
    """Return a document that has the fields of every object."""
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise _usage(f"{where}: an object is expected, with apiVersion and kind, not a {kind}")
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str) or not document[field]:
            raise _usage(f"{where}: the object has no {field}")
    if not isinstance(document.get("metadata"), dict):
        raise _usage(f"{where}: the {document['kind']} has no metadata with a name")
    _check_kind(document, where)
    return document


def _check_kind(document: dict[str, Any], where: str) -> None:
    """Refuse a misspelt kind of ours; kinds that only the cluster knows are accepted."""
    resources = (*BUILT_IN_RESOURCES, *CUSTOM_RESOURCES)
    kinds = {resource.kind for resource in resources}
    kind, version = document["kind"], document["apiVersion"]
    custom = [
        served
        for resource in CUSTOM_RESOURCES
        if resource.kind == kind
        for served in _versions(resource)
    ]
    if custom and version not in custom:
        raise _usage(f"{where}: {kind} has apiVersion {' or '.join(custom)}, not {version}")
    if kind not in kinds and version in {resource.api_version for resource in resources}:
        near = get_close_matches(kind, kinds, n=1)
        advice = f"; did you mean {near[0]}?" if near else ""
        raise _usage(f"{where}: unknown kind {kind!r} in {version}{advice}")


def _versions(resource: Resource[Any]) -> tuple[str, ...]:
    job_kind = find_job_kind(resource.api_version, resource.kind)
    return job_kind.api_versions if job_kind else (resource.api_version,)


def _name(source: str) -> str:
    return "standard input" if source == STDIN else source


def _usage(message: str) -> CommandError:
    return CommandError(message, code=ExitCode.USAGE)
