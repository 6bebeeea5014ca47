"""OpenAPI documents of the served kinds, built on request and cached until the kinds change."""

from collections.abc import Callable

from gangline.local.apiserver.core.errors import unknown_path
from gangline.local.apiserver.core.negotiation import JSON, encode_json
from gangline.local.apiserver.core.registry import Json, Registry
from gangline.local.apiserver.core.request import RequestUser
from gangline.local.apiserver.flowcontrol.controller import FlowController
from gangline.local.apiserver.machinery.openapi.documents import (
    OpenAPIEntry,
    openapi_v2,
    openapi_v3,
    openapi_v3_index,
)
from gangline.local.apiserver.machinery.openapi.protobuf import openapi_v2_protobuf
from gangline.local.apiserver.verbs.rest import ApiResponse

PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
PROTOBUF_OFFERS = (
    PROTOBUF,
    # Clients request this form; a response's media type must not contain the at sign.
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
)


class OpenAPICache:
    """Builds and caches the documents under ``/openapi``."""

    def __init__(self, registry: Registry, version: str, flow: FlowController) -> None:
        self._registry = registry
        self._flow = flow
        self._version = version
        self._generation = -1
        self._documents: dict[str, ApiResponse] = {}

    async def get_document(self, user: RequestUser, parts: list[str], accept: str) -> ApiResponse:
        """Return the document of a path, given as its parts.

        Raises:
            StatusError: 404, there is none.
        """
        match parts:
            case ["openapi", "v2"]:
                if any(offer in accept for offer in PROTOBUF_OFFERS):
                    return await self._cached(user, "v2 protobuf", self._v2_protobuf)
                return await self._cached(user, "v2", self._v2)
            case ["openapi", "v3"]:
                return await self._cached(user, "v3", self._v3_index)
            case ["openapi", "v3", "api", version]:
                return await self._cached(user, f"v3 {version}", lambda: self._v3("", version))
            case ["openapi", "v3", "apis", group, version]:
                name = f"v3 {group} {version}"
                return await self._cached(user, name, lambda: self._v3(group, version))
        raise unknown_path()

    async def _cached(
        self, user: RequestUser, name: str, make: Callable[[], ApiResponse]
    ) -> ApiResponse:
        generation = self._registry.generation
        if generation != self._generation:
            self._documents, self._generation = {}, generation
        documents = self._documents
        if name not in documents:
            # The documents are large: they are built in the lane of the user. Another request may
            # have built one while this waits for the lane.
            made = await self._flow.compute(user, lambda: documents.get(name) or make())
            if self._registry.generation == generation:
                documents[name] = made
            return made
        return documents[name]

    def _entries(self) -> list[OpenAPIEntry]:
        return [
            OpenAPIEntry(
                k.group, k.version, k.kind, k.plural, k.namespaced, k.plain_schema, k.custom
            )
            for k in list(self._registry)
            if "list" in k.verbs
        ]

    def _document(self) -> Json:
        return openapi_v2(self._entries(), title="Gangline", version=self._version)

    def _v3_index(self) -> ApiResponse:
        return _json(openapi_v3_index(self._entries()))

    def _v2(self) -> ApiResponse:
        return _json(self._document())

    def _v2_protobuf(self) -> ApiResponse:
        return ApiResponse(openapi_v2_protobuf(self._document()), media=PROTOBUF)

    def _v3(self, group: str, version: str) -> ApiResponse:
        found = openapi_v3(self._entries(), group, version)
        if found is None:
            raise unknown_path()
        return _json(found)


def _json(document: Json) -> ApiResponse:
    return ApiResponse(encode_json(document), media=JSON)
