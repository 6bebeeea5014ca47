"""A YAML loader with the values of Kubernetes, which reads YAML with ``sigs.k8s.io/yaml``.

Differences from PyYAML, which follows YAML 1.1:

- Numbers have no base 60 (``1:30:00`` is text), which takes time in the square of its length.
- ``0o17`` and ``017`` are octal, ``1e3`` is a number, and a float without fraction is an integer.
- Dates are text.
- Integers outside 64 bits, and tags other than those of JSON's types, are errors.

As in YAML 1.1, ``yes``, ``no``, ``on`` and ``off`` are booleans; ``y`` and ``n`` stay text.
"""

import re
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(
    r"[-+]?(?:0[bB][01_]+|0(?:[oO]?_*[0-7][0-7_]*)?|0[xX][0-9a-fA-F_]+|[1-9][0-9_]*)\Z", re.ASCII
)
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?\Z"
    r"|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z",
    re.ASCII,
)
_OCTAL = re.compile(r"([-+]?)0[oO]?([0-7]+)\Z", re.ASCII)
_MAX_NUMBER_CHARS = 400
"""More characters than any 64-bit number needs; a number of 5,000 digits is slow to convert."""
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 64) - 1
_MAX_EXACT_FLOAT = 1 << 53
_BASE: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlValueLoader(_BASE):  # type: ignore[misc, valid-type]
    """Builds the values of one document.

    Raises ``yaml.YAMLError`` with the position of what is wrong.
    """


def _error(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _text(loader: YamlValueLoader, node: yaml.Node) -> str:
    return str(loader.construct_scalar(node))


def _digits(loader: YamlValueLoader, node: yaml.Node) -> str:
    text = _text(loader, node)
    if len(text) > _MAX_NUMBER_CHARS:
        raise _error(node, f"cannot be read: a number of {len(text)} characters")
    return text.replace("_", "")


def _integer(loader: YamlValueLoader, node: yaml.Node) -> int:
    text = _digits(loader, node)
    try:
        octal = _OCTAL.match(text)
        number = int(octal[1] + octal[2], 8) if octal else int(text, 0)
    except ValueError:
        raise _error(node, f"cannot be read: {text!r} is not an integer") from None
    if not _MIN_INTEGER <= number <= _MAX_INTEGER:
        raise _error(node, f"cannot be read: {text} is outside the range of 64-bit integers")
    return number


def _float(loader: YamlValueLoader, node: yaml.Node) -> float | int:
    text = _digits(loader, node).lower()
    try:
        number = float(text.replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        raise _error(node, f"cannot be read: {text!r} is not a number") from None
    if number in (float("inf"), float("-inf")) and "inf" not in text:
        raise _error(node, f"cannot be read: {text} is outside the range of numbers")
    # Written as JSON, such a float has no fraction either: 1e3 is the integer 1000.
    return int(number) if abs(number) < _MAX_EXACT_FLOAT and number.is_integer() else number


def _boolean(loader: YamlValueLoader, node: yaml.Node) -> bool:
    text = _text(loader, node).lower()
    if text not in YamlValueLoader.bool_values:
        raise _error(node, f"cannot be read: {text!r} is neither true nor false")
    return bool(YamlValueLoader.bool_values[text])


def _unsupported(loader: YamlValueLoader, node: yaml.Node) -> Any:
    raise _error(node, f"the tag {node.tag!r} is not supported; remove it")


YamlValueLoader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0].removeprefix(_TAG) in ("bool", "null", "merge")]
    for first, pairs in _BASE.yaml_implicit_resolvers.items()
}
YamlValueLoader.add_implicit_resolver(f"{_TAG}int", _INTEGER, list("-+0123456789"))
YamlValueLoader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))
for _name in ("binary", "omap", "pairs", "set"):
    YamlValueLoader.add_constructor(_TAG + _name, _unsupported)
YamlValueLoader.add_constructor(None, _unsupported)
YamlValueLoader.add_constructor(f"{_TAG}int", _integer)
YamlValueLoader.add_constructor(f"{_TAG}float", _float)
YamlValueLoader.add_constructor(f"{_TAG}bool", _boolean)
for _name in ("merge", "timestamp"):
    YamlValueLoader.add_constructor(_TAG + _name, _text)
