"""Rules of single fields that all kinds share: names, labels, annotations, numbers, quantities.

Objects are decoded JSON. Each function yields all errors it finds, in Kubernetes' words; values of
another JSON type are left to the schema.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias

from gangline.api import names
from gangline.api.meta import field_causes
from gangline.api.meta.json_objects import Json, objects_in
from gangline.api.meta.objects import StatusCause
from gangline.api.quantity import QuantityError, parse_quantity

NameRule: TypeAlias = Callable[[str], names.NameProblem | None]
Causes: TypeAlias = Iterator[StatusCause]

MAX_ANNOTATION_BYTES = 256 * 1024
"""Maximum size of all annotations of an object, keys included, in bytes."""


def rule_causes(rule: NameRule, path: str, value: Any) -> Causes:
    """Yield the error of a rule for a text. Values of other types are left to the schema."""
    if isinstance(value, str) and (fault := rule(value)) is not None:
        yield field_causes.invalid(path, value, f"{fault.problem}; {fault.remedy}")


def name_causes(rule: NameRule, path: str, value: Any) -> Causes:
    if value in (None, ""):
        yield field_causes.required(path)
    else:
        yield from rule_causes(rule, path, value)


def label_causes(path: str, labels: Any) -> Causes:
    for key, value in _string_items(labels):
        yield from rule_causes(names.validate_label_key, path, key)
        yield from rule_causes(names.validate_label_value, field_causes.indexed(path, key), value)


def annotation_causes(path: str, annotations: Any) -> Causes:
    """Yield the errors of annotations: their keys, and their total size."""
    size = 0
    for key, value in _string_items(annotations):
        # Keys of annotations and labels follow the same rule.
        yield from rule_causes(names.validate_label_key, path, key)
        size += len(key.encode()) + len(value.encode())
    if size > MAX_ANNOTATION_BYTES:
        yield field_causes.too_long(path, MAX_ANNOTATION_BYTES)


def requirement_causes(path: str, selector: Json, operators: Collection[str]) -> Causes:
    """The expressions of a selector of labels, or of a term that selects nodes."""
    for index, rule in enumerate(objects_in(selector.get("matchExpressions"))):
        where = field_causes.indexed(field_causes.child(path, "matchExpressions"), index)
        at_values = field_causes.child(where, "values")
        operator, values = rule.get("operator"), rule.get("values") or []
        key = field_causes.child(where, "key")
        yield from name_causes(names.validate_label_key, key, rule.get("key"))
        if operator not in operators:
            detail = "not a valid selector operator"
            yield field_causes.invalid(field_causes.child(where, "operator"), operator, detail)
        elif operator in ("In", "NotIn") and not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            yield field_causes.required(at_values, detail)
        elif operator in ("Exists", "DoesNotExist") and values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield field_causes.forbidden(at_values, detail)
        elif operator in ("Gt", "Lt") and len(values) != 1:
            detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            yield field_causes.required(at_values, detail)


def enum_causes(path: str, value: Any, allowed: Iterable[str]) -> Causes:
    if value is not None and value not in allowed:
        yield field_causes.unsupported(path, value, allowed)


def minimum_causes(path: str, value: Any, low: int) -> Causes:
    if isinstance(value, int) and not isinstance(value, bool) and value < low:
        yield field_causes.invalid(path, value, f"must be greater than or equal to {low}")


def port_causes(path: str, value: Any) -> Causes:
    if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= 65_535:
        yield field_causes.invalid(path, value, "must be between 1 and 65535, inclusive")


def quantity_causes(path: str, value: Any, *, positive: bool = False) -> Causes:
    """Yield the errors of one quantity: negative values, and zero if ``positive`` is set."""
    try:
        quantity = parse_quantity(value)
    except QuantityError as error:
        yield field_causes.invalid(path, value, str(error))
        return
    if quantity.nano < 0:
        yield field_causes.invalid(path, str(value), "must be greater than or equal to 0")
    elif positive and not quantity:
        yield field_causes.invalid(path, str(value), "must be greater than zero")


def _string_items(values: Any) -> Iterator[tuple[str, str]]:
    if isinstance(values, dict):
        yield from ((key, value) for key, value in values.items() if isinstance(value, str))
