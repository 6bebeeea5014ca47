"""Selectors of devices: the part of CEL that device classes and claims use.

Supported are ``device.driver``, ``device.attributes["domain"].name``, ``device.capacity[...]``,
literals and lists; ``&&``, ``||``, ``!``, comparisons and ``in``; ``has()``, ``quantity()``,
``semver()``, ``size()``, ``cel.bind()``; ``compareTo``, ``isGreaterThan``, ``isLessThan`` of
quantities and versions; ``startsWith``, ``endsWith``, ``contains``, ``matches``, ``lowerAscii`` and
``upperAscii`` of texts. Anything else is refused when it is parsed.

These forms have the grammar of Python's expressions, with other operators: Python's parser builds
the tree, and only the nodes that are listed here are compiled to functions; nothing else runs. As
in CEL, ``&&`` and ``||`` have a result if one side decides it, even if the other one fails. A
device for which an expression fails otherwise, because it lacks an attribute, is not selected.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from importlib import import_module
from keyword import kwlist
from typing import Any

from gangline.api.quantity import Quantity, QuantityError, parse_quantity

Environment = Mapping[str, Any]
Evaluate = Callable[[Environment], Any]
MAX_LENGTH = 10 * 1024
"""Kubernetes' limit for an expression."""
MAX_DEPTH = 60
_ESCAPE = r"\\[abfnrtvxuU0-7\\\"']"
_TOKEN = re.compile(
    r"(?P<raw>r(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'))"
    rf"|(?P<text>\"(?:[^\"\\\n]|{_ESCAPE})*\"|'(?:[^'\\\n]|{_ESCAPE})*')"
    r"|(?P<operator>&&|\|\||!(?!=))|(?P<word>[A-Za-z_]\w*)|(?P<number>\d+)(?![\w.])|(?P<space>\s+)"
    r"|(?:==|!=|<=|>=|[-<>()\[\].,])"
)
_OPERATORS = {"&&": " and ", "||": " or ", "!": "~"}
"""Python's operators of the same precedence."""
_PYTHON = frozenset(kwlist) - {"in"}
"""Words that mean something to Python alone."""
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


class DeviceSelectorError(ValueError):
    """An expression uses what is not supported, or is not valid."""


