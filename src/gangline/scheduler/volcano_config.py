"""Reads Volcano's configuration file, so that a cluster can change schedulers and keep it.

``actions`` and ``tiers`` of ``plugins`` with ``arguments`` are Volcano's. The tables below map each
name to a setting. Every argument of Volcano has an effect here, or is refused with the reason; an
unknown name is an error and never ignored. The order of plug-ins and arguments does not matter.
``seed`` is not Volcano's: it selects the order of equally good nodes.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gangline.api.go_duration import parse_go_duration
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.queueing.order import ORDER_BY_AGE, FairnessPolicy
from gangline.scheduler.queueing.overcommit import DEFAULT_FACTOR, OVERCOMMIT, AdmissionPolicy
from gangline.scheduler.settings import SchedulerSettings

ACTIONS = frozenset(
    ("enqueue", "allocate", "backfill", "preempt", "reclaim", "gangpreempt", "gangreclaim")
)
"""Actions except evictions are always enabled: there is one cycle, not a sequence of actions."""
BUILT_IN = frozenset(
    ("gang", "priority", "conformance", "drf", "predicates", "proportion", "capacity")
) | {
    "task-topology",
    "network-topology-aware",
    "pdb",
    "nodegroup",
    "resourcequota",
}
"""Plug-ins whose rules always apply: naming or omitting them changes nothing. For ``drf`` that
holds except for the scheduling order.
"""
ADMISSION = frozenset(("overcommit", "sla"))
_FACTOR = "overcommit-factor"
_WAITING_TIME = "sla-waiting-time"
_WAITING_TIMES = frozenset((_WAITING_TIME, "jobwaitingtime"))
UNSUPPORTED = {
    "tdm": "there are no revocable zones",
    "numaaware": "there is no NUMA placement",
    "deviceshare": "devices are not shared",
    "usage": "real load is not measured",
    "resource-strategy-fit": "use binpack",
    "cdp": "there is no cool-down",
    "rescheduling": "running pods are not moved",
    "extender": "there are no extenders",
}
"""Plug-ins of Volcano without a counterpart, and why."""
REFUSED_ARGUMENTS = {
    "predicate.gpusharingenable": "devices are not shared",
    "predicate.dynamicresourceallocationenable": "claims of devices are not allocated",
    "capacity.dynamicresourceallocationenable": "claims of devices are not allocated",
}
"""Arguments that may only be false, in lower case, and why."""
_RESOURCE_PREFIXES = ("binpack.resources.", "overcommit-factor.")
_TRUE = frozenset(("1", "t", "true", "yes", "y", "on"))
_SWITCH = re.compile(r"enabled?[A-Z]")
_SUPPORTED_SWITCHES = frozenset(("enableJobOrder", "enableNamespaceOrder", "enableHierarchy")) | {
    "enablePreemptable",
    "enableReclaimable",
}
"""Switches of ``drf`` that have an effect, or state the default: its shares cause no evictions."""
_LISTED = "binpack.resources"
SCORING = frozenset(("binpack", "nodeorder"))
Arguments = Mapping[str, Any]
_PACKING = frozenset(("binpack.weight", "mostrequested.weight", "leastrequested.weight"))
"""One consideration: weights for full nodes minus weights for empty nodes."""
_BINPACK = {
    "binpack.cpu": "cpu",
    "binpack.memory": "memory",
    "binpack.sparedevices": "spare_devices",
    "binpack.strandeddevices": "stranded_devices",
    "binpack.onemodel": "same_device_model",
    "binpack.together": "fewer_nodes",
}
"""The weight that each argument sets."""
_NODE_ORDER = {
    "nodeaffinity.weight": "affinity",
    "podaffinity.weight": "pod_affinity",
    "podtopologyspread.weight": "spreading",
    "tainttoleration.weight": "discouraged",
    "balancedresource.weight": "balance",
    "imagelocality.weight": "images",
}
_KNOWN = {
    plugin: frozenset(changes) | {name for name in _PACKING if name.startswith("binpack") == packs}
    for plugin, changes, packs in (("binpack", _BINPACK, True), ("nodeorder", _NODE_ORDER, False))
}
_WITHOUT_EFFECT = {
    "selectorspread.weight": "pods state how they are spread (topologySpreadConstraints)",
}
"""Arguments without a score here, and why: only 0 is accepted."""


class ConfigurationError(ValueError):
    """The file cannot be read. The message says what is wrong, and what would be right."""


class _Plugin(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = {}
    switches: dict[str, bool] = {}

    def switch(self, switch: str) -> bool | None:
        """Return the value of a switch; None: it is not set."""
        return self.switches.get(switch)


class _Tier(msgspec.Struct, forbid_unknown_fields=True):
    plugins: list[dict[str, Any]] = []


class _Action(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    actions: str = "enqueue, allocate, backfill"
    tiers: list[_Tier] = []
    configurations: list[_Action] = []
    metrics: dict[str, Any] = {}
    seed: int = 0


@dataclass(frozen=True, slots=True)
class VolcanoConfiguration:
    """The settings of a configuration file."""

    preempt: bool
    reclaim: bool
    weights: ScoreWeights
    fairness: FairnessPolicy = ORDER_BY_AGE
    admission: AdmissionPolicy = OVERCOMMIT
    hierarchical: bool = False
    ignored_settings: tuple[str, ...] = ()
    """Settings of the file without an effect, for the log."""

    def apply_to(self, settings: SchedulerSettings) -> SchedulerSettings:
        """Return the settings, updated from the file."""
        return replace(
            settings,
            preempt=self.preempt,
            reclaim=self.reclaim,
            weights=self.weights,
            fairness=self.fairness,
            admission=self.admission,
            hierarchical=self.hierarchical,
            ignored_settings=self.ignored_settings,
        )


def read_file(path: Path) -> VolcanoConfiguration:
    """Read a configuration file.

    Raises:
        ConfigurationError: the file cannot be read, or has unknown names; the message has its path.
    """
    try:
        return read_configuration(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ConfigurationError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def read_configuration(text: str) -> VolcanoConfiguration:
    """Read the text of a configuration file.

    Raises:
        ConfigurationError: the text cannot be parsed, or has unknown names.
    """
    try:
        raw = yaml.safe_load(text)
        written = msgspec.convert(raw or {}, _File)
        plugins = [_plugin(plugin) for tier in written.tiers for plugin in tier.plugins]
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigurationError(str(error)) from error
    actions = {name.strip().lower() for name in written.actions.split(",") if name.strip()}
    configured = {action.name.lower() for action in written.configurations}
    if unknown := sorted((actions | configured) - ACTIONS):
        raise ConfigurationError(
            f"unknown action {unknown[0]!r}; there are: {', '.join(sorted(ACTIONS))}"
        )
    for plugin in plugins:
        _check_plugin(plugin)
    shares = [plugin for plugin in plugins if plugin.name == "drf"]
    return VolcanoConfiguration(
        preempt=bool(actions & {"preempt", "gangpreempt"}),
        reclaim=bool(actions & {"reclaim", "gangreclaim"}),
        weights=_weights(plugins, written.seed),
        fairness=_fairness(shares),
        admission=_admission(plugins, "enqueue" in actions) if plugins else OVERCOMMIT,
        hierarchical=any(plugin.switch("enableHierarchy") is True for plugin in shares),
        ignored_settings=(
            *(setting for plugin in plugins for setting in _ignored_settings(plugin)),
            *(
                f"{key} of action {action.name!r}: it is not supported"
                for action in written.configurations
                for key in action.arguments
            ),
        ),
    )


def _weights(plugins: Sequence[_Plugin], seed: int) -> ScoreWeights:
    scoring = [(plugin.name, plugin.arguments) for plugin in plugins if plugin.name in SCORING]
    return replace(configured_weights(scoring), seed=seed)


def _plugin(raw: dict[str, Any]) -> _Plugin:
    """Read a plug-in; keys that start with ``enable`` or ``enabled`` are its switches."""
    switches = {key: value for key, value in raw.items() if _SWITCH.match(key)}
    rest = {key: value for key, value in raw.items() if key not in switches}
    if unknown := sorted(rest.keys() - {"name", "arguments"}):
        raise ConfigurationError(
            f"unknown field {unknown[0]!r} of plugin {raw.get('name')!r}; there are: name, "
            "arguments, and switches such as enableJobOrder"
        )
    plugin = msgspec.convert({**rest, "switches": switches}, _Plugin)
    arguments = {_in_lower_case(key): value for key, value in plugin.arguments.items()}
    return msgspec.structs.replace(plugin, name=plugin.name.lower(), arguments=arguments)


def _in_lower_case(argument: str) -> str:
    """Return the name of an argument in lower case; names of resources stay as they are."""
    lower = argument.lower()
    prefix = next((prefix for prefix in _RESOURCE_PREFIXES if lower.startswith(prefix)), lower)
    return prefix + argument[len(prefix) :]


def _ignored_settings(plugin: _Plugin) -> Iterator[str]:
    """Yield the settings of a plug-in that have no effect."""
    for key in plugin.arguments:
        if plugin.name in BUILT_IN:
            yield f"{key} of plugin {plugin.name!r}: its rules always apply"
        if plugin.name == "overcommit" and _read_number(key, plugin.arguments[key]) < 1:
            yield f"{key} of plugin 'overcommit': it is below 1, so {DEFAULT_FACTOR} applies"
    for switch, on in plugin.switches.items():
        if not on and not (plugin.name == "drf" and switch in _SUPPORTED_SWITCHES):
            yield f"{switch} of plugin {plugin.name!r}: its rules cannot be switched off"


def _fairness(named: Sequence[_Plugin]) -> FairnessPolicy:
    """Return which shares order gangs. By default ``drf`` orders gangs, not namespaces."""
    return FairnessPolicy(
        gangs=any(plugin.switch("enableJobOrder") is not False for plugin in named),
        namespaces=any(plugin.switch("enableNamespaceOrder") is True for plugin in named),
    )


def _admission(plugins: Iterable[_Plugin], enqueues: bool) -> AdmissionPolicy:
    """Return how gangs are admitted: without ``enqueue`` or ``overcommit`` immediately."""
    policy = AdmissionPolicy(factor=None)
    for plugin in plugins:
        if plugin.name == "overcommit" and enqueues:
            factors = {key: _factor(key, value) for key, value in plugin.arguments.items()}
            policy = replace(
                policy,
                factor=factors.pop(_FACTOR, DEFAULT_FACTOR),
                factors=tuple(
                    (key.removeprefix(f"{_FACTOR}."), factor)
                    for key, factor in sorted(factors.items())
                ),
            )
        elif plugin.name == "sla":
            for value in plugin.arguments.values():
                policy = replace(policy, waiting_time_s=_read_waiting_time(value))
    return policy


def _factor(key: str, value: object) -> float:
    factor = _read_number(key, value)
    return factor if factor >= 1 else DEFAULT_FACTOR


def _read_waiting_time(value: object) -> float:
    waiting_time_s = parse_go_duration(str(value))
    if not waiting_time_s:
        raise ConfigurationError(
            f"{_WAITING_TIME} is {value!r}, not a positive duration such as 1h30m"
        )
    return waiting_time_s


def _check_admission_arguments(plugin: _Plugin) -> None:
    for key in plugin.arguments:
        if plugin.name == "overcommit" and key != _FACTOR and not key.startswith(f"{_FACTOR}."):
            names = f"{_FACTOR}, and {_FACTOR}.RESOURCE"
        elif plugin.name == "sla" and key not in _WAITING_TIMES:
            names = _WAITING_TIME
        else:
            continue
        raise ConfigurationError(
            f"unknown argument {key!r} of plugin {plugin.name!r}; there are: {names}"
        )


def _check_plugin(plugin: _Plugin) -> None:
    if plugin.name in UNSUPPORTED:
        raise ConfigurationError(
            f"plugin {plugin.name!r} does nothing here: {UNSUPPORTED[plugin.name]}"
        )
    for key, value in plugin.arguments.items():
        why = REFUSED_ARGUMENTS.get(key)
        if why is not None and str(value).strip().lower() in _TRUE:
            raise ConfigurationError(f"{key} of plugin {plugin.name!r}: {why}; set it to false")
    if plugin.name not in BUILT_IN | SCORING | ADMISSION:
        names = ", ".join(sorted(BUILT_IN | SCORING | ADMISSION))
        raise ConfigurationError(f"unknown plugin {plugin.name!r}; there are: {names}")
    _check_admission_arguments(plugin)


def configured_weights(plugins: Iterable[tuple[str, Arguments]]) -> ScoreWeights:
    """Return the weights that the arguments of these plug-ins set.

    Raises:
        ConfigurationError: an argument is unknown or has no effect, or a value is not a weight.
    """
    given: dict[str, float] = {}
    devices: dict[str, float] = {}
    for plugin, arguments in plugins:
        devices |= _devices(arguments) if plugin == "binpack" else {}
        for key, value in arguments.items():
            if _is_weight(plugin, key, value, devices):
                given[key] = read_weight(key, value)
    fields = _BINPACK | _NODE_ORDER
    single: dict[str, Any] = {fields[key]: given[key] for key in given.keys() - _PACKING}
    resources = tuple(sorted(devices.items()))
    packing = _packing(given)
    if packing < 0:
        # Stranding fills used nodes first: a configuration that spreads pods must ask for it.
        single.setdefault("stranded_devices", 0.0)
    return ScoreWeights(packing=packing, resources=resources, **single)


def _packing(given: Mapping[str, float]) -> float:
    """Return the packing weight: full nodes first, unless only empty nodes have a weight."""
    full = [given[key] for key in ("binpack.weight", "mostrequested.weight") if key in given]
    empty = given.get("leastrequested.weight", 0.0)
    usual = 0.0 if empty else ScoreWeights().packing
    return (sum(full) if full else usual) - empty


def _devices(arguments: Arguments) -> dict[str, float]:
    """Return the weights of the resources in ``binpack.resources``."""
    listed = str(arguments.get(_LISTED, "")).split(",")
    keys = {name: f"{_LISTED}.{name}" for name in map(str.strip, listed) if name}
    return {
        name: read_weight(key, arguments[key]) for name, key in keys.items() if key in arguments
    }


def _is_weight(plugin: str, key: str, value: object, devices: Container[str]) -> bool:
    """Return whether an argument is a weight; raise if it is unknown."""
    if plugin == "binpack" and (key == _LISTED or key.removeprefix(f"{_LISTED}.") in devices):
        return False
    if plugin == "nodeorder" and key in _WITHOUT_EFFECT:
        if read_weight(key, value):
            raise ConfigurationError(
                f"{key} does nothing here: {_WITHOUT_EFFECT[key]}; set it to 0"
            )
        return False
    if key not in _KNOWN[plugin]:
        names = ", ".join(sorted(_KNOWN[plugin]))
        raise ConfigurationError(
            f"unknown argument {key!r} of plugin {plugin!r}; there are: {names}"
        )
    return True


def _read_number(key: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError as error:
        raise ConfigurationError(f"{key} is {value!r}, not a number") from error


def read_weight(key: str, value: object) -> float:
    """Parse a weight.

    Raises:
        ConfigurationError: it is not a finite, non-negative number.
    """
    read = _read_number(key, value)
    if not read >= 0 or read == float("inf"):
        raise ConfigurationError(f"{key} is {value!r}: weights are not negative, and finite")
    return read
