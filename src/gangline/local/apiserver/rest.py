"""The verbs on objects: from an API request to its response."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from gangline.api.meta import StatusCause, StatusDetails
from gangline.local.apiserver import rendering
from gangline.local.apiserver.applying import APPLY_PATCHES, applied_to, read_apply
from gangline.local.apiserver.errors import StatusError, refusal, unsupported_media
from gangline.local.apiserver.machinery.patches import PatchError, json_patch, merge_patch
from gangline.local.apiserver.machinery.strategic import strategic_merge_patch
from gangline.local.apiserver.negotiation import read_body, read_json
from gangline.local.apiserver.reading import read_one, read_page
from gangline.local.apiserver.registry import Json
from gangline.local.apiserver.removal import read_removal
from gangline.local.apiserver.request import Call
from gangline.local.apiserver.store import Store
from gangline.local.apiserver.writing import Writer, Written

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCHES[0])


class Answer(NamedTuple):
    """The response to a request."""

    body: bytes
    code: int = 200
    media: str = "application/json"


class Rest:
    """Creates, reads, updates, patches and deletes objects of any kind."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self._verbs: dict[str, Callable[[Call], Awaitable[Answer]]] = {
            "get": self._get,
            "list": self._list,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def answer(self, call: Call) -> Answer:
        """Execute a request on an object or a collection.

        Raises:
            StatusError: the request is refused.
        """
        return await self._verbs[call.verb](call)

    async def _get(self, call: Call) -> Answer:
        return self._object(call, read_one(self._store, call).body)

    async def _list(self, call: Call) -> Answer:
        page = read_page(self._store, call)
        return Answer(*rendering.list_answer(call, page))

    async def _create(self, call: Call) -> Answer:
        written = await self._writer.create(call, read_body(call.body, call.content_type))
        return self._object(call, written.body, 201)

    async def _update(self, call: Call) -> Answer:
        written = await self._writer.update(call, self.change(call))
        return self._object(call, written.body)

    async def _patch(self, call: Call) -> Answer:
        if _media(call) in APPLY_PATCHES:
            return await self._apply(call)
        written = await self._writer.update(call, self.change(call))
        return self._object(call, written.body)

    def change(self, call: Call) -> Callable[[Json], Json]:
        """Return the function that a PUT or PATCH applies to the current object.

        Raises:
            StatusError: the body is invalid, or its media type is not supported.
        """
        if call.verb == "update":
            given: Json = read_body(call.body, call.content_type)
            return lambda _: given
        return patcher(call, call.kind.schema.schema)

    async def _apply(self, call: Call) -> Answer:
        applied = read_apply(call)
        try:
            written = await self._writer.update(
                call, lambda live: applied_to(call, live, applied), owner_tracked=True
            )
        except StatusError as error:
            # Apply creates a missing object; a subresource requires its object.
            if error.status.reason != "NotFound" or call.subresource:
                raise
            obj = applied_to(call, None, applied)
            written = await self._writer.create(call, obj, owner_tracked=True)
        return self._object(call, written.body, 201 if written.created else 200)

    async def _delete(self, call: Call) -> Answer:
        options = read_body(call.body, call.content_type) if call.body else None
        written = await self._writer.delete(call, read_removal(call, options))
        if written.removed and call.kind.kind != "Pod":
            return Answer(rendering.deleted(call.kind, written.body))
        return self._object(call, written.body)

    async def _delete_collection(self, call: Call) -> Answer:
        options = read_body(call.body, call.content_type) if call.body else None
        removal = read_removal(call, options)
        page = read_page(self._store, call)
        singles = [_single(call, record.key) for record in page.records]
        await asyncio.gather(*(self._delete_quietly(single, removal) for single in singles))
        return Answer(*rendering.list_answer(call, page))

    async def _delete_quietly(self, call: Call, removal: Any) -> Written | None:
        try:
            return await self._writer.delete(call, removal)
        except StatusError as error:
            if error.status.code == 404:  # deleted by another request
                return None
            raise

    def _object(self, call: Call, body: bytes, code: int = 200) -> Answer:
        return Answer(*rendering.object_answer(call, body, code))


def _single(call: Call, key: str) -> Call:
    namespace, _, name = key.rpartition("/")
    return Call(
        call.kind, "delete", namespace or None, name, "", call.params, call.user, call.agent,
        warnings=call.warnings,
    )  # fmt: skip


def _media(call: Call) -> str:
    return call.content_type.split(";")[0].strip().lower()


def patcher(call: Call, schema: Json) -> Callable[[Json], Json]:
    """Return the function that a PATCH applies to the current object.

    Raises:
        StatusError: the patch is invalid, or its media type is not supported.
    """
    media = _media(call)
    custom = call.kind.custom
    if media not in PATCHES or (media == STRATEGIC_PATCH and custom):
        taken = [patch for patch in PATCHES if not (custom and patch == STRATEGIC_PATCH)]
        raise unsupported_media(call.content_type, taken)
    patch = read_json(call.body)

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
            raise refusal(error.code, error.reason, error.message, details) from None

    return patched
