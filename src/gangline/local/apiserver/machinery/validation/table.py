"""Rules of single fields of built-in kinds, from the table ``field_rules.toml``.

A section has the rules of the kinds in its title (``GROUP KIND``, the core group is ``v1``). A key
is a path: ``[]`` stands for all items of a list, ``{}`` for all values of a map. An absent object
counts as an empty one, unless ``?`` follows its name. After ``|``, the rules apply only if a field
beside the value has one of some values (``|type=A,B``). Rules are separated by semicolons:

* ``required``, ``forbidden``, ``in VALUES``, ``min NUMBER``, ``max NUMBER``, ``items NUMBER`` (at
  most), ``one-of FIELDS`` (exactly one is given), ``at-most-one FIELDS``, ``unique FIELDS`` (which
  identify the items of a list), or the name of a rule in ``_FORMS``; a text in parentheses is its
  message;
* ``as NAME``: the value has the rules of the section ``part NAME``;
* ``immutable`` and ``kept``, for updates: the value must not change, as an invalid value or as a
  forbidden change; ``fixed`` can be set and removed.
"""

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from gangline.api import names
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import (
    Causes,
    enum_causes,
    label_causes,
    minimum_causes,
    port_causes,
    quantity_causes,
    rule_causes,
)
from gangline.local.apiserver.machinery.kind_tables import GroupKind, parse_place, read_kind_table
from gangline.local.apiserver.machinery.schema.nodes import Json
from gangline.local.apiserver.machinery.validation.metadata import (
    check_path_segment,
    selector_causes,
)

__all__ = ["count_or_share_causes", "table_causes", "table_update_causes"]

_ABSENT: tuple[Any, ...] = (None, "", [], {})
_CHANGES = ("fixed", "immutable", "kept")


class _FieldRule(NamedTuple):
    path: Sequence[str]
    field: str
    """The field beside the value that has one of ``values``; empty: there is no condition."""
    values: Sequence[str]
    name: str
    arguments: Sequence[str]
    detail: str


def table_causes(group: str, kind: str, obj: Json, *, of_status: bool = False) -> Causes:
    """Yield the errors of an object's fields, either of its status or of all others."""
    for rule in _table().get((group, kind), ()):
        if (rule.path[0] == "status") is of_status:
            yield from _rule_causes(rule, obj, "")


def _rule_causes(rule: _FieldRule, obj: Json, path: str) -> Causes:
    if rule.name in _CHANGES:
        return
    for where, value, owner in _values(obj, rule.path, path):
        if not rule.field or (owner or {}).get(rule.field, "") in rule.values:
            yield from _field_causes(rule, where, value)


def table_update_causes(
    group: str, kind: str, old: Json, new: Json, *, of_status: bool = False
) -> Causes:
    """Yield the errors of changed fields that must not change."""
    for rule in _table().get((group, kind), ()):
        if rule.name not in _CHANGES or (rule.path[0] == "status") is not of_status:
            continue
        before, after = (
            {where: value for where, value, _ in _values(obj, rule.path, "")} for obj in (old, new)
        )
        if before == after:
            continue
        where = ".".join(rule.path)
        if rule.name == "fixed" and not (before.get(where) and after.get(where)):
            continue
        if rule.name == "kept":
            detail = rule.detail or f"updates to {where} are forbidden."
            yield field_causes.forbidden(where, detail)
        else:
            detail = rule.detail or "field is immutable"
            yield field_causes.invalid(where, after.get(where), detail)


@cache
def _table() -> Mapping[GroupKind, list[_FieldRule]]:
    table: dict[GroupKind, list[_FieldRule]] = {}
    for kind, fields in read_kind_table(__package__, "field_rules.toml"):
        rules = table.setdefault(kind, [])
        for key, listed in fields.items():
            place = parse_place(key)
            for rule in listed.split("; "):
                text, _, detail = rule.removesuffix(")").partition(" (")
                what, *arguments = text.split()
                rules.append(_FieldRule(*place, what, arguments, detail))
    return table


