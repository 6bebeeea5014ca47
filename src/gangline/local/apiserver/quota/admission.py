"""Refusal of writes that would exceed a quota.

Invariant: ``admit`` and the staging of its write happen without a switch of tasks between them. The
use includes staged writes, so that concurrent requests see each other.
"""

from typing import NamedTuple

from gangline.local.apiserver.core.errors import StatusError, forbidden, qualified_resource
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.quota.ledger import QuotaLedger, QuotaRules, measure
from gangline.local.apiserver.quota.usage import (
    CLAIMS,
    PODS,
    SERVICES,
    Usage,
    missing_values,
)
from gangline.local.apiserver.storage.watch_cache import ObjectRevision

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
        """Return the quotas that a write is charged to. ``old`` is None for a creation.

        Raises:
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
    name = str(obj["metadata"].get("name", ""))
    shown = qualified_resource(kind.plural, kind.group)
    message = f'{shown} "{name}" is forbidden: {why}'
    return forbidden(message, kind.plural, kind.group, name)
