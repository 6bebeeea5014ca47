"""ResourceQuota: what is used of the limits of a namespace, and the refusal of more.

The use is computed from the stored objects and the staged writes, as Kubernetes' evaluators count,
and never from the status of a quota. Scopes select the pods that a quota applies to. Creations
update the status themselves; every other change in a namespace with a quota is followed by a
computation of all of its use, soon after.

Invariant: ``admit`` and the staging of its write happen without a switch of tasks between them, so
concurrent requests see each other and cannot exceed a limit together.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.quantity import Quantity, quantity_or_none
from gangline.local.apiserver.core.errors import StatusError, forbidden_object
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import CacheEvent, ObjectRevision

Usage: TypeAlias = dict[str, Quantity]
"""Amounts by the names of a quota's ``hard``."""

ONE = Quantity(10**9)
PODS, SERVICES, CLAIMS = "pods.", "services.", "persistentvolumeclaims."
"""Storage names of the kinds that use more than their number."""
IGNORED = ("events.",)
"""Kinds that no quota counts."""
COUNTED = ("configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas",
           "secrets", "services")  # fmt: skip
"""Kinds whose number has the name of the kind, without ``count/``."""
REQUIRED = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
"""Limits that each container of a pod must have a value for."""
STORAGE_CLASS = ".storageclass.storage.k8s.io/"
_REQUEST_NAMES = ("cpu", "memory", "ephemeral-storage")
_POD_LEVEL = ("cpu", "memory", "hugepages-")


def storage_name_of(resource: str) -> str:
    """Return the storage name of the kind that uses a resource of a quota."""
    if resource.startswith("count/"):
        name = resource.removeprefix("count/")
        return name if "." in name else f"{name}."
    if resource in COUNTED:
        return f"{resource}."
    if resource.startswith("services."):
        return SERVICES
    if resource == "requests.storage" or STORAGE_CLASS in resource:
        return CLAIMS
    return PODS


def is_plain_count(resource: str) -> bool:
    """Return True if each object of the kind uses exactly 1."""
    return resource.startswith("count/") or resource in COUNTED


def object_usage(storage_name: str, obj: Json) -> Usage:
    """Return what an object uses; empty for kinds that no quota counts."""
    if storage_name in IGNORED:
        return {}
    plural = storage_name.removesuffix(".")
    usage = {f"count/{plural}": ONE}
    if plural in COUNTED:
        usage[plural] = ONE
    match storage_name:
        case "pods.":
            usage |= _pod_usage(obj)
        case "services.":
            usage |= _service_usage(subobject(obj, "spec"))
        case "persistentvolumeclaims.":
            usage |= _claim_usage(subobject(obj, "spec"))
    return usage


def missing_values(pod: Json, limited: Iterable[str]) -> str:
    """Return the limits that containers of a pod have no value for; empty if there are none."""
    spec = subobject(pod, "spec")
    required = sorted(set(limited) & set(REQUIRED))
    if subobject(spec, "resources"):
        return ""
    missing = []
    containers = [*objects_in(spec.get("containers")), *objects_in(spec.get("initContainers"))]
    for name in required:
        lacking = {
            str(container.get("name"))
            for container in containers
            if name not in _named(_requests(container), container_limits(container))
        }
        if lacking:
            missing.append(f"{name} for: {','.join(sorted(lacking))}")
    return "; ".join(missing)


def _pod_usage(pod: Json) -> Usage:
    """A pod that has ended uses nothing but its object."""
    if subobject(pod, "status").get("phase") in TERMINAL_PHASES:
        return {}
    spec = subobject(pod, "spec")
    return {"pods": ONE} | _named(pod_total(spec, _requests), pod_total(spec, container_limits))


def _named(requests: Usage, limits: Usage) -> Usage:
    """Return amounts by the names of quotas. The name of a request may omit ``requests.``."""
    usage: Usage = {}
    for name, amount in requests.items():
        if name in _REQUEST_NAMES or name.startswith("hugepages-"):
            usage[name] = amount
        usage[f"requests.{name}"] = amount
    for name in _REQUEST_NAMES:
        if name in limits:
            usage[f"limits.{name}"] = limits[name]
    return usage


