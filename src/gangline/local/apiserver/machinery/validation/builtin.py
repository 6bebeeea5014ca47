"""Validation of built-in kinds on creation and on update, beyond their schema.

``validate_create`` and ``validate_update`` check ``metadata`` for every kind and dispatch by kind:
small kinds, quotas and roles are here. Functions yield all errors. Values of the wrong JSON type
are reported by the schema and ignored here.
"""

import base64
import binascii
import copy
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from gangline.api import names
from gangline.api.cluster import workload
from gangline.api.core.devices import GROUP as DEVICES
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.meta.objects import StatusCause
from gangline.api.quantity import quantity_or_none
from gangline.api.validation.field_rules import (
    Causes,
    name_causes,
    quantity_causes,
    rule_causes,
)
from gangline.api.validation.pods import (
    access_mode_causes,
    claim_causes,
    pod_causes,
    template_causes,
)
from gangline.local.apiserver.machinery.schema.nodes import Json
from gangline.local.apiserver.machinery.validation.metadata import (
    metadata_causes,
    metadata_update_causes,
)
from gangline.local.apiserver.machinery.validation.table import table_causes, table_update_causes
from gangline.local.apiserver.machinery.validation.workloads import (
    autoscaler_causes,
    cron_job_causes,
    deployment_causes,
    job_causes,
    job_update_causes,
    pod_update_causes,
    replica_set_causes,
    replication_controller_causes,
)

__all__ = ["validate_create", "validate_update"]

CONFLICTS = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})
COUNTS = frozenset(
    {
        "configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas",
        "secrets", "services", "services.loadbalancers", "services.nodeports",
    }
)  # fmt: skip
COMPUTE = frozenset(
    {
        "cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory",
        "requests.ephemeral-storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage",
    }
)  # fmt: skip
STORAGE = "requests.storage"
_BEST_EFFORT_LIMITS = frozenset({"pods", "count/pods"})


def quota_causes(quota: Json) -> Causes:
    spec = subobject(quota, "spec")
    hard = subobject(spec, "hard")
    for name, limit in hard.items():
        where = indexed("spec.hard", name)
        yield from rule_causes(names.validate_label_key, where, name)
        if "/" not in name and not _is_standard(name):
            yield field_causes.invalid(where, name, "must be a standard resource for quota")
        amount = quantity_or_none(limit)
        if (
            (name in COUNTS or name.startswith("count/"))
            and amount is not None
            and amount.nano % 10**9
        ):
            yield field_causes.invalid(where, limit, "must be an integer")
    yield from _scope_causes(spec, hard)


def _scope_causes(spec: Json, hard: Json) -> Causes:
    scopes = spec.get("scopes")
    chosen = [str(scope) for scope in scopes] if isinstance(scopes, list) else []
    for expression in objects_in(subobject(spec, "scopeSelector").get("matchExpressions")):
        chosen.append(str(expression.get("scopeName")))
    for scope in chosen:
        for name in filter(_is_standard, hard):
            if not _allowed_in(scope, name):
                detail = "unsupported scope applied to resource"
                yield field_causes.invalid("spec.scopes", chosen, detail)
                break
    for pair in CONFLICTS:
        if pair <= set(chosen):
            yield field_causes.invalid("spec.scopes", chosen, "conflicting scopes")


def _allowed_in(scope: str, name: str) -> bool:
    """Return True if a quota with this scope may limit a resource: those of pods only."""
    if scope == "BestEffort":
        return name in _BEST_EFFORT_LIMITS
    return (
        name in COMPUTE
        or name in _BEST_EFFORT_LIMITS
        or name.startswith(("hugepages-", "requests.hugepages-"))
        or ("/" in name and not name.startswith("count/"))
    )


def _is_standard(name: str) -> bool:
    return (
        name in COUNTS
        or name in COMPUTE
        or name == STORAGE
        or name.startswith(("hugepages-", "requests.hugepages-"))
    )


