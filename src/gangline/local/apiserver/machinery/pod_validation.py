"""Validation of pods and pod templates beyond their schema."""

from collections.abc import Iterable

from gangline.api import names
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.container_validation import container_causes
from gangline.local.apiserver.machinery.field_errors import child, indexed
from gangline.local.apiserver.machinery.json_objects import iter_objects, subobject
from gangline.local.apiserver.machinery.name_rules import (
    Causes,
    annotation_causes,
    minimum_causes,
    rule_causes,
    label_causes,
    name_causes,
    enum_causes,
)
from gangline.local.apiserver.machinery.schemas import Json, copy_json

RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
IMMUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`, "
    "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or `spec.tolerations` "
    "(only additions to existing tolerations)"
)


def pod_causes(path: str, spec: Json) -> Causes:
    volumes = set[str]()
    yield from _volume_causes(child(path, "volumes"), spec, volumes)
    if not list(iter_objects(spec.get("containers"))):
        yield field_errors.required(child(path, "containers"))
    taken = set[str]()
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(iter_objects(spec.get(kind))):
            where = indexed(child(path, kind), index)
            name = container.get("name")
            if name and name in taken:
                yield field_errors.duplicate(child(where, "name"), name)
            taken.add(str(name))
            yield from container_causes(where, container, volumes, init=kind != "containers")
    yield from _policy_causes(path, spec)
    yield from label_causes(child(path, "nodeSelector"), spec.get("nodeSelector"))
    yield from _toleration_causes(child(path, "tolerations"), spec)
    for name in ("hostname", "subdomain"):
        if spec.get(name):
            yield from rule_causes(names.validate_dns_label, child(path, name), spec[name])
    for name in ("nodeName", "serviceAccountName", "priorityClassName"):
        if spec.get(name):
            yield from rule_causes(names.validate_dns_subdomain, child(path, name), spec[name])


def template_causes(path: str, template: Json) -> Causes:
    metadata, where = subobject(template, "metadata"), child(path, "metadata")
    yield from label_causes(child(where, "labels"), metadata.get("labels"))
    yield from annotation_causes(child(where, "annotations"), metadata.get("annotations"))
    yield from pod_causes(child(path, "spec"), subobject(template, "spec"))


def pod_update_causes(old: Json, new: Json) -> Causes:
    before, after = copy_json(subobject(old, "spec")), copy_json(subobject(new, "spec"))
    for index, container in enumerate(iter_objects(after.get("containers"))):
        if not container.get("image"):
            yield field_errors.required(indexed("spec.containers", index) + ".image")
    kept = after.get("tolerations") or []
    if any(toleration not in kept for toleration in before.get("tolerations") or []):
        detail = "existing toleration can not be modified except its tolerationSeconds"
        if not _only_seconds_changed(
            iter_objects(before.get("tolerations")), list(iter_objects(kept))
        ):
            yield field_errors.forbidden("spec.tolerations", detail)
    for spec in (before, after):
        for name in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
            spec.pop(name, None)
        for kind in ("containers", "initContainers"):
            for container in iter_objects(spec.get(kind)):
                container.pop("image", None)
    if before != after:
        changed = ", ".join(
            f"spec.{n}" for n in {**before, **after} if before.get(n) != after.get(n)
        )
        yield field_errors.forbidden("spec", f"{IMMUTABLE}; changed: {changed}")


def _only_seconds_changed(before: Iterable[Json], after: list[Json]) -> bool:
    def rest(toleration: Json) -> Json:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    kept = [rest(toleration) for toleration in after]
    return all(rest(toleration) in kept for toleration in before)


def _policy_causes(path: str, spec: Json) -> Causes:
    yield from enum_causes(
        child(path, "restartPolicy"), spec.get("restartPolicy"), RESTART_POLICIES
    )
    yield from enum_causes(child(path, "dnsPolicy"), spec.get("dnsPolicy"), DNS_POLICIES)
    if spec.get("dnsPolicy") == "None" and not subobject(spec, "dnsConfig").get("nameservers"):
        detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        yield field_errors.required(child(path, "dnsConfig.nameservers"), detail)
    grace = spec.get("terminationGracePeriodSeconds")
    yield from minimum_causes(child(path, "terminationGracePeriodSeconds"), grace, 0)
    deadline = spec.get("activeDeadlineSeconds")
    yield from minimum_causes(child(path, "activeDeadlineSeconds"), deadline, 1)


def _volume_causes(path: str, spec: Json, found: set[str]) -> Causes:
    for index, volume in enumerate(iter_objects(spec.get("volumes"))):
        where = indexed(path, index)
        name = volume.get("name")
        yield from name_causes(names.validate_dns_label, child(where, "name"), name)
        if name in found:
            yield field_errors.duplicate(child(where, "name"), name)
        found.add(str(name))
        sources = [key for key in volume if key != "name" and volume[key] is not None]
        if not sources:
            yield field_errors.required(where, "must specify a volume type")
        for extra in sources[1:]:
            detail = f"may not specify more than 1 volume type; {sources[0]} is given as well"
            yield field_errors.forbidden(child(where, extra), detail)
        yield from _source_causes(where, volume)


def _source_causes(where: str, volume: Json) -> Causes:
    needed = {
        "configMap": "name",
        "secret": "secretName",
        "persistentVolumeClaim": "claimName",
        "hostPath": "path",
    }
    for source, name in needed.items():
        if isinstance(volume.get(source), dict) and not volume[source].get(name):
            yield field_errors.required(child(where, f"{source}.{name}"))
    for source in ("configMap", "secret", "downwardAPI", "projected"):
        mode = subobject(volume, source).get("defaultMode")
        if isinstance(mode, int) and not 0 <= mode <= 0o777:
            detail = "must be a number between 0 and 0777 (octal), both inclusive"
            yield field_errors.invalid(child(where, f"{source}.defaultMode"), mode, detail)
        for index, item in enumerate(iter_objects(subobject(volume, source).get("items"))):
            for name in ("key", "path") if source in ("configMap", "secret") else ("path",):
                if not item.get(name):
                    yield field_errors.required(
                        f"{indexed(child(where, f'{source}.items'), index)}.{name}"
                    )
            if ".." in str(item.get("path", "")).split("/"):
                field = f"{indexed(child(where, f'{source}.items'), index)}.path"
                yield field_errors.invalid(field, item["path"], "must not contain '..'")


def _toleration_causes(path: str, spec: Json) -> Causes:
    for index, toleration in enumerate(iter_objects(spec.get("tolerations"))):
        where = indexed(path, index)
        key, operator = toleration.get("key"), toleration.get("operator")
        if key:
            yield from rule_causes(names.validate_label_key, child(where, "key"), key)
        elif operator != "Exists":
            detail = 'operator must be Exists when `key` is empty, which means "match all values"'
            yield field_errors.invalid(child(where, "operator"), operator, detail)
        yield from enum_causes(child(where, "operator"), operator or None, ("Equal", "Exists"))
        if operator == "Exists" and toleration.get("value"):
            detail = "value must be empty when `operator` is 'Exists'"
            yield field_errors.invalid(child(where, "operator"), operator, detail)
        effect = toleration.get("effect")
        yield from enum_causes(child(where, "effect"), effect or None, EFFECTS)
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield field_errors.invalid(child(where, "effect"), effect, detail)
