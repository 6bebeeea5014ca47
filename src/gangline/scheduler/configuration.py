"""Reads Volcano's configuration file, so that a cluster can change schedulers and keep it.

``actions``, ``tiers`` of ``plugins`` with ``arguments``: the names are Volcano's. What a name means
here is in the tables below; a name that is in none of them is an error, never silently passed over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import yaml

from gangline.scheduler.configured_weights import (
    SCORING,
    ConfigurationError,
    configured_weights,
)
from gangline.scheduler.fairness import BY_AGE, Fairness
from gangline.scheduler.plugins.node_scores import Weights
from gangline.scheduler.settings import SchedulerSettings

__all__ = ["Configuration", "ConfigurationError", "read_configuration"]

ACTIONS = frozenset(
    ("enqueue", "allocate", "backfill", "preempt", "reclaim", "gangpreempt", "gangreclaim")
)
"""Everything but eviction happens always: there is one decision, not a row of actions."""

BUILT_IN = frozenset(
    ("gang", "priority", "conformance", "drf", "predicates", "proportion", "capacity")
) | {
    "overcommit",
    "task-topology",
    "network-topology-aware",
    "pdb",
    "nodegroup",
    "resourcequota",
}
"""Plugins whose rules always hold here: naming them changes nothing, nor does leaving them out. Of
``drf`` that is so of everything but the order of service."""

UNSUPPORTED = {
    "sla": "waiting is bounded by reservations",
    "tdm": "there are no revocable zones",
    "numaaware": "there is no NUMA placement",
    "deviceshare": "devices are not shared",
    "usage": "real load is not looked at",
    "resource-strategy-fit": "use binpack",
    "cdp": "there is no cool-down",
    "rescheduling": "running pods are not moved",
    "extender": "there are no extenders",
}
"""Plugins of Volcano that have no counterpart, and why."""


class _Plugin(msgspec.Struct, forbid_unknown_fields=False, rename="camel"):
    name: str
    arguments: dict[str, Any] = {}
    enable_job_order: bool | None = None
    enable_namespace_order: bool | None = None
    enable_hierarchy: bool | None = None


class _Tier(msgspec.Struct, forbid_unknown_fields=True):
    plugins: list[_Plugin] = []


class _Action(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    actions: str = "enqueue, allocate, backfill"
    tiers: list[_Tier] = []
    configurations: list[_Action] = []
    metrics: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the file says, as far as it makes a difference."""

    preempt: bool
    reclaim: bool
    weights: Weights
    fairness: Fairness = BY_AGE
    hierarchical: bool = False

    def applied(self, settings: SchedulerSettings) -> SchedulerSettings:
        """Return the settings with what the file says."""
        return replace(
            settings,
            preempt=self.preempt,
            reclaim=self.reclaim,
            weights=self.weights,
            fairness=self.fairness,
            hierarchical=self.hierarchical,
        )


def read_configuration(text: str) -> Configuration:
    """Read the text of a configuration file.

    Raises:
        ConfigurationError: it is no such file, or names what does not exist.
    """
    try:
        raw = yaml.safe_load(text)
        written = msgspec.convert(raw or {}, _File)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigurationError(str(error)) from error
    actions = {name.strip() for name in written.actions.split(",") if name.strip()}
    if unknown := sorted((actions | {each.name for each in written.configurations}) - ACTIONS):
        raise ConfigurationError(
            f"unknown action {unknown[0]!r}; there are: {', '.join(sorted(ACTIONS))}"
        )
    plugins = [plugin for tier in written.tiers for plugin in tier.plugins]
    for plugin in plugins:
        _check(plugin)
    shares = [plugin for plugin in plugins if plugin.name == "drf"]
    return Configuration(
        preempt=bool(actions & {"preempt", "gangpreempt"}),
        reclaim=bool(actions & {"reclaim", "gangreclaim"}),
        weights=configured_weights((p.name, p.arguments) for p in plugins if p.name in SCORING),
        fairness=_fairness(shares),
        hierarchical=any(plugin.enable_hierarchy is True for plugin in shares),
    )


def _fairness(named: Sequence[_Plugin]) -> Fairness:
    """Read whose shares count. Unless it says so, ``drf`` orders gangs, not namespaces."""
    return Fairness(
        gangs=any(plugin.enable_job_order is not False for plugin in named),
        namespaces=any(plugin.enable_namespace_order is True for plugin in named),
    )


def _check(plugin: _Plugin) -> None:
    if plugin.name in UNSUPPORTED:
        raise ConfigurationError(
            f"plugin {plugin.name!r} does nothing here: {UNSUPPORTED[plugin.name]}"
        )
    if plugin.name not in BUILT_IN | SCORING:
        known = ", ".join(sorted(BUILT_IN | SCORING))
        raise ConfigurationError(f"unknown plugin {plugin.name!r}; there are: {known}")