_ORDERED_AMOUNTS = (
    ("min", "max", "min"), ("min", "defaultRequest", "defaultRequest"),
    ("min", "default", "default"), ("defaultRequest", "default", "defaultRequest"),
    ("defaultRequest", "max", "defaultRequest"), ("default", "max", "default"),
)  # fmt: skip
"""Amounts of a LimitRange, those that must not be less, and the field of the error."""
_AMOUNT_WORDS = {"defaultRequest": "default request"}


def limit_range_causes(limit_range: Json) -> Causes:
    for index, item in enumerate(objects_in(subobject(limit_range, "spec").get("limits"))):
        where, type_ = indexed("spec.limits", index), item.get("type")
        for field in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
            yield from _limit_name_causes(child(where, field), subobject(item, field))
        for name in ("default", "defaultRequest"):
            if type_ == "Pod" and item.get(name):
                detail = "may not be specified when `type` is 'Pod'"
                yield field_causes.forbidden(child(where, name), detail)
        is_bounded = any("storage" in subobject(item, name) for name in ("min", "max"))
        if type_ == "PersistentVolumeClaim" and not is_bounded:
            detail = "either minimum or maximum storage value is required, but neither was provided"
            yield field_causes.required(where, detail)
        for low, high, named in _ORDERED_AMOUNTS:
            highest = subobject(item, high)
            for name, written in subobject(item, low).items():
                less, more = quantity_or_none(written), quantity_or_none(highest.get(name, written))
                if less is not None and more is not None and less > more:
                    words = (_AMOUNT_WORDS.get(low, low), _AMOUNT_WORDS.get(high, high))
                    detail = f"{words[0]} value {less} is greater than {words[1]} value {more}"
                    field = indexed(child(where, named), name)
                    yield field_causes.invalid(field, subobject(item, named)[name], detail)
        for name, written in subobject(item, "maxLimitRequestRatio").items():
            ratio = quantity_or_none(written)
            if ratio is not None and ratio.nano < 10**9:
                field = indexed(child(where, "maxLimitRequestRatio"), name)
                yield field_causes.invalid(field, written, f"ratio {ratio} is less than 1")


def _limit_name_causes(path: str, amounts: Json) -> Causes:
    for name in amounts:
        where = indexed(path, name)
        yield from rule_causes(names.validate_label_key, where, name)
        if "/" not in name and name != "storage" and not _is_standard(name):
            yield field_causes.invalid(where, name, "must be a standard resource type")


HEADLESS = "None"


def service_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    kind = spec.get("type", "ClusterIP")
    ports = objects_in(spec.get("ports"))
    if kind == "ExternalName":
        name = str(spec.get("externalName", "")).removesuffix(".")
        yield from name_causes(names.validate_dns_subdomain, "spec.externalName", name)
    elif not ports and spec.get("clusterIP") != HEADLESS:
        yield field_causes.required("spec.ports")
    if kind in ("NodePort", "LoadBalancer") and spec.get("clusterIP") == HEADLESS:
        detail = f"may not be set to 'None' for {kind} services"
        yield field_causes.invalid("spec.clusterIP", HEADLESS, detail)
    yield from _ports(ports)


def service_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "spec"), subobject(new, "spec")
    address = before.get("clusterIP")
    if "ExternalName" in (before.get("type"), after.get("type")) or not address:
        return
    if after.get("clusterIP") and after["clusterIP"] != address:
        yield field_causes.invalid("spec.clusterIP", after["clusterIP"], "field is immutable")


def _ports(ports: list[Json]) -> Causes:
    for index, port in enumerate(ports):
        target = port.get("targetPort")
        if isinstance(target, str) and not target.isdigit():
            where = indexed("spec.ports", index) + ".targetPort"
            yield from rule_causes(names.validate_port_name, where, target)


Validator: TypeAlias = Callable[[Json], Causes]
UpdateValidator: TypeAlias = Callable[[Json, Json], Causes]

