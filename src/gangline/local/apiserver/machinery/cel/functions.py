"""Kubernetes' own functions for CEL, beside those of the library.

Lists, regular expressions, quantities, URLs, IP addresses and networks, sets. Quantities, URLs,
addresses and networks are types of their own in Kubernetes. Here they are texts in canonical form,
so that equal ones are equal. What is not here does not compile: the authorizer, semantic versions,
named formats, and macros with two variables.
"""

import ipaddress
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

import re2
from cel_expr_python import cel

from gangline.api.quantity import Quantity, parse_quantity

__all__ = ["kubernetes_functions"]

DYN, TEXT, BOOL, INT = cel.Type.DYN, cel.Type.STRING, cel.Type.BOOL, cel.Type.INT
LIST = cel.Type.List(DYN)
TEXTS = cel.Type.List(TEXT)

Signature = tuple[str, Sequence[cel.Type], cel.Type, Callable[..., Any]]
"""Name, types of the arguments, type of the result, function."""


def _plain(value: Any) -> Any:
    return value.plain_value() if isinstance(value, cel.Value) else value


def _plain_list(values: Any) -> list[Any]:
    return [_plain(value) for value in values]


def _is(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def test(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return test


def _is_sorted(values: Any) -> bool:
    listed = _plain_list(values)
    return all(first <= second for first, second in pairwise(listed))


def _index(values: Any, wanted: Any, *, last: bool = False) -> int:
    listed = _plain_list(values)
    places = range(len(listed) - 1, -1, -1) if last else range(len(listed))
    return next((place for place in places if listed[place] == _plain(wanted)), -1)


LISTS: Sequence[Signature] = (
    ("isSorted", (LIST,), BOOL, _is_sorted),
    ("sum", (LIST,), DYN, lambda values: sum(_plain_list(values))),
    ("min", (LIST,), DYN, lambda values: min(_plain_list(values))),
    ("max", (LIST,), DYN, lambda values: max(_plain_list(values))),
    ("indexOf", (LIST, DYN), INT, _index),
    ("lastIndexOf", (LIST, DYN), INT, lambda values, wanted: _index(values, wanted, last=True)),
)


def _contains(first: Any, second: Any) -> bool:
    listed = _plain_list(first)
    return all(value in listed for value in _plain_list(second))


def _intersects(first: Any, second: Any) -> bool:
    listed = _plain_list(first)
    return any(value in listed for value in _plain_list(second))


SETS: Sequence[Signature] = (
    ("sets.contains", (LIST, LIST), BOOL, _contains),
    ("sets.intersects", (LIST, LIST), BOOL, _intersects),
    ("sets.equivalent", (LIST, LIST), BOOL, lambda a, b: _contains(a, b) and _contains(b, a)),
)


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"invalid regular expression: {error}") from None


def _find(text: str, pattern: str) -> str:
    match = _compile(pattern).search(text)
    return str(match.group()) if match is not None else ""


def _find_all(text: str, pattern: str, most: int = -1) -> list[str]:
    found = [str(match.group()) for match in _compile(pattern).finditer(text)]
    return found if most < 0 else found[:most]


EXPRESSIONS: Sequence[Signature] = (
    ("find", (TEXT, TEXT), TEXT, _find),
    ("findAll", (TEXT, TEXT), TEXTS, _find_all),
    ("findAll", (TEXT, TEXT, INT), TEXTS, _find_all),
)


def _compare(first: str, second: str) -> int:
    left, right = parse_quantity(first), parse_quantity(second)
    return (left.nano > right.nano) - (left.nano < right.nano)


def _as_integer(text: str) -> int:
    whole, rest = divmod(parse_quantity(text).nano, 10**9)
    if rest:
        raise ValueError(f"{text} is not an integer")
    return whole


def _sum(first: str, other: Any, sign: int) -> str:
    added = parse_quantity(other).nano if isinstance(other, str) else int(other) * 10**9
    return str(Quantity(parse_quantity(first).nano + sign * added))


QUANTITIES: Sequence[Signature] = (
    ("isQuantity", (TEXT,), BOOL, _is(parse_quantity)),
    ("quantity", (TEXT,), TEXT, lambda text: str(Quantity(parse_quantity(text).nano))),
    ("sign", (TEXT,), INT, lambda text: _compare(text, "0")),
    ("isInteger", (TEXT,), BOOL, _is(_as_integer)),
    ("asInteger", (TEXT,), INT, _as_integer),
    ("asApproximateFloat", (TEXT,), cel.Type.DOUBLE, lambda text: parse_quantity(text).nano / 1e9),
    ("isGreaterThan", (TEXT, TEXT), BOOL, lambda a, b: _compare(a, b) > 0),
    ("isLessThan", (TEXT, TEXT), BOOL, lambda a, b: _compare(a, b) < 0),
    ("compareTo", (TEXT, TEXT), INT, _compare),
    ("add", (TEXT, DYN), TEXT, lambda text, other: _sum(text, _plain(other), 1)),
    ("sub", (TEXT, DYN), TEXT, lambda text, other: _sum(text, _plain(other), -1)),
)


def _url(text: str) -> str:
    parts = urlsplit(text)
    if not (parts.scheme or text.startswith("/")):
        raise ValueError(f"URL parse error: {text!r}")
    _ = parts.port  # raises ValueError: it is no number
    return text


URLS: Sequence[Signature] = (
    ("isURL", (TEXT,), BOOL, _is(_url)),
    ("url", (TEXT,), TEXT, _url),
    ("getScheme", (TEXT,), TEXT, lambda url: urlsplit(url).scheme),
    ("getHost", (TEXT,), TEXT, lambda url: urlsplit(url).netloc.rpartition("@")[2]),
    ("getHostname", (TEXT,), TEXT, lambda url: urlsplit(url).hostname or ""),
    ("getPort", (TEXT,), TEXT, lambda url: str(urlsplit(url).port or "")),
    ("getEscapedPath", (TEXT,), TEXT, lambda url: urlsplit(url).path),
    ("getQuery", (TEXT,), cel.Type.Map(TEXT, TEXTS), lambda url: parse_qs(urlsplit(url).query)),
)


def _network(text: str) -> Any:
    return ipaddress.ip_network(text, strict=False)


def _inside(network: str, other: str) -> bool:
    outer, inner = _network(network), _network(other)
    return bool(outer.version == inner.version and inner.subnet_of(outer))


ADDRESSES: Sequence[Signature] = (
    ("isIP", (TEXT,), BOOL, _is(ipaddress.ip_address)),
    ("ip", (TEXT,), TEXT, lambda text: str(ipaddress.ip_address(text))),
    ("ip.isCanonical", (TEXT,), BOOL, lambda text: str(ipaddress.ip_address(text)) == text),
    ("family", (TEXT,), INT, lambda text: ipaddress.ip_address(text).version),
    ("isUnspecified", (TEXT,), BOOL, lambda text: ipaddress.ip_address(text).is_unspecified),
    ("isLoopback", (TEXT,), BOOL, lambda text: ipaddress.ip_address(text).is_loopback),
    ("isCIDR", (TEXT,), BOOL, _is(_network)),
    ("cidr", (TEXT,), TEXT, lambda text: _network(text) and text),
    ("containsIP", (TEXT, TEXT), BOOL, _inside),
    ("containsCIDR", (TEXT, TEXT), BOOL, _inside),
    ("prefixLength", (TEXT,), INT, lambda text: _network(text).prefixlen),
    ("masked", (TEXT,), TEXT, lambda text: str(_network(text))),
)
FREE = frozenset(
    {"isQuantity", "quantity", "isURL", "url", "isIP", "ip", "isCIDR", "cidr", "ip.isCanonical"}
)
"""Functions that are no methods of their first argument, beside those of sets."""


def kubernetes_functions() -> cel.CelExtension:
    """Return the extension for an environment."""
    overloads: dict[str, list[cel.Overload]] = {}
    groups = (LISTS, SETS, EXPRESSIONS, QUANTITIES, URLS, ADDRESSES)
    for name, parameters, result, function in (one for group in groups for one in group):
        listed = overloads.setdefault(name, [])
        free = name in FREE or name.startswith("sets.")
        listed.append(
            cel.Overload(
                id=f"kubernetes_{name.replace('.', '_')}_{len(listed)}",
                return_type=result,
                parameters=list(parameters),
                is_member=not free,
                impl=function,
            )
        )
    declared = [cel.FunctionDecl(name, listed) for name, listed in overloads.items()]
    return cel.CelExtension("kubernetes", declared)
