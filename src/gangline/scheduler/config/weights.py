"""Reads the arguments of Volcano's scoring plug-ins as score weights.

Every argument of Volcano has an effect here, or is refused with the reason. The order of plug-ins
and arguments in the file does not matter.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from gangline.scheduler.plugins.scores import ScoreWeights

_LISTED = "binpack.resources"
SCORING = frozenset(("binpack", "nodeorder"))
Arguments = Mapping[str, Any]


class ConfigurationError(ValueError):
    """The file cannot be read. The message says what is wrong, and what would be right."""


_WeightSetter = Callable[[ScoreWeights, float], ScoreWeights]
_PACKING = frozenset(("binpack.weight", "mostrequested.weight", "leastrequested.weight"))
"""One consideration: weights for full nodes minus weights for empty nodes."""
_BINPACK: Mapping[str, _WeightSetter] = {
    "binpack.cpu": lambda weights, value: replace(weights, cpu=value),
    "binpack.memory": lambda weights, value: replace(weights, memory=value),
    "binpack.sparedevices": lambda weights, value: replace(weights, spare_devices=value),
    "binpack.onemodel": lambda weights, value: replace(weights, same_device_model=value),
    "binpack.together": lambda weights, value: replace(weights, fewer_nodes=value),
}
_NODE_ORDER: Mapping[str, _WeightSetter] = {
    "nodeaffinity.weight": lambda weights, value: replace(weights, affinity=value),
    "podaffinity.weight": lambda weights, value: replace(weights, pod_affinity=value),
    "podtopologyspread.weight": lambda weights, value: replace(weights, spreading=value),
    "tainttoleration.weight": lambda weights, value: replace(weights, discouraged=value),
    "balancedresource.weight": lambda weights, value: replace(weights, balance=value),
    "imagelocality.weight": lambda weights, value: replace(weights, images=value),
}
_SETTERS = {**_BINPACK, **_NODE_ORDER}
_KNOWN = {
    plugin: frozenset(changes) | {name for name in _PACKING if name.startswith("binpack") == packs}
    for plugin, changes, packs in (("binpack", _BINPACK, True), ("nodeorder", _NODE_ORDER, False))
}
REMOVED = frozenset(("binpack.fragments",))
"""Arguments of earlier releases: they are accepted and have no effect."""
_WITHOUT_EFFECT = {
    "selectorspread.weight": "pods state how they are spread (topologySpreadConstraints)",
}
"""Arguments without a score here, and why: only 0 is accepted."""


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
    weights = replace(
        ScoreWeights(), packing=_packing(given), resources=tuple(sorted(devices.items()))
    )
    for key in given.keys() - _PACKING:
        weights = _SETTERS[key](weights, given[key])
    return weights


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
    if key in REMOVED:
        return False
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


def read_weight(key: str, value: object) -> float:
    """Parse a weight.

    Raises:
        ConfigurationError: it is not a finite, non-negative number.
    """
    try:
        read = float(str(value))
    except ValueError as error:
        raise ConfigurationError(f"{key} is {value!r}, not a number") from error
    if not read >= 0 or read == float("inf"):
        raise ConfigurationError(f"{key} is {value!r}: weights are not negative, and finite")
    return read
