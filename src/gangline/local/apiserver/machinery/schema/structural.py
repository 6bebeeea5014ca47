"""The compiled structural schema of a kind: pruning, defaulting and validation of its objects.

The server runs them in this order on every write: prune unknown fields and invalid nulls, set
defaults, validate. ``apiVersion``, ``kind`` and ``metadata`` are always preserved.

A schema is compiled once into closures, one for each node. A node below which nothing can be pruned
or defaulted compiles to None and is never visited; rules that a schema does not use cost nothing at
run time. Validation finds all errors, with the wording of Kubernetes' own, among them duplicate
keys and set members. Rules in CEL follow when all types are right (``machinery.cel``).
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from gangline.api.meta import field_causes
from gangline.api.meta.objects import StatusCause
from gangline.api.quantity import canonical_quantity, quantity_or_none
from gangline.local import limits
from gangline.local.apiserver.machinery.schema.nodes import (
    INT_OR_STRING,
    LIST_TYPE,
    MAP_KEYS,
    QUANTITY,
    Json,
    ParentPath,
    SchemaCompiler,
    Segment,
    additional_properties,
    copy_json,
    format_field_path,
    member_schema,
    preserves_unknown,
    with_object_fields,
)
from gangline.local.apiserver.machinery.schema.value_rules import (
    ValueRule,
    size_rules,
    value_rules,
)

__all__ = ["StructuralSchema"]

Pruner: TypeAlias = Callable[[Any, ParentPath, Segment, list[str]], None]
"""Arguments: value, path of the parent, own segment, list of unknown paths."""


class PrunerCompiler(SchemaCompiler[Pruner]):
    """Compiles schemas to pruners. The result is None if nothing below a node can be pruned.

    With ``as_go``, values are rewritten as where Go decodes them: null among the texts of a list or
    map reads "", among the objects of a list {}, and a map of quantities has their canonical form
    (``1000m`` of cpu is ``1``, null is ``0``).
    """

    def __init__(self, *, as_go: bool) -> None:
        super().__init__()
        self._as_go = as_go

    def _compile(self, schema: Json) -> Pruner | None:
        if (member := member_schema(schema)) is not None:
            if self._as_go and member == QUANTITY:
                return _canonicalize_quantities
            is_struct = self._as_go and member.get("type") == "object"
            return self._empty_texts(member) or _member_pruner(self.compile(member), is_struct)
        is_object = schema.get("type") == "object" and not preserves_unknown(schema)
        return self._object_pruner(schema) if is_object or "properties" in schema else None

    def _empty_texts(self, member: Json) -> Pruner | None:
        if not self._as_go or member.get("type") != "string" or member.get("nullable"):
            return None

        def prune(value: Any, parent: ParentPath, segment: Segment, unknown: list[str]) -> None:
            if isinstance(value, dict):
                value.update({name: "" for name, text in value.items() if text is None})
            elif isinstance(value, list) and None in value:
                value[:] = ["" if text is None else text for text in value]

        return prune

    def _object_pruner(self, schema: Json) -> Pruner:
        properties, extra = schema.get("properties", {}), additional_properties(schema)
        pruners = {name: self.compile(child_schema) for name, child_schema in properties.items()}
        segments = {name: f".{name}" for name in properties}
        not_null = frozenset(
            n for n, child_schema in properties.items() if not child_schema.get("nullable")
        )
        keep_unknown = preserves_unknown(schema)
        of_extra = self.compile(extra) if extra is not None else None

        def prune(value: Any, parent: ParentPath, segment: Segment, unknown: list[str]) -> None:
            if not isinstance(value, dict):
                return
            path = (parent, segment)
            dropped: list[str] = []
            for name, child in value.items():
                if name in pruners:
                    if child is None:
                        if name in not_null:
                            dropped.append(name)
                    elif (inner := pruners[name]) is not None:
                        inner(child, path, segments[name], unknown)
                elif extra is not None:
                    if of_extra is not None:
                        of_extra(child, path, f"[{name}]", unknown)
                elif not keep_unknown:
                    if len(unknown) < limits.MAX_CAUSES:
                        unknown.append(format_field_path(path, f".{name}"))
                    dropped.append(name)
            for name in dropped:
                del value[name]

        return prune


def _canonicalize_quantities(
    value: Any, parent: ParentPath, segment: Segment, unknown: list[str]
) -> None:
    if isinstance(value, dict):
        for name, amount in value.items():
            if amount is None:
                value[name] = "0"
            elif quantity_or_none(amount) is not None:
                value[name] = canonical_quantity(amount)


def _member_pruner(inner: Pruner | None, null_is_empty: bool = False) -> Pruner | None:
    """Prune the items of a list, or the values of a map."""
    if inner is None:
        return None

    def prune(value: Any, parent: ParentPath, segment: Segment, unknown: list[str]) -> None:
        path = (parent, segment)
        if isinstance(value, list):
            if null_is_empty and None in value:
                value[:] = [{} if item is None else item for item in value]
            for index, item in enumerate(value):
                inner(item, path, index, unknown)
        elif isinstance(value, dict):
            for name, item in value.items():
                inner(item, path, f"[{name}]", unknown)

    return prune


Defaulter: TypeAlias = Callable[[Any], None]


class DefaulterCompiler(SchemaCompiler[Defaulter]):
    """Compiles schemas to defaulters. The result is None if no default is at or below a node."""

    def _compile(self, schema: Json) -> Defaulter | None:
        if (member := member_schema(schema)) is not None:
            return _member_defaulter(self.compile(member))
        return self._object_defaulter(schema.get("properties", {}))

    def _object_defaulter(self, properties: Json) -> Defaulter | None:
        absent = {
            name: child_schema["default"]
            for name, child_schema in properties.items()
            if "default" in child_schema
        }
        nullable = frozenset(name for name in absent if properties[name].get("nullable"))
        compiled = ((name, self.compile(child_schema)) for name, child_schema in properties.items())
        inner = [
            (name, child_schema) for name, child_schema in compiled if child_schema is not None
        ]
        if not absent and not inner:
            return None

        def apply(value: Any) -> None:
            if not isinstance(value, dict):
                return
            for name, default in absent.items():
                # API convention: null in a field that is not nullable counts as absent.
                if name not in value or (value[name] is None and name not in nullable):
                    value[name] = copy_json(default)
            for name, child_schema in inner:
                if name in value:
                    child_schema(value[name])

        return apply


def _member_defaulter(inner: Defaulter | None) -> Defaulter | None:
    if inner is None:
        return None

    def apply(value: Any) -> None:
        items = value.values() if isinstance(value, dict) else value
        for item in items if isinstance(value, dict | list) else ():
            inner(item)

    return apply


def list_rule(schema: Json) -> list[ValueRule]:
    """Return the uniqueness rule of a list schema as a list of at most one rule."""
    if "x-kubernetes-patch-strategy" in schema:
        # Keys of built-in lists only guide merges. Code checks uniqueness where it is
        # required: a container may have two variables with one name.
        return []
    keys: list[str] = schema.get(MAP_KEYS, [])
    if schema.get(LIST_TYPE) == "map" and keys:
        fields: Json = schema.get("items", {}).get("properties", {})
        defaults = {key: fields.get(key, {}).get("default") for key in keys}
        return [_unique(lambda item: _key_of(item, defaults))]
    if schema.get(LIST_TYPE) == "set" or schema.get("uniqueItems"):
        return [_unique(lambda item: item)]
    return []


def _key_of(item: Any, defaults: Json) -> Json | None:
    if not isinstance(item, dict):
        return None
    key = {name: item.get(name, default) for name, default in defaults.items()}
    return {name: value for name, value in key.items() if value is not None} or None


def _unique(identity: Callable[[Any], Any]) -> ValueRule:
    def rule(value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]) -> None:
        if len(value) < 2:
            return
        seen: set[str] = set()
        for index, item in enumerate(value):
            key = identity(item)
            if key is None:
                continue  # a missing key is reported as a required field
            text = key if isinstance(key, str) else json.dumps(key, sort_keys=True)
            if text in seen:
                causes.append(
                    field_causes.duplicate(format_field_path((parent, segment), index), key)
                )
            seen.add(text)

    return rule


class TooManyCausesError(Exception):
    """The list of errors is full: the rest of the object need not be validated."""


class CauseList(list[StatusCause]):
    """Errors up to a maximum number."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def append(self, cause: StatusCause) -> None:
        """Add an error. Raises TooManyCausesError: there are as many as may be."""
        super().append(cause)
        if len(self) >= self._most:
            raise TooManyCausesError


