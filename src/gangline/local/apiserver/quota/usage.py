"""What one object uses of the resources that a quota limits, as Kubernetes' evaluators count."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.quantity import Quantity, quantity_or_none
from gangline.local.apiserver.core.registry import Json

Usage: TypeAlias = dict[str, Quantity]
"""Amounts by the names of a quota's ``hard``."""

ONE = Quantity(10**9)
PODS, SERVICES, CLAIMS = "pods.", "services.", "persistentvolumeclaims."
"""Storage names of the kinds that use more than their number."""
IGNORED = ("events.",)
"""Kinds that no quota counts."""
COUNTED = ("configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas",
           "secrets", "services")  # fmt: skip
"""Kinds whose number has the name of the kind, without ``count/``."""
REQUIRED = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
"""Limits that each container of a pod must have a value for."""
STORAGE_CLASS = ".storageclass.storage.k8s.io/"
_REQUEST_NAMES = ("cpu", "memory", "ephemeral-storage")
_POD_LEVEL = ("cpu", "memory", "hugepages-")


def storage_name_of(resource: str) -> str:
    """Return the storage name of the kind that uses a resource of a quota."""
    if resource.startswith("count/"):
        name = resource.removeprefix("count/")
        return name if "." in name else f"{name}."
    if resource in COUNTED:
        return f"{resource}."
    if resource.startswith("services."):
        return SERVICES
    if resource == "requests.storage" or STORAGE_CLASS in resource:
        return CLAIMS
    return PODS


def is_plain_count(resource: str) -> bool:
    """Return True if each object of the kind uses exactly 1."""
    return resource.startswith("count/") or resource in COUNTED


def object_usage(storage_name: str, obj: Json) -> Usage:
    """Return what an object uses; empty for kinds that no quota counts."""
    if storage_name in IGNORED:
        return {}
    plural = storage_name.removesuffix(".")
    usage = {f"count/{plural}": ONE}
    if plural in COUNTED:
        usage[plural] = ONE
    match storage_name:
        case "pods.":
            usage |= _pod_usage(obj)
        case "services.":
            usage |= _service_usage(subobject(obj, "spec"))
        case "persistentvolumeclaims.":
            usage |= _claim_usage(subobject(obj, "spec"))
    return usage


def missing_values(pod: Json, limited: Iterable[str]) -> str:
    """Return the limits that containers of a pod have no value for; empty if there are none."""
    spec = subobject(pod, "spec")
    required = sorted(set(limited) & set(REQUIRED))
    if subobject(spec, "resources"):
        return ""
    found = []
    containers = [*objects_in(spec.get("containers")), *objects_in(spec.get("initContainers"))]
    for name in required:
        lacking = {str(each.get("name")) for each in containers if name not in _names_of(each)}
        if lacking:
            found.append(f"{name} for: {','.join(sorted(lacking))}")
    return "; ".join(found)


def _names_of(container: Json) -> Usage:
    return _named(_requests(container), _limits(container))


def _pod_usage(pod: Json) -> Usage:
    """A pod that has ended uses nothing but its object."""
    if subobject(pod, "status").get("phase") in TERMINAL_PHASES:
        return {}
    spec = subobject(pod, "spec")
    return {"pods": ONE} | _named(_total(spec, _requests), _total(spec, _limits))


def _named(requests: Usage, limits: Usage) -> Usage:
    """Return amounts by the names of quotas. The name of a request may omit ``requests.``."""
    found: Usage = {}
    for name, amount in requests.items():
        if name in _REQUEST_NAMES or name.startswith("hugepages-"):
            found[name] = amount
        found[f"requests.{name}"] = amount
    for name in _REQUEST_NAMES:
        if name in limits:
            found[f"limits.{name}"] = limits[name]
    return found


def _requests(container: Json) -> Usage:
    resources = subobject(container, "resources")
    return _quantities({**subobject(resources, "limits"), **subobject(resources, "requests")})


def _limits(container: Json) -> Usage:
    return _quantities(subobject(container, "resources", "limits"))


def _quantities(written: Mapping[str, Any]) -> Usage:
    parsed = ((name, quantity_or_none(value)) for name, value in written.items())
    return {name: quantity for name, quantity in parsed if quantity is not None}


def _total(spec: Json, read: Callable[[Json], Usage]) -> Usage:
    """Sum containers and sidecars; the largest init container counts if it is more.

    The overhead is added. Values of the pod replace the sum of its containers.
    """
    sidecars: Usage = {}
    peaks: list[Usage] = []
    for container in objects_in(spec.get("initContainers")):
        own = read(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, own)
            peaks.append(sidecars)
        else:
            peaks.append(_sum(sidecars, own))
    total = sidecars
    for container in objects_in(spec.get("containers")):
        total = _sum(total, read(container))
    for peak in peaks:
        total = {
            name: max(total.get(name, amount), peak.get(name, amount))
            for name, amount in (total | peak).items()
        }
    own = read(spec)
    total |= {name: own[name] for name in own if name.startswith(_POD_LEVEL)}
    overhead = _quantities(subobject(spec, "overhead"))
    if read is _limits:
        overhead = {name: amount for name, amount in overhead.items() if name in total}
    return _sum(total, overhead)


def _sum(left: Usage, right: Usage) -> Usage:
    return left | {
        name: left[name] + amount if name in left else amount for name, amount in right.items()
    }


def add_usage(total: Usage, added: Usage) -> None:
    """Add amounts in place."""
    for name, amount in added.items():
        total[name] = total[name] + amount if name in total else amount


def _service_usage(spec: Json) -> Usage:
    usage: Usage = {}
    kind, ports = spec.get("type"), objects_in(spec.get("ports"))
    if kind == "LoadBalancer":
        usage["services.loadbalancers"] = ONE
        if spec.get("allocateLoadBalancerNodePorts") is False:
            ports = [port for port in ports if port.get("nodePort")]
    if kind in ("NodePort", "LoadBalancer"):
        usage["services.nodeports"] = ONE * len(ports)
    return usage


def _claim_usage(spec: Json) -> Usage:
    usage: Usage = {}
    storage = _quantities(subobject(spec, "resources", "requests")).get("storage")
    if storage is not None:
        usage["requests.storage"] = storage
    storage_class = spec.get("storageClassName")
    if storage_class and isinstance(storage_class, str):
        usage[f"{storage_class}{STORAGE_CLASS}persistentvolumeclaims"] = ONE
        if storage is not None:
            usage[f"{storage_class}{STORAGE_CLASS}requests.storage"] = storage
    return usage
