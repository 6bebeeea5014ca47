"""Subresources with their own objects: scale, binding, eviction."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from gangline.api.meta.field_causes import invalid as invalid_field
from gangline.api.meta.field_causes import required
from gangline.api.meta.objects import LabelSelector
from gangline.api.meta.selectors import SelectorError, selector_from_object
from gangline.local.apiserver.admission.webhooks import CREATE, UPDATE
from gangline.local.apiserver.core.errors import bad_request, conflict, invalid
from gangline.local.apiserver.core.metadata import format_timestamp
from gangline.local.apiserver.core.negotiation import (
    encode_json,
    expect_object,
    expect_string,
    read_json,
)
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.verbs.delete import read_deletion_request
from gangline.local.apiserver.verbs.evictions import EvictionHandler
from gangline.local.apiserver.verbs.read import read_object
from gangline.local.apiserver.verbs.rest import ApiResponse, ResourceHandler
from gangline.local.apiserver.verbs.write import WritePath

COPIED_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
BUILT_IN_PATHS: Json = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}


def read_scale(kind: ServedKind, obj: Json) -> Json:
    paths = kind.scale or BUILT_IN_PATHS
    meta = obj["metadata"]
    status: Json = {"replicas": _get_path(obj, paths.get("statusReplicasPath", "")) or 0}
    selector = _selector(_get_path(obj, paths.get("labelSelectorPath", "")))
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in COPIED_METADATA if name in meta},
        "spec": {"replicas": _get_path(obj, paths["specReplicasPath"]) or 0},
        "status": status,
    }


def apply_scale(kind: ServedKind, obj: Json, scale: Any) -> Json:
    """Return the object with the replicas of a Scale.

    Raises:
        StatusError: the Scale is invalid.
    """
    if not isinstance(scale, dict) or scale.get("kind", "Scale") != "Scale":
        raise bad_request("the body of the request must be a Scale object")
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        cause = invalid_field("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid("autoscaling", "Scale", obj["metadata"]["name"], [cause])
    parts = _parts((kind.scale or BUILT_IN_PATHS)["specReplicasPath"])
    changed = _set_path(obj, parts, replicas)
    revision = (scale.get("metadata") or {}).get("resourceVersion")
    if revision:
        changed["metadata"] = {**changed["metadata"], "resourceVersion": revision}
    else:
        changed["metadata"] = dict(changed["metadata"])
    return changed


def _parts(path: str) -> list[str]:
    return [part for part in path.split(".") if part]


def _get_path(obj: Any, path: str) -> Any:
    if not path:
        return None
    for part in _parts(path):
        if not isinstance(obj, dict):
            return None
        obj = obj.get(part)
    return obj


def _set_path(obj: Json, parts: list[str], value: object) -> Json:
    head, *rest = parts
    inner = obj.get(head)
    below = _set_path(inner if isinstance(inner, dict) else {}, rest, value) if rest else value
    return {**obj, head: below}


def _selector(found: Any) -> str:
    if isinstance(found, str):
        return found
    if not isinstance(found, dict):
        return ""
    if "matchLabels" not in found and "matchExpressions" not in found:
        return ",".join(f"{key}={value}" for key, value in sorted(found.items()))
    try:
        return str(selector_from_object(msgspec.convert(found, LabelSelector)))
    except (SelectorError, msgspec.ValidationError):
        return ""


SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
SCALE = ("autoscaling", "v1", "Scale")
BINDING = ("", "v1", "Binding")
EVICTION = ("policy", "v1", "Eviction")


class SubresourceHandler:
    """Handles requests for these subresources."""

    def __init__(
        self,
        store: ObjectStore,
        writer: WritePath,
        rest: ResourceHandler,
        pods: ServedKind,
    ) -> None:
        self._pods = pods
        self._store = store
        self._writer = writer
        self._rest = rest
        self._evictions = EvictionHandler(store, writer)

    async def handle_scale(self, request: ApiRequest) -> ApiResponse:
        """Get or set the replicas of a workload."""
        if request.verb == "get":
            return await self._scale(request, read_object(self._store, request).body)
        change = await self._rest.decode_change(request)
        if review := self._writer.review(request, UPDATE, SCALE):
            stored = read_object(self._store, request).body
            present = read_scale(request.kind, await self._rest.decode_stored(request, stored))
            desired = expect_object(change(present), "the body of the request")
            admitted = await review.admit(present, desired)
            change = _constant(
                admitted
                if request.verb == "update"
                else _without_patched_revision(admitted, present)
            )

        def scaled(obj: Json) -> Json:
            return apply_scale(request.kind, obj, change(read_scale(request.kind, obj)))

        written = await self._writer.update(request, scaled)
        return await self._scale(request, written.body)

    async def _scale(self, request: ApiRequest, body: bytes) -> ApiResponse:
        obj = await self._rest.decode_stored(request, body)
        return ApiResponse(encode_json(read_scale(request.kind, obj)))

    async def handle_binding(self, request: ApiRequest) -> ApiResponse:
        """Bind a pod to a node."""
        binding = expect_object(await self._rest.decode_body(request), "the body of the request")
        if review := self._writer.review(request, CREATE, BINDING):
            binding = await review.admit(None, binding)
        target = expect_object(binding.get("target"), "target")
        meta = expect_object(binding.get("metadata"), "metadata")
        node = expect_string(target.get("name"), "target.name")
        if not node or target.get("kind") not in ("Node", "", None):
            raise invalid("", "Binding", request.name, [required("target.name")])
        if request.kind.plural == "bindings":  # the deprecated path has the pod's name in the body
            request.kind, request.name = (
                self._pods,
                expect_string(meta.get("name"), "metadata.name"),
            )
            request.subresource = "binding"
        if uid := meta.get("uid"):
            _check_uid(request, self._store, uid)
        await self._writer.update(
            _update_request(request), lambda pod: bind_pod(request, pod, node, meta)
        )
        return ApiResponse(encode_json({**SUCCESS, "code": 201}), 201)

    async def handle_eviction(self, request: ApiRequest) -> ApiResponse:
        """Delete a pod, unless a disruption budget forbids it now."""
        eviction = expect_object(await self._rest.decode_body(request), "the body of the request")
        if review := self._writer.review(request, CREATE, EVICTION):
            eviction = await review.admit(None, eviction)
        deletion = read_deletion_request(
            request, expect_object(eviction.get("deleteOptions"), "deleteOptions")
        )
        await self._evictions.evict(_update_request(request), deletion)
        return ApiResponse(encode_json({**SUCCESS, "code": 201}), 201)


def _constant(obj: Json) -> Callable[[Json], Json]:
    return lambda _: obj


def _without_patched_revision(scale: Json, present: Json) -> Json:
    """Remove the resource version of the current scale, which the client did not specify."""
    meta, revision = scale.get("metadata"), present["metadata"]["resourceVersion"]
    if not isinstance(meta, dict) or meta.get("resourceVersion") != revision:
        return scale
    return {**scale, "metadata": {k: v for k, v in meta.items() if k != "resourceVersion"}}


def _check_uid(request: ApiRequest, store: ObjectStore, uid: str) -> None:
    obj = read_json(read_object(store, request).body)
    if obj["metadata"]["uid"] != uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
        raise conflict("pods", "", request.name, why + obj["metadata"]["uid"])


def _update_request(request: ApiRequest) -> ApiRequest:
    """Return the request as an update of the object, without the body of the subresource."""
    return ApiRequest(
        request.kind, "update", request.namespace, request.name, request.subresource,
        request.params, request.user,
        request.user_agent,
    )  # fmt: skip


def bind_pod(request: ApiRequest, pod: Json, node: str, meta: Json) -> Json:
    """Return the pod bound to a node.

    Raises:
        StatusError: it is already bound, is being deleted, or has scheduling gates.
    """
    present = pod["spec"].get("nodeName")
    if present:
        raise conflict(
            "pods/binding",
            "",
            request.name,
            f'pod {request.name} is already assigned to node "{present}"',
        )
    if "deletionTimestamp" in pod["metadata"]:
        why = f"pod {request.name} is being deleted, cannot be assigned to a host"
        raise conflict("pods/binding", "", request.name, why)
    if pod["spec"].get("schedulingGates"):
        why = f"pod {request.name} has non-empty .spec.schedulingGates"
        raise conflict("pods/binding", "", request.name, why)
    status = pod.get("status", {})
    others = [c for c in status.get("conditions", []) if c.get("type") != "PodScheduled"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": format_timestamp(datetime.now(UTC)),
    }
    metadata = dict(pod["metadata"])
    for name in ("annotations", "labels"):
        if added := expect_object(meta.get(name), f"metadata.{name}"):
            metadata[name] = {**metadata.get(name, {}), **added}
    return {
        **pod,
        "metadata": metadata,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**status, "conditions": [*others, scheduled]},
    }