def _requests(container: Json) -> Usage:
    resources = subobject(container, "resources")
    return quantities({**subobject(resources, "limits"), **subobject(resources, "requests")})


def container_limits(container: Json) -> Usage:
    """Return the limits of a container, or those of a pod's specification."""
    return quantities(subobject(container, "resources", "limits"))


def quantities(written: Mapping[str, Any]) -> Usage:
    """Return the amounts that can be read."""
    parsed = ((name, quantity_or_none(value)) for name, value in written.items())
    return {name: quantity for name, quantity in parsed if quantity is not None}


def pod_total(spec: Json, read: Callable[[Json], Usage]) -> Usage:
    """Sum containers and sidecars; the largest init container counts if it is more.

    The overhead is added. Values of the pod replace the sum of its containers.
    """
    sidecars: Usage = {}
    peaks: list[Usage] = []
    for container in objects_in(spec.get("initContainers")):
        own = read(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, own)
            peaks.append(sidecars)
        else:
            peaks.append(_sum(sidecars, own))
    total = sidecars
    for container in objects_in(spec.get("containers")):
        total = _sum(total, read(container))
    for peak in peaks:
        total = {
            name: max(total.get(name, amount), peak.get(name, amount))
            for name, amount in (total | peak).items()
        }
    own = read(spec)
    total |= {name: own[name] for name in own if name.startswith(_POD_LEVEL)}
    overhead = quantities(subobject(spec, "overhead"))
    if read is container_limits:
        overhead = {name: amount for name, amount in overhead.items() if name in total}
    return _sum(total, overhead)


def _sum(left: Usage, right: Usage) -> Usage:
    return left | {
        name: left[name] + amount if name in left else amount for name, amount in right.items()
    }


def _service_usage(spec: Json) -> Usage:
    usage: Usage = {}
    kind, ports = spec.get("type"), objects_in(spec.get("ports"))
    if kind == "LoadBalancer":
        usage["services.loadbalancers"] = ONE
        if spec.get("allocateLoadBalancerNodePorts") is False:
            ports = [port for port in ports if port.get("nodePort")]
    if kind in ("NodePort", "LoadBalancer"):
        usage["services.nodeports"] = ONE * len(ports)
    return usage


def _claim_usage(spec: Json) -> Usage:
    usage: Usage = {}
    storage = quantities(subobject(spec, "resources", "requests")).get("storage")
    if storage is not None:
        usage["requests.storage"] = storage
    storage_class = spec.get("storageClassName")
    if storage_class and isinstance(storage_class, str):
        usage[f"{storage_class}{STORAGE_CLASS}persistentvolumeclaims"] = ONE
        if storage is not None:
            usage[f"{storage_class}{STORAGE_CLASS}requests.storage"] = storage
    return usage


PRIORITY_CLASS = "PriorityClass"
_QUALITY_NAMES = ("cpu", "memory", "limits.cpu", "limits.memory")


class PodScopes(NamedTuple):
    """What scopes select a pod by."""

    names: frozenset[str]
    """The scopes that contain the pod, but for that of priority classes."""
    priority_class: str


