"""Policy rules: which actions they allow, and whether some rules cover others.

A rule is a PolicyRule as JSON. Rules only allow; no rule denies. A rule covers another if it allows
every action that the other allows. The comparison is that of Kubernetes: the other rule is divided
into rules with one verb, one group, one resource and one name, and one rule must cover each part.
"""

from collections.abc import Collection, Iterable, Iterator
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
        return any(
            _path_covers(path, attributes.path) for path in rule.get("nonResourceURLs") or ()
        )
    names = rule.get("resourceNames") or ()
    return (
        _resource_covers(rule.get("resources") or (), attributes.full_resource)
        and _contains(rule.get("apiGroups"), attributes.group)
        and (not names or attributes.name in names)
    )


def subject_matches(subject: Json, user: RequestUser, namespace: str) -> bool:
    """Return True if the subject of a binding is this user or one of its groups.

    ``namespace`` is that of the binding, for service accounts without one.
    """
    match subject.get("kind"):
        case "User":
            return bool(subject.get("name") == user.name)
        case "Group":
            return subject.get("name") in user.groups
        case "ServiceAccount":
            within = subject.get("namespace") or namespace
            name = f"system:serviceaccount:{within}:{subject.get('name')}"
            return bool(within) and name == user.name
    return False


def uncovered_rules(held: Iterable[Json], granted: Iterable[Json]) -> list[Json]:
    """Return the parts of ``granted`` that no rule of ``held`` covers, each with one verb."""
    owned = list(held)
    return [
        part
        for rule in granted
        for part in _divide(rule)
        if not any(_covers(rule_held, part) for rule_held in owned)
    ]


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


def _divide(rule: Json) -> Iterator[Json]:
    verbs = rule.get("verbs") or ()
    for group in rule.get("apiGroups") or ():
        for resource in rule.get("resources") or ():
            for verb in verbs:
                part = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                names = rule.get("resourceNames") or ()
                yield from ({**part, "resourceNames": [name]} for name in names)
                if not names:
                    yield part
    for path in rule.get("nonResourceURLs") or ():
        yield from ({"nonResourceURLs": [path], "verbs": [verb]} for verb in verbs)


def _covers(owner: Json, part: Json) -> bool:
    """Return True if a rule covers a part, which has one verb and one resource or path."""
    if not _contains(owner.get("verbs"), part["verbs"][0]):
        return False
    if "nonResourceURLs" in part:
        path = part["nonResourceURLs"][0]
        return any(_path_covers(held, path) for held in owner.get("nonResourceURLs") or ())
    names, owned_names = part.get("resourceNames"), owner.get("resourceNames") or ()
    return (
        _contains(owner.get("apiGroups"), part["apiGroups"][0])
        and _resource_covers(owner.get("resources") or (), part["resources"][0])
        and (not owned_names or (names is not None and names[0] in owned_names))
    )


def _resource_covers(listed: Collection[str], resource: str) -> bool:
    if ALL in listed or resource in listed:
        return True
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"{ALL}/{subresource}" in listed


def _contains(listed: Collection[str] | None, value: str) -> bool:
    return listed is not None and (ALL in listed or value in listed)


def _path_covers(pattern: str, path: str) -> bool:
    if pattern.endswith(ALL):
        return path.startswith(pattern.rstrip(ALL))
    return pattern == path
