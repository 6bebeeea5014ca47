"""Non-resource paths: discovery, health, version, metrics, OpenAPI."""

import platform
from collections.abc import Awaitable, Callable

from gangline.local.apiserver.core.errors import unknown_path
from gangline.local.apiserver.core.negotiation import JSON, choose_format, encode_json
from gangline.local.apiserver.core.registry import Json, Registry
from gangline.local.apiserver.core.request import RequestUser
from gangline.local.apiserver.endpoints import discovery
from gangline.local.apiserver.endpoints.openapi import OpenAPICache
from gangline.local.apiserver.flowcontrol.controller import FlowController
from gangline.local.apiserver.metrics import ApiServerMetrics
from gangline.local.apiserver.verbs.rest import ApiResponse

VERSION = "v1.31.0+gangline"
AGGREGATED, AGGREGATED_VERSIONS = "APIGroupDiscoveryList", ("v2", "v2beta1")


def version_info() -> Json:
    """Return the response for ``/version``."""
    major, minor = VERSION.removeprefix("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "2025-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation(),
        "platform": f"linux/{_architecture()}",
    }


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class NonResourceEndpoints:
    """Handles requests for non-resource paths."""

    def __init__(
        self,
        registry: Registry,
        metrics: ApiServerMetrics,
        address: Callable[[], str],
        snapshot: Callable[[], Awaitable[Json]],
        flow: FlowController,
    ) -> None:
        """``snapshot`` writes a copy of the state and returns where it is."""
        self._documents = OpenAPICache(registry, VERSION, flow)
        self._discovery: dict[tuple[str, ...], ApiResponse] = {}
        self._generation = -1
        self._registry = registry
        self._metrics = metrics
        self._address = address
        self._snapshot = snapshot

    async def get(self, user: RequestUser, path: str, accept: str) -> ApiResponse:
        """Return the response for a path.

        Raises:
            StatusError: 404, the path is not served.
        """
        parts = [part for part in path.split("/") if part]
        match parts:
            case ["healthz" | "livez" | "readyz", *_]:
                return ApiResponse(b"ok", media="text/plain; charset=utf-8")
            case ["metrics"]:
                return ApiResponse(self._metrics.exposition(), media="text/plain; version=0.0.4")
            case ["snapshot"]:
                return _json(await self._snapshot())
            case ["version"]:
                return _json(version_info())
            case ["openapi", *_]:
                return await self._documents.get_document(user, parts, accept)
            case ["api" | "apis"]:
                form = choose_format(accept, (AGGREGATED,))
                known = form.as_kind == AGGREGATED and form.version in AGGREGATED_VERSIONS
                return self._cached_discovery(*parts, AGGREGATED, form.version if known else "")
        return self._cached_discovery(*parts)

    def _cached_discovery(self, *parts: str) -> ApiResponse:
        """Return a discovery document. They are equal for all users until the kinds change."""
        if self._registry.generation != self._generation:
            self._discovery, self._generation = {}, self._registry.generation
        found = self._discovery.get(parts)
        if found is None:
            found = self._discovery[parts] = self._discover(parts)
        return found

    def _discover(self, parts: tuple[str, ...]) -> ApiResponse:
        match parts:
            case ("api" | "apis" as root, "APIGroupDiscoveryList", form):
                return self._discovery_root(root == "api", form)
            case ("api", version_name):
                return _json(discovery.api_resource_list(self._registry, "", version_name))
            case ("apis", name):
                return _json(discovery.api_group(self._registry, name))
            case ("apis", name, version_name):
                return _json(discovery.api_resource_list(self._registry, name, version_name))
            case ():
                return _json({"paths": self._paths()})
        raise unknown_path()

    def _discovery_root(self, core: bool, version: str) -> ApiResponse:
        if version:
            media = f"{JSON};g=apidiscovery.k8s.io;v={version};as={AGGREGATED}"
            found = discovery.aggregated_discovery(self._registry, core, version)
            return ApiResponse(encode_json(found), media=media)
        if core:
            return _json(discovery.core_api_versions(self._address()))
        return _json(discovery.api_group_list(self._registry))

    def _paths(self) -> list[str]:
        versions = (
            f"/apis/{name}/{version}" if name else f"/api/{version}"
            for name, versions in self._registry.groups().items()
            for version in versions
        )
        own = ("/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3",
               "/readyz", "/version")  # fmt: skip
        return sorted({*versions, *own})


def _json(obj: Json) -> ApiResponse:
    return ApiResponse(encode_json(obj))
