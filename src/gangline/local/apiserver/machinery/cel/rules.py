"""Rules of a structural schema in CEL: ``x-kubernetes-validations``.

A rule sees its node as ``self``, and the former one as ``oldSelf``. A rule with ``oldSelf`` is only
applied to a change of a value that can be correlated with a former one: fields, values of maps, and
elements of lists that are keyed (``x-kubernetes-list-type: map``). What an update leaves as it was
is not checked again. Names of fields are escaped as in Kubernetes (``x-y`` is ``x__dash__y``).

Kubernetes estimates the cost of a rule from the limits of its schema. Here the cost of an
evaluation is bounded by the object: its values to the power of the nested loops.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from cel_expr_python import cel
from cel_expr_python.ext import ext_encoders, ext_math, ext_optional, ext_strings

from gangline.api.meta import field_causes
from gangline.api.meta.objects import StatusCause
from gangline.local.apiserver.machinery.cel.functions import kubernetes_functions
from gangline.local.apiserver.machinery.schema.nodes import (
    LIST_TYPE,
    MAP_KEYS,
    Json,
    SchemaCompiler,
    member_schema,
)

__all__ = ["RULES", "RuleError", "SchemaRules", "compile_expression", "evaluate", "rule_causes"]

RULES = "x-kubernetes-validations"
RULE_VARIABLES = ("self", "oldSelf", "formerSelf")
MAX_STEPS = 5_000_000
"""Values to the power of the nested loops of a rule."""
MAX_RULE_CHARS = 10_000
REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
ABSENT: Any = object()
"""There is no former value."""
_OLD = re.compile(r"\boldSelf\b")
_LOOP = re.compile(
    r"\.(?:all|exists|exists_one|filter|map)\s*\(|[()]|\"(?:\\.|[^\"])*\"|'(?:\\.|[^'])*'"
)
_KEYWORDS = frozenset(
    {
        "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import",
        "in", "let", "loop", "namespace", "null", "package", "return", "true", "var", "void",
        "while",
    }
)  # fmt: skip


class RuleError(ValueError):
    """An expression does not compile; the message contains the reason."""


@cache
def _environment(names: Sequence[str]) -> cel.Env:
    extensions = [
        ext_optional.ExtOptional(), ext_strings.ExtStrings(), ext_math.ExtMath(),
        ext_encoders.ExtEncoders(), kubernetes_functions(),
    ]  # fmt: skip
    return cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN), extensions=extensions)


@cache
def compile_expression(text: str, names: Sequence[str] = RULE_VARIABLES) -> cel.Expression:
    """Compile an expression that knows the variables ``names``. Raises RuleError: it is not valid,
    or uses what is not supported.
    """
    if len(text) > MAX_RULE_CHARS:
        raise RuleError(f"has more than {MAX_RULE_CHARS} characters")
    try:
        return _environment(names).compile(text)
    except (RuntimeError, ValueError, UnicodeEncodeError) as error:
        reason = str(error).partition("ERROR: ")[2] or str(error)
        raise RuleError(f"compilation failed: {reason.splitlines()[0]}") from None


def loop_depth(text: str) -> int:
    """Return how deeply the loops of an expression are nested."""
    deepest, stack = 0, list[bool]()
    for match in _LOOP.finditer(text):
        piece = match.group()
        if piece[0] in "\"'":
            continue
        if piece == ")":
            if stack:
                stack.pop()
        else:
            stack.append(piece != "(")
            deepest = max(deepest, sum(stack))
    return deepest


def evaluate(text: str, data: Mapping[str, Any]) -> Any:
    """Return the value of an expression on an admitted object, or a RuleError."""
    depth = loop_depth(text)
    if depth and _count(data["object"]) ** depth > MAX_STEPS:
        return RuleError("too many values for the expression")
    try:
        expression = compile_expression(text, tuple(data))
    except RuleError as error:  # of an object that an earlier release stored
        return error
    value = expression.eval(data=dict(data))
    return RuleError(value.plain_value()) if value.type() == cel.Type.ERROR else value.plain_value()


def escape_name(name: str) -> str:
    """Return the name that a field has in expressions."""
    if name in _KEYWORDS:
        return f"__{name}__"
    escaped = name.replace("__", "__underscores__").replace("-", "__dash__")
    return escaped.replace(".", "__dot__").replace("/", "__slash__")


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule of one node."""

    text: str
    expression: cel.Expression
    message: str
    message_expression: cel.Expression | None
    reason: str
    field_path: str
    needs_former: bool
    """True if the rule is only applied to a change of a former value."""
    depth: int

    def cause(self, value: Any, former: Any, path: str, type_: str) -> StatusCause | None:
        """Return the error of a value; None if it fits the rule."""
        if self.depth and _count(value) ** self.depth > MAX_STEPS:
            return _cause(
                path, "FieldValueInvalid", type_, f"too many values for rule: {self.text}"
            )
        history = [] if former is ABSENT else [former]
        data = {
            "self": value,
            "oldSelf": None if former is ABSENT else former,
            "formerSelf": history,
        }
        result = self.expression.eval(data=data)
        outcome = result.plain_value()
        if outcome is True:
            return None
        message = self.message or f"failed rule: {self.text}"
        if outcome is not False:
            message = f"rule evaluation error: {outcome} evaluating rule: {self.text}"
        elif self.message_expression is not None:
            text = self.message_expression.eval(data=data).plain_value()
            message = text if isinstance(text, str) and text.strip() else message
        return _cause(path + self.field_path, self.reason, type_, message)


