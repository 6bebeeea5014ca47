"""Subresources with their own objects: scale, binding, eviction, service account tokens.

An eviction deletes a pod, subject to disruption budgets.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gangline.api.meta.field_causes import invalid as invalid_field
from gangline.api.meta.field_causes import required
from gangline.api.meta.json_objects import subobject
from gangline.api.meta.objects import StatusCause
from gangline.local.apiserver.admission.node_restriction import (
    restrict_node_write,
    restrict_token_request,
)
from gangline.local.apiserver.admission.webhooks import CREATE, UPDATE
from gangline.local.apiserver.auth.authentication import (
    API_AUDIENCES,
    BoundObject,
    ObjectClaim,
    ServiceAccountTokens,
)
from gangline.local.apiserver.core.errors import (
    bad_request,
    conflict,
    internal,
    invalid,
    too_many,
)
from gangline.local.apiserver.core.negotiation import (
    encode_json,
    expect_object,
    expect_string,
    expect_strings,
    read_json,
)
from gangline.local.apiserver.core.prepare import format_timestamp
from gangline.local.apiserver.core.registry import Json, ServedKind, read_selector
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.verbs.delete import DeletionRequest, read_deletion_request
from gangline.local.apiserver.verbs.read import read_object
from gangline.local.apiserver.verbs.rest import ApiResponse, ResourceHandler
from gangline.local.apiserver.verbs.write import WritePath, check_preconditions

BUDGETS = ServedKind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
UNPROTECTED_PHASES = ("Pending", "Succeeded", "Failed")
"""Phases in which a pod is not available, so that no budget protects it."""


def check_budget(budget: Json) -> None:
    """Refuse an eviction that a budget does not allow. Raises StatusError: 429."""
    status = budget.get("status") or {}
    name = budget["metadata"]["name"]
    generation = budget["metadata"].get("generation", 0)
    if (status.get("observedGeneration") or 0) < generation:
        text = f"The disruption budget {name} is still being processed by the server."
        retry_after = 10
    elif (status.get("disruptionsAllowed") or 0) <= 0:
        text = (
            f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods "
            f"and has {status.get('currentHealthy', 0)} currently"
        )
        retry_after = 0
    else:
        return
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    raise too_many(message, [StatusCause("DisruptionBudget", text)], retry_after)


def count_disruption(budget: Json, pod: str) -> Json:
    """Return the budget after the eviction of one of its pods. Raises StatusError: 429, another
    eviction used the budget meanwhile.
    """
    check_budget(budget)
    status = dict(budget.get("status") or {})
    status["disruptionsAllowed"] = status.get("disruptionsAllowed", 0) - 1
    at = format_timestamp(datetime.now(UTC))
    status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod: at}
    return {**budget, "metadata": dict(budget["metadata"]), "status": status}


def add_disruption_condition(pod: Json) -> Json:
    reason, message = "EvictionByEvictionAPI", "Eviction API: evicting"
    return _with_condition(pod, "DisruptionTarget", reason=reason, message=message)


def _with_condition(pod: Json, type_: str, **fields: str) -> Json:
    """Return the pod with a condition that is true."""
    status = pod.get("status") or {}
    others = [c for c in status.get("conditions", []) if c.get("type") != type_]
    times = {"lastProbeTime": None, "lastTransitionTime": format_timestamp(datetime.now(UTC))}
    conditions = [*others, {"type": type_, "status": "True", **fields, **times}]
    metadata = dict(pod["metadata"])
    return {**pod, "metadata": metadata, "status": {**status, "conditions": conditions}}


GROUP = "authentication.k8s.io"
DEFAULT_TOKEN_S = 3600
MIN_TOKEN_S = 600
MAX_TOKEN_S = 1 << 32
BOUND_PLURALS = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}


def _lifetime(request: ApiRequest, given: object) -> int:
    if given is None:
        return DEFAULT_TOKEN_S
    path = "spec.expirationSeconds"
    if not isinstance(given, int) or isinstance(given, bool):
        raise bad_request(f"{path} must be a number of seconds")
    if MIN_TOKEN_S <= given <= MAX_TOKEN_S:
        return given
    limit = "less than 10 minutes" if given < MIN_TOKEN_S else "larger than 2^32 seconds"
    cause = invalid_field(path, given, f"may not specify a duration {limit}")
    raise invalid(GROUP, "TokenRequest", request.name, [cause])


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
    """Return the object with the replicas of a Scale. Raises StatusError: the Scale is invalid."""
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


def _selector(selector: Any) -> str:
    if isinstance(selector, str):
        return selector
    if not isinstance(selector, dict):
        return ""
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    return str(read_selector(selector))


SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


class SubresourceHandler:
    """Handles requests for these subresources."""

    def __init__(
        self,
        store: ObjectStore,
        writer: WritePath,
        rest: ResourceHandler,
        tokens: ServiceAccountTokens,
        pods: ServedKind,
    ) -> None:
        self._tokens = tokens
        self._pods = pods
        self._store = store
        self._writer = writer
        self._rest = rest

    async def handle_scale(self, request: ApiRequest) -> ApiResponse:
        """Get or set the replicas of a workload."""
        if request.verb == "get":
            return await self._scale(request, read_object(self._store, request).body)
        change = await self._rest.decode_change(request)
        if review := self._writer.review(request, UPDATE):
            stored = read_object(self._store, request).body
            present = read_scale(request.kind, await self._rest.decode_stored(request, stored))
            desired = expect_object(change(present), "the body of the request")
            admitted = await review.admit(present, desired)
            if request.verb != "update":
                admitted = _without_patched_revision(admitted, present)
            change = _constant(admitted)

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
        if review := self._writer.review(request, CREATE):
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
        uid = meta.get("uid")

        def bound(pod: Json) -> Json:
            if uid:
                check_preconditions(request, pod, uid, "")
            return bind_pod(request, pod, node, meta)

        await self._writer.update(_update_request(request), bound)
        return ApiResponse(encode_json({**SUCCESS, "code": 201}), 201)

    async def handle_eviction(self, request: ApiRequest) -> ApiResponse:
        """Delete a pod, unless a disruption budget forbids it now."""
        eviction = expect_object(await self._rest.decode_body(request), "the body of the request")
        if review := self._writer.review(request, CREATE):
            eviction = await review.admit(None, eviction)
        given = subobject(eviction, "metadata").get("name")
        if given and given != request.name:
            # Evicting the pod of the URL instead would end another one than was meant.
            raise bad_request("name in URL does not match name in Eviction object")
        deletion = read_deletion_request(
            request, expect_object(eviction.get("deleteOptions"), "deleteOptions")
        )
        await self._evict(_update_request(request), deletion)
        return ApiResponse(encode_json({**SUCCESS, "code": 201}), 201)

    async def _evict(self, request: ApiRequest, deletion: DeletionRequest) -> None:
        """Delete a pod if its budget allows a disruption. Raises StatusError: 429, the budget does
        not allow it now; 404, the pod does not exist.
        """
        pod = self._store.named("pods", request.namespace or "", request.name)
        # Before the budget is charged.
        restrict_node_write(request, pod, None)
        going = "deletionTimestamp" in pod["metadata"]
        if not going and pod.get("status", {}).get("phase") not in UNPROTECTED_PHASES:
            await self._charge_budget(request, pod, deletion.dry_run)
        if not deletion.dry_run and not going:
            await self._writer.update(request, add_disruption_condition)
        await self._writer.delete(request, deletion)

    async def _charge_budget(self, request: ApiRequest, pod: Json, dry_run: bool) -> None:
        budgets = self._budgets(request.namespace or "", pod["metadata"].get("labels") or {})
        if len(budgets) > 1:
            raise internal("This pod has more than one PodDisruptionBudget, which the eviction "
                           "subresource does not support.")  # fmt: skip
        for budget in budgets:
            check_budget(budget)
            if dry_run:
                return
            name = budget["metadata"]["name"]
            taking = replace(
                request,
                kind=BUDGETS,
                verb="update",
                name=name,
                subresource="status",
                params={},
                body=b"",
            )
            await self._writer.update(
                taking, lambda budget_now: count_disruption(budget_now, request.name)
            )

    def _budgets(self, namespace: str, labels: dict[str, str]) -> list[Json]:
        cache = self._store.cache(BUDGETS.storage_name)
        records = [cache.latest(key) for key in cache.keys(namespace)]
        budgets = (read_json(record.body) for record in records if record is not None)
        # A missing selector matches no pod.
        chosen = ((budget, read_selector(budget["spec"].get("selector"))) for budget in budgets)
        return [budget for budget, selector in chosen if selector.matches(labels)]

    async def handle_token(self, request: ApiRequest) -> ApiResponse:
        """Issue a token for a service account. Raises StatusError: there is no such account or
        bound object, or the request is invalid.
        """
        given = await self._rest.decode_body(request) if request.body else {}
        token_request = expect_object(given, "the body of the request")
        account = read_json(read_object(self._store, request).body)
        if review := self._writer.review(request, CREATE):
            token_request = await review.admit(None, token_request)
        spec = expect_object(token_request.get("spec"), "spec")
        seconds = _lifetime(request, spec.get("expirationSeconds"))
        audiences = expect_strings(spec.get("audiences"), "spec.audiences") or list(API_AUDIENCES)
        reference = expect_object(spec.get("boundObjectRef"), "spec.boundObjectRef")
        bound = self._bound_object(request, reference) if reference else None
        restrict_token_request(request, audiences, reference, bound)
        claim = ObjectClaim(request.name, account["metadata"]["uid"])
        token, ends = self._tokens.issue(request.namespace or "", claim, audiences, seconds, bound)
        if bound is not None:
            reference = {"boundObjectRef": reference | {"uid": bound.claim.uid}}
        answer = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": request.name, "namespace": request.namespace},
            "spec": {"audiences": audiences, "expirationSeconds": seconds, **reference},
            "status": {
                "token": token,
                "expirationTimestamp": format_timestamp(datetime.fromtimestamp(ends, UTC)),
            },
        }
        return ApiResponse(encode_json(answer), 201)

    def _bound_object(self, request: ApiRequest, reference: Json) -> BoundObject:
        kind, version, name, uid = (
            expect_string(reference.get(field), f"spec.boundObjectRef.{field}")
            for field in ("kind", "apiVersion", "name", "uid")
        )
        if kind not in BOUND_PLURALS or version != "v1":
            raise bad_request(
                f"cannot bind token to object of type {version}, Kind={kind}: "
                "only v1 Pod, Secret and Node can be bound"
            )
        plural = BOUND_PLURALS[kind]
        namespace = "" if kind == "Node" else request.namespace
        obj = self._store.named(plural, namespace or "", name)
        own_uid = obj["metadata"]["uid"]
        if uid and uid != own_uid:
            why = f"the UID in the bound object reference ({uid}) does not match the UID in record"
            raise conflict(plural, "", name, f"{why}. The object might have been deleted and "
                           f"then recreated (the UID is now {own_uid})")  # fmt: skip
        node = None
        if kind == "Pod":
            account = obj["spec"].get("serviceAccountName") or "default"
            if account != request.name:
                raise bad_request(
                    f'cannot bind token for serviceaccount "{request.name}" to pod running with '
                    f'different serviceaccount name "{account}".'
                )
            node = self._node_claim(obj["spec"].get("nodeName"))
        return BoundObject(kind, ObjectClaim(name, own_uid), node, obj)

    def _node_claim(self, name: str | None) -> ObjectClaim | None:
        node = self._store.committed("nodes.", name or "")
        return ObjectClaim(name, node["metadata"]["uid"] if node else "") if name else None


def _constant(obj: Json) -> Callable[[Json], Json]:
    return lambda _: obj


def _without_patched_revision(scale: Json, present: Json) -> Json:
    """Remove the resource version of the current scale, which the client did not specify."""
    meta, revision = scale.get("metadata"), present["metadata"]["resourceVersion"]
    if not isinstance(meta, dict) or meta.get("resourceVersion") != revision:
        return scale
    return {**scale, "metadata": {k: v for k, v in meta.items() if k != "resourceVersion"}}


def _update_request(request: ApiRequest) -> ApiRequest:
    """Return the request as an update of the object, without the body of the subresource."""
    return replace(request, verb="update", body=b"")


def bind_pod(request: ApiRequest, pod: Json, node: str, meta: Json) -> Json:
    """Return the pod bound to a node. Raises StatusError: it is already bound, is being deleted, or
    has scheduling gates.
    """
    present = pod["spec"].get("nodeName")
    why = ""
    if present:
        why = f'is already assigned to node "{present}"'
    elif "deletionTimestamp" in pod["metadata"]:
        why = "is being deleted, cannot be assigned to a host"
    elif pod["spec"].get("schedulingGates"):
        why = "has non-empty .spec.schedulingGates"
    if why:
        raise conflict("pods/binding", "", request.name, f"pod {request.name} {why}")
    bound = _with_condition(pod, "PodScheduled")
    metadata = bound["metadata"]
    for name in ("annotations", "labels"):
        if added := expect_object(meta.get(name), f"metadata.{name}"):
            metadata[name] = {**metadata.get(name, {}), **added}
    return {**bound, "spec": {**pod["spec"], "nodeName": node}}
