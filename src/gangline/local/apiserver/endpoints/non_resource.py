"""Non-resource paths: discovery, OpenAPI, health, version, metrics.

Discovery lists served groups, versions and resources, in the original and the aggregated form.
Its responses and the OpenAPI documents are built on request and cached until the kinds change.
"""

import platform
from collections.abc import Awaitable, Callable

from gangline.local import KUBERNETES_VERSION
from gangline.local.apiserver.auth.authentication import ALGORITHM, ISSUER
from gangline.local.apiserver.core.errors import unknown_path
from gangline.local.apiserver.core.negotiation import JSON, choose_format, encode_json
from gangline.local.apiserver.core.registry import SUBRESOURCES, Json, Registry, ServedKind
from gangline.local.apiserver.core.request import RequestUser
from gangline.local.apiserver.flowcontrol import FlowController
from gangline.local.apiserver.machinery.openapi import (
    OpenAPIEntry,
    openapi_v2,
    openapi_v2_protobuf,
    openapi_v3,
    openapi_v3_index,
)
from gangline.local.apiserver.metrics import ApiServerMetrics
from gangline.local.apiserver.verbs.rest import ApiResponse


def core_api_versions(address: str) -> Json:
    """Return the response for ``/api``."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def api_group_list(registry: Registry) -> Json:
    """Return the response for ``/apis``."""
    groups = [
        describe_group(name, versions) for name, versions in registry.groups().items() if name
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(registry: Registry, name: str) -> Json:
    """Return the response for ``/apis/GROUP``."""
    versions = registry.groups().get(name)
    if not name or versions is None:
        raise unknown_path()
    return {"kind": "APIGroup", "apiVersion": "v1", **describe_group(name, versions)}


def describe_group(name: str, versions: list[str]) -> Json:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def api_resource_list(registry: Registry, group_name: str, version: str) -> Json:
    """Return the response for ``/api/v1`` and ``/apis/GROUP/VERSION``."""
    kinds = [kind for kind in registry if (kind.group, kind.version) == (group_name, version)]
    if not kinds:
        raise unknown_path()
    listed: list[Json] = []
    for kind in kinds:
        listed.append(_resource(kind))
        listed += [_subresource(kind, name) for name in kind.subresources]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kinds[0].api_version,
        "resources": listed,
    }


def _resource(kind: ServedKind) -> Json:
    description: Json = {
        "name": kind.plural,
        "singularName": kind.singular_name,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    return description | _short_names(kind)


def _short_names(kind: ServedKind) -> Json:
    names = {"shortNames": list(kind.short_names), "categories": list(kind.categories)}
    return {field: listed for field, listed in names.items() if listed}


def _subresource(kind: ServedKind, name: str) -> Json:
    group_name, version, kind_name, verbs = SUBRESOURCES[name]
    description: Json = {
        "name": f"{kind.plural}/{name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": kind_name.format(kind.kind) or kind.kind,
        "verbs": list(verbs),
    }
    return description | ({"group": group_name, "version": version} if version else {})


def aggregated_discovery(registry: Registry, core: bool, version: str) -> Json:
    """Return the response for ``/api`` or ``/apis`` with all resources in one document."""
    kinds: dict[tuple[str, str], list[ServedKind]] = {}
    for kind in registry:
        kinds.setdefault((kind.group, kind.version), []).append(kind)
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": None},
            "versions": [_aggregated_version(v, kinds[name, v]) for v in versions],
        }
        for name, versions in registry.groups().items()
        if (not name) == core
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated_version(version: str, kinds: list[ServedKind]) -> Json:
    listed = [_aggregated_resource(kind) for kind in kinds]
    return {"version": version, "resources": listed, "freshness": "Current"}


def _aggregated_resource(kind: ServedKind) -> Json:
    description: Json = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular_name,
        "verbs": list(kind.verbs),
    }
    description |= _short_names(kind)
    if kind.subresources:
        description["subresources"] = [_aggregated_subresource(kind, s) for s in kind.subresources]
    return description


def _aggregated_subresource(kind: ServedKind, name: str) -> Json:
    shown = _subresource(kind, name)
    group_name, version = shown.get("group", kind.group), shown.get("version", kind.version)
    response_kind = {"group": group_name, "version": version, "kind": shown["kind"]}
    return {"subresource": name, "responseKind": response_kind, "verbs": shown["verbs"]}


PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
PROTOBUF_OFFERS = (
    PROTOBUF,
    # Clients request this form; a response's media type must not contain the at sign.
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
)


def _json(document: Json) -> ApiResponse:
    return ApiResponse(encode_json(document), media=JSON)


VERSION = f"v{KUBERNETES_VERSION}+gangline"
AGGREGATED, AGGREGATED_VERSIONS = "APIGroupDiscoveryList", ("v2", "v2beta1")


def version_info() -> Json:
    """Return the response for ``/version``."""
    major, minor = VERSION.removeprefix("v").split(".")[:2]
    machine = platform.machine()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    return {
        "major": major,
        "minor": minor,
        "gitVersion": VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "2025-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation(),
        "platform": f"linux/{architecture}",
    }


def issuer_metadata(address: str) -> Json:
    """Return what those who check tokens need, see OpenID Connect Discovery 1.0."""
    return {
        "issuer": ISSUER,
        "jwks_uri": f"https://{address}/openid/v1/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [ALGORITHM],
    }


class NonResourceEndpoints:
    """Handles requests for non-resource paths."""

    def __init__(
        self,
        registry: Registry,
        metrics: ApiServerMetrics,
        address: Callable[[], str],
        snapshot: Callable[[], Awaitable[Json]],
        flow: FlowController,
        token_key: Json,
    ) -> None:
        """``snapshot`` writes a copy of the state and returns where it is. ``token_key`` is the
        public key of tokens, as a JSON web key.
        """
        self._documents: dict[tuple[str, ...], ApiResponse] = {}
        self._generation = -1
        self._registry = registry
        self._flow = flow
        self._metrics = metrics
        self._address = address
        self._snapshot = snapshot
        self._token_key = token_key

    async def get(self, user: RequestUser, path: str, accept: str) -> ApiResponse:
        """Return the response for a path. Raises StatusError: 404, the path is not served."""
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
            case [".well-known", "openid-configuration"]:
                return _json(issuer_metadata(self._address()))
            case ["openid", "v1", "jwks"]:
                return ApiResponse(
                    encode_json({"keys": [self._token_key]}), media="application/jwk-set+json"
                )
            case ["openapi", "v2"]:
                form = "protobuf" if any(offer in accept for offer in PROTOBUF_OFFERS) else JSON
                return await self._document(user, *parts, form)
            case ["api" | "apis"]:
                wanted = choose_format(accept, (AGGREGATED,))
                is_served = wanted.as_kind == AGGREGATED and wanted.version in AGGREGATED_VERSIONS
                return await self._document(
                    user, *parts, AGGREGATED, wanted.version if is_served else ""
                )
        return await self._document(user, *parts)

    async def _document(self, user: RequestUser, *name: str) -> ApiResponse:
        """Return a document. They are equal for all users until the kinds change."""
        generation = self._registry.generation
        if generation != self._generation:
            self._documents, self._generation = {}, generation
        documents = self._documents
        if name in documents:
            return documents[name]
        if name[:1] != ("openapi",):
            made = self._make(name)
        else:
            # These are large: they are built in a thread of the user. Another request may have
            # built one while this waits for the thread.
            made = await self._flow.compute(user, lambda: documents.get(name) or self._make(name))
        if self._registry.generation == generation:
            documents[name] = made
        return made

    def _make(self, name: tuple[str, ...]) -> ApiResponse:
        registry = self._registry
        document: Json | None = None
        match name:
            case ("openapi", "v2", "protobuf"):
                return ApiResponse(openapi_v2_protobuf(self._openapi_v2()), media=PROTOBUF)
            case ("openapi", "v2", _):
                document = self._openapi_v2()
            case ("openapi", "v3"):
                document = openapi_v3_index(self._entries())
            case ("openapi", "v3", "api", version):
                document = openapi_v3(self._entries(), "", version)
            case ("openapi", "v3", "apis", group, version):
                document = openapi_v3(self._entries(), group, version)
            case ("api" | "apis" as root, "APIGroupDiscoveryList", form):
                return self._discovery_root(root == "api", form)
            case ("api", version):
                document = api_resource_list(registry, "", version)
            case ("apis", group):
                document = api_group(registry, group)
            case ("apis", group, version):
                document = api_resource_list(registry, group, version)
            case ():
                document = {"paths": self._paths()}
        if document is None:
            raise unknown_path()
        return _json(document)

    def _openapi_v2(self) -> Json:
        return openapi_v2(self._entries(), title="Gangline", version=VERSION)

    def _entries(self) -> list[OpenAPIEntry]:
        return [
            OpenAPIEntry(
                k.group, k.version, k.kind, k.plural, k.namespaced, k.plain_schema, k.custom
            )
            for k in self._registry
            if "list" in k.verbs
        ]

    def _discovery_root(self, core: bool, version: str) -> ApiResponse:
        if version:
            media = f"{JSON};g=apidiscovery.k8s.io;v={version};as={AGGREGATED}"
            discovery = aggregated_discovery(self._registry, core, version)
            return ApiResponse(encode_json(discovery), media=media)
        if core:
            return _json(core_api_versions(self._address()))
        return _json(api_group_list(self._registry))

    def _paths(self) -> list[str]:
        versions = (
            f"/apis/{name}/{version}" if name else f"/api/{version}"
            for name, versions in self._registry.groups().items()
            for version in versions
        )
        own = ("/.well-known/openid-configuration", "/api", "/apis", "/healthz", "/livez",
               "/metrics", "/openapi/v2", "/openapi/v3", "/openid/v1/jwks", "/readyz",
               "/version")  # fmt: skip
        return sorted({*versions, *own})
