"""Reads Volcano's configuration file, so that a cluster can change schedulers and keep it.

``actions``, ``tiers`` of ``plugins`` with ``arguments``: the names are Volcano's. What a name means
here is in the tables below; a name that is in none of them is an error, never silently passed over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import yaml

from gangline.scheduler.plugins.node_scores import Weights
from gangline.scheduler.settings import SchedulerSettings

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
"""Plugins whose rules always hold here; naming them changes nothing, nor does leaving them out."""

SCORING = frozenset(("binpack", "nodeorder"))
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


class ConfigurationError(ValueError):
    """The file cannot be read. The message says what is wrong, and what would be right."""


class _Plugin(msgspec.Struct, forbid_unknown_fields=False):
    name: str
    arguments: dict[str, Any] = {}


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

    def applied(self, settings: SchedulerSettings) -> SchedulerSettings:
        """Return the settings with what the file says."""
        return replace(settings, preempt=self.preempt, reclaim=self.reclaim, weights=self.weights)


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
    weights = Weights()
    for tier in written.tiers:
        for plugin in tier.plugins:
            weights = _with_plugin(weights, plugin)
    return Configuration(
        preempt=bool(actions & {"preempt", "gangpreempt"}),
        reclaim=bool(actions & {"reclaim", "gangreclaim"}),
        weights=weights,
    )


def _with_plugin(weights: Weights, plugin: _Plugin) -> Weights:
    if plugin.name in UNSUPPORTED:
        raise ConfigurationError(
            f"plugin {plugin.name!r} does nothing here: {UNSUPPORTED[plugin.name]}"
        )
    if plugin.name not in BUILT_IN | SCORING:
        known = ", ".join(sorted(BUILT_IN | SCORING))
        raise ConfigurationError(f"unknown plugin {plugin.name!r}; there are: {known}")
    if plugin.name == "binpack":
        return _binpack(weights, plugin.arguments)
    if plugin.name == "nodeorder":
        return _with_arguments(weights, plugin, _NODE_ORDER)
    return weights


_Change = Callable[[Weights, float], Weights]
_NODE_ORDER: Mapping[str, _Change] = {
    "nodeaffinity.weight": lambda weights, value: replace(weights, affinity=value),
    "podaffinity.weight": lambda weights, value: replace(weights, pod_affinity=value),
    "mostrequested.weight": lambda weights, value: replace(weights, packing=value),
    "leastrequested.weight": lambda weights, value: replace(
        weights, packing=weights.packing - 2 * value
    ),
}
_WITHOUT_EFFECT = frozenset(
    ("balancedresource.weight", "imagelocality.weight", "tainttoleration.weight")
) | {"podtopologyspread.weight"}
"""Arguments of nodeorder for which there is no score here: only nothing can be asked of them."""
_BINPACK: Mapping[str, _Change] = {
    "binpack.weight": lambda weights, value: replace(weights, packing=value),
    "binpack.cpu": lambda weights, value: replace(weights, cpu=value),
    "binpack.memory": lambda weights, value: replace(weights, memory=value),
    "binpack.fragments": lambda weights, value: replace(weights, fragments=value),
}


def _binpack(weights: Weights, arguments: Mapping[str, Any]) -> Weights:
    listed = str(arguments.get("binpack.resources", ""))
    resources = {name.strip() for name in listed.split(",") if name.strip()}
    for key, value in arguments.items():
        resource = key.removeprefix("binpack.resources.")
        if key == "binpack.resources":
            continue
        if resource != key and resource in resources:
            devices = {**dict(weights.resources), resource: _number(key, value)}
            weights = replace(weights, resources=tuple(sorted(devices.items())))
        elif key in _BINPACK:
            weights = _BINPACK[key](weights, _number(key, value))
        else:
            raise ConfigurationError(f"unknown argument {key!r} of plugin 'binpack'")
    return weights


def _with_arguments(weights: Weights, plugin: _Plugin, known: Mapping[str, _Change]) -> Weights:
    for key, value in plugin.arguments.items():
        if key in _WITHOUT_EFFECT and not _number(key, value):
            continue
        if key not in known:
            names = ", ".join(sorted(known))
            raise ConfigurationError(
                f"unknown argument {key!r} of plugin {plugin.name!r}; there are: {names}"
            )
        weights = known[key](weights, _number(key, value))
    return weights


def _number(key: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError as error:
        raise ConfigurationError(f"{key} is {value!r}, not a number") from error
    if number < 0:
        raise ConfigurationError(f"{key} is {value!r}: weights are not negative")
    return number