class ScopeRule(NamedTuple):
    """One scope of a quota."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()

    def matches(self, pod: PodScopes) -> bool:
        """Return True if a pod is in the scope. An unknown scope contains no pod."""
        if self.name != PRIORITY_CLASS:
            return self.name in pod.names
        match self.operator:
            case "In":
                return pod.priority_class in self.values
            case "NotIn":
                return pod.priority_class not in self.values
            case "Exists" | "DoesNotExist":
                return bool(pod.priority_class) is (self.operator == "Exists")
        return False


def scope_rules(spec: Json) -> tuple[ScopeRule, ...]:
    """Return the scopes of a quota, all of which a pod must be in."""
    names = spec.get("scopes")
    rules = [ScopeRule(str(name)) for name in names] if isinstance(names, list) else []
    for expression in objects_in(subobject(spec, "scopeSelector").get("matchExpressions")):
        values = expression.get("values")
        chosen = tuple(map(str, values)) if isinstance(values, list) else ()
        rules.append(
            ScopeRule(str(expression.get("scopeName")), str(expression.get("operator")), chosen)
        )
    return tuple(rules)


def pod_scopes(pod: Json) -> PodScopes:
    spec = subobject(pod, "spec")
    usage = object_usage("pods.", {"spec": spec})
    has_deadline = spec.get("activeDeadlineSeconds") is not None
    names = {"Terminating" if has_deadline else "NotTerminating"}
    names.add("NotBestEffort" if any(map(usage.get, _QUALITY_NAMES)) else "BestEffort")
    if _crosses_namespaces(spec):
        names.add("CrossNamespacePodAffinity")
    return PodScopes(frozenset(names), str(spec.get("priorityClassName") or ""))


def _crosses_namespaces(spec: Json) -> bool:
    terms: list[Json] = []
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity = subobject(spec, "affinity", kind)
        terms += objects_in(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
        for weighted in objects_in(affinity.get("preferredDuringSchedulingIgnoredDuringExecution")):
            terms.append(subobject(weighted, "podAffinityTerm"))
    return any(
        term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms
    )


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
        rules = self._rules.get(record.key)
        if rules is None or rules.record is not record:
            spec = subobject(read_json(record.body), "spec")
            limits = ((k, quantity_or_none(v)) for k, v in subobject(spec, "hard").items())
            hard = {name: limit for name, limit in limits if limit is not None}
            rules = QuotaRules(record.key, record, hard, scope_rules(spec))
            self._rules[record.key] = rules
        return rules

    def used(self, quota: QuotaRules, resources: Iterable[str]) -> Usage:
        """Return the present use of some resources of a quota."""
        namespace = quota.key.partition("/")[0]
        total: Usage = {}
        measured: dict[str, list[str]] = {}
        for resource in resources:
            storage_name = storage_name_of(resource)
            if quota.scopes and storage_name != PODS:
                total[resource] = ZERO
            elif is_plain_count(resource) and not quota.scopes:
                total[resource] = ONE * self._store.cache(storage_name).count_in(namespace)
            else:
                total[resource] = ZERO
                measured.setdefault(storage_name, []).append(resource)
        for storage_name, names in measured.items():
            for sample in self._measure(storage_name, namespace):
                if quota.applies_to(sample.scopes):
                    more = {n: sample.usage[n] for n in names if n in sample.usage}
                    total = _sum(total, more)
        return total

    def _measure(self, storage_name: str, namespace: str) -> Iterator[_Measured]:
        before = self._measured.get((storage_name, namespace), {})
        present: dict[str, _Measured] = {}
        for record in self._store.cache(storage_name).latest_in(namespace):
            measured = before.get(record.key)
            if measured is None or measured.record is not record:
                measured = _Measured(record, *measure(storage_name, read_json(record.body)))
            present[record.key] = measured
        self._measured[storage_name, namespace] = present
        yield from present.values()

    def forget(self, namespace: str) -> None:
        """Drop what was read of a namespace that has no quota any more."""
        self._measured = {
            place: measured for place, measured in self._measured.items() if place[1] != namespace
        }
        self._rules = {
            key: rules for key, rules in self._rules.items() if key.partition("/")[0] != namespace
        }


def measure(storage_name: str, obj: Json) -> tuple[Usage, PodScopes | None]:
    """Return what an object uses, and the scopes of a pod."""
    scopes = pod_scopes(obj) if storage_name == PODS else None
    return object_usage(storage_name, obj), scopes


GROWING = (SERVICES, CLAIMS)
"""Kinds of which an update may use more than before."""


class QuotaCharge(NamedTuple):
    """A quota whose status counts a write, to be staged with it."""

    record: ObjectRevision
    obj: Json


class QuotaAdmission:
    """Compares writes with the quotas of their namespace."""

    def __init__(self, ledger: QuotaLedger) -> None:
        self._ledger = ledger

    def admit(
        self, kind: ServedKind, namespace: str | None, old: Json | None, new: Json
    ) -> list[QuotaCharge]:
        """Return the quotas that a write is charged to. ``old`` is None for a creation. Raises
        StatusError: 403, it would exceed a quota, or a container lacks a limited value.
        """
        storage_name = kind.storage_name
        if not namespace or (old is not None and storage_name not in GROWING):
            return []
        quotas = self._ledger.quotas(namespace)
        if not quotas:
            return []
        added, scopes = measure(storage_name, new)
        if old is not None:
            before, _ = measure(storage_name, old)
            grown = {name: added[name] - before[name] for name in added if name in before}
            added = {name: more for name, more in (added | grown).items() if more.nano > 0}
        charges = []
        for quota in quotas:
            requested = {name: added[name] for name in quota.hard if name in added}
            if not quota.applies_to(scopes):
                continue
            if storage_name == PODS and (missing := missing_values(new, quota.hard)):
                raise _refusal(kind, new, f"failed quota: {quota.name}: must specify {missing}")
            if requested:
                charges.append(self._charge(kind, new, quota, requested))
        return charges

    def _charge(
        self, kind: ServedKind, obj: Json, quota: QuotaRules, requested: Usage
    ) -> QuotaCharge:
        used = self._ledger.used(quota, requested)
        total = {name: used[name] + more for name, more in requested.items()}
        exceeded = sorted(name for name in total if total[name] > quota.hard[name])
        if exceeded:
            asked, present, limits = (
                ",".join(f"{name}={amounts[name]}" for name in exceeded)
                for amounts in (requested, used, quota.hard)
            )
            why = f"exceeded quota: {quota.name}, requested: {asked}, used: {present}"
            raise _refusal(kind, obj, f"{why}, limited: {limits}")
        return QuotaCharge(quota.record, with_status(quota, total))


def with_status(quota: QuotaRules, used: Usage) -> Json:
    """Return a quota with its limits, and the given part of their use, in its status."""
    obj: Json = read_json(quota.record.body)
    status = obj.get("status")
    before = status.get("used") if isinstance(status, dict) else None
    shown = {name: str((before or {}).get(name, "0")) for name in quota.hard}
    shown |= {name: str(amount) for name, amount in used.items()}
    hard = {name: str(limit) for name, limit in quota.hard.items()}
    return obj | {"metadata": dict(obj["metadata"]), "status": {"hard": hard, "used": shown}}


def _refusal(kind: ServedKind, obj: Json, why: str) -> StatusError:
    return forbidden_object(kind.plural, kind.group, str(obj["metadata"].get("name", "")), why)


DELAY_S = 0.1
"""Changes of this time are followed by one computation."""


class QuotaStatusSync:
    """Writes the status of quotas. It must be created before the first request is served."""

    def __init__(self, store: ObjectStore, ledger: QuotaLedger) -> None:
        self._store = store
        self._ledger = ledger
        self._limited = ledger.namespaces()
        self._changed = set(self._limited)
        self._wake = asyncio.Event()
        if self._changed:
            self._wake.set()
        store.add_observer(self._on_change)

    async def run(self) -> None:
        """Write statuses until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(DELAY_S)
            self._wake.clear()
            changed, self._changed = self._changed, set()
            for namespace in changed:
                self._update(namespace)
                await asyncio.sleep(0)

    def _on_change(self, topic: str, event: CacheEvent) -> None:
        namespace = event.record.key.partition("/")[0]
        if topic == QUOTAS:
            self._limited.add(namespace)
        elif not self._limited or namespace not in self._limited:
            return
        self._changed.add(namespace)
        self._wake.set()

    def _update(self, namespace: str) -> None:
        cache = self._store.cache(QUOTAS)
        quotas = self._ledger.quotas(namespace)
        if not quotas:
            self._limited.discard(namespace)
            self._ledger.forget(namespace)
        for quota in quotas:
            obj = with_status(quota, self._ledger.used(quota, quota.hard))
            if obj["status"] != read_json(quota.record.body).get("status"):
                index = (quota.record.labels, quota.record.fields)
                self._store.stage(cache, quota.key, obj, index)
