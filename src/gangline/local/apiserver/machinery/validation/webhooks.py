"""Validation of webhook configurations.

Enums and required fields are left to the schema. CEL expressions are refused. Ignoring a match
condition would call a webhook for requests that its author excluded.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from gangline.api import names
from gangline.api.cluster.admission import OPERATIONS, SCOPES
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import Causes, enum_causes, port_causes, rule_causes
from gangline.local.apiserver.machinery.schema.nodes import Json
from gangline.local.apiserver.machinery.validation.metadata import selector_causes

REVIEW_VERSIONS = ("v1", "v1beta1")
TIMEOUT_SECONDS_RANGE = range(1, 31)
URL_FORM = "desired format: https://host[/path]"


def webhook_causes(obj: Json) -> Causes:
    seen: set[str] = set()
    for index, hook in enumerate(objects_in(obj.get("webhooks"))):
        path = indexed("webhooks", index)
        name = hook.get("name")
        if isinstance(name, str) and name in seen:
            yield field_causes.duplicate(f"{path}.name", name)
        elif isinstance(name, str):
            seen.add(name)
        yield from _name(f"{path}.name", name)
        yield from _review_versions(f"{path}.admissionReviewVersions", hook)
        yield from _hook(path, hook)


def _hook(path: str, hook: Json) -> Causes:
    for index, rule in enumerate(objects_in(hook.get("rules"))):
        yield from _rule(indexed(f"{path}.rules", index), rule)
    seconds = hook.get("timeoutSeconds")
    if isinstance(seconds, (int, float)) and seconds not in TIMEOUT_SECONDS_RANGE:
        detail = "the timeout value must be between 1 and 30 seconds"
        yield field_causes.invalid(f"{path}.timeoutSeconds", seconds, detail)
    for name in ("namespaceSelector", "objectSelector"):
        yield from selector_causes(f"{path}.{name}", subobject(hook, name))
    if hook.get("matchConditions"):
        detail = "this server does not evaluate CEL: use rules, selectors or the webhook itself"
        yield field_causes.forbidden(f"{path}.matchConditions", detail)
    yield from _client(f"{path}.clientConfig", subobject(hook, "clientConfig"))


def _name(path: str, name: Any) -> Causes:
    if not name:
        yield field_causes.required(path)
        return
    yield from rule_causes(names.validate_dns_subdomain, path, name)
    if isinstance(name, str) and name.count(".") < 2:
        detail = "should be a domain with at least three segments separated by dots"
        yield field_causes.invalid(path, name, detail)


def _review_versions(path: str, hook: Json) -> Causes:
    listed = hook.get("admissionReviewVersions")
    known = ", ".join(REVIEW_VERSIONS)
    if not listed:
        yield field_causes.required(path, f"must specify one of {known}")
        return
    if not {*REVIEW_VERSIONS} & {*listed}:
        yield field_causes.invalid(path, listed, f"must include at least one of {known}")
    seen: set[str] = set()
    for index, version in enumerate(listed):
        yield from rule_causes(names.validate_service_name, indexed(path, index), version)
        if version in seen:
            yield field_causes.duplicate(indexed(path, index), version)
        seen.add(version)


def _rule(path: str, rule: Json) -> Causes:
    listed = list(rule.get("operations") or ())
    yield from _wildcard_causes(f"{path}.operations", listed, "operations")
    for index, operation in enumerate(listed):
        yield from enum_causes(indexed(f"{path}.operations", index), operation, OPERATIONS)
    yield from _wildcard_causes(f"{path}.apiGroups", rule.get("apiGroups"), "API groups")
    versions = rule.get("apiVersions")
    yield from _wildcard_causes(f"{path}.apiVersions", versions, "API versions")
    for index, version in enumerate(versions or ()):
        if not version:
            yield field_causes.required(indexed(f"{path}.apiVersions", index))
    yield from _resources(f"{path}.resources", list(rule.get("resources") or ()))
    yield from enum_causes(f"{path}.scope", rule.get("scope"), SCOPES)


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
    for name in ("name", "namespace"):
        if not service.get(name):
            yield field_causes.required(child(path, name), f"service {name} is required")
    yield from port_causes(child(path, "port"), service.get("port"))
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
            for found in rule_causes(names.validate_dns_subdomain, where, step):
                yield field_causes.invalid(where, route, f"segment[{index}]: {found.message}")
