"""Whether some policy rules cover others: every action that these allow, those allow too.

The comparison is that of Kubernetes: a rule is divided into parts with one verb, one group, one
resource and one name, and a single rule must cover each part. The parts are as many as the product
of the four lists, so they are compared as sets: values that the same rules contain are one class,
and only products of classes are compared.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

from gangline.local.apiserver.auth.rules import ALL, path_covers
from gangline.local.apiserver.core.registry import Json

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
        found = self._resources.get(resource, 0) | self._resources.get(ALL, 0)
        _, slash, subresource = resource.partition("/")
        return found | self._resources.get(f"{ALL}/{subresource}", 0) if slash else found

    def _name(self, name: str) -> Bits:
        return self._names.get(name, 0) | self._without_names

    def _path(self, path: str) -> Bits:
        found = self._paths.get(path, 0)
        for prefix in self._prefixes:
            if path_covers(prefix, path):
                found |= self._paths[prefix]
        return found


def uncovered_rules(held: Iterable[Json], granted: Iterable[Json]) -> Iterator[Json]:
    """Yield the parts of ``granted`` that no rule of ``held`` covers, each with one verb."""
    owned = HeldRules(held)
    for rule in granted:
        yield from owned.uncovered(rule)


def _add(found: dict[str, Bits], values: Sequence[str] | None, bit: Bits) -> None:
    for value in values or ():
        found[value] = found.get(value, 0) | bit


def _classes(values: Sequence[str] | None, bits_of: Callable[[str], Bits]) -> dict[Bits, list[str]]:
    """Return the values by the held rules that contain them."""
    found: dict[Bits, list[str]] = {}
    for value in dict.fromkeys(values or ()):
        found.setdefault(bits_of(value), []).append(value)
    return found


def _uncovered(lists: Sequence[Mapping[Bits, list[str]]]) -> Iterator[tuple[str, ...]]:
    """Yield each choice of one value per list that no single rule contains."""
    for number, choice in enumerate(product(*(classes.items() for classes in lists))):
        together = -1
        for bits, _ in choice:
            together &= bits
        if not together or number >= MAX_COMPARISONS:
            yield from product(*(values for _, values in choice))
