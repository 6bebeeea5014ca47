"""Rules of pods and pod templates that no schema expresses, in Kubernetes' words.

The embedded API server applies them to pods and workloads, the validation of jobs to their
templates. Quantities and resources first, then one container, then the pod spec, users and host
names. IDs outside of their range must not reach the system: for ``setresuid`` 4294967295 means "no
change", so that the container would keep the rights of root.
"""

import ipaddress
import re
from collections.abc import Collection
from typing import Any

from gangline.api import names
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import Json, objects_in, subobject
from gangline.api.quantity import quantity_or_none
from gangline.api.validation.field_rules import (
    Causes,
    annotation_causes,
    enum_causes,
    label_causes,
    minimum_causes,
    name_causes,
    port_causes,
    quantity_causes,
    requirement_causes,
    rule_causes,
)

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
            if isinstance(text, str) and any(character.isspace() for character in text):
                yield field_causes.invalid(child(place, field), text, "must not contain spaces")


def _list(of: Json, name: str) -> list[Any]:
    value = of.get(name)
    return value if isinstance(value, list) else []


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
            yield field_causes.invalid(where, str(requested), detail)
        elif _is_integer_resource(name) and low != high and low is not None:
            if high is None:
                where = indexed(child(path, "limits"), name)
                yield field_causes.required(
                    where, "Limit must be set for non overcommitable resources"
                )
            else:
                yield field_causes.invalid(
                    where, str(requested), f"must be equal to {name} limit of {high}"
                )


def _container_resource(path: str, name: str, value: Any) -> Causes:
    if not is_container_resource(name):
        detail = "must be a standard resource for containers, or a name with a domain and '/'"
        yield field_causes.invalid(path, name, detail)
    yield from quantity_causes(path, value)
    quantity = quantity_or_none(value)
    if quantity is not None and _is_integer_resource(name) and quantity.milli % 1000:
        yield field_causes.invalid(path, str(value), "must be an integer")


def is_container_resource(name: str) -> bool:
    """Return whether a container may request a resource of this name."""
    is_standard = name in STANDARD_RESOURCES or name.startswith(HUGE_PAGES)
    return names.validate_label_key(name) is None and ("/" in name or is_standard)


def _is_integer_resource(name: str) -> bool:
    """Return True for device resources such as GPUs: integers that cannot be overcommitted."""
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")


PULL_POLICIES = ("Always", "IfNotPresent", "Never")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
PROTOCOLS = ("TCP", "UDP", "SCTP")
PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
HOOK_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")


def container_causes(path: str, container: Json, volumes: Collection[str], init: bool) -> Causes:
    yield from name_causes(names.validate_dns_label, child(path, "name"), container.get("name"))
    image = container.get("image")
    if not image:
        yield field_causes.required(child(path, "image"))
    elif isinstance(image, str) and image != image.strip():
        detail = "must not have leading or trailing whitespace"
        yield field_causes.invalid(child(path, "image"), image, detail)
    policy = container.get("imagePullPolicy")
    yield from enum_causes(child(path, "imagePullPolicy"), policy, PULL_POLICIES)
    messages = container.get("terminationMessagePolicy")
    yield from enum_causes(child(path, "terminationMessagePolicy"), messages, MESSAGE_POLICIES)
    yield from _port_causes(child(path, "ports"), container)
    yield from _env_causes(path, container)
    yield from _mount_causes(child(path, "volumeMounts"), container, volumes)
    yield from resource_causes(child(path, "resources"), subobject(container, "resources"))
    context = subobject(container, "securityContext")
    yield from security_context_causes(child(path, "securityContext"), context)
    yield from _restart_causes(path, container, init)
    yield from _probe_causes(path, container)


def _restart_causes(path: str, container: Json, init: bool) -> Causes:
    policy, where = container.get("restartPolicy"), child(path, "restartPolicy")
    if policy is None:
        return
    if init:
        yield from enum_causes(where, policy, ("Always",))
    else:
        yield field_causes.forbidden(where, "may not be set for non-init containers")


def _port_causes(path: str, container: Json) -> Causes:
    seen = set[object]()
    for index, port in enumerate(objects_in(container.get("ports"))):
        where = indexed(path, index)
        name = port.get("name")
        if name:
            yield from rule_causes(names.validate_port_name, child(where, "name"), name)
            if name in seen:
                yield field_causes.duplicate(child(where, "name"), name)
            seen.add(name)
        if not port.get("containerPort"):
            yield field_causes.required(child(where, "containerPort"))
        yield from port_causes(child(where, "containerPort"), port.get("containerPort") or None)
        yield from port_causes(child(where, "hostPort"), port.get("hostPort") or None)
        yield from enum_causes(child(where, "protocol"), port.get("protocol"), PROTOCOLS)