class _EvaluationError(Exception):
    """An expression has no value for a device."""


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version; the build is ignored."""

    numbers: tuple[int, ...]
    prerelease: tuple[tuple[bool, int, str], ...] = ()
    """Numbers come before texts."""

    @classmethod
    def parse(cls, text: str) -> "Version | None":
        """Return a version; None: the text is not one."""
        match = _VERSION.fullmatch(text)
        if match is None:
            return None
        parts = match[4].split(".") if match[4] else ()
        before = tuple((not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts)
        return cls(tuple(map(int, match.group(1, 2, 3))), before)

    def __lt__(self, other: "Version") -> bool:
        mine, theirs = ((v.numbers, not v.prerelease, v.prerelease) for v in (self, other))
        return mine < theirs


@dataclass(frozen=True, slots=True)
class SelectableDevice:
    """What expressions see of a device: values by domain and name."""

    driver: str
    attributes: Mapping[str, Mapping[str, Any]]
    capacity: Mapping[str, Mapping[str, Quantity]]


@lru_cache(maxsize=4096)
def parse_selector(expression: str) -> Callable[[SelectableDevice], bool]:
    """Return whether devices are selected, as a function.

    Raises:
        SelectorError: the expression is not supported.
    """
    if len(expression) > MAX_LENGTH:
        raise DeviceSelectorError(f"is longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(_as_python(expression), mode="eval")
        evaluate = _compiled(tree.body, frozenset({"device"}), 0)
    except SyntaxError as error:
        raise DeviceSelectorError(f"is not valid: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise DeviceSelectorError("is nested too deeply") from error

    def selects(device: SelectableDevice) -> bool:
        try:
            return evaluate({"device": device}) is True
        except _EvaluationError:
            return False

    return selects


def _as_python(expression: str) -> str:
    parts: list[str] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None or match["word"] in _PYTHON:
            (start, *_) = expression[at : at + 20].split(maxsplit=1)
            raise DeviceSelectorError(f"{start!r} is not supported")
        parts.append(" " if match["space"] else _OPERATORS.get(match[0], match[0]))
        at = match.end()
    return "".join(parts).strip()


def _compiled(  # noqa: PLR0912 - one case for each form
    node: ast.expr, names: frozenset[str], depth: int
) -> Evaluate:
    """Return the value of a node, as a function of the named values."""
    if depth > MAX_DEPTH:
        raise DeviceSelectorError("is nested too deeply")

    def parts(*nodes: ast.expr) -> list[Evaluate]:
        return [_compiled(part, names, depth + 1) for part in nodes]

    match node:
        case ast.Constant(value=str() | int() as constant):
            return lambda _: constant
        case ast.Name(id=name) if name in _LITERALS:
            return lambda _: _LITERALS[name]
        case ast.Name(id=name) if name in names:
            return lambda env: env[name]
        case ast.List(elts=listed):
            items = parts(*listed)
            return lambda env: [item(env) for item in items]
        case ast.BoolOp(op=operator, values=listed):
            return _decided_by(isinstance(operator, ast.Or), parts(*listed))
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return _call(lambda value: not _boolean(value), *parts(operand))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _call(_negative, *parts(operand))
        case ast.Compare(left=left, ops=[relation], comparators=[right]):
            return _call(_RELATIONS[type(relation)], *parts(left, right))
        case ast.Attribute(value=owner, attr=name):
            return _call(lambda value: _field(value, name), *parts(owner))
        case ast.Subscript(value=owner, slice=key):
            return _call(_item, *parts(owner, key))
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="cel"), attr="bind"),
            args=[ast.Name(id=name), bound, body],
            keywords=[],
        ):
            (value,), inner = parts(bound), _compiled(body, names | {name}, depth + 1)
            return lambda env: inner({**env, name: value(env)})
        case ast.Call(func=ast.Name(id="has"), args=[ast.Attribute() as path], keywords=[]):
            return _succeeds(*parts(path))
        case ast.Call(func=ast.Name(id=name), args=[one], keywords=[]) if name in _FUNCTIONS:
            return _call(_FUNCTIONS[name], *parts(one))
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args, keywords=[]) if len(
            args
        ) == _ARGUMENTS.get(name):
            if name == "matches":
                import_regular_expressions()
            return _call(_METHODS[name], *parts(owner, *args))
    raise DeviceSelectorError(f"{ast.unparse(node)[:40]!r} is not supported")


def import_regular_expressions() -> Any:
    """Return the module of Go's regular expressions, whose time is linear.

    Raises:
        SelectorError: it is not installed.
    """
    try:
        return import_module("re2")
    except ImportError as error:
        raise DeviceSelectorError("matches() needs the package google-re2") from error


def _call(function: Callable[..., Any], *arguments: Evaluate) -> Evaluate:
    if len(arguments) == 1:
        (only,) = arguments
        return lambda env: function(only(env))
    left, right = arguments
    return lambda env: function(left(env), right(env))


def _decided_by(result: bool, sides: list[Evaluate]) -> Evaluate:
    """Return the disjunction (True) or conjunction (False) of several expressions."""

    def evaluate(env: Environment) -> bool:
        failure: _EvaluationError | None = None
        for side in sides:
            try:
                if _boolean(side(env)) is result:
                    return result
            except _EvaluationError as error:
                failure = error
        if failure is not None:
            raise failure
        return not result

    return evaluate


def _succeeds(value: Evaluate) -> Evaluate:
    def evaluate(env: Environment) -> bool:
        try:
            value(env)
        except _EvaluationError:
            return False
        return True

    return evaluate


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise _EvaluationError("not a boolean")
    return value


def _negative(value: object) -> int:
    if type(value) is not int:
        raise _EvaluationError("not a number")
    return -value


def _field(value: object, name: str) -> Any:
    if isinstance(value, SelectableDevice) and name in _DEVICE_FIELDS:
        return getattr(value, name)
    return _item(value, name)


def _item(value: object, key: object) -> Any:
    if isinstance(value, Mapping) and isinstance(key, str):
        if isinstance(value, _Domains):
            return value.get(key, {})  # A domain without values is empty, as in Kubernetes.
        if key in value:
            return value[key]
    if isinstance(value, list) and type(key) is int and 0 <= key < len(value):
        return value[key]
    raise _EvaluationError(f"no {key}")


class _Domains(dict[Any, Any]):
    """Values by domain."""


def domains(values: Mapping[str, Any], driver: str) -> Mapping[str, Mapping[str, Any]]:
    """Group qualified names by domain; names without one belong to the driver."""
    grouped = _Domains()
    for name, value in values.items():
        domain, _, own = name.rpartition("/")
        grouped.setdefault(domain or driver, {})[own] = value
    return grouped


def _is_in(value: object, container: object) -> bool:
    if isinstance(container, list):
        return any(_equal(value, item) for item in container)
    if isinstance(container, Mapping) and isinstance(value, str):
        return value in container
    raise _EvaluationError("not a list")


def _equal(left: object, right: object) -> bool:
    return type(left) is type(right) and bool(left == right)


def _sign(left: Any, right: Any) -> int:
    """Return -1, 0 or 1; only values of one ordered type are compared."""
    if type(left) is not type(right) or not isinstance(left, int | str | Version | Quantity):
        raise _EvaluationError("not comparable")
    if isinstance(left, Quantity):
        left, right = left.nano, right.nano
    return int(left > right) - int(left < right)


def _sign_of_objects(left: object, right: object) -> int:
    if not isinstance(left, Version | Quantity):
        raise _EvaluationError("not a quantity or version")
    return _sign(left, right)


def _on_texts(function: Callable[[str, str], bool]) -> Callable[[object, object], bool]:
    def evaluate(left: object, right: object) -> bool:
        if not (isinstance(left, str) and isinstance(right, str)):
            raise _EvaluationError("not a text")
        return function(left, right)

    return evaluate


def _matches(text: str, pattern: str) -> bool:
    expressions = import_regular_expressions()
    try:
        return expressions.search(pattern, text) is not None
    except expressions.error as error:
        raise _EvaluationError("not a pattern") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _EvaluationError("not a text")
    return value


def _quantity(text: object) -> Quantity:
    try:
        return parse_quantity(_text(text))
    except QuantityError as error:
        raise _EvaluationError("not a quantity") from error


def _semver(text: object) -> Version:
    version = Version.parse(_text(text))
    if version is None:
        raise _EvaluationError("not a version")
    return version


def _size(value: object) -> int:
    if not isinstance(value, str | list | Mapping):
        raise _EvaluationError("has no size")
    return len(value)


_LITERALS: Mapping[str, object] = {"true": True, "false": False, "null": None}
_DEVICE_FIELDS = ("driver", "attributes", "capacity")
_FUNCTIONS: Mapping[str, Callable[[object], Any]] = {
    "quantity": _quantity, "semver": _semver, "size": _size,
}  # fmt: skip
_RELATIONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: _equal,
    ast.NotEq: lambda left, right: not _equal(left, right),
    ast.Lt: lambda left, right: _sign(left, right) < 0,
    ast.LtE: lambda left, right: _sign(left, right) <= 0,
    ast.Gt: lambda left, right: _sign(left, right) > 0,
    ast.GtE: lambda left, right: _sign(left, right) >= 0,
    ast.In: _is_in,
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "compareTo": _sign_of_objects,
    "isGreaterThan": lambda left, right: _sign_of_objects(left, right) > 0,
    "isLessThan": lambda left, right: _sign_of_objects(left, right) < 0,
    "startsWith": _on_texts(str.startswith),
    "endsWith": _on_texts(str.endswith),
    "contains": _on_texts(str.__contains__),
    "matches": _on_texts(_matches),
}
_METHODS: Mapping[str, Callable[..., Any]] = {
    **_BINARY,
    "lowerAscii": lambda value: _text(value).lower(),
    "upperAscii": lambda value: _text(value).upper(),
    "size": _size,
}
_ARGUMENTS = {name: int(name in _BINARY) for name in _METHODS}
"""Number of arguments by method."""
