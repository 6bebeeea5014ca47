"""Rules of users, groups, and names of hosts in a pod, in Kubernetes' words.

User and group IDs outside of their range must not reach the system: for ``setresuid`` the ID
4294967295 means "no change", so that the container would keep the rights of root.
"""

import ipaddress
from typing import Any

from gangline.api import names
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import Json, objects_in, subobject
from gangline.api.validation.field_rules import Causes, rule_causes

MAX_INT32 = (1 << 31) - 1


def security_context_causes(path: str, context: Json) -> Causes:
    """The IDs in the security context of a pod or of a container."""
    for name in ("runAsUser", "runAsGroup", "fsGroup"):
        yield from range_causes(child(path, name), context.get(name), 0)
    for index, group in enumerate(_list(context, "supplementalGroups")):
        yield from range_causes(indexed(child(path, "supplementalGroups"), index), group, 0)


def range_causes(path: str, value: Any, low: int, high: int = MAX_INT32) -> Causes:
    if isinstance(value, int) and not isinstance(value, bool) and not low <= value <= high:
        yield field_causes.invalid(path, value, f"must be between {low} and {high}, inclusive")


def host_name_causes(path: str, spec: Json) -> Causes:
    """The addresses and names that a pod gets in its files of hosts and name servers."""
    for index, alias in enumerate(objects_in(spec.get("hostAliases"))):
        where = indexed(child(path, "hostAliases"), index)
        yield from _address_causes(child(where, "ip"), alias.get("ip"))
        for name in _list(alias, "hostnames"):
            yield from rule_causes(names.validate_dns_subdomain, child(where, "hostnames"), name)
    config, where = subobject(spec, "dnsConfig"), child(path, "dnsConfig")
    for index, address in enumerate(_list(config, "nameservers")):
        yield from _address_causes(indexed(child(where, "nameservers"), index), address)
    for index, name in enumerate(_list(config, "searches")):
        if isinstance(name, str) and name != ".":
            stem = name.removesuffix(".")
            place = indexed(child(where, "searches"), index)
            yield from rule_causes(_validate_search_domain, place, stem)
    for index, option in enumerate(objects_in(config.get("options"))):
        place = indexed(child(where, "options"), index)
        if not option.get("name"):
            yield field_causes.required(child(place, "name"))
        for field in ("name", "value"):
            text = option.get(field)
            if isinstance(text, str) and any(each.isspace() for each in text):
                yield field_causes.invalid(child(place, field), text, "must not contain spaces")


def _list(of: Json, name: str) -> list[Any]:
    found = of.get(name)
    return found if isinstance(found, list) else []


def _validate_search_domain(name: str) -> names.NameProblem | None:
    # Labels with a leading underscore are usual in search domains.
    plain = ".".join(label.removeprefix("_") for label in name.split("."))
    return names.validate_dns_subdomain(plain)


def _address_causes(path: str, value: Any) -> Causes:
    if not isinstance(value, str):
        return
    try:
        ipaddress.ip_address(value)
    except ValueError:
        yield field_causes.invalid(path, value, "must be a valid IP address")
