"""The use of quotas, computed from the objects of a store and its staged writes."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gangline.api.meta.json_objects import subobject
from gangline.api.quantity import Quantity, quantity_or_none
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.quota.scopes import PodScopes, ScopeRule, pod_scopes, scope_rules
from gangline.local.apiserver.quota.usage import (
    ONE,
    PODS,
    Usage,
    add_usage,
    is_plain_count,
    object_usage,
    storage_name_of,
)
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import ObjectRevision

QUOTAS = "resourcequotas."
ZERO = Quantity(0)


class QuotaRules(NamedTuple):
    """The limits of one quota."""

    key: str
    record: ObjectRevision
    hard: Usage
    scopes: tuple[ScopeRule, ...]

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    def applies_to(self, scopes: PodScopes | None) -> bool:
        """Return True if the quota counts a pod of these scopes; None: another kind of object."""
        if scopes is None:
            return not self.scopes
        return all(rule.matches(scopes) for rule in self.scopes)


class _Measured(NamedTuple):
    """The use of one state of an object."""

    record: ObjectRevision
    usage: Usage
    scopes: PodScopes | None


class QuotaLedger:
    """Computes the use of quotas. What it has read of an object is valid until its next write."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._cache = store.cache(QUOTAS)
        self._rules: dict[str, QuotaRules] = {}
        self._measured: dict[tuple[str, str], dict[str, _Measured]] = {}

    def namespaces(self) -> set[str]:
        """Return the namespaces that have a quota."""
        return {key.partition("/")[0] for key in self._cache.records}

    def quotas(self, namespace: str) -> list[QuotaRules]:
        """Return the quotas of a namespace in the order of their names."""
        if not self._cache.records and not self._cache.staged:
            return []
        return [self._parse(record) for record in self._cache.latest_in(namespace)]

    def _parse(self, record: ObjectRevision) -> QuotaRules:
        known = self._rules.get(record.key)
        if known is None or known.record is not record:
            spec = subobject(read_json(record.body), "spec")
            limits = ((k, quantity_or_none(v)) for k, v in subobject(spec, "hard").items())
            hard = {name: limit for name, limit in limits if limit is not None}
            known = QuotaRules(record.key, record, hard, scope_rules(spec))
            self._rules[record.key] = known
        return known

    def used(self, quota: QuotaRules, resources: Iterable[str]) -> Usage:
        """Return the present use of some resources of a quota."""
        namespace = quota.key.partition("/")[0]
        found: Usage = {}
        measured: dict[str, list[str]] = {}
        for resource in resources:
            storage_name = storage_name_of(resource)
            if quota.scopes and storage_name != PODS:
                found[resource] = ZERO
            elif is_plain_count(resource) and not quota.scopes:
                found[resource] = ONE * self._store.cache(storage_name).count_in(namespace)
            else:
                found[resource] = ZERO
                measured.setdefault(storage_name, []).append(resource)
        for storage_name, names in measured.items():
            for each in self._measure(storage_name, namespace):
                if quota.applies_to(each.scopes):
                    add_usage(found, {n: each.usage[n] for n in names if n in each.usage})
        return found

    def _measure(self, storage_name: str, namespace: str) -> Iterator[_Measured]:
        known = self._measured.get((storage_name, namespace), {})
        present: dict[str, _Measured] = {}
        for record in self._store.cache(storage_name).latest_in(namespace):
            each = known.get(record.key)
            if each is None or each.record is not record:
                each = _Measured(record, *measure(storage_name, read_json(record.body)))
            present[record.key] = each
        self._measured[storage_name, namespace] = present
        yield from present.values()

    def forget(self, namespace: str) -> None:
        """Drop what was read of a namespace that has no quota any more."""
        self._measured = {
            known: found for known, found in self._measured.items() if known[1] != namespace
        }
        self._rules = {
            key: rules for key, rules in self._rules.items() if key.partition("/")[0] != namespace
        }


def measure(storage_name: str, obj: Json) -> tuple[Usage, PodScopes | None]:
    """Return what an object uses, and the scopes of a pod."""
    scopes = pod_scopes(obj) if storage_name == PODS else None
    return object_usage(storage_name, obj), scopes
