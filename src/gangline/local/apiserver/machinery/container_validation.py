"""Validation of one container: image, ports, variables, mounts, probes, resources."""

from collections.abc import Collection

from gangline.api import names
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.field_errors import child, indexed
from gangline.local.apiserver.machinery.json_objects import iter_objects, subobject
from gangline.local.apiserver.machinery.name_rules import (
    Causes,
    minimum_causes,
    rule_causes,
    name_causes,
    enum_causes,
    port_causes,
)
from gangline.local.apiserver.machinery.resource_validation import resource_causes
from gangline.local.apiserver.machinery.schemas import Json

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
PROTOCOLS = ("TCP", "UDP", "SCTP")
PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
HOOK_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")


def container_causes(path: str, container: Json, volumes: Collection[str], init: bool) -> Causes:
    yield from name_causes(names.validate_dns_label, child(path, "name"), container.get("name"))
    image = container.get("image")
    if not image:
        yield field_errors.required(child(path, "image"))
    elif isinstance(image, str) and image != image.strip():
        detail = "must not have leading or trailing whitespace"
        yield field_errors.invalid(child(path, "image"), image, detail)
    policy = container.get("imagePullPolicy")
    yield from enum_causes(child(path, "imagePullPolicy"), policy, PULL_POLICIES)
    messages = container.get("terminationMessagePolicy")
    yield from enum_causes(child(path, "terminationMessagePolicy"), messages, MESSAGE_POLICIES)
    yield from _port_causes(child(path, "ports"), container)
    yield from _env_causes(path, container)
    yield from _mount_causes(child(path, "volumeMounts"), container, volumes)
    yield from resource_causes(child(path, "resources"), subobject(container, "resources"))
    yield from _restart_causes(path, container, init)
    yield from _probe_causes(path, container)


def _restart_causes(path: str, container: Json, init: bool) -> Causes:
    policy, where = container.get("restartPolicy"), child(path, "restartPolicy")
    if policy is None:
        return
    if init:
        yield from enum_causes(where, policy, ("Always",))
    else:
        yield field_errors.forbidden(where, "may not be set for non-init containers")


def _port_causes(path: str, container: Json) -> Causes:
    taken = set[object]()
    for index, port in enumerate(iter_objects(container.get("ports"))):
        where = indexed(path, index)
        name = port.get("name")
        if name:
            yield from rule_causes(names.validate_port_name, child(where, "name"), name)
            if name in taken:
                yield field_errors.duplicate(child(where, "name"), name)
            taken.add(name)
        if not port.get("containerPort"):
            yield field_errors.required(child(where, "containerPort"))
        yield from port_causes(child(where, "containerPort"), port.get("containerPort") or None)
        yield from port_causes(child(where, "hostPort"), port.get("hostPort") or None)
        yield from enum_causes(child(where, "protocol"), port.get("protocol"), PROTOCOLS)


def _env_causes(path: str, container: Json) -> Causes:
    for index, variable in enumerate(iter_objects(container.get("env"))):
        where = indexed(child(path, "env"), index)
        yield from name_causes(names.validate_env_name, child(where, "name"), variable.get("name"))
        source = variable.get("valueFrom")
        if not isinstance(source, dict):
            continue
        if variable.get("value"):
            detail = "may not be specified when `value` is not empty"
            yield field_errors.invalid(child(where, "valueFrom"), "", detail)
        given = [name for name in source if source[name] is not None]
        if not given:
            detail = (
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` "
                "or `secretKeyRef`"
            )
            yield field_errors.invalid(child(where, "valueFrom"), "", detail)
        if len(given) > 1:
            detail = "may not have more than one field specified at a time"
            yield field_errors.invalid(child(where, "valueFrom"), "", detail)
        for name in ("configMapKeyRef", "secretKeyRef"):
            if isinstance(source.get(name), dict) and not source[name].get("key"):
                yield field_errors.required(child(where, f"valueFrom.{name}.key"))
    for index, source in enumerate(iter_objects(container.get("envFrom"))):
        where = indexed(child(path, "envFrom"), index)
        if (subobject(source, "configMapRef") or subobject(source, "secretRef")) == {}:
            detail = "must specify one of: `configMapRef` or `secretRef`"
            yield field_errors.invalid(where, "", detail)


def _mount_causes(path: str, container: Json, volumes: Collection[str]) -> Causes:
    taken = set[object]()
    for index, mount in enumerate(iter_objects(container.get("volumeMounts"))):
        where = indexed(path, index)
        name, target = mount.get("name"), mount.get("mountPath")
        if not name:
            yield field_errors.required(child(where, "name"))
        elif name not in volumes:
            yield field_errors.not_found(child(where, "name"), name)
        if not target:
            yield field_errors.required(child(where, "mountPath"))
        elif target in taken:
            yield field_errors.invalid(child(where, "mountPath"), target, "must be unique")
        taken.add(str(target))
        inner = mount.get("subPath")
        if isinstance(inner, str) and (inner.startswith("/") or ".." in inner.split("/")):
            detail = "must be a relative path" if inner.startswith("/") else "must not contain '..'"
            yield field_errors.invalid(child(where, "subPath"), inner, detail)


def _probe_causes(path: str, container: Json) -> Causes:
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe, where = container.get(name), child(path, name)
        if not isinstance(probe, dict):
            continue
        yield from _handler_causes(where, probe, PROBE_HANDLERS)
        for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds"):
            yield from minimum_causes(child(where, field), probe.get(field), 0)
        for field in ("successThreshold", "failureThreshold"):
            yield from minimum_causes(child(where, field), probe.get(field), 0)
        times = probe.get("successThreshold", 1)
        if name != "readinessProbe" and times not in (0, 1):
            yield field_errors.invalid(child(where, "successThreshold"), times, "must be 1")
    for name in ("postStart", "preStop"):
        hook = subobject(container, "lifecycle").get(name)
        if isinstance(hook, dict):
            yield from _handler_causes(child(path, f"lifecycle.{name}"), hook, HOOK_HANDLERS)


def _handler_causes(where: str, of: Json, kinds: tuple[str, ...]) -> Causes:
    given = [kind for kind in kinds if of.get(kind) is not None]
    if not given:
        yield field_errors.required(where, "must specify a handler type")
    for extra in given[1:]:
        yield field_errors.forbidden(
            child(where, extra), "may not specify more than 1 handler type"
        )
    if isinstance(of.get("exec"), dict) and not of["exec"].get("command"):
        yield field_errors.required(child(where, "exec.command"))
    for kind in ("httpGet", "tcpSocket"):
        if isinstance(action := of.get(kind), dict):
            if action.get("port") in (None, "", 0):
                yield field_errors.required(child(where, f"{kind}.port"))
            yield from port_causes(child(where, f"{kind}.port"), action.get("port") or None)
