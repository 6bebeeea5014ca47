"""Policy rules: which actions they allow.

A rule is a PolicyRule as JSON. Rules only allow; no rule denies.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gangline.api.meta.selectors import SelectorError, parse_field_selector
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import RequestUser

ALL = "*"
FULL_AUTHORITY: tuple[Json, ...] = (
    {"apiGroups": [ALL], "resources": [ALL], "verbs": [ALL]},
    {"nonResourceURLs": [ALL], "verbs": [ALL]},
)
"""The rules of ``cluster-admin``."""

_LISTS = frozenset({"apiGroups", "resources", "resourceNames", "verbs"})


class AccessAttributes(NamedTuple):
    """An action of a user that is authorized or not."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    field_selector: str = ""
    """The field selector of a list or watch."""

    @property
    def full_resource(self) -> str:
        """The resource with its subresource, in the notation of rules."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def selected_value(field_selector: str, field: str) -> str:
    """Return the value that a field selector requires of a field; empty if it requires none."""
    if not field_selector:
        return ""
    try:
        requirements = parse_field_selector(field_selector).requirements
    except SelectorError:
        return ""
    found = (r for r in requirements if r.key == field and r.operator == "=")
    return next((requirement.values[0] for requirement in found), "")


def rule_allows(rule: Json, attributes: AccessAttributes) -> bool:
    if not _contains(rule.get("verbs"), attributes.verb):
        return False
    if attributes.path:
        return any(path_covers(path, attributes.path) for path in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames") or ()
    return (
        _resource_covers(rule.get("resources") or (), attributes.full_resource)
        and _contains(rule.get("apiGroups"), attributes.group)
        and (not names or attributes.name in names)
    )


def index_rule(rule: Json) -> Json:
    """Return a rule for ``rule_allows`` whose lists are sets: a user may write very long lists."""
    return {
        name: frozenset(values) if name in _LISTS and isinstance(values, list) else values
        for name, values in rule.items()
    }


def subject_names(subjects: Iterable[Json], namespace: str) -> frozenset[tuple[str, str]]:
    """Return the users and groups that the subjects of a binding are, as in ``names_of``.

    ``namespace`` is that of the binding, for service accounts without one.
    """
    found = set[tuple[str, str]]()
    for subject in subjects:
        kind, name = subject.get("kind"), subject.get("name")
        if kind == "ServiceAccount":
            within = subject.get("namespace") or namespace
            if within:
                found.add(("User", f"system:serviceaccount:{within}:{name}"))
        elif kind in ("User", "Group") and isinstance(name, str):
            found.add((kind, name))
    return frozenset(found)


def names_of(user: RequestUser) -> frozenset[tuple[str, str]]:
    """Return a user and its groups as ``subject_names`` does."""
    return frozenset({("User", user.name), *(("Group", group) for group in user.groups)})


def merge_rules(parts: Iterable[Json]) -> list[Json]:
    """Combine rules that differ only in their verbs."""
    merged: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for rule in parts:
        key = tuple(
            tuple(rule.get(name) or ())
            for name in ("apiGroups", "resources", "resourceNames", "nonResourceURLs")
        )
        verbs = merged.setdefault(key, [])
        verbs += [verb for verb in rule.get("verbs") or () if verb not in verbs]
    return [
        {
            name: list(values)
            for name, values in zip(
                ("apiGroups", "resources", "resourceNames", "nonResourceURLs"), key, strict=True
            )
            if values
        }
        | {"verbs": verbs}
        for key, verbs in merged.items()
    ]


def format_rule(rule: Json) -> str:
    """Return a rule in the notation of Kubernetes' messages."""
    labels = {
        "apiGroups": "APIGroups", "resources": "Resources", "resourceNames": "ResourceNames",
        "nonResourceURLs": "NonResourceURLs", "verbs": "Verbs",
    }  # fmt: skip
    parts = []
    for name, label in labels.items():
        values = rule.get(name)
        if values:
            separator = " " if name == "verbs" else ", "
            listed = separator.join(f'"{value}"' for value in values)
            parts.append(f"{label}:[{listed}]")
    return f"{{{', '.join(parts)}}}"


def _resource_covers(listed: Collection[str], resource: str) -> bool:
    if ALL in listed or resource in listed:
        return True
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"{ALL}/{subresource}" in listed


def _contains(listed: Collection[str] | None, value: str) -> bool:
    return listed is not None and (ALL in listed or value in listed)


def path_covers(pattern: str, path: str) -> bool:
    """Return True if a path, or a pattern that ends with ``*``, covers another."""
    if pattern.endswith(ALL):
        return path.startswith(pattern.rstrip(ALL))
    return pattern == path
