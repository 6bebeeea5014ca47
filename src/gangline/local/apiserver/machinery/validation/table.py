"""Rules of single fields of built-in kinds, from the table ``field_rules.toml``.

A section has the rules of the kinds in its title (``GROUP KIND``, the core group is ``v1``), a key
is a place (``kind_tables``), whose condition is of fields beside the value. Rules are separated by
semicolons:

* ``required``, ``forbidden``, ``unset`` (an invalid value if given), ``in VALUES``, ``among
  VALUES`` (an empty text is none of them), ``any-in VALUES`` (a list has one of them), ``min
  NUMBER``, ``max NUMBER``, ``items NUMBER`` (at most), ``one-of FIELDS`` (exactly one is given),
  ``at-most-one FIELDS``, ``any-of FIELDS``, ``excludes FIELDS`` (none of them beside the value),
  ``unique FIELDS`` (which identify the items of a list; none: the items themselves), ``named``
  (each of several items of a list has a name), ``wildcard`` (a list with ``*`` has no other
  items), ``keys NAMES`` (a map has all of them), ``any-key NAMES``, ``matches PATTERN`` (a text
  does, completely), ``expression VARIABLES``, or the name of a rule in ``_FORMS``; a text in
  parentheses is its message;
* ``as NAME``: the value has the rules of the section ``part NAME``;
* ``immutable`` and ``kept``, for updates: the value must not change, as an invalid value or as a
  forbidden change; ``fixed`` can be set and removed; of the fields of the object only those in
  ``changes FIELDS`` may change. A condition is of the object before.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gangline.api import names
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import subobject
from gangline.api.validation.field_rules import (
    Causes,
    enum_causes,
    label_causes,
    minimum_causes,
    port_causes,
    quantity_causes,
    rule_causes,
)
from gangline.api.validation.pods import (
    no_backstep_causes,
    resource_causes,
    term_causes,
    toleration_causes,
)
from gangline.local.apiserver.machinery.cel import (
    CONDITION_VARIABLES,
    POLICY_VARIABLES,
    missing_library,
)
from gangline.local.apiserver.machinery.kind_tables import (
    ABSENT,
    GroupKind,
    RulePlace,
    parse_place,
    read_kind_table,
    values_at,
)
from gangline.local.apiserver.machinery.schema.nodes import Json
from gangline.local.apiserver.machinery.validation.metadata import (
    check_path_segment,
    selector_causes,
)

__all__ = ["count_or_share_causes", "table_causes", "table_update_causes"]

_CHANGES = ("changes", "fixed", "immutable", "kept")
_CHECKED_EMPTY: tuple[tuple[str, Any], ...] = (("share", ""), ("port", ""), ("backend", {}))
"""Rules that an empty value does not pass."""


class _FieldRule(NamedTuple):
    place: RulePlace
    name: str
    arguments: Sequence[str]
    detail: str


def table_causes(group: str, kind: str, obj: Json, *, of_status: bool = False) -> Causes:
    """Yield the errors of an object's fields, either of its status or of all others."""
    for rule in _table().get((group, kind), ()):
        if (rule.place.path[0] == "status") is of_status:
            yield from _rule_causes(rule, obj, "")


def _rule_causes(rule: _FieldRule, obj: Json, path: str) -> Causes:
    if rule.name in _CHANGES:
        return
    for where, value, owner in values_at(obj, rule.place.path, path):
        if rule.place.applies_to(owner):
            yield from _field_causes(rule, where, value)


def table_update_causes(
    group: str, kind: str, old: Json, new: Json, *, of_status: bool = False
) -> Causes:
    """Yield the errors of changed fields that must not change."""
    for rule in _table().get((group, kind), ()):
        path = rule.place.path
        if rule.name not in _CHANGES or (path[0] == "status") is not of_status:
            continue
        owners = [owner for _, _, owner in values_at(old, path)]
        before, after = ({at: value for at, value, _ in values_at(obj, path)} for obj in (old, new))
        where = ".".join(path)
        for values in (before, after) if rule.name == "changes" else ():
            fields = subobject(values, where)
            values[where] = {name: fields[name] for name in fields.keys() - {*rule.arguments}}
        if before == after or not any(map(rule.place.applies_to, owners)):
            continue
        if rule.name == "fixed" and not (before.get(where) and after.get(where)):
            continue
        if rule.name in ("changes", "kept"):
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
                rules.append(_FieldRule(place, what, arguments, detail))
    return table


