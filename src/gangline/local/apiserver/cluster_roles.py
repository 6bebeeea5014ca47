"""The built-in roles in the store: reconciled at start, and aggregated when ClusterRoles change.

Reconciliation has the rules of Kubernetes (``reconcile_role``): missing rules, labels and subjects
are added, and those that an administrator has added stay. The annotation ``autoupdate: "false"``
excludes an object. A role that now aggregates others gets its aggregation rule; rules of its own
move to the role that it aggregates, so that they are not lost.

An aggregating role has the rules of all other ClusterRoles that its selectors match, in the order
of their names, each once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from gangline.local.apiserver.auth.builtin_roles import (
    AUTOUPDATE,
    RBAC,
    builtin_bindings,
    builtin_roles,
)
from gangline.local.apiserver.auth.rules import merge_rules, uncovered_rules
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json, Registry, ServedKind, read_selector
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import CacheEvent
from gangline.local.apiserver.verbs.delete import DeletionRequest
from gangline.local.apiserver.verbs.write import WritePath


def is_protected(existing: Json) -> bool:
    """Return True if an administrator has excluded an object from reconciliation."""
    return (existing["metadata"].get("annotations") or {}).get(AUTOUPDATE) == "false"


def reconcile_role(existing: Json, expected: Json) -> Json:
    """Return the role with everything that ``expected`` contains."""
    if is_protected(existing):
        return existing
    merged = _with_metadata(existing, expected)
    if "aggregationRule" in expected:
        selectors = _union(_selectors(existing), _selectors(expected))
        merged["aggregationRule"] = {"clusterRoleSelectors": selectors}
        if "aggregationRule" not in existing:
            merged["rules"] = []  # the roles that it aggregates supply them
        return merged
    if "aggregationRule" in existing:
        del merged["aggregationRule"]
        merged["rules"] = list(expected["rules"])
        return merged
    rules = existing.get("rules") or []
    missing = merge_rules(uncovered_rules(rules, expected["rules"]))
    merged["rules"] = [*rules, *missing]
    return merged


def rules_to_keep(existing: Json) -> list[Json]:
    """Return the rules of a role that is about to aggregate others and has rules of its own.

    They were written by an administrator.
    """
    if "aggregationRule" in existing or is_protected(existing):
        return []
    rules: list[Json] = existing.get("rules") or []
    return rules


def reconcile_binding(existing: Json, expected: Json) -> Json | None:
    """Return the binding with all expected subjects; None if it must be created again.

    A binding of another role cannot be changed, because ``roleRef`` is immutable.
    """
    if is_protected(existing):
        return existing
    if existing["roleRef"] != expected["roleRef"]:
        return None
    merged = _with_metadata(existing, expected)
    merged["subjects"] = _union(existing.get("subjects") or [], expected["subjects"])
    return merged


def _with_metadata(existing: Json, expected: Json) -> Json:
    meta = dict(existing["metadata"])
    for name in ("labels", "annotations"):
        meta[name] = {**expected["metadata"][name], **(meta.get(name) or {})}
    return {**existing, "metadata": meta}


def _selectors(role: Json) -> list[Json]:
    selectors: list[Json] = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or []
    return selectors


def _union(first: Sequence[Json], second: Sequence[Json]) -> list[Json]:
    return [*first, *(item for item in second if item not in first)]


def aggregated_rules(role: Json, roles: Iterable[Json]) -> list[Json] | None:
    """Return the rules that ``role`` aggregates from ``roles``; None if it aggregates none."""
    selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors")
    if not selectors:
        return None
    ordered = sorted(roles, key=lambda candidate: str(candidate["metadata"]["name"]))
    rules: list[Json] = []
    for selector in map(read_selector, selectors):
        for source in ordered:
            meta = source["metadata"]
            if meta["name"] != role["metadata"]["name"] and selector.matches(
                meta.get("labels") or {}
            ):
                rules += [rule for rule in source.get("rules") or () if rule not in rules]
    return rules


log = logging.getLogger(__name__)

ROLES, BINDINGS = f"clusterroles.{RBAC}", f"clusterrolebindings.{RBAC}"
_AGGREGATE_TO = "system:aggregate-to-"


class ClusterRoleSync:
    """Keeps the built-in roles, and the rules of all ClusterRoles that aggregate others."""

    def __init__(self, store: ObjectStore, writer: WritePath, registry: Registry) -> None:
        self._store = store
        self._writer = writer
        self._roles = registry.builtin(RBAC, "clusterroles")
        self._bindings = registry.builtin(RBAC, "clusterrolebindings")
        self._running: asyncio.Task[None] | None = None
        self._changed = False

    async def start(self) -> None:
        """Reconcile the built-in roles and bindings, then aggregate. Call it before serving."""
        # Before any role is written: a role that gets an aggregation rule loses its own rules.
        roles = [self._with_kept_rules(role) for role in builtin_roles()]
        # Concurrently, so that all writes share one commit.
        await asyncio.gather(
            *(self._reconcile_role(role) for role in roles),
            *(self._reconcile_binding(binding) for binding in builtin_bindings()),
        )
        await self._aggregate()
        self._store.add_listener(ROLES, self._on_change)

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _with_kept_rules(self, expected: Json) -> Json:
        name = expected["metadata"]["name"]
        target = name.removeprefix(_AGGREGATE_TO)
        aggregating = self._store.latest(ROLES, target) if target != name else None
        if aggregating is None:
            return expected
        kept = rules_to_keep(aggregating)
        added = [rule for rule in kept if rule not in expected["rules"]]
        return {**expected, "rules": [*expected["rules"], *added]}

    async def _reconcile_role(self, expected: Json) -> None:
        name = expected["metadata"]["name"]
        if self._store.latest(ROLES, name) is None:
            await self._create(self._roles, expected)
        else:
            await self._update(self._roles, name, lambda old: reconcile_role(old, expected))

    async def _reconcile_binding(self, expected: Json) -> None:
        name = expected["metadata"]["name"]
        existing = self._store.latest(BINDINGS, name)
        merged = reconcile_binding(existing, expected) if existing is not None else None
        if merged is not None:
            await self._update(self._bindings, name, lambda _: merged)
            return
        if existing is not None:
            request = ApiRequest(self._bindings, "delete", None, name, "", {})
            await self._writer.delete(request, DeletionRequest())
        await self._create(self._bindings, expected)

    def _on_change(self, event: CacheEvent) -> None:
        self._changed = True
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._aggregate())

    async def _aggregate(self) -> None:
        """Write the rules of aggregating roles until none changes: one may aggregate another."""
        wrote = True
        while wrote or self._changed:
            self._changed = False
            roles = [read_json(record.body) for record in self._store.cache(ROLES).records.values()]
            writes = [
                self._write_rules(role["metadata"]["name"], rules)
                for role in roles
                if (rules := aggregated_rules(role, roles)) is not None
                and rules != (role.get("rules") or [])
            ]
            wrote = any(await asyncio.gather(*writes))

    async def _write_rules(self, name: str, rules: list[Json]) -> bool:
        try:
            await self._update(
                self._roles,
                name,
                lambda old: {**old, "metadata": dict(old["metadata"]), "rules": rules},
            )
        except StatusError as error:
            if error.status.code != 404:
                log.warning("role cannot be aggregated", extra={"role": name, "why": str(error)})
            return False
        return True

    async def _create(self, kind: ServedKind, obj: Json) -> None:
        request = ApiRequest(kind, "create", None, obj["metadata"]["name"], "", {})
        await self._writer.create(request, obj)

    async def _update(self, kind: ServedKind, name: str, change: Callable[[Json], Json]) -> None:
        await self._writer.update(ApiRequest(kind, "update", None, name, "", {}), change)
