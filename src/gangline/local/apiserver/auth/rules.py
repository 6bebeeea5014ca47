"""Policy rules: which actions they allow, and whether some rules cover others.

A rule is a PolicyRule as JSON. Rules only allow; no rule denies. Rules cover others if they allow
every action that the others allow. The comparison is that of Kubernetes: a rule is divided into
parts with one verb, one group, one resource and one name, and a single rule must cover each part.
The parts are as many as the product of the four lists, so they are compared as sets: values that
the same rules contain are one class, and only products of classes are compared.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
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
    requirements_of_field = (r for r in requirements if r.key == field and r.operator == "=")
    return next((requirement.values[0] for requirement in requirements_of_field), "")


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
    names = set[tuple[str, str]]()
    for subject in subjects:
        kind, name = subject.get("kind"), subject.get("name")
        if kind == "ServiceAccount":
            within = subject.get("namespace") or namespace
            if within:
                names.add(("User", f"system:serviceaccount:{within}:{name}"))
        elif kind in ("User", "Group") and isinstance(name, str):
            names.add((kind, name))
    return frozenset(names)


def names_of(user: RequestUser) -> frozenset[tuple[str, str]]:
    """Return a user and its groups as ``subject_names`` does."""
    return frozenset({("User", user.name), *(("Group", group) for group in user.groups)})


def merge_rules(parts: Iterable[Json]) -> list[Json]:
    """Combine rules that differ only in their verbs."""
    names = ("apiGroups", "resources", "resourceNames", "nonResourceURLs")
    merged: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for rule in parts:
        verbs = merged.setdefault(tuple(tuple(rule.get(name) or ()) for name in names), [])
        verbs += [verb for verb in rule.get("verbs") or () if verb not in verbs]
    return [
        {name: list(values) for name, values in zip(names, key, strict=True) if values}
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


MAX_COMPARISONS = 100_000
"""Products of classes that are compared for one rule. A rule with more of them, which no list of
usual length has, counts as not covered.
"""

Bits = int
"""A set of held rules: bit ``i`` is rule ``i``."""


class HeldRules:
    """The rules of a user, by the values in their lists."""

    def __init__(self, rules: Iterable[Json]) -> None:
        self._verbs: dict[str, Bits] = {}
        self._groups: dict[str, Bits] = {}
        self._resources: dict[str, Bits] = {}
        self._names: dict[str, Bits] = {}
        self._paths: dict[str, Bits] = {}
        self._without_names: Bits = 0
        for number, rule in enumerate(rules):
            bit = 1 << number
            _add(self._verbs, rule.get("verbs"), bit)
            _add(self._groups, rule.get("apiGroups"), bit)
            _add(self._resources, rule.get("resources"), bit)
            _add(self._names, rule.get("resourceNames"), bit)
            _add(self._paths, rule.get("nonResourceURLs"), bit)
            if not rule.get("resourceNames"):
                self._without_names |= bit
        self._prefixes = [path for path in self._paths if path.endswith(ALL)]

    def uncovered(self, rule: Json) -> Iterator[Json]:
        """Yield the parts of a rule that no held rule covers, each with one verb."""
        verbs = _classes(rule.get("verbs"), self._verb)
        resources = _classes(rule.get("resources"), self._resource)
        groups = _classes(rule.get("apiGroups"), self._group)
        names = _classes(rule.get("resourceNames"), self._name) or {self._without_names: [""]}
        for group, resource, verb, name in _uncovered((groups, resources, verbs, names)):
            part = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
            yield {**part, "resourceNames": [name]} if name else part
        paths = _classes(rule.get("nonResourceURLs"), self._path)
        for path, verb in _uncovered((paths, verbs)):
            yield {"nonResourceURLs": [path], "verbs": [verb]}

    def _verb(self, verb: str) -> Bits:
        return self._verbs.get(verb, 0) | self._verbs.get(ALL, 0)

    def _group(self, group: str) -> Bits:
        return self._groups.get(group, 0) | self._groups.get(ALL, 0)

    def _resource(self, resource: str) -> Bits:
        bits = self._resources.get(resource, 0) | self._resources.get(ALL, 0)
        _, slash, subresource = resource.partition("/")
        return bits | self._resources.get(f"{ALL}/{subresource}", 0) if slash else bits

    def _name(self, name: str) -> Bits:
        return self._names.get(name, 0) | self._without_names

    def _path(self, path: str) -> Bits:
        bits = self._paths.get(path, 0)
        for prefix in self._prefixes:
            if path_covers(prefix, path):
                bits |= self._paths[prefix]
        return bits


def uncovered_rules(held: Iterable[Json], granted: Iterable[Json]) -> Iterator[Json]:
    """Yield the parts of ``granted`` that no rule of ``held`` covers, each with one verb."""
    owned = HeldRules(held)
    for rule in granted:
        yield from owned.uncovered(rule)


def _add(bits_by_value: dict[str, Bits], values: Sequence[str] | None, bit: Bits) -> None:
    for value in values or ():
        bits_by_value[value] = bits_by_value.get(value, 0) | bit


def _classes(values: Sequence[str] | None, bits_of: Callable[[str], Bits]) -> dict[Bits, list[str]]:
    """Return the values by the held rules that contain them."""
    values_by_bits: dict[Bits, list[str]] = {}
    for value in dict.fromkeys(values or ()):
        values_by_bits.setdefault(bits_of(value), []).append(value)
    return values_by_bits


def _uncovered(lists: Sequence[Mapping[Bits, list[str]]]) -> Iterator[tuple[str, ...]]:
    """Yield each choice of one value per list that no single rule contains."""
    for number, choice in enumerate(product(*(classes.items() for classes in lists))):
        together = -1
        for bits, _ in choice:
            together &= bits
        if not together or number >= MAX_COMPARISONS:
            yield from product(*(values for _, values in choice))
