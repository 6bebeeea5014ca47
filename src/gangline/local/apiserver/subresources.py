"""Subresources with their own objects: scale, binding, eviction, token."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from gangline.local.apiserver.credentials import Authenticator
from gangline.local.apiserver.errors import conflict, invalid
from gangline.local.apiserver.evictions import Evictions
from gangline.local.apiserver.lifecycle import timestamp
from gangline.local.apiserver.machinery.field_errors import required
from gangline.local.apiserver.negotiation import encode, mapping, read_body, read_json, text, texts
from gangline.local.apiserver.reading import read_one
from gangline.local.apiserver.registry import Json, Kind
from gangline.local.apiserver.removal import read_removal
from gangline.local.apiserver.request import Call
from gangline.local.apiserver.rest import Answer, Rest
from gangline.local.apiserver.scale import scale_of, with_scale
from gangline.local.apiserver.store import Store
from gangline.local.apiserver.webhooks import CREATE, UPDATE
from gangline.local.apiserver.writing import Writer

SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
SCALE = ("autoscaling", "v1", "Scale")
BINDING = ("", "v1", "Binding")
EVICTION = ("policy", "v1", "Eviction")
TOKEN = ("authentication.k8s.io", "v1", "TokenRequest")
LONGEST_TOKEN_S = 365 * 24 * 3600
SHORTEST_TOKEN_S = 600
USUAL_TOKEN_S = 3600


class Subresources:
    """Handles requests for these subresources."""

    def __init__(
        self, store: Store, writer: Writer, rest: Rest, authenticator: Authenticator, pods: Kind
    ) -> None:
        self._pods = pods
        self._store = store
        self._writer = writer
        self._rest = rest
        self._authenticator = authenticator
        self._evictions = Evictions(store, writer)

    async def scale(self, request: Call) -> Answer:
        """Get or set the replicas of a workload."""
        if request.verb == "get":
            obj = read_json(read_one(self._store, request).body)
            return Answer(encode(scale_of(request.kind, obj)))
        change = self._rest.change(request)
        if review := self._writer.review(request, UPDATE, SCALE):
            present = scale_of(request.kind, read_json(read_one(self._store, request).body))
            desired = mapping(change(present), "the body of the request")
            admitted = await review.admit(present, desired)
            change = _always(admitted if request.verb == "update" else _unbased(admitted, present))

        def scaled(obj: Json) -> Json:
            return with_scale(request.kind, obj, change(scale_of(request.kind, obj)))

        written = await self._writer.update(request, scaled)
        return Answer(encode(scale_of(request.kind, read_json(written.body))))

    async def bind(self, request: Call) -> Answer:
        """Bind a pod to a node."""
        binding = mapping(read_body(request.body, request.content_type), "the body of the request")
        if review := self._writer.review(request, CREATE, BINDING):
            binding = await review.admit(None, binding)
        target = mapping(binding.get("target"), "target")
        meta = mapping(binding.get("metadata"), "metadata")
        node = text(target.get("name"), "target.name")
        if not node or target.get("kind") not in ("Node", "", None):
            raise invalid("", "Binding", request.name, [required("target.name")])
        if request.kind.plural == "bindings":  # the deprecated path has the pod's name in the body
            request.kind, request.name = self._pods, text(meta.get("name"), "metadata.name")
            request.subresource = "binding"
        if uid := meta.get("uid"):
            _check_uid(request, self._store, uid)
        await self._writer.update(_internal(request), lambda pod: bound(request, pod, node, meta))
        return Answer(encode({**SUCCESS, "code": 201}), 201)

    async def evict(self, request: Call) -> Answer:
        """Delete a pod, unless a disruption budget forbids it now."""
        eviction = mapping(read_body(request.body, request.content_type), "the body of the request")
        if review := self._writer.review(request, CREATE, EVICTION):
            eviction = await review.admit(None, eviction)
        removal = read_removal(request, mapping(eviction.get("deleteOptions"), "deleteOptions"))
        await self._evictions.evict(_internal(request), removal)
        return Answer(encode({**SUCCESS, "code": 201}), 201)

    async def token(self, request: Call) -> Answer:
        """Issue a token for a service account."""
        given = read_body(request.body, request.content_type) if request.body else {}
        token_request = mapping(given, "the body of the request")
        account = read_json(read_one(self._store, request).body)
        if review := self._writer.review(request, CREATE, TOKEN):
            token_request = await review.admit(None, token_request)
        spec = mapping(token_request.get("spec"), "spec")
        asked = spec.get("expirationSeconds")
        requested = asked if isinstance(asked, int) else USUAL_TOKEN_S
        seconds = min(max(requested, SHORTEST_TOKEN_S), LONGEST_TOKEN_S)
        ends = int(time.time()) + seconds
        audiences = texts(spec.get("audiences"), "spec.audiences") or [
            "https://kubernetes.default.svc"
        ]
        uid = account["metadata"]["uid"]
        token = self._authenticator.issue(
            request.namespace or "", request.name, uid, audiences, ends
        )
        answer = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": request.name, "namespace": request.namespace},
            "spec": {"audiences": audiences, "expirationSeconds": seconds},
            "status": {
                "token": token,
                "expirationTimestamp": timestamp(datetime.fromtimestamp(ends, UTC)),
            },
        }
        return Answer(encode(answer), 201)


def _always(obj: Json) -> Callable[[Json], Json]:
    return lambda _: obj


def _unbased(scale: Json, present: Json) -> Json:
    """Remove the resource version of the current scale, which the client did not specify."""
    meta, revision = scale.get("metadata"), present["metadata"]["resourceVersion"]
    if not isinstance(meta, dict) or meta.get("resourceVersion") != revision:
        return scale
    return {**scale, "metadata": {k: v for k, v in meta.items() if k != "resourceVersion"}}


def _check_uid(request: Call, store: Store, uid: str) -> None:
    obj = read_json(read_one(store, request).body)
    if obj["metadata"]["uid"] != uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
        raise conflict("pods", "", request.name, why + obj["metadata"]["uid"])


def _internal(request: Call) -> Call:
    """Return the request as an update of the object, without the body of the subresource."""
    return Call(
        request.kind, "update", request.namespace, request.name, request.subresource,
        request.params, request.user,
        request.agent,
    )  # fmt: skip


def bound(request: Call, pod: Json, node: str, meta: Json) -> Json:
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
        "lastTransitionTime": timestamp(datetime.now(UTC)),
    }
    metadata = dict(pod["metadata"])
    for name in ("annotations", "labels"):
        if added := mapping(meta.get(name), f"metadata.{name}"):
            metadata[name] = {**metadata.get(name, {}), **added}
    return {
        **pod,
        "metadata": metadata,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**status, "conditions": [*others, scheduled]},
    }