def _field_causes(rule: _FieldRule, where: str, value: Any) -> Causes:
    if (check := _RULES.get(rule.name)) is not None:
        yield from check(where, value, rule)
    elif value not in ABSENT or (rule.name, value) in _CHECKED_EMPTY:
        yield from _FORMS[rule.name](where, value)


def _required(where: str, value: Any, rule: _FieldRule) -> Causes:
    if value in ABSENT:
        yield field_causes.required(where, rule.detail)


def _forbidden(where: str, value: Any, rule: _FieldRule) -> Causes:
    if value is None or value in ("", []):
        return
    if rule.name == "unset":
        yield field_causes.invalid(where, value, rule.detail)
    else:
        yield field_causes.forbidden(where, rule.detail)


def _enum(where: str, value: Any, rule: _FieldRule) -> Causes:
    is_item = rule.place.path[-1] == "[]"
    given = value if rule.name == "among" else value or ("" if is_item else None)
    for cause in enum_causes(where, given, rule.arguments):
        yield field_causes.invalid(where, value, rule.detail) if rule.detail else cause


def _any_in(where: str, value: Any, rule: _FieldRule) -> Causes:
    if isinstance(value, list) and value and not {*rule.arguments} & {*map(str, value)}:
        detail = f"must include at least one of {', '.join(rule.arguments)}"
        yield field_causes.invalid(where, value, detail)


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
    given = [name for name in rule.arguments if (value or {}).get(name) not in (None, [])]
    fields = ", ".join(f"`{name}`" for name in rule.arguments)
    if rule.name == "excludes":
        if len(given) > 1 and given[0] == rule.arguments[0]:
            yield field_causes.forbidden(where, rule.detail)
    elif rule.name == "any-of":
        if not given:
            yield field_causes.required(where, rule.detail)
    elif rule.name == "one-of" and rule.detail:
        if len(given) != 1:
            yield field_causes.required(where, rule.detail)
    elif not given and rule.name == "one-of":
        yield field_causes.invalid(where, "", f"must specify one of: {fields}")
    elif len(given) > 1:
        detail = f"exactly one of {fields} is required, but multiple fields are set"
        yield field_causes.invalid(where, value, rule.detail or detail)


def _section(where: str, value: Any, rule: _FieldRule) -> Causes:
    if isinstance(value, dict | None):
        for inner in _table().get(("part", rule.arguments[0]), ()):
            yield from _rule_causes(inner, value or {}, where)


def _named(where: str, value: Any, rule: _FieldRule) -> Causes:
    for index, item in enumerate(value if isinstance(value, list) and len(value) > 1 else ()):
        if isinstance(item, dict) and not item.get("name"):
            yield field_causes.required(f"{indexed(where, index)}.name")


def _unique(where: str, items: Any, rule: _FieldRule) -> Causes:
    seen: list[list[Any]] = []
    names_given = rule.arguments
    for index, item in enumerate(items if isinstance(items, list) else ()):
        fields = item if isinstance(item, dict) else {}
        key = [fields.get(name) for name in names_given] if names_given else [item]
        if key in seen and any(key):
            at = indexed(where, index)
            place = child(at, names_given[0]) if len(names_given) == 1 else at
            yield field_causes.duplicate(place, key[0] if len(key) == 1 else key)
        seen.append(key)


def _keys(where: str, value: Any, rule: _FieldRule) -> Causes:
    missing = [name for name in rule.arguments if name not in (value or {})]
    if rule.name == "any-key":
        missing = missing[:1] if len(missing) == len(rule.arguments) else []
    yield from (field_causes.required(indexed(where, name)) for name in missing)


def _matches(where: str, value: Any, rule: _FieldRule) -> Causes:
    if isinstance(value, str) and value and not re.fullmatch(rule.arguments[0], value, re.DOTALL):
        yield field_causes.invalid(where, value, rule.detail)


def _wildcard(where: str, value: Any, rule: _FieldRule) -> Causes:
    if isinstance(value, list) and len(value) > 1 and "*" in value:
        yield field_causes.invalid(where, value, rule.detail)


def _expression(where: str, value: Any, rule: _FieldRule) -> Causes:
    if value in ABSENT:
        return
    if missing := missing_library():
        yield field_causes.forbidden(where, missing)
        return
    # Most clusters have no conditions: the library takes 50 ms to load.
    from gangline.local.apiserver.machinery.cel.rules import RuleError, compile_expression

    variables = POLICY_VARIABLES if rule.arguments[0] == "policy" else CONDITION_VARIABLES
    try:
        compile_expression(str(value), variables)
    except RuleError as error:
        yield field_causes.invalid(where, value, str(error))


