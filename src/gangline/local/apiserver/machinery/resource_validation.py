"""Validation of quantities: requests and limits of containers, capacities, claims."""

from typing import Any

from gangline.api import names
from gangline.api.quantity import QuantityError, parse_quantity
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.amounts import quantity_or_none
from gangline.local.apiserver.machinery.field_errors import child, indexed
from gangline.local.apiserver.machinery.json_objects import subobject
from gangline.local.apiserver.machinery.name_rules import Causes
from gangline.local.apiserver.machinery.schemas import Json

STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage")
HUGE_PAGES = "hugepages-"


def resource_causes(path: str, resources: Json) -> Causes:
    limits, requests = subobject(resources, "limits"), subobject(resources, "requests")
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name in amounts:
            yield from _container_resource(indexed(child(path, kind), name), name, amounts[name])
    for name, requested in requests.items():
        low, high = quantity_or_none(requested), quantity_or_none(limits.get(name))
        where = indexed(child(path, "requests"), name)
        if low is not None and high is not None and low > high:
            detail = f"must be less than or equal to {name} limit of {high}"
            yield field_errors.invalid(where, str(requested), detail)
        elif _is_integer_resource(name) and low != high and low is not None:
            if high is None:
                where = indexed(child(path, "limits"), name)
                yield field_errors.required(
                    where, "Limit must be set for non overcommitable resources"
                )
            else:
                yield field_errors.invalid(
                    where, str(requested), f"must be equal to {name} limit of {high}"
                )


def quantity_causes(path: str, value: Any, *, positive: bool = False) -> Causes:
    """Yield the errors of one quantity: negative values, and zero if ``positive`` is set."""
    try:
        found = parse_quantity(value)
    except QuantityError as error:
        yield field_errors.invalid(path, value, str(error))
        return
    if found.nano < 0:
        yield field_errors.invalid(path, str(value), "must be greater than or equal to 0")
    elif positive and not found:
        yield field_errors.invalid(path, str(value), "must be greater than zero")


def _container_resource(path: str, name: str, value: Any) -> Causes:
    if names.validate_label_key(name) is not None or ("/" not in name and not _is_standard(name)):
        detail = "must be a standard resource for containers, or a name with a domain and '/'"
        yield field_errors.invalid(path, name, detail)
    yield from quantity_causes(path, value)
    found = quantity_or_none(value)
    if found is not None and _is_integer_resource(name) and found.milli % 1000:
        yield field_errors.invalid(path, str(value), "must be an integer")


def _is_standard(name: str) -> bool:
    return name in STANDARD_RESOURCES or name.startswith(HUGE_PAGES)


def _is_integer_resource(name: str) -> bool:
    """Return True for device resources such as GPUs: integers that cannot be overcommitted."""
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")
