"""The built-in roles in the store: reconciled at start, and aggregated when ClusterRoles change."""

import asyncio
import logging
from collections.abc import Callable

from gangline.local.apiserver.auth.aggregation import aggregated_rules
from gangline.local.apiserver.auth.builtin_roles import RBAC, builtin_bindings, builtin_roles
from gangline.local.apiserver.auth.role_reconciliation import (
    reconcile_binding,
    reconcile_role,
    rules_to_keep,
)
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json, Registry, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import CacheEvent
from gangline.local.apiserver.verbs.delete import DeletionRequest
from gangline.local.apiserver.verbs.write import WritePath

log = logging.getLogger(__name__)

ROLES, BINDINGS = f"clusterroles.{RBAC}", f"clusterrolebindings.{RBAC}"
_AGGREGATE_TO = "system:aggregate-to-"


class ClusterRoleSync:
    """Keeps the built-in roles, and the rules of all ClusterRoles that aggregate others."""

    def __init__(self, store: ObjectStore, writer: WritePath, registry: Registry) -> None:
        roles = registry.by_plural(RBAC, "clusterroles")
        bindings = registry.by_plural(RBAC, "clusterrolebindings")
        if roles is None or bindings is None:
            raise ValueError("these kinds are always served")
        self._store = store
        self._writer = writer
        self._roles, self._bindings = roles, bindings
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
        aggregating = self._read(target) if target != name else None
        if aggregating is None:
            return expected
        kept = rules_to_keep(aggregating)
        added = [rule for rule in kept if rule not in expected["rules"]]
        return {**expected, "rules": [*expected["rules"], *added]}

    async def _reconcile_role(self, expected: Json) -> None:
        name = expected["metadata"]["name"]
        if self._read(name) is None:
            await self._create(self._roles, expected)
        else:
            await self._update(self._roles, name, lambda old: reconcile_role(old, expected))

    async def _reconcile_binding(self, expected: Json) -> None:
        name = expected["metadata"]["name"]
        record = self._store.cache(BINDINGS).latest(name)
        existing: Json | None = read_json(record.body) if record is not None else None
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

    def _read(self, name: str) -> Json | None:
        record = self._store.cache(ROLES).latest(name)
        if record is None:
            return None
        found: Json = read_json(record.body)
        return found

    async def _create(self, kind: ServedKind, obj: Json) -> None:
        request = ApiRequest(kind, "create", None, obj["metadata"]["name"], "", {})
        await self._writer.create(request, obj)

    async def _update(self, kind: ServedKind, name: str, change: Callable[[Json], Json]) -> None:
        await self._writer.update(ApiRequest(kind, "update", None, name, "", {}), change)