Validator: TypeAlias = ValueRule

_SCALARS = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_JSON_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
    type(None): "null",
}


class ValidatorCompiler(SchemaCompiler[Validator]):
    """Compiles schemas to validators. The result is None if a node accepts every value."""

    def _compile(self, schema: Json) -> Validator | None:
        return _all_of([self._compile_type(schema), self._compile_logical(schema)])

    def _compile_type(self, schema: Json) -> Validator | None:
        nullable = bool(schema.get("nullable"))
        if schema.get(INT_OR_STRING):
            return _leaf("integer,string", (int, str), value_rules(schema), nullable)
        if schema.get("oneOf") == QUANTITY["oneOf"]:
            return _quantity
        type_ = schema.get("type")
        if type_ == "array":
            return self._compile_list(schema, nullable)
        # Without a type only the rules apply, as in the branches of anyOf and oneOf.
        if type_ == "object" or (type_ is None and schema.keys() & {"properties", "required"}):
            return self._compile_object(schema, nullable, typed=type_ is not None)
        if type_ in _SCALARS:
            return _leaf(type_, _SCALARS[type_], value_rules(schema), nullable)
        return _all_of(value_rules(schema))

    def _compile_list(self, schema: Json, nullable: bool) -> Validator:
        inner = self.compile(schema.get("items", {}))
        rules = [*size_rules(schema, "minItems", "maxItems", "items"), *list_rule(schema)]

        def check(
            value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]
        ) -> None:
            if type(value) is not list:
                if value is not None or not nullable:
                    _wrong_type(value, "array", parent, segment, causes)
                return
            for rule in rules:
                rule(value, parent, segment, causes)
            if inner is not None:
                path = (parent, segment)
                for index, item in enumerate(value):
                    inner(item, path, index, causes)

        return check

    def _compile_object(self, schema: Json, nullable: bool, typed: bool = True) -> Validator:
        compiled = {
            n: self.compile(child_schema)
            for n, child_schema in schema.get("properties", {}).items()
        }
        checks_by_name = {
            name: (child_schema, f".{name}")
            for name, child_schema in compiled.items()
            if child_schema is not None
        }
        required = [(name, f".{name}") for name in schema.get("required", [])]
        extra = additional_properties(schema)
        of_extra = self.compile(extra) if extra is not None else None
        named = frozenset(compiled)
        rules = [*size_rules(schema, "minProperties", "maxProperties", "properties")]

        def check(
            value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]
        ) -> None:
            if type(value) is not dict:
                if typed and (value is not None or not nullable):
                    _wrong_type(value, "object", parent, segment, causes)
                return
            path = (parent, segment)
            for name, own in required:
                if name not in value:
                    causes.append(field_causes.required(format_field_path(path, own)))
            for rule in rules:
                rule(value, parent, segment, causes)
            for name, child in value.items():
                if (entry := checks_by_name.get(name)) is not None:
                    entry[0](child, path, entry[1], causes)
                elif of_extra is not None and name not in named:
                    of_extra(child, path, f"[{name}]", causes)

        return check

    def _compile_logical(self, schema: Json) -> Validator | None:
        if not schema.keys() & {"anyOf", "oneOf", "allOf", "not"} or schema == QUANTITY:
            return None
        return _logical_validator(
            [self.compile(child_schema) for child_schema in schema.get("anyOf", [])],
            [self.compile(child_schema) for child_schema in schema.get("oneOf", [])],
            [self.compile(child_schema) for child_schema in schema.get("allOf", [])],
            [self.compile(schema["not"])] if "not" in schema else [],
        )


