"""The verbs on objects: from an API request to its response."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec, TypeVar

from gangline.api.meta.objects import StatusCause, StatusDetails
from gangline.local.apiserver.admission.conversion_webhooks import ConversionWebhooks
from gangline.local.apiserver.auth.rbac import Authorizer, request_attributes
from gangline.local.apiserver.core.errors import (
    StatusError,
    conflict,
    status_error,
    unsupported_media,
)
from gangline.local.apiserver.core.negotiation import (
    JSON_PATCH,
    read_body,
    read_json,
    read_json_document,
)
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.flowcontrol import LONG_PARSE_BYTES, LONG_SELECTION, FlowController
from gangline.local.apiserver.machinery.patches import (
    PatchError,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.verbs import read
from gangline.local.apiserver.verbs.delete import DeletionRequest, read_deletion_request
from gangline.local.apiserver.verbs.read import ListPage, open_list, read_object
from gangline.local.apiserver.verbs.write import (
    APPLY_PATCHES,
    WritePath,
    apply_configuration,
    read_apply_patch,
)

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCHES[0])
CONCURRENT_DELETIONS = 20
"""Deletions of one request at a time, so that others are served between them."""

P = ParamSpec("P")
T = TypeVar("T")


class ApiResponse(NamedTuple):
    """The response to a request."""

    body: bytes
    code: int = 200
    media: str = "application/json"
    parts: Sequence[bytes] = ()
    """The body of a long list in place of ``body``: the stored objects, without a copy."""


class ResourceHandler:
    """Creates, reads, updates, patches and deletes objects of any kind."""

    def __init__(
        self,
        store: ObjectStore,
        writer: WritePath,
        authorizer: Authorizer,
        flow: FlowController,
        conversions: ConversionWebhooks,
    ) -> None:
        self._store = store
        self._flow = flow
        self._writer = writer
        self._authorizer = authorizer
        self._conversions = conversions
        self._verbs: dict[str, Callable[[ApiRequest], Awaitable[ApiResponse]]] = {
            "get": self._get,
            "list": self._list,
            "create": self._create,
            "update": self._change,
            "patch": self._change,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def handle(self, request: ApiRequest) -> ApiResponse:
        """Execute a request on an object or a collection. Raises StatusError: the request is
        refused.
        """
        return await self._verbs[request.verb](request)

    async def _get(self, request: ApiRequest) -> ApiResponse:
        return await self._object(request, read_object(self._store, request).body)

    async def _list(self, request: ApiRequest) -> ApiResponse:
        return await self._render_list(request, await self._read_list(request))

    async def _read_list(self, request: ApiRequest) -> ListPage:
        query = open_list(self._store, request)
        if query.comparisons <= LONG_SELECTION:
            return query.page()
        return await self._flow.compute(request.user, query.page)

    async def _render_list(self, request: ApiRequest, page: ListPage) -> ApiResponse:
        if read.is_stored_form(request, read.PARTIAL_LIST):
            return ApiResponse(b"", parts=read.stored_list_parts(request, page))
        if request.kind.converts_when_read:
            bodies = await self._conversions.read(
                request.kind, [record.body for record in page.records]
            )
            pairs = zip(page.records, bodies, strict=True)
            page = page._replace(records=[record.with_body(body) for record, body in pairs])
        size = sum(len(record.body) for record in page.records)
        if size <= LONG_PARSE_BYTES:
            return ApiResponse(*read.render_list(request, page))
        return ApiResponse(*await self._flow.compute(request.user, read.render_list, request, page))

    async def decode_body(self, request: ApiRequest) -> Any:
        """Return the decoded body of a request; a long one is decoded in a thread. Raises
        StatusError: 400, 413 or 415, as ``read_body``.
        """
        return await self._compute(request, read_body, request.body, request.content_type)

    async def decode_stored(self, request: ApiRequest, body: bytes) -> Json:
        """Return a stored object; a long one is decoded in a thread."""
        obj: Json = await self._flow.compute_by_size(request.user, len(body), read_json, body)
        return obj

    async def _create(self, request: ApiRequest) -> ApiResponse:
        given = await self.decode_body(request)
        written = await self._writer.create(request, given)
        return await self._object(request, written.body, 201)

    async def _change(self, request: ApiRequest) -> ApiResponse:
        if request.verb == "patch" and _media_type(request) in APPLY_PATCHES:
            return await self._apply(request)
        written = await self._writer.update(request, await self.decode_change(request))
        return await self._object(request, written.body)

    async def decode_change(self, request: ApiRequest) -> Callable[[Json], Json]:
        """Return the function that a PUT or PATCH applies to the current object. Raises
        StatusError: the body is invalid, or its media type is not supported.
        """
        if request.verb == "update":
            given: Json = await self.decode_body(request)
            return lambda _: given
        return await self._compute(request, make_patcher, request, request.kind.schema.schema)

    async def _apply(self, request: ApiRequest) -> ApiResponse:
        applied = await self._compute(request, read_apply_patch, request)
        try:
            written = await self._writer.update(
                request,
                lambda live: apply_configuration(request, live, applied),
                owner_tracked=True,
            )
        except StatusError as error:
            # Apply creates a missing object; a subresource requires its object.
            if error.status.reason != "NotFound" or request.subresource:
                raise
            self._authorizer.require(
                request.user, request_attributes(request)._replace(verb="create")
            )
            if uid := applied["metadata"].get("uid"):
                why = f"uid mismatch: the provided object specified uid {uid}, "
                why += "and no existing object was found"
                raise conflict(
                    request.kind.plural, request.kind.group, request.name, why
                ) from error
            obj = await self._compute(request, apply_configuration, request, None, applied)
            written = await self._writer.create(request, obj, owner_tracked=True)
        return await self._object(request, written.body, 201 if written.created else 200)

    async def _delete(self, request: ApiRequest) -> ApiResponse:
        options = await self.decode_body(request) if request.body else None
        written = await self._writer.delete(request, read_deletion_request(request, options))
        if written.removed and not request.kind.returned_when_deleted:
            return ApiResponse(read.deletion_status(request.kind, written.body))
        return await self._object(request, written.body)

    async def _delete_collection(self, request: ApiRequest) -> ApiResponse:
        options = await self.decode_body(request) if request.body else None
        deletion = read_deletion_request(request, options)
        page = await self._read_list(request)
        singles = [_delete_request(request, record.key) for record in page.records]
        for start in range(0, len(singles), CONCURRENT_DELETIONS):
            batch = singles[start : start + CONCURRENT_DELETIONS]
            await asyncio.gather(*(self._delete_quietly(single, deletion) for single in batch))
        return await self._render_list(request, page)

    async def _delete_quietly(self, request: ApiRequest, deletion: DeletionRequest) -> None:
        try:
            await self._writer.delete(request, deletion)
        except StatusError as error:
            if error.status.code != 404:  # deleted by another request
                raise

    async def _compute(
        self, request: ApiRequest, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        size = len(request.body)
        return await self._flow.compute_by_size(request.user, size, function, *args, **kwargs)

    async def _object(self, request: ApiRequest, body: bytes, code: int = 200) -> ApiResponse:
        [body] = await self._conversions.read(request.kind, [body])
        if len(body) <= LONG_PARSE_BYTES or read.is_stored_form(request):
            return ApiResponse(*read.render_object(request, body, code))
        rendered = self._flow.compute(request.user, read.render_object, request, body, code)
        return ApiResponse(*await rendered)


def _delete_request(request: ApiRequest, key: str) -> ApiRequest:
    namespace, _, name = key.rpartition("/")
    return replace(request, verb="delete", namespace=namespace or None, name=name, body=b"")


def _media_type(request: ApiRequest) -> str:
    return request.content_type.split(";")[0].strip().lower()


def make_patcher(request: ApiRequest, schema: Json) -> Callable[[Json], Json]:
    """Return the function that a PATCH applies to the current object. Raises StatusError: the patch
    is invalid, or its media type is not supported.
    """
    media = _media_type(request)
    custom = request.kind.custom
    if media not in PATCHES or (media == STRATEGIC_PATCH and custom):
        supported = [patch for patch in PATCHES if not (custom and patch == STRATEGIC_PATCH)]
        raise unsupported_media(request.content_type, supported)
    patch = read_json_document(request.body)

    def patched(old: Json) -> Json:
        try:
            if media == JSON_PATCH:
                return json_patch(old, patch)
            if media == MERGE_PATCH:
                return merge_patch(old, patch)
            return strategic_merge_patch(old, patch, schema)
        except PatchError as error:
            # Old kubectl shows only the causes of an Invalid response.
            cause = StatusCause("UnexpectedServerResponse", error.message)
            details = StatusDetails(causes=[cause])
            raise status_error(error.code, error.reason, error.message, details) from None

    return patched
