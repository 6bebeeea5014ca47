"""Server-side apply: reading what is applied, and merging it into the present object."""

from datetime import UTC, datetime
from typing import Any

from gangline.api.meta import StatusDetails
from gangline.local.apiserver.errors import bad_request, invalid, refusal
from gangline.local.apiserver.machinery.apply import ApplyConflict, ApplyError, apply
from gangline.local.apiserver.machinery.core_defaults import normalize
from gangline.local.apiserver.machinery.field_errors import required
from gangline.local.apiserver.machinery.schemas import copied
from gangline.local.apiserver.negotiation import read_json, read_yaml
from gangline.local.apiserver.objects import check_fields
from gangline.local.apiserver.registry import Json
from gangline.local.apiserver.request import Call

APPLY_PATCHES = ("application/apply-patch+yaml",)


def read_apply(call: Call) -> Json:
    """Read an applied configuration and check that it may be one.

    Raises:
        StatusError: it has no manager, is no object, or carries what only the server writes.
    """
    if not call.params.get("fieldManager"):
        cause = required("fieldManager", "is required for apply patch")
        raise invalid("meta.k8s.io", "PatchOptions", "", [cause])
    body = call.body.lstrip()
    applied: Any = read_json(body) if body.startswith(b"{") else read_yaml(body)
    if not isinstance(applied, dict) or not isinstance(applied.get("metadata", {}), dict):
        raise bad_request("an applied configuration must be an object")
    if not applied.get("kind") or not applied.get("apiVersion"):
        raise bad_request("an applied configuration must name its apiVersion and kind")
    meta = applied.setdefault("metadata", {})
    if meta.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    meta.setdefault("name", call.name)
    if call.kind.namespaced:
        meta.setdefault("namespace", call.namespace)
    return applied


def applied_to(call: Call, live: Json | None, applied: Json) -> Json:
    """The object after the configuration was applied to it; ``live`` None: a new one.

    Raises:
        StatusError: 409, other managers own fields that it would change.
    """
    kind = call.kind
    given: Json = copied(applied)
    revision = given["metadata"].pop("resourceVersion", None)
    if call.subresource == "status":
        given = {k: given[k] for k in ("apiVersion", "kind", "metadata", "status") if k in given}
    elif kind.resets_status:
        given.pop("status", None)
    # What is unknown or null is not owned either, so it goes before ownership is counted.
    check_fields(call, given)
    if not kind.custom:
        normalize(kind.group, kind.kind, given)
    try:
        merged = apply(
            live,
            given,
            kind.schema.schema,
            manager=call.params["fieldManager"],
            now=datetime.now(UTC),
            force=call.flag("force"),
            subresource=call.subresource,
        )
    except ApplyConflict as error:
        details = StatusDetails(causes=error.causes)
        raise refusal(409, "Conflict", error.message, details) from None
    except ApplyError as error:
        raise bad_request(error.message) from None
    if revision:
        merged["metadata"]["resourceVersion"] = revision
    return merged