_RULES: Mapping[str, Callable[[str, Any, _FieldRule], Causes]] = {
    "among": _enum,
    "any-in": _any_in,
    "any-key": _keys,
    "any-of": _one_of,
    "as": _section,
    "expression": _expression,
    "forbidden": _forbidden,
    "in": _enum,
    "at-most-one": _one_of,
    "excludes": _one_of,
    "items": _items,
    "keys": _keys,
    "matches": _matches,
    "max": _maximum,
    "min": _minimum,
    "named": _named,
    "one-of": _one_of,
    "required": _required,
    "unique": _unique,
    "unset": _forbidden,
    "wildcard": _wildcard,
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


def _share(path: str, value: Any) -> Causes:
    # A value of autoscaling/v1 was converted: the schema did not check its type.
    if not isinstance(value, int) or value < 1:
        yield field_causes.invalid(path, value, "must be greater than 0")


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


_URL_FORM = "desired format: https://host[/path]"


def _reviewed_resources(path: str, value: Any) -> Causes:
    """Yield the errors of empty and duplicate resources, including those covered by a wildcard."""
    listed = value if isinstance(value, list) else []
    for index, resource in enumerate(listed):
        if not resource:
            yield field_causes.required(indexed(path, index))
            continue
        for star in _covering_wildcards(resource):
            if star in listed:
                detail = f"if '{star}' is present, must not specify {resource}"
                yield field_causes.invalid(indexed(path, index), resource, detail)
    if len(listed) > 1 and "*/*" in listed:
        detail = "if '*/*' is present, must not specify other resources"
        yield field_causes.invalid(path, listed, detail)
    plain = [resource for resource in listed if "/" not in resource]
    if "*" in plain and len(plain) > 1:
        detail = "if '*' is present, must not specify other resources without subresources"
        yield field_causes.invalid(path, listed, detail)


def _covering_wildcards(resource: str) -> Iterator[str]:
    name, slash, subresource = resource.partition("/")
    if slash and subresource != "*":
        yield f"{name}/*"
    if slash and name != "*":
        yield f"*/{subresource}"


def _webhook_url(path: str, url: Any) -> Causes:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        yield field_causes.invalid(path, url, f"url must be a valid URL: {error}; {_URL_FORM}")
        return
    if parts.scheme != "https":
        detail = f"'https' is the only allowed URL scheme; {_URL_FORM}"
        yield field_causes.invalid(path, parts.scheme, detail)
    if not host:
        yield field_causes.invalid(path, host or "", f"host must be specified; {_URL_FORM}")
    if "@" in parts.netloc:
        yield field_causes.invalid(path, "…", "user information is not permitted in the URL")
    for name, what in (("fragment", "fragments are"), ("query", "query parameters are")):
        if value := getattr(parts, name):
            yield field_causes.invalid(path, value, f"{what} not permitted in the URL")


def _webhook_path(path: str, route: Any) -> Causes:
    if not isinstance(route, str) or route == "/":
        return
    if not route.startswith("/"):
        yield field_causes.invalid(path, route, "must start with a '/'")
        return
    steps = route[1:].split("/")
    for index, step in enumerate(steps):
        if not step and index < len(steps) - 1:
            yield field_causes.invalid(path, route, f"segment[{index}] may not be empty")
        elif step:
            for cause in rule_causes(names.validate_dns_subdomain, path, step):
                yield field_causes.invalid(path, route, f"segment[{index}]: {cause.message}")


_FORMS: Mapping[str, Callable[[str, Any], Causes]] = {
    "backend": _backend,
    "cidr": _address_range,
    "dns-label": _name(names.validate_dns_label),
    "host": _host,
    "ip": _address,
    "labels": label_causes,
    "label-value": _name(names.validate_label_value),
    "label-key": _name(names.validate_label_key),
    "no-backstep": no_backstep_causes,
    "node-term": term_causes,
    "overhead": lambda path, value: resource_causes(path, {"limits": subobject(value, "podFixed")}),
    "path-segment": _name(check_path_segment),
    "port": _port,
    "port-number": port_causes,
    "positive": lambda path, value: quantity_causes(path, value, positive=True),
    "percent": _share,
    "quantity": quantity_causes,
    "reviewed-resources": _reviewed_resources,
    "selector": _selector,
    "service-name": _name(names.validate_service_name),
    "share": count_or_share_causes,
    "subdomain": _name(names.validate_dns_subdomain),
    "tolerations": lambda path, value: toleration_causes(child(path, "tolerations"), value),
    "webhook-path": _webhook_path,
    "webhook-url": _webhook_url,
}
