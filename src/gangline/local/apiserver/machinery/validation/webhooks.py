"""Validation of webhook configurations, and of kinds that no component of this cluster acts on.

Enums and required fields are left to the schema and to the table of field rules.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from gangline.api import names
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import (
    Causes,
    name_causes,
    rule_causes,
)
from gangline.local.apiserver.machinery.cel import (
    CONDITION_VARIABLES,
    POLICY_VARIABLES,
    missing_library,
)
from gangline.local.apiserver.machinery.schema.nodes import Json

ADMISSION = "admissionregistration.k8s.io"
NETWORK = "networking.k8s.io"
STORAGE = "storage.k8s.io"


def _policy(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        detail = "validations or auditAnnotations must contain at least one item"
        yield field_causes.required("spec.validations", detail)
    for index, condition in enumerate(objects_in(spec.get("matchConditions"))):
        where = indexed("spec.matchConditions", index)
        yield from _condition(where, condition, POLICY_VARIABLES)
    for index, variable in enumerate(objects_in(spec.get("variables"))):
        where = child(indexed("spec.variables", index), "expression")
        yield from _expression(where, variable.get("expression"), POLICY_VARIABLES)
    for index, note in enumerate(objects_in(spec.get("auditAnnotations"))):
        where = indexed("spec.auditAnnotations", index)
        yield from name_causes(names.validate_label_key, child(where, "key"), note.get("key"))
        expression = note.get("valueExpression")
        yield from _expression(child(where, "valueExpression"), expression, POLICY_VARIABLES)
    for index, rule in enumerate(objects_in(spec.get("validations"))):
        where = indexed("spec.validations", index)
        for name in ("expression", "messageExpression"):
            if name in rule or name == "expression":
                yield from _expression(child(where, name), rule.get(name), POLICY_VARIABLES)


def _node_drivers_update(old: Json, new: Json) -> Causes:
    before = {
        old_driver.get("name"): old_driver
        for old_driver in objects_in(subobject(old, "spec").get("drivers"))
    }
    for index, driver in enumerate(objects_in(subobject(new, "spec").get("drivers"))):
        former = before.get(driver.get("name"))
        if former is not None and former != driver:
            yield field_causes.invalid(
                indexed("spec.drivers", index), driver, "field is immutable"
            )  # fmt: skip


def _service_ranges_update(old: Json, new: Json) -> Causes:
    before, after = (subobject(obj, "spec").get("cidrs") for obj in (old, new))
    # A range of the other address family may be added.
    if isinstance(before, list) and (not isinstance(after, list) or after[: len(before)] != before):
        yield field_causes.invalid("spec.cidrs", after, "field is immutable")


VALIDATORS: Mapping[tuple[str, str], Callable[[Json], Causes]] = {
    (ADMISSION, "ValidatingAdmissionPolicy"): _policy,
}
UPDATE_VALIDATORS: Mapping[tuple[str, str], Callable[[Json, Json], Causes]] = {
    (NETWORK, "ServiceCIDR"): _service_ranges_update,
    (STORAGE, "CSINode"): _node_drivers_update,
}


REVIEW_VERSIONS = ("v1", "v1beta1")
URL_FORM = "desired format: https://host[/path]"


def webhook_causes(obj: Json) -> Causes:
    for index, hook in enumerate(objects_in(obj.get("webhooks"))):
        path = indexed("webhooks", index)
        yield from _name(f"{path}.name", hook.get("name"))
        yield from _review_versions(f"{path}.admissionReviewVersions", hook)
        yield from _hook(path, hook)


def _hook(path: str, hook: Json) -> Causes:
    for index, rule in enumerate(objects_in(hook.get("rules"))):
        yield from _rule(indexed(f"{path}.rules", index), rule)
    for index, condition in enumerate(objects_in(hook.get("matchConditions"))):
        yield from _condition(indexed(f"{path}.matchConditions", index), condition)
    yield from _client(f"{path}.clientConfig", subobject(hook, "clientConfig"))


def _condition(
    path: str, condition: Json, variables: Sequence[str] = CONDITION_VARIABLES
) -> Causes:
    yield from name_causes(names.validate_label_key, f"{path}.name", condition.get("name"))
    yield from _expression(f"{path}.expression", condition.get("expression"), variables)


def _expression(path: str, expression: Any, variables: Sequence[str]) -> Causes:
    if missing := missing_library():
        yield field_causes.forbidden(path, missing)
        return
    if not expression:
        yield field_causes.required(path)
        return
    # Most clusters have no conditions: the library takes 50 ms to load.
    from gangline.local.apiserver.machinery.cel.rules import RuleError, compile_expression

    try:
        compile_expression(str(expression), variables)
    except RuleError as error:
        yield field_causes.invalid(path, expression, str(error))


def _name(path: str, name: Any) -> Causes:
    if name and isinstance(name, str) and name.count(".") < 2:
        detail = "should be a domain with at least three segments separated by dots"
        yield field_causes.invalid(path, name, detail)


def _review_versions(path: str, hook: Json) -> Causes:
    listed = hook.get("admissionReviewVersions")
    versions = ", ".join(REVIEW_VERSIONS)
    if not listed:
        yield field_causes.required(path, f"must specify one of {versions}")
        return
    if not {*REVIEW_VERSIONS} & {*listed}:
        yield field_causes.invalid(path, listed, f"must include at least one of {versions}")
    seen: set[str] = set()
    for index, version in enumerate(listed):
        yield from rule_causes(names.validate_service_name, indexed(path, index), version)
        if version in seen:
            yield field_causes.duplicate(indexed(path, index), version)
        seen.add(version)


def _rule(path: str, rule: Json) -> Causes:
    listed = list(rule.get("operations") or ())
    yield from _wildcard_causes(f"{path}.operations", listed, "operations")
    yield from _wildcard_causes(f"{path}.apiGroups", rule.get("apiGroups"), "API groups")
    versions = rule.get("apiVersions")
    yield from _wildcard_causes(f"{path}.apiVersions", versions, "API versions")
    yield from _resources(f"{path}.resources", list(rule.get("resources") or ()))


def _wildcard_causes(path: str, listed: Sequence[str] | None, what: str) -> Causes:
    if not listed:
        yield field_causes.required(path)
    elif len(listed) > 1 and "*" in listed:
        detail = f"if '*' is present, must not specify other {what}"
        yield field_causes.invalid(path, listed, detail)


def _resources(path: str, listed: list[str]) -> Causes:
    """Yield the errors of empty and duplicate resources, including those covered by a wildcard."""
    if not listed:
        yield field_causes.required(path)
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


def _client(path: str, client: Json) -> Causes:
    url, service = client.get("url"), client.get("service")
    if bool(url) == isinstance(service, dict):
        yield field_causes.required(path, "exactly one of url or service is required")
    elif url:
        yield from _url(f"{path}.url", url)
    else:
        yield from _service(f"{path}.service", subobject(client, "service"))


def _url(path: str, url: str) -> Causes:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        yield field_causes.invalid(path, url, f"url must be a valid URL: {error}; {URL_FORM}")
        return
    if parts.scheme != "https":
        detail = f"'https' is the only allowed URL scheme; {URL_FORM}"
        yield field_causes.invalid(path, parts.scheme, detail)
    if not host:
        yield field_causes.invalid(path, host or "", f"host must be specified; {URL_FORM}")
    if "@" in parts.netloc:
        yield field_causes.invalid(path, "…", "user information is not permitted in the URL")
    for name, what in (("fragment", "fragments are"), ("query", "query parameters are")):
        if value := getattr(parts, name):
            yield field_causes.invalid(path, value, f"{what} not permitted in the URL")


def _service(path: str, service: Json) -> Causes:
    route = service.get("path")
    if not isinstance(route, str) or route in ("", "/"):
        return
    where = child(path, "path")
    if not route.startswith("/"):
        yield field_causes.invalid(where, route, "must start with a '/'")
        return
    steps = route[1:].split("/")
    for index, step in enumerate(steps):
        if not step and index < len(steps) - 1:
            yield field_causes.invalid(where, route, f"segment[{index}] may not be empty")
        elif step:
            for cause in rule_causes(names.validate_dns_subdomain, where, step):
                yield field_causes.invalid(where, route, f"segment[{index}]: {cause.message}")