def _wrong_type(
    value: Any, expected: str, parent: ParentPath, segment: Segment, causes: list[StatusCause]
) -> None:
    actual = _JSON_TYPES.get(type(value), type(value).__name__)
    causes.append(field_causes.type_invalid(format_field_path(parent, segment), actual, expected))


def _leaf(name: str, types: tuple[type, ...], rules: list[ValueRule], nullable: bool) -> Validator:
    def check(value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]) -> None:
        # bool is a subclass of int in Python but a separate type in JSON: compare exactly.
        if type(value) not in types:
            if value is not None or not nullable:
                _wrong_type(value, name, parent, segment, causes)
            return
        for rule in rules:
            rule(value, parent, segment, causes)

    return check


def _quantity(value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]) -> None:
    if type(value) not in (str, int, float):
        _wrong_type(value, "string", parent, segment, causes)
    elif quantity_or_none(value) is None:
        detail = "quantities must match the regular expression "
        detail += "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        causes.append(field_causes.invalid(format_field_path(parent, segment), value, detail))


def _all_of(checks: Sequence[Validator | None]) -> Validator | None:
    given = [check for check in checks if check is not None]
    if len(given) < 2:
        return given[0] if given else None

    def check(value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]) -> None:
        for part in given:
            part(value, parent, segment, causes)

    return check