def _env_causes(path: str, container: Json) -> Causes:
    for index, variable in enumerate(objects_in(container.get("env"))):
        where = indexed(child(path, "env"), index)
        yield from name_causes(names.validate_env_name, child(where, "name"), variable.get("name"))
        source = variable.get("valueFrom")
        if not isinstance(source, dict):
            continue
        if variable.get("value"):
            detail = "may not be specified when `value` is not empty"
            yield field_causes.invalid(child(where, "valueFrom"), "", detail)
        given = [name for name in source if source[name] is not None]
        if not given:
            detail = (
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` "
                "or `secretKeyRef`"
            )
            yield field_causes.invalid(child(where, "valueFrom"), "", detail)
        if len(given) > 1:
            detail = "may not have more than one field specified at a time"
            yield field_causes.invalid(child(where, "valueFrom"), "", detail)
        yield from _field_causes(
            child(where, "valueFrom.fieldRef"), subobject(source, "fieldRef"), ENV_FIELDS
        )
        resource = subobject(source, "resourceFieldRef").get("resource")
        if isinstance(resource, str) and not _RESOURCE_FIELD.fullmatch(resource):
            place = child(where, "valueFrom.resourceFieldRef.resource")
            yield field_causes.unsupported(place, resource, ("limits.cpu", "requests.memory", "…"))
        for name in ("configMapKeyRef", "secretKeyRef"):
            if isinstance(source.get(name), dict) and not source[name].get("key"):
                yield field_causes.required(child(where, f"valueFrom.{name}.key"))
    for index, source in enumerate(objects_in(container.get("envFrom"))):
        where = indexed(child(path, "envFrom"), index)
        for name in ("configMapRef", "secretRef"):
            if isinstance(source.get(name), dict) and not source[name].get("name"):
                yield field_causes.required(child(where, f"{name}.name"))
        if source.get("configMapRef") is None and source.get("secretRef") is None:
            detail = "must specify one of: `configMapRef` or `secretRef`"
            yield field_causes.invalid(where, "", detail)


VOLUME_FIELDS = ("metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations",
                 "metadata.uid")  # fmt: skip
ENV_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
              "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP",
              "status.podIPs")  # fmt: skip
_RESOURCE_FIELD = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['[^']+'\]")


def _field_causes(where: str, reference: Json, supported: tuple[str, ...]) -> Causes:
    """The field of the pod that an environment variable or a file shows."""
    path = reference.get("fieldPath")
    if isinstance(path, str) and not _SUBSCRIPT.fullmatch(path):
        yield from enum_causes(child(where, "fieldPath"), path, supported)


def _mount_causes(path: str, container: Json, volumes: Collection[str]) -> Causes:
    seen = set[object]()
    for index, mount in enumerate(objects_in(container.get("volumeMounts"))):
        where = indexed(path, index)
        name, target = mount.get("name"), mount.get("mountPath")
        if not name:
            yield field_causes.required(child(where, "name"))
        elif name not in volumes:
            yield field_causes.not_found(child(where, "name"), name)
        if not target:
            yield field_causes.required(child(where, "mountPath"))
        elif target in seen:
            yield field_causes.invalid(child(where, "mountPath"), target, "must be unique")
        seen.add(str(target))
        for field in ("subPath", "subPathExpr"):
            yield from _descending_path_causes(child(where, field), mount.get(field))
        if mount.get("subPath") and mount.get("subPathExpr"):
            detail = "subPathExpr and subPath are mutually exclusive"
            yield field_causes.invalid(child(where, "subPathExpr"), mount["subPathExpr"], detail)


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
            yield field_causes.invalid(child(where, "successThreshold"), times, "must be 1")
    for name in ("postStart", "preStop"):
        hook = subobject(container, "lifecycle").get(name)
        if isinstance(hook, dict):
            yield from _handler_causes(child(path, f"lifecycle.{name}"), hook, HOOK_HANDLERS)


def _handler_causes(where: str, of: Json, kinds: tuple[str, ...]) -> Causes:
    given = [kind for kind in kinds if of.get(kind) is not None]
    if not given:
        yield field_causes.required(where, "must specify a handler type")
    for extra in given[1:]:
        yield field_causes.forbidden(
            child(where, extra), "may not specify more than 1 handler type"
        )
    if isinstance(of.get("exec"), dict) and not of["exec"].get("command"):
        yield field_causes.required(child(where, "exec.command"))
    for kind in ("httpGet", "tcpSocket"):
        if isinstance(action := of.get(kind), dict):
            if action.get("port") in (None, "", 0):
                yield field_causes.required(child(where, f"{kind}.port"))
            yield from port_causes(child(where, f"{kind}.port"), action.get("port") or None)
            name = action.get("port") or None
            yield from rule_causes(names.validate_port_name, child(where, f"{kind}.port"), name)


RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def pod_causes(path: str, spec: Json) -> Causes:
    volumes = set[str]()
    yield from _volume_causes(child(path, "volumes"), spec, volumes)
    if not objects_in(spec.get("containers")):
        yield field_causes.required(child(path, "containers"))
    seen = set[str]()
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(objects_in(spec.get(kind))):
            where = indexed(child(path, kind), index)
            name = container.get("name")
            if name and name in seen:
                yield field_causes.duplicate(child(where, "name"), name)
            seen.add(str(name))
            yield from container_causes(where, container, volumes, init=kind != "containers")
    yield from _host_port_causes(child(path, "containers"), spec)
    yield from _policy_causes(path, spec)
    yield from resource_causes(child(path, "resources"), subobject(spec, "resources"))
    for name, amount in subobject(spec, "overhead").items():
        yield from quantity_causes(indexed(child(path, "overhead"), name), amount)
    yield from label_causes(child(path, "nodeSelector"), spec.get("nodeSelector"))
    yield from _node_affinity_causes(path, spec)
    yield from _pod_affinity_causes(path, spec)
    yield from _sysctl_causes(child(path, "securityContext.sysctls"), spec)
    yield from toleration_causes(child(path, "tolerations"), spec)
    for name in ("hostname", "subdomain"):
        if spec.get(name):
            yield from rule_causes(names.validate_dns_label, child(path, name), spec[name])
    for name in ("nodeName", "serviceAccountName", "priorityClassName"):
        if spec.get(name):
            yield from rule_causes(names.validate_dns_subdomain, child(path, name), spec[name])
    yield from _group_causes(path, spec)


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _pod_affinity_causes(path: str, spec: Json) -> Causes:
    for place in ("affinity.podAffinity", "affinity.podAntiAffinity"):
        affinity = subobject(spec, *place.split("."))
        for name in (_REQUIRED, _PREFERRED):
            for index, term in enumerate(objects_in(affinity.get(name))):
                where = indexed(child(path, f"{place}.{name}"), index)
                chosen = term
                if name == _PREFERRED:
                    yield from range_causes(child(where, "weight"), term.get("weight", 0), 1, 100)
                    chosen = subobject(term, "podAffinityTerm")
                    where = child(where, "podAffinityTerm")
                key = chosen.get("topologyKey") or None
                yield from rule_causes(names.validate_label_key, child(where, "topologyKey"), key)


def _node_affinity_causes(path: str, spec: Json) -> Causes:
    affinity = subobject(spec, "affinity", "nodeAffinity")
    required, where = affinity.get(_REQUIRED), child(path, f"affinity.nodeAffinity.{_REQUIRED}")
    terms = child(where, "nodeSelectorTerms")
    if isinstance(required, dict) and not required.get("nodeSelectorTerms"):
        yield field_causes.required(terms, "must have at least one node selector term")
    listed = objects_in(required.get("nodeSelectorTerms")) if isinstance(required, dict) else []
    for index, term in enumerate(listed):
        yield from term_causes(indexed(terms, index), term)
    for index, preferred in enumerate(objects_in(affinity.get(_PREFERRED))):
        where = indexed(child(path, f"affinity.nodeAffinity.{_PREFERRED}"), index)
        yield from range_causes(child(where, "weight"), preferred.get("weight", 0), 1, 100)
        yield from term_causes(child(where, "preference"), subobject(preferred, "preference"))


def term_causes(path: str, term: Json) -> Causes:
    """The expressions of a term that selects nodes."""
    yield from requirement_causes(path, term, ("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"))


_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")


def _sysctl_causes(path: str, spec: Json) -> Causes:
    for index, entry in enumerate(objects_in(subobject(spec, "securityContext").get("sysctls"))):
        name, where = entry.get("name"), child(indexed(path, index), "name")
        if not name:
            yield field_causes.required(where)
        elif isinstance(name, str) and (len(name) > 253 or not _SYSCTL.fullmatch(name)):
            detail = f"must have at most 253 characters and match regex ^{_SYSCTL.pattern}$"
            yield field_causes.invalid(where, name, detail)


def _group_causes(path: str, spec: Json) -> Causes:
    """The group that a pod is scheduled with: without a name the pod would wait for none."""
    if spec.get("schedulingGroup") is not None:
        name = subobject(spec, "schedulingGroup").get("podGroupName")
        yield from name_causes(
            names.validate_dns_subdomain, child(path, "schedulingGroup.podGroupName"), name
        )


def _host_port_causes(path: str, spec: Json) -> Causes:
    """On the host network each container port is a port of the node."""
    host_network, taken = spec.get("hostNetwork") is True, set[tuple[Any, ...]]()
    for index, container in enumerate(objects_in(spec.get("containers"))):
        for place, port in enumerate(objects_in(container.get("ports"))):
            where = child(indexed(child(indexed(path, index), "ports"), place), "hostPort")
            number = port.get("containerPort")
            on_host = port.get("hostPort") or (number if host_network else None)
            if host_network and on_host != number:
                detail = "must match `containerPort` when `hostNetwork` is true"
                yield field_causes.invalid(where, on_host, detail)
            key = (port.get("protocol") or "TCP", port.get("hostIP") or "", on_host)
            if on_host and key in taken:
                yield field_causes.duplicate(where, "/".join(map(str, key)))
            taken.add(key)


def template_causes(path: str, template: Json) -> Causes:
    metadata, where = subobject(template, "metadata"), child(path, "metadata")
    yield from label_causes(child(where, "labels"), metadata.get("labels"))
    yield from annotation_causes(child(where, "annotations"), metadata.get("annotations"))
    yield from pod_causes(child(path, "spec"), subobject(template, "spec"))


def _policy_causes(path: str, spec: Json) -> Causes:
    yield from enum_causes(
        child(path, "restartPolicy"), spec.get("restartPolicy"), RESTART_POLICIES
    )
    yield from enum_causes(child(path, "dnsPolicy"), spec.get("dnsPolicy"), DNS_POLICIES)
    if spec.get("dnsPolicy") == "None" and not subobject(spec, "dnsConfig").get("nameservers"):
        detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        yield field_causes.required(child(path, "dnsConfig.nameservers"), detail)
    grace = spec.get("terminationGracePeriodSeconds")
    yield from minimum_causes(child(path, "terminationGracePeriodSeconds"), grace, 0)
    deadline = spec.get("activeDeadlineSeconds")
    yield from range_causes(child(path, "activeDeadlineSeconds"), deadline, 1)
    yield from security_context_causes(
        child(path, "securityContext"), subobject(spec, "securityContext")
    )
    yield from host_name_causes(path, spec)


def _volume_causes(path: str, spec: Json, used: set[str]) -> Causes:
    for index, volume in enumerate(objects_in(spec.get("volumes"))):
        where = indexed(path, index)
        name = volume.get("name")
        yield from name_causes(names.validate_dns_label, child(where, "name"), name)
        if name in used:
            yield field_causes.duplicate(child(where, "name"), name)
        used.add(str(name))
        sources = [key for key in volume if key != "name" and volume[key] is not None]
        if not sources:
            yield field_causes.required(where, "must specify a volume type")
        for extra in sources[1:]:
            detail = f"may not specify more than 1 volume type; {sources[0]} is given as well"
            yield field_causes.forbidden(child(where, extra), detail)
        yield from _source_causes(where, volume)


def _source_causes(where: str, volume: Json) -> Causes:
    limit = subobject(volume, "emptyDir").get("sizeLimit")
    if limit is not None and ((size := quantity_or_none(limit)) is None or size.nano < 0):
        detail = "SizeLimit field must be a valid resource quantity"
        yield field_causes.forbidden(child(where, "emptyDir.sizeLimit"), detail)
    needed = {
        "configMap": "name",
        "secret": "secretName",
        "persistentVolumeClaim": "claimName",
        "hostPath": "path",
    }
    for source, name in needed.items():
        if isinstance(volume.get(source), dict) and not volume[source].get(name):
            yield field_causes.required(child(where, f"{source}.{name}"))
    host_path = child(where, "hostPath.path")
    yield from no_backstep_causes(host_path, subobject(volume, "hostPath").get("path"))
    for source in ("configMap", "secret", "downwardAPI", "projected"):
        mode = subobject(volume, source).get("defaultMode")
        yield from _mode_causes(child(where, f"{source}.defaultMode"), mode)
        yield from _item_causes(child(where, source), source, subobject(volume, source))
    parts = objects_in(subobject(volume, "projected").get("sources"))
    for index, part in enumerate(parts):
        place = indexed(child(where, "projected.sources"), index)
        for source in ("configMap", "secret", "downwardAPI"):
            yield from _item_causes(child(place, source), source, subobject(part, source))
        if isinstance(token := part.get("serviceAccountToken"), dict):
            path = child(place, "serviceAccountToken.path")
            if not token.get("path"):
                yield field_causes.required(path)
            yield from _file_path_causes(path, token.get("path"))


def _item_causes(where: str, source: str, given: Json) -> Causes:
    """The files of a volume of API objects: keys, paths in the volume, permission bits."""
    for index, item in enumerate(objects_in(given.get("items"))):
        place = indexed(child(where, "items"), index)
        for name in ("key", "path") if source in ("configMap", "secret") else ("path",):
            if not item.get(name):
                yield field_causes.required(child(place, name))
        yield from _file_path_causes(child(place, "path"), item.get("path"))
        if source == "downwardAPI":
            field = subobject(item, "fieldRef")
            yield from _field_causes(child(place, "fieldRef"), field, VOLUME_FIELDS)
        yield from _mode_causes(child(place, "mode"), item.get("mode"))


def _mode_causes(where: str, mode: Any) -> Causes:
    if isinstance(mode, int) and not 0 <= mode <= 0o777:
        detail = "must be a number between 0 and 0777 (octal), both inclusive"
        yield field_causes.invalid(where, mode, detail)


def _file_path_causes(where: str, path: Any) -> Causes:
    yield from _descending_path_causes(where, path)
    if isinstance(path, str) and path.startswith("..") and not path.startswith("../"):
        yield field_causes.invalid(where, path, "must not start with '..'")


def _descending_path_causes(where: str, path: Any) -> Causes:
    if isinstance(path, str) and path.startswith("/"):
        yield field_causes.invalid(where, path, "must be a relative path")
    yield from no_backstep_causes(where, path)


def no_backstep_causes(where: str, path: Any) -> Causes:
    if isinstance(path, str) and ".." in path.split("/"):
        yield field_causes.invalid(where, path, "must not contain '..'")


def toleration_causes(path: str, spec: Json) -> Causes:
    for index, toleration in enumerate(objects_in(spec.get("tolerations"))):
        where = indexed(path, index)
        key, operator = toleration.get("key"), toleration.get("operator")
        if key:
            yield from rule_causes(names.validate_label_key, child(where, "key"), key)
        elif operator != "Exists":
            detail = 'operator must be Exists when `key` is empty, which means "match all values"'
            yield field_causes.invalid(child(where, "operator"), operator, detail)
        yield from enum_causes(child(where, "operator"), operator or None, ("Equal", "Exists"))
        if operator == "Exists" and toleration.get("value"):
            detail = "value must be empty when `operator` is 'Exists'"
            yield field_causes.invalid(child(where, "operator"), operator, detail)
        elif operator in (None, "", "Equal"):
            value = toleration.get("value")
            yield from rule_causes(names.validate_label_value, child(where, "operator"), value)
        effect = toleration.get("effect")
        yield from enum_causes(child(where, "effect"), effect or None, EFFECTS)
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield field_causes.invalid(child(where, "effect"), effect, detail)


_ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")


def claim_causes(path: str, spec: Json) -> Causes:
    yield from access_mode_causes(path, spec)
    requests, where = subobject(spec, "resources", "requests"), f"{path}.resources[storage]"
    if "storage" not in requests:
        yield field_causes.required(where)
    else:
        yield from quantity_causes(where, requests["storage"], positive=True)
    modes = ("Block", "Filesystem")
    yield from enum_causes(child(path, "volumeMode"), spec.get("volumeMode") or None, modes)


def access_mode_causes(path: str, spec: Json) -> Causes:
    modes, where = spec.get("accessModes"), child(path, "accessModes")
    if not modes:
        yield field_causes.required(where, "at least 1 access mode is required")
    for mode in modes if isinstance(modes, list) else ():
        yield from enum_causes(where, mode, _ACCESS_MODES)
