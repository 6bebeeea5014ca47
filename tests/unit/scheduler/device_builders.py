"""Builders of devices and claims for tests, from manifests as drivers and users write them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gangline.api.core import devices as api
from gangline.scheduler.cache import convert_devices
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import PodInfo
from unit.scheduler.builders import pod

DRIVER = "gpu.example.com"
CLASS = "gpu"
IN_CLASS = f'device.driver == "{DRIVER}"'
GPUS = f"{CLASS}.deviceclass.resource.k8s.io/devices"
Json = dict[str, Any]


def device(name: str, taint: str = "", **attributes: str | int | bool) -> Json:
    """Make a device; ``taint`` is the effect of a taint with the key ``broken``."""
    kinds = {str: "string", int: "int", bool: "bool"}
    made: Json = {
        "name": name,
        "attributes": {key: {kinds[type(v)]: v} for key, v in attributes.items()},
    }
    if taint:
        made["taints"] = [{"key": "broken", "effect": taint}]
    return made


def add_class(state: SchedulerCache, name: str = CLASS, *expressions: str) -> None:
    selectors = [{"cel": {"expression": each}} for each in expressions or (IN_CLASS,)]
    body = {"spec": {"selectors": selectors}}
    made = msgspec.convert(body, api.DeviceClass)
    state.devices.synced = True
    state.devices.classes[name] = convert_devices.device_class_info(made)
    state.devices.invalidate_classes()
    state.devices_changed((None,))


def add_slice(
    state: SchedulerCache,
    name: str,
    devices: Sequence[Json],
    generation: int = 1,
    count: int = 1,
    **spec: Any,
) -> None:
    """Publish devices: of the node of that name, unless the specification says otherwise."""
    where = {} if {"nodeSelector", "allNodes"} & spec.keys() else {"nodeName": name}
    pool = {"name": name, "generation": generation, "resourceSliceCount": count}
    body = {"spec": {"driver": DRIVER, "pool": pool, "devices": devices, **where, **spec}}
    made = convert_devices.slice_info(msgspec.convert(body, api.ResourceSlice))
    state.devices_changed(state.devices.set_slice(f"{name}-{generation}", None, made))


def request(name: str = "gpu", **exactly: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": CLASS, **exactly}}


def add_claim(
    state: SchedulerCache,
    name: str,
    *requests: Json,
    constraints: Sequence[Json] = (),
    owner: str = "",
    has: Sequence[tuple[str, str]] = (),
    by: Sequence[str] = (),
) -> None:
    """Add a claim of namespace ``d``.

    Args:
        owner: the pod that it was created for.
        has: pool and name of the devices that it has.
        by: names of the pods for which it is reserved.
    """
    metadata: Json = {"name": name, "namespace": "d", "uid": f"uid-{name}"}
    if owner:
        metadata["annotations"] = {api.POD_CLAIM_ANNOTATION: "gpu"}
        metadata["ownerReferences"] = [{"kind": "Pod", "uid": f"uid-{owner}", "controller": True}]
    status: Json = {}
    if has:
        results = [
            {"request": "gpu", "driver": DRIVER, "pool": pool, "device": own} for pool, own in has
        ]
        nodes = [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [has[0][0]]}]}
        ]
        status["allocation"] = {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": nodes},
        }
        status["reservedFor"] = [
            {"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in by
        ]
    devices = {"requests": list(requests or (request(),)), "constraints": list(constraints)}
    body = {"metadata": metadata, "spec": {"devices": devices}, "status": status}
    info = convert_devices.device_claim_info(msgspec.convert(body, api.ResourceClaim))
    state.set_device_claim(info.key, info)


def user(name: str, *claims: str, **facts: Any) -> PodInfo:
    """Make a pod that uses claims."""
    return pod(name, device_claims=tuple(f"d/{claim}" for claim in claims), **facts)