_KEY = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)

MAX_DATA_BYTES = 1024 * 1024
"""Maximum size of the values of a ConfigMap or a Secret, in bytes."""
MAX_USER_PRIORITY = 1_000_000_000
SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
NON_SOURCE_FIELDS = frozenset(
    {
        "accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity",
        "persistentVolumeReclaimPolicy", "storageClassName", "volumeMode",
        "volumeAttributesClassName",
    }
)  # fmt: skip


def validate_create(
    group: str, kind: str, obj: Json, namespaced: bool, *, custom: bool = False
) -> list[StatusCause]:
    """Return all errors of a new object."""
    causes = list(metadata_causes(group, kind, obj, namespaced, custom))
    causes += table_causes(group, kind, obj)
    if (validator := VALIDATORS.get((group, kind))) is not None:
        causes += validator(obj)
    return causes


def validate_update(
    group: str,
    kind: str,
    old: Json,
    new: Json,
    namespaced: bool,
    subresource: str = "",
    *,
    custom: bool = False,
) -> list[StatusCause]:
    """Return all errors of an object that replaces ``old``, and of the changes between them.

    An unchanged spec is not validated again: pods and claims allow few changes.
    """
    causes = list(metadata_update_causes(old, new))
    if subobject(new, "metadata") != subobject(old, "metadata"):
        causes += metadata_causes(group, kind, new, namespaced, custom)
    if subresource == "status":
        causes += table_causes(group, kind, new, of_status=True)
        causes += table_update_causes(group, kind, old, new, of_status=True)
    if subresource:
        return causes
    if (update := UPDATE_VALIDATORS.get((group, kind))) is not None:
        causes += update(old, new)
    causes += table_update_causes(group, kind, old, new)
    if _without_metadata_and_status(new) != _without_metadata_and_status(old):
        causes += table_causes(group, kind, new)
        if (validator := VALIDATORS.get((group, kind))) is not None:
            causes += validator(new)
    return causes


def _without_metadata_and_status(obj: Json) -> Json:
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}


def _secret(obj: Json) -> Causes:
    yield from _data_causes(obj, encoded="data")
    account = "kubernetes.io/service-account.name"
    is_token = obj.get("type") == "kubernetes.io/service-account-token"
    if is_token and not subobject(obj, "metadata", "annotations").get(account):
        yield field_causes.required(indexed("metadata.annotations", account))


