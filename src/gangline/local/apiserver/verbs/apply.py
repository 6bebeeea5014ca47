"""Server-side apply requests: parsing the configuration and merging it into the current object."""

from datetime import UTC, datetime
from typing import Any

from gangline.api.meta.field_causes import required
from gangline.api.meta.objects import StatusDetails
from gangline.local.apiserver.core.errors import bad_request, invalid, status_error
from gangline.local.apiserver.core.negotiation import read_json_document, read_yaml
from gangline.local.apiserver.core.prepare import prune_unknown_fields
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.machinery.apply.server_side_apply import (
    ApplyConflict,
    ApplyError,
    server_side_apply,
)
from gangline.local.apiserver.machinery.defaults.builtin import normalize_builtin
from gangline.local.apiserver.machinery.schema.nodes import copy_json

APPLY_PATCHES = ("application/apply-patch+yaml",)


def read_apply_patch(request: ApiRequest) -> Json:
    """Parse and check an applied configuration.

    Raises:
        StatusError: there is no field manager, the body is not an object, or has managedFields.
    """
    if not request.params.get("fieldManager"):
        cause = required("fieldManager", "is required for apply patch")
        raise invalid("meta.k8s.io", "PatchOptions", "", [cause])
    body = request.body.lstrip()
    applied: Any = read_json_document(body) if body.startswith(b"{") else read_yaml(body)
    if not isinstance(applied, dict) or not isinstance(applied.get("metadata", {}), dict):
        raise bad_request("an applied configuration must be an object")
    if not applied.get("kind") or not applied.get("apiVersion"):
        raise bad_request("an applied configuration must name its apiVersion and kind")
    meta = applied.setdefault("metadata", {})
    if meta.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    meta.setdefault("name", request.name)
    if request.kind.namespaced:
        meta.setdefault("namespace", request.namespace)
    return applied


def apply_configuration(request: ApiRequest, live: Json | None, applied: Json) -> Json:
    """Return the object with the configuration applied. ``live`` is None for a new object.

    Raises:
        StatusError: 409, other managers own fields that would change.
    """
    kind = request.kind
    given: Json = copy_json(applied)
    revision = given["metadata"].pop("resourceVersion", None)
    if request.subresource == "status":
        given = {k: given[k] for k in ("apiVersion", "kind", "metadata", "status") if k in given}
    elif kind.resets_status:
        given.pop("status", None)
    # Unknown and null fields are not owned, so they are removed before ownership is computed.
    prune_unknown_fields(request, given)
    if not kind.custom:
        normalize_builtin(kind.group, kind.kind, given)
    try:
        merged = server_side_apply(
            live,
            given,
            kind.schema.schema,
            manager=request.params["fieldManager"],
            now=datetime.now(UTC),
            force=request.bool_param("force"),
            subresource=request.subresource,
        )
    except ApplyConflict as error:
        details = StatusDetails(causes=error.causes)
        raise status_error(409, "Conflict", error.message, details) from None
    except ApplyError as error:
        raise bad_request(error.message) from None
    if revision:
        merged["metadata"]["resourceVersion"] = revision
    return merged