def _cause(path: str, reason: str, type_: str, message: str) -> StatusCause:
    head = {
        "FieldValueDuplicate": f'Duplicate value: "{type_}"',
        "FieldValueForbidden": "Forbidden",
        "FieldValueRequired": "Required value",
    }.get(reason, f'Invalid value: "{type_}"')
    return StatusCause(reason, f"{head}: {message}", path.removeprefix(".") or "<nil>")


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_count, value))
    return 1


def compile_rule(rule: Json) -> CompiledRule:
    """Compile one rule of a schema. Raises RuleError: an expression of it does not compile."""
    text = str(rule.get("rule", ""))
    optional = bool(rule.get("optionalOldSelf"))
    former = bool(_OLD.search(text))
    compiled = compile_expression(_OLD.sub("formerSelf[?0]", text) if optional else text)
    if compiled.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise RuleError("must evaluate to a bool")
    message = rule.get("messageExpression")
    return CompiledRule(
        text.strip(),
        compiled,
        str(rule.get("message") or "").strip(),
        compile_expression(str(message)) if message else None,
        rule.get("reason") or "FieldValueInvalid",
        str(rule.get("fieldPath") or ""),
        former and not optional,
        loop_depth(text),
    )


def rule_causes(schema: Json, path: str, *, correlated: bool) -> list[StatusCause]:
    """Return the errors of the rules of one node of a definition's schema."""
    causes: list[StatusCause] = []
    rules = schema.get(RULES, [])
    if not isinstance(rules, list):
        return [field_causes.invalid(f"{path}.{RULES}", rules, "must be a list of rules")]
    for index, rule in enumerate(rules):
        where = field_causes.indexed(f"{path}.{RULES}", index)
        if not isinstance(rule, dict) or not str(rule.get("rule") or "").strip():
            causes.append(field_causes.required(f"{where}.rule"))
            continue
        if rule.get("reason") is not None and rule["reason"] not in REASONS:
            causes.append(field_causes.unsupported(f"{where}.reason", rule["reason"], REASONS))
        try:
            compiled = compile_rule(rule)
        except RuleError as error:
            causes.append(field_causes.invalid(f"{where}.rule", rule["rule"], str(error)))
            continue
        if compiled.needs_former and not correlated:
            detail = "oldSelf cannot be used on the uncorrelatable portion of the schema"
            causes.append(field_causes.invalid(f"{where}.rule", rule["rule"], detail))
    return causes


Check: TypeAlias = Callable[[Any, Any, str, list[StatusCause]], None]
"""Arguments: value, former value or ABSENT, path, errors."""
Shape: TypeAlias = Callable[[Any], Any]
"""Returns a value with the names of its fields as expressions know them."""


class ShapeCompiler(SchemaCompiler[Shape]):
    """Compiles schemas to functions that escape names. None: no name needs it."""

    def _compile(self, schema: Json) -> Shape | None:
        if (member := member_schema(schema)) is not None:
            return _each(self.compile(member))
        if "properties" not in schema:
            return None
        names = {name: escape_name(name) for name in schema["properties"]}
        inner = {name: self.compile(part) for name, part in schema["properties"].items()}
        if all(shape is None for shape in inner.values()) and all(k == v for k, v in names.items()):
            return None

        def shape(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            return {
                names.get(name, name): part(item) if (part := inner.get(name)) is not None else item
                for name, item in value.items()
            }

        return shape


def _each(inner: Shape | None) -> Shape | None:
    if inner is None:
        return None

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: inner(item) for name, item in value.items()}
        return [inner(item) for item in value] if isinstance(value, list) else value

    return shape


