"""Defaults of kinds that no component of this cluster acts on, as Kubernetes sets them."""

from collections.abc import Callable, Mapping

from gangline.api.cluster.admission import GROUP as ADMISSION
from gangline.api.meta.json_objects import fill_absent, objects_in, subobject
from gangline.local.apiserver.machinery.schema.nodes import Json

RESOURCE = "resource.k8s.io"


def _driver(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(
        spec,
        {
            "attachRequired": True,
            "podInfoOnMount": False,
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "storageCapacity": False,
            "requiresRepublish": False,
            "seLinuxMount": False,
        },
    )
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


def _policy(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(spec, {"failurePolicy": "Fail"})
    _match(subobject(spec, "matchConstraints"))


def _policy_binding(obj: Json) -> None:
    _match(subobject(obj, "spec", "matchResources"))


def _match(match: Json) -> None:
    if not match:
        return
    fill_absent(match, {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}})
    for name in ("resourceRules", "excludeResourceRules"):
        for rule in objects_in(match.get(name)):
            fill_absent(rule, {"scope": "*"})


def _claim(obj: Json) -> None:
    _requests(subobject(obj, "spec", "devices"))


def _claim_template(obj: Json) -> None:
    _requests(subobject(obj, "spec", "spec", "devices"))


def _requests(devices: Json) -> None:
    for request in objects_in(devices.get("requests")):
        _request(subobject(request, "exactly"))
        for choice in objects_in(request.get("firstAvailable")):
            _request(choice)


def _request(request: Json) -> None:
    if not request:
        return
    fill_absent(request, {"allocationMode": "ExactCount"})
    if request["allocationMode"] == "ExactCount" and not request.get("count"):
        request["count"] = 1
    for toleration in objects_in(request.get("tolerations")):
        fill_absent(toleration, {"operator": "Equal"})


DEFAULTERS: Mapping[tuple[str, str], Callable[[Json], None]] = {
    (ADMISSION, "ValidatingAdmissionPolicy"): _policy,
    (ADMISSION, "ValidatingAdmissionPolicyBinding"): _policy_binding,
    (RESOURCE, "ResourceClaim"): _claim,
    (RESOURCE, "ResourceClaimTemplate"): _claim_template,
    ("storage.k8s.io", "CSIDriver"): _driver,
}
