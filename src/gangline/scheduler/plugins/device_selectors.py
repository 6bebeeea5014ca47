"""Selectors of devices: the part of CEL that device classes and claims use.

Supported are ``device.driver``, ``device.attributes["domain"].name``, ``device.capacity[...]``,
literals and lists; ``&&``, ``||``, ``!``, comparisons, ``in`` and the conditional; ``has()``,
``quantity()``, ``semver()``, ``size()``, ``cel.bind()``; ``compareTo``, ``isGreaterThan``,
``isLessThan`` of quantities and versions; ``startsWith``, ``endsWith``, ``contains``, ``matches``,
``lowerAscii`` and ``upperAscii`` of texts. Anything else is refused when it is parsed.

An expression is parsed once to a tree of functions. As in CEL, ``&&`` and ``||`` have a result if
one side decides it, even if the other one fails. A device for which an expression fails otherwise,
because it lacks an attribute, is not selected.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from importlib import import_module
from typing import Any

from gangline.api.quantity import Quantity, QuantityError, parse_quantity

Environment = Mapping[str, Any]
Evaluate = Callable[[Environment], Any]
MAX_LENGTH = 10 * 1024
"""Kubernetes' limit for an expression."""
MAX_DEPTH = 60
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+u?(?![\w.]))"
    r"|(?P<text>r?(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'))"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<symbol>&&|\|\||==|!=|<=|>=|[-!<>()\[\].,?:]))"
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "`": "`", "?": "?"}
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


class SelectorError(ValueError):
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
        before = tuple((not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts)
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
        raise SelectorError(f"is longer than {MAX_LENGTH} characters")
    evaluate = _Parser(_tokens(expression)).parse()

    def selects(device: SelectableDevice) -> bool:
        try:
            return evaluate({"device": device}) is True
        except _EvaluationError:
            return False

    return selects


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at, text = 0, expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SelectorError(f"unsupported at {text[at:].lstrip()[:20]!r}")
        tokens.append((match.lastgroup or "", match[match.lastgroup or ""]))
        at = match.end()
    return tokens


class _Parser:
    """Recursive descent, one method per level of precedence."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0
        self._names = {"device"}

    def parse(self) -> Evaluate:
        result = self._conditional()
        if self._at < len(self._tokens):
            raise SelectorError(f"unexpected {self._tokens[self._at][1]!r}")
        return result

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self, *symbols: str) -> str:
        """Take the next token if it is one of these; return it, or an empty text."""
        if self._at < len(self._tokens) and self._tokens[self._at][0] in ("symbol", "name"):
            token = self._tokens[self._at][1]
            if token in symbols:
                self._at += 1
                return token
        return ""

    def _expect(self, symbol: str) -> None:
        if not self._take(symbol):
            raise SelectorError(f"{symbol!r} expected instead of {self._peek() or 'the end'!r}")

    def _name(self) -> str:
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("", "the end")
        if kind != "name":
            raise SelectorError(f"a name expected instead of {token!r}")
        self._at += 1
        return token

    def _conditional(self) -> Evaluate:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SelectorError("is nested too deeply")
        condition = self._either()
        if self._take("?"):
            yes = self._conditional()
            self._expect(":")
            no = self._conditional()
            chosen = condition
            condition = lambda env: (yes if _boolean(chosen(env)) else no)(env)  # noqa: E731
        self._depth -= 1
        return condition

    def _either(self) -> Evaluate:
        sides = [self._both()]
        while self._take("||"):
            sides.append(self._both())
        return _decided_by(True, sides) if len(sides) > 1 else sides[0]

    def _both(self) -> Evaluate:
        sides = [self._relation()]
        while self._take("&&"):
            sides.append(self._relation())
        return _decided_by(False, sides) if len(sides) > 1 else sides[0]

    def _relation(self) -> Evaluate:
        left = self._unary()
        while operator := self._take(*_RELATIONS):
            left = _call(_RELATIONS[operator], left, self._unary())
        return left

    def _unary(self) -> Evaluate:
        if self._take("!"):
            return _call(lambda value: not _boolean(value), self._unary_nested())
        if self._take("-"):
            return _call(_negative, self._unary_nested())
        return self._member()

    def _unary_nested(self) -> Evaluate:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SelectorError("is nested too deeply")
        operand = self._unary()
        self._depth -= 1
        return operand

    def _member(self) -> Evaluate:
        value = self._primary()
        while True:
            if self._take("."):
                name = self._name()
                if self._take("("):
                    method = _METHODS.get(name)
                    if method is None:
                        raise SelectorError(f"{name}() is not supported")
                    if name == "matches":
                        import_regular_expressions()
                    value = _call(method, value, *self._arguments(1 if name in _BINARY else 0))
                else:
                    value = _call(_field, value, _constant(name))
            elif self._take("["):
                value = _call(_item, value, self._conditional())
                self._expect("]")
            else:
                return value

    def _arguments(self, count: int) -> list[Evaluate]:
        arguments: list[Evaluate] = []
        while not self._take(")"):
            if arguments:
                self._expect(",")
            arguments.append(self._conditional())
        if len(arguments) != count:
            raise SelectorError(f"{count} arguments expected instead of {len(arguments)}")
        return arguments

    def _primary(self) -> Evaluate:
        if self._take("("):
            inner = self._conditional()
            self._expect(")")
            return inner
        if self._take("["):
            return self._list()
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        if kind == "number":
            self._at += 1
            return _constant(int(token.rstrip("u")))
        if kind == "text":
            self._at += 1
            return _constant(_unquoted(token))
        name = self._name()
        if name in _LITERALS:
            return _constant(_LITERALS[name])
        if name == "cel" and self._take("."):
            return self._binding()
        if name in _FUNCTIONS and self._take("("):
            return _call(_FUNCTIONS[name], *self._arguments(1))
        if name == "has" and self._take("("):
            (value,) = self._arguments(1)
            return _succeeds(value)
        if name not in self._names:
            raise SelectorError(f"{name!r} is not supported")
        return lambda env: env[name]

    def _list(self) -> Evaluate:
        items: list[Evaluate] = []
        while not self._take("]"):
            if items:
                self._expect(",")
            items.append(self._conditional())
        return lambda env: [item(env) for item in items]

    def _binding(self) -> Evaluate:
        """Read ``cel.bind(name, value, body)``."""
        if self._name() != "bind":
            raise SelectorError("of cel only bind() is supported")
        self._expect("(")
        name = self._name()
        self._expect(",")
        value = self._conditional()
        self._expect(",")
        former, self._names = self._names, self._names | {name}
        body = self._conditional()
        self._names = former
        self._expect(")")
        return lambda env: body({**env, name: value(env)})


def import_regular_expressions() -> Any:
    """Return the module of Go's regular expressions, whose time is linear.

    Raises:
        SelectorError: it is not installed.
    """
    try:
        return import_module("re2")
    except ImportError as error:
        raise SelectorError("matches() needs the package google-re2") from error


def _unquoted(token: str) -> str:
    if token.startswith("r"):
        return token[2:-1]
    return _ESCAPE.sub(_unescaped, token[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    if match[1] not in _ESCAPES:
        raise SelectorError(f"escape {match[0]!r} is not supported")
    return _ESCAPES[match[1]]


def _constant(value: object) -> Evaluate:
    return lambda _: value


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
_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": lambda left, right: _sign(left, right) < 0,
    "<=": lambda left, right: _sign(left, right) <= 0,
    ">": lambda left, right: _sign(left, right) > 0,
    ">=": lambda left, right: _sign(left, right) >= 0,
    "in": _is_in,
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