class RuleCompiler(SchemaCompiler[Check]):
    """Compiles schemas to checks of their rules. None: there is no rule at or below a node."""

    def __init__(self) -> None:
        super().__init__()
        self._shapes = ShapeCompiler()

    def _compile(self, schema: Json) -> Check | None:
        own = self._own(schema)
        below = self._below(schema)
        checks = [check for check in (own, below) if check is not None]
        if not checks:
            return None

        def check(value: Any, former: Any, path: str, causes: list[StatusCause]) -> None:
            if value is None or (former is not ABSENT and former == value):
                return
            for part in checks:
                part(value, former, path, causes)

        return check

    def _own(self, schema: Json) -> Check | None:
        rules = [compile_rule(rule) for rule in schema.get(RULES) or []]
        if not rules:
            return None
        shape, type_ = self._shapes.compile(schema), str(schema.get("type", ""))

        def check(value: Any, former: Any, path: str, causes: list[StatusCause]) -> None:
            shown, shown_former = value, former
            if shape is not None:
                shown, shown_former = shape(value), former if former is ABSENT else shape(former)
            for rule in rules:
                if rule.needs_former and former is ABSENT:
                    continue
                if (cause := rule.cause(shown, shown_former, path, type_)) is not None:
                    causes.append(cause)

        return check

    def _below(self, schema: Json) -> Check | None:
        if (member := member_schema(schema)) is not None:
            inner = self.compile(member)
            if "items" not in schema:
                return inner and _map_check(inner)
            keyed = schema.get(LIST_TYPE) == "map"
            return inner and _list_check(inner, schema.get(MAP_KEYS, []) if keyed else [])
        compiled = {n: self.compile(part) for n, part in schema.get("properties", {}).items()}
        parts = {name: check for name, check in compiled.items() if check is not None}
        return _object_check(parts) if parts else None


def _former(values: Any, name: str) -> Any:
    return values.get(name, ABSENT) if isinstance(values, dict) else ABSENT


def _object_check(parts: dict[str, Check]) -> Check:
    def check(value: Any, former: Any, path: str, causes: list[StatusCause]) -> None:
        if isinstance(value, dict):
            for name, part in parts.items():
                if name in value:
                    part(value[name], _former(former, name), f"{path}.{name}", causes)

    return check


def _map_check(inner: Check) -> Check:
    def check(value: Any, former: Any, path: str, causes: list[StatusCause]) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                inner(item, _former(former, name), f"{path}[{name}]", causes)

    return check


def _list_check(inner: Check, keys: Sequence[str]) -> Check:
    def identity(item: Any) -> tuple[Any, ...] | None:
        return tuple(map(str, map(item.get, keys))) if keys and isinstance(item, dict) else None

    def check(value: Any, former: Any, path: str, causes: list[StatusCause]) -> None:
        known = {identity(item): item for item in former} if isinstance(former, list) else {}
        for index, item in enumerate(value if isinstance(value, list) else ()):
            name = identity(item)
            inner(item, known.get(name, ABSENT) if name else ABSENT, f"{path}[{index}]", causes)

    return check


class SchemaRules:
    """The rules of one version of a kind."""

    def __init__(self, schema: Json) -> None:
        """Raises RuleError: a rule does not compile."""
        self._check = RuleCompiler().compile(schema)

    def validate(self, obj: Json, former: Json | None) -> list[StatusCause]:
        """Return the errors of an object that has the types of its schema."""
        causes: list[StatusCause] = []
        if self._check is not None:
            shown = {**obj, "metadata": _root_metadata(obj)}
            shown_former = (
                ABSENT if former is None else {**former, "metadata": _root_metadata(former)}
            )
            self._check(shown, shown_former, "", causes)
        return causes


def _root_metadata(obj: Json) -> Json:
    """Rules see the name of an object alone, not its other metadata."""
    meta = obj.get("metadata")
    names = ("name", "generateName")
    return {name: meta[name] for name in names if name in meta} if isinstance(meta, dict) else {}