def _data_causes(obj: Json, *, texts: str = "", encoded: str) -> Causes:
    """Check keys and size of data: of texts, and of what base64 stands for, without decoding it."""
    size = 0
    for field in filter(None, (texts, encoded)):
        for key, value in subobject(obj, field).items():
            if isinstance(value, str) and field == encoded and not _is_base64(value):
                detail = "must be base64; use stringData for text"
                yield field_causes.invalid(indexed(field, key), "…", detail)
            if isinstance(value, str):
                size += (
                    (len(value) * 3 // 4 - value[-2:].count("="))
                    if field == encoded
                    else len(value.encode())
                )
            if not _KEY.fullmatch(key) or key == "." or key.startswith(".."):
                detail = "use letters, digits, '-', '_' and '.', and neither '.' alone nor '..'"
                yield field_causes.invalid(indexed(field, key), key, detail)
            if len(key) > 253:
                yield field_causes.too_long(indexed(field, key[:20] + "…"), 253, "characters")
    if size > MAX_DATA_BYTES:
        yield field_causes.too_long("", MAX_DATA_BYTES)


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _claim_update(old: Json, new: Json) -> Causes:
    before, after = dict(subobject(old, "spec")), dict(subobject(new, "spec"))
    size, former = (
        quantity_or_none(subobject(spec, "resources", "requests").get("storage"))
        for spec in (after, before)
    )
    granted = quantity_or_none(subobject(old, "status", "capacity").get("storage"))
    if size is None or former is None or (size < former and (granted is None or size <= granted)):
        detail = "field can not be less than status.capacity"
        yield field_causes.forbidden("spec.resources.requests.storage", detail)
    # A claim grows, or takes back a growth that has not happened, once it is bound.
    is_bound = subobject(old, "status").get("phase") == "Bound"
    for spec in (before, after):
        if is_bound or size == former:
            spec.pop("resources", None)
    if not before.get("volumeName"):
        # The volume controller sets volumeName once, when it binds the claim.
        after.pop("volumeName", None)
    if "storageClassName" not in before:
        after.pop("storageClassName", None)
    if before != after:
        detail = "spec is immutable after creation except resources.requests for bound claims"
        yield field_causes.forbidden("spec", detail)
    yield from _fixed_causes(before, after, "volumeMode")


def _volume(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    yield from access_mode_causes("spec", spec)
    if "storage" not in subobject(spec, "capacity"):
        yield field_causes.required("spec.capacity", "the capacity of storage must be given")
    else:
        capacity = spec["capacity"]["storage"]
        yield from quantity_causes("spec.capacity[storage]", capacity, positive=True)
    sources = [n for n in spec if n not in NON_SOURCE_FIELDS and spec[n] is not None]
    if not sources:
        yield field_causes.required("spec", "must specify a volume type")
    for name in {*sources[1:]} - {"flexVolume"}:  # which is not counted there
        detail = "may not specify more than 1 volume type"
        yield field_causes.forbidden(f"spec.{name}", detail)


def _volume_update(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "spec"), subobject(new, "spec")
    if any(before.get(name) != after.get(name) for name in {*before, *after} - NON_SOURCE_FIELDS):
        detail = "spec.persistentvolumesource is immutable after creation"
        yield field_causes.forbidden("spec.persistentvolumesource", detail)
    names_set = ("volumeMode", *(["nodeAffinity"] if "nodeAffinity" in before else []))
    yield from _fixed_causes(before, after, *names_set)


def _fixed_causes(before: Json, after: Json, *fields: str) -> Causes:
    """Yield the errors of changed fields, without the path of the spec, as in Kubernetes."""
    for name in fields:
        if before.get(name) != after.get(name):
            yield field_causes.invalid(name, after.get(name), "field is immutable")


def _event(obj: Json) -> Causes:
    namespace, about = subobject(obj, "metadata").get("namespace"), subobject(obj, "involvedObject")
    # Events about objects of the cluster are in the namespace default.
    is_global = not about.get("namespace") and namespace in ("default", "kube-system")
    if not is_global and about.get("namespace") != namespace:
        detail = "does not match event.namespace"
        yield field_causes.invalid("involvedObject.namespace", about.get("namespace"), detail)


def _priority_class(obj: Json) -> Causes:
    name, value = str(subobject(obj, "metadata").get("name", "")), obj.get("value", 0)
    if name.startswith("system-") and SYSTEM_PRIORITIES.get(name) != value:
        detail = "priority class names with 'system-' prefix are reserved for system use only"
        yield field_causes.forbidden("metadata.name", detail)
    if isinstance(value, int) and value > MAX_USER_PRIORITY and not name.startswith("system-"):
        detail = f"maximum allowed value of a user defined priority is {MAX_USER_PRIORITY}"
        yield field_causes.forbidden("value", detail)


def _without_counts(groups: Iterable[Json]) -> None:
    for group in groups:
        subobject(group, "schedulingPolicy", "gang").pop("minCount", None)


def _group_update(templates: str, old: Json, new: Json) -> Causes:
    before, after = copy.deepcopy(subobject(old, "spec")), copy.deepcopy(subobject(new, "spec"))
    for spec in (before, after):
        _without_counts(objects_in(spec.get(templates)) if templates else [spec])
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            value = subobject(new, "spec").get(name)
            yield field_causes.invalid(f"spec.{name}", value, "field is immutable")


def _claim_devices(path: str, obj: Json) -> Causes:
    """The requests that constraints and configurations of a claim name must be in it."""
    devices, names_of_requests = subobject(obj, *path.split(".")), list[str]()
    for request in objects_in(devices.get("requests")):
        name = request.get("name")
        options = objects_in(request.get("firstAvailable"))
        names_of_requests += [str(name), *(f"{name}/{option.get('name')}" for option in options)]
    for part in ("constraints", "config"):
        for index, entry in enumerate(objects_in(devices.get(part))):
            listed = entry.get("requests")
            for number, name in enumerate(listed if isinstance(listed, list) else ()):
                if name not in names_of_requests:
                    where = indexed(child(indexed(f"{path}.{part}", index), "requests"), number)
                    detail = "must be the name of a request in the claim"
                    yield field_causes.invalid(where, name, detail)


def _node_drivers_update(old: Json, new: Json) -> Causes:
    drivers = objects_in(subobject(old, "spec").get("drivers"))
    before = {driver.get("name"): driver for driver in drivers}
    for index, driver in enumerate(objects_in(subobject(new, "spec").get("drivers"))):
        if driver != before.get(driver.get("name"), driver):
            yield field_causes.invalid(
                indexed("spec.drivers", index), driver, "field is immutable"
            )  # fmt: skip


def _service_ranges_update(old: Json, new: Json) -> Causes:
    before, after = (subobject(obj, "spec").get("cidrs") for obj in (old, new))
    # A range of the other address family may be added.
    if isinstance(before, list) and (not isinstance(after, list) or after[: len(before)] != before):
        yield field_causes.invalid("spec.cidrs", after, "field is immutable")


VALIDATORS: Mapping[tuple[str, str], Validator] = {
    ("", "ConfigMap"): partial(_data_causes, texts="data", encoded="binaryData"),
    ("", "PersistentVolume"): _volume,
    ("", "PersistentVolumeClaim"): lambda obj: claim_causes("spec", subobject(obj, "spec")),
    ("", "Pod"): lambda obj: pod_causes("spec", subobject(obj, "spec")),
    ("", "LimitRange"): limit_range_causes,
    ("", "ResourceQuota"): quota_causes,
    ("", "Secret"): _secret,
    ("", "Service"): service_causes,
    ("", "Event"): _event,
    ("", "PodTemplate"): lambda obj: template_causes("template", subobject(obj, "template")),
    ("", "ReplicationController"): replication_controller_causes,
    ("apps", "DaemonSet"): replica_set_causes,
    ("apps", "Deployment"): deployment_causes,
    ("apps", "ReplicaSet"): replica_set_causes,
    # Kubernetes does not know all volumes of its pods.
    ("apps", "StatefulSet"): partial(replica_set_causes, checks_pods=False),
    ("autoscaling", "HorizontalPodAutoscaler"): autoscaler_causes,
    ("batch", "CronJob"): cron_job_causes,
    ("batch", "Job"): job_causes,
    ("scheduling.k8s.io", "PriorityClass"): _priority_class,
    (DEVICES, "ResourceClaim"): partial(_claim_devices, "spec.devices"),
    (DEVICES, "ResourceClaimTemplate"): partial(_claim_devices, "spec.spec.devices"),
}
UPDATE_VALIDATORS: Mapping[tuple[str, str], UpdateValidator] = {
    ("", "PersistentVolume"): _volume_update,
    ("", "PersistentVolumeClaim"): _claim_update,
    ("", "Pod"): pod_update_causes,
    ("", "Service"): service_update_causes,
    ("batch", "Job"): job_update_causes,
    (workload.GROUP, "Workload"): partial(_group_update, "podGroupTemplates"),
    (workload.GROUP, "PodGroup"): partial(_group_update, ""),
    ("networking.k8s.io", "ServiceCIDR"): _service_ranges_update,
    ("storage.k8s.io", "CSINode"): _node_drivers_update,
}
