"""The functions of Helm's templates that the chart uses.

They behave as those of https://masterminds.github.io/sprig and https://helm.sh/docs/chart_template_guide.
Maps are changed in place by ``set`` and ``merge``, as there.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import yaml


class TemplateError(Exception):
    """A template is wrong, or refused the values with ``fail``."""


def to_text(value: Any) -> str:
    """Return what an action writes; nothing for nil, as Helm does."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case dict() | list():
            raise TemplateError(f"a template writes {value!r}: use toYaml or toJson")
    return str(value)


def to_yaml(value: Any) -> str:
    if isinstance(value, dict) and "kind" in value:
        return json.dumps(value)  # An object of its own. JSON is YAML, and CRDs are long.
    text = yaml.dump(value, Dumper=yaml.CSafeDumper, default_flow_style=False, width=10**9)
    return text.removesuffix("\n...\n").rstrip("\n")


def from_yaml(text: str) -> Any:
    if text.startswith("{"):
        return json.loads(text)
    return yaml.load(text, yaml.CSafeLoader) or {}


def _indent(spaces: int, text: str) -> str:
    return "\n".join(" " * spaces + line for line in text.split("\n"))


def _dict(*entries: Any) -> dict[str, Any]:
    return dict(zip(entries[::2], entries[1::2], strict=True))


def _set(mapping: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    mapping[key] = value
    return mapping


def _merge(target: dict[str, Any], *sources: Mapping[str, Any]) -> dict[str, Any]:
    """Add what is missing or empty in the target; maps are merged, all else is kept."""
    for source in sources:
        for key, value in source.items():
            present = target.get(key)
            if isinstance(present, dict) and isinstance(value, dict):
                _merge(present, value)
            elif not present and not isinstance(present, bool):
                target[key] = value
    return target


def _fail(message: str) -> Any:
    raise TemplateError(message)


def _printf(form: str, *values: Any) -> str:
    """Go's verbs %s, %q, %d and %v."""
    parts = form.split("%")
    pieces, rest = [parts[0]], list(values)
    for part in parts[1:]:
        verb, after = part[:1], part[1:]
        if verb not in {"s", "q", "d", "v"}:
            raise TemplateError(f"printf: %{verb} is not supported")
        text = to_text(rest.pop(0))
        pieces += [json.dumps(text, ensure_ascii=False) if verb == "q" else text, after]
    return "".join(pieces)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "append": lambda items, value: [*items, value],
    "default": lambda fallback, value=None: value or fallback,
    "dict": _dict,
    "eq": lambda value, *others: value in others,
    "fail": _fail,
    "first": lambda items: items[0] if items else None,
    "fromYaml": from_yaml,
    "get": lambda mapping, key: mapping.get(key, ""),
    "gt": lambda left, right: left > right,
    "has": lambda needle, haystack: needle in (haystack or []),
    "hasKey": lambda mapping, key: key in mapping,
    "hasSuffix": lambda suffix, text: text.endswith(suffix),
    "indent": _indent,
    "index": lambda items, *keys: reduce(lambda branch, key: branch[key], keys, items),
    "int": lambda value: int(value or 0),
    "int64": lambda value: int(value or 0),
    "join": lambda separator, items: separator.join(map(to_text, items)),
    "keys": lambda *mappings: [key for mapping in mappings for key in mapping],
    "list": lambda *items: list(items),
    # Objects of the cluster: none, as in "helm template".
    "lookup": lambda _version, _kind, _namespace, _name: {},
    "lower": lambda text: text.lower(),
    "merge": _merge,
    "mul": lambda *numbers: math.prod(map(int, numbers)),
    "ne": lambda left, right: left != right,
    "nindent": lambda spaces, text: "\n" + _indent(spaces, text),
    "not": lambda value: not value,
    "printf": _printf,
    "quote": lambda *values: " ".join(
        json.dumps(to_text(item), ensure_ascii=False) for item in values if item is not None
    ),
    "set": _set,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "sortAlpha": lambda items: sorted(map(to_text, items)),
    "ternary": lambda yes, no, condition: yes if condition else no,
    "toJson": lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")),
    "toYaml": to_yaml,
    "trim": lambda text: text.strip(),
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
}
"""By name. ``include``, ``and`` and ``or`` are part of the syntax."""