def _values(
    obj: Any, path: Sequence[str], where: str, owner: Any = None
) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, value and object of each field that a path names. Values of wrong types have
    none.
    """
    if not path:
        yield where, obj, owner
        return
    step, rest = path[0].removesuffix("?"), path[1:]
    if step == "[]":
        for index, item in enumerate(obj if isinstance(obj, list) else ()):
            yield from _values(item, rest, indexed(where, index), obj)
    elif step == "{}":
        for key, value in (obj if isinstance(obj, dict) else {}).items():
            yield from _values(value, rest, indexed(where, key), obj)
    elif obj is None or isinstance(obj, dict):
        value = (obj or {}).get(step)
        if value is not None or step == path[0]:
            yield from _values(value, rest, child(where, step), obj)


def _field_causes(rule: _FieldRule, where: str, value: Any) -> Causes:
    if (check := _RULES.get(rule.name)) is not None:
        yield from check(where, value, rule)
    elif value not in _ABSENT or (rule.name == "share" and value == ""):
        yield from _FORMS[rule.name](where, value)


def _required(where: str, value: Any, rule: _FieldRule) -> Causes:
    if value in _ABSENT:
        yield field_causes.required(where, rule.detail)


def _forbidden(where: str, value: Any, rule: _FieldRule) -> Causes:
    if value is not None and value not in ("", []):
        yield field_causes.forbidden(where, rule.detail)


def _enum(where: str, value: Any, rule: _FieldRule) -> Causes:
    is_item = rule.path[-1] == "[]"
    for cause in enum_causes(where, value or ("" if is_item else None), rule.arguments):
        yield field_causes.invalid(where, value, rule.detail) if rule.detail else cause


def _minimum(where: str, value: Any, rule: _FieldRule) -> Causes:
    for cause in minimum_causes(where, value, int(rule.arguments[0])):
        yield field_causes.invalid(where, value, rule.detail) if rule.detail else cause


def _maximum(where: str, value: Any, rule: _FieldRule) -> Causes:
    if isinstance(value, int) and value > (limit := int(rule.arguments[0])):
        detail = rule.detail or f"must be less than or equal to {limit}"
        yield field_causes.invalid(where, value, detail)


def _items(where: str, value: Any, rule: _FieldRule) -> Causes:
    if isinstance(value, list) and len(value) > (limit := int(rule.arguments[0])):
        yield field_causes.too_many(where, len(value), limit)


def _one_of(where: str, value: Any, rule: _FieldRule) -> Causes:
    if not isinstance(value, dict | None):
        return
    given = [name for name in rule.arguments if (value or {}).get(name) is not None]
    fields = ", ".join(f"`{name}`" for name in rule.arguments)
    if not given and rule.name == "one-of":
        yield field_causes.invalid(where, "", f"must specify one of: {fields}")
    elif len(given) > 1:
        detail = f"exactly one of {fields} is required, but multiple fields are set"
        yield field_causes.invalid(where, value, rule.detail or detail)


def _section(where: str, value: Any, rule: _FieldRule) -> Causes:
    if isinstance(value, dict):
        for inner in _table().get(("part", rule.arguments[0]), ()):
            yield from _rule_causes(inner, value, where)


def _unique(where: str, items: Any, rule: _FieldRule) -> Causes:
    seen: list[list[Any]] = []
    for index, item in enumerate(objects_in(items)):
        key = [item.get(name) for name in rule.arguments]
        if key in seen and any(key):
            at = indexed(where, index)
            place = child(at, rule.arguments[0]) if len(key) == 1 else at
            yield field_causes.duplicate(place, key[0] if len(key) == 1 else key)
        seen.append(key)


_RULES: Mapping[str, Callable[[str, Any, _FieldRule], Causes]] = {
    "as": _section,
    "forbidden": _forbidden,
    "in": _enum,
    "at-most-one": _one_of,
    "items": _items,
    "max": _maximum,
    "min": _minimum,
    "one-of": _one_of,
    "required": _required,
    "unique": _unique,
}


def count_or_share_causes(path: str, value: object) -> Causes:
    """Check a number of pods, or their share in percent."""
    if isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
        detail = "a valid percent string must be a numeric string followed by an ending '%'"
        yield field_causes.invalid(path, value, detail)
    yield from minimum_causes(path, value, 0)


def _name(rule: Callable[[str], names.NameProblem | None]) -> Callable[[str, Any], Causes]:
    return lambda path, value: rule_causes(rule, path, value)


def _port(path: str, value: Any) -> Causes:
    yield from port_causes(path, value)
    yield from rule_causes(names.validate_port_name, path, value)


def _selector(path: str, value: Any) -> Causes:
    if isinstance(value, dict):
        yield from selector_causes(path, value)


def _host(path: str, value: Any) -> Causes:
    if _is_address(value):
        yield field_causes.invalid(path, value, "must be a DNS name, not an IP address")
    name = value.removeprefix("*.") if isinstance(value, str) else value
    yield from rule_causes(names.validate_dns_subdomain, path, name)


def _endpoints(path: str, value: Any) -> Causes:
    if isinstance(value, dict) and not (value.get("addresses") or value.get("notReadyAddresses")):
        yield field_causes.required(path, "must specify `addresses` or `notReadyAddresses`")


def _backend(path: str, value: Any) -> Causes:
    if not isinstance(value, dict):
        return
    service, resource = value.get("service"), value.get("resource")
    if service and resource:
        yield field_causes.invalid(path, "", "cannot set both resource and service backends")
    elif not service and not resource:
        yield field_causes.invalid(path, "", "resource or service backend is required")
    port = subobject(service, "port")
    if isinstance(service, dict) and bool(port.get("name")) == bool(port.get("number")):
        yield field_causes.invalid(path, "", "either port name or port number is required")


def _absolute(path: str, value: Any) -> Causes:
    if isinstance(value, str) and not value.startswith("/"):
        yield field_causes.invalid(path, value, "must be an absolute path")


def _under(root: str) -> Callable[[str, Any], Causes]:
    def check(path: str, value: Any) -> Causes:
        if isinstance(value, str) and not value.startswith(root):
            yield field_causes.invalid(path, value, f"must be a path under {root}")

    return check


def _share(path: str, value: Any) -> Causes:
    # A value of autoscaling/v1 was converted: the schema did not check its type.
    if not isinstance(value, int) or value < 1:
        yield field_causes.invalid(path, value, "must be greater than 0")


def _qualified(path: str, value: Any) -> Causes:
    yield from rule_causes(names.validate_label_key, path, value)
    if isinstance(value, str) and "/" not in value:
        yield field_causes.invalid(
            path, value, 'must be a domain-prefixed path (such as "acme.io/foo")'
        )


def _is_address(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _address(path: str, value: Any) -> Causes:
    if isinstance(value, str) and not _is_address(value):
        yield field_causes.invalid(path, value, "must be a valid IP address, (e.g. 10.9.8.7)")


def _address_range(path: str, value: Any) -> Causes:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        yield field_causes.invalid(path, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24)")


_FORMS: Mapping[str, Callable[[str, Any], Causes]] = {
    "absolute": _absolute,
    "backend": _backend,
    "cidr": _address_range,
    "dns-label": _name(names.validate_dns_label),
    "host": _host,
    "ip": _address,
    "labels": label_causes,
    "label-value": _name(names.validate_label_value),
    "label-key": _name(names.validate_label_key),
    "path-segment": _name(check_path_segment),
    "port": _port,
    "port-number": port_causes,
    "positive": lambda path, value: quantity_causes(path, value, positive=True),
    "qualified": _qualified,
    "percent": _share,
    "quantity": quantity_causes,
    "selector": _selector,
    "endpoints": _endpoints,
    "service-name": _name(names.validate_service_name),
    "share": count_or_share_causes,
    "subdomain": _name(names.validate_dns_subdomain),
    "under-spec": _under(".spec."),
    "under-status": _under(".status."),
}