def _logical_validator(
    any_of: list[Validator | None],
    one_of: list[Validator | None],
    all_of: list[Validator | None],
    not_of: list[Validator | None],
) -> Validator:
    def check(value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]) -> None:
        def accepted_by(branch: Validator | None) -> bool:
            try:
                if branch is not None:
                    branch(value, parent, segment, CauseList(1))
            except TooManyCausesError:
                return False
            return True

        def add(rule: str) -> None:
            path = format_field_path(parent, segment)
            causes.append(field_causes.invalid(path, value, f'"{path}" {rule}'))

        if any_of and not any(map(accepted_by, any_of)):
            add("must validate at least one schema (anyOf)")
        if one_of and (count := sum(map(accepted_by, one_of))) != 1:
            detail = "valid alternatives more than one" if count else "none valid"
            add(f"must validate one and only one schema (oneOf). Found {detail}")
        for branch in all_of:
            if branch is not None:
                branch(value, parent, segment, causes)
        if any(map(accepted_by, not_of)):
            add("must not validate the schema (not)")

    return check


class StructuralSchema:
    """The schema of one kind in one version. Compilation takes milliseconds, so reuse it."""

    def __init__(self, schema: Json, *, as_go: bool = False) -> None:
        self.schema = with_object_fields(schema)
        self._prune = PrunerCompiler(as_go=as_go).compile(self.schema)
        self._default = DefaulterCompiler().compile(self.schema)
        self._validate = ValidatorCompiler().compile(self.schema)

    def prune(self, obj: Json) -> list[str]:
        """Remove unknown fields and invalid nulls in place. Returns the paths of unknown fields."""
        unknown: list[str] = []
        if self._prune is not None:
            self._prune(obj, None, "", unknown)
        return unknown

    def apply_defaults(self, obj: Json) -> None:
        if self._default is not None:
            self._default(obj)

    def validate(self, obj: Any) -> list[StatusCause]:
        """Return the errors of an object; one more than are reported if there are too many."""
        causes = CauseList(limits.MAX_CAUSES + 1)
        if self._validate is not None:
            with contextlib.suppress(TooManyCausesError):
                self._validate(obj, None, "", causes)
        return causes
