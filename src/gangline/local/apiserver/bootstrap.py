"""What a new cluster has: its first objects, and the administrator's kubeconfig.

The objects are namespaces, their service accounts, the ``kubernetes`` service and priority classes.
"""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import yaml

from gangline.local.apiserver.auth.pki import ServerCertificates
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.registry import Json, Registry, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.durable_files import make_directory, write_durably
from gangline.local.apiserver.verbs.write import WritePath
from gangline.local.network.addresses import api_service_port


def make_kubeconfig(context: str, url: str, certificates: ServerCertificates, token: str) -> Json:
    """Return a self-contained kubeconfig for the administrator."""
    authority = _inline(certificates.authority.certificate)
    cluster = {"server": url, "certificate-authority-data": authority}
    user = {
        "client-certificate-data": _inline(certificates.admin.certificate),
        "client-key-data": _inline(certificates.admin.key),
        "token": token,
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": f"{context}-admin", "user": user}],
        "contexts": [
            {"name": context, "context": {"cluster": context, "user": f"{context}-admin"}}
        ],
        "current-context": context,
    }


def write_kubeconfig(path: Path, config: Json) -> None:
    """Write a kubeconfig that only its owner can read."""
    make_directory(path.parent)
    write_durably(path, yaml.safe_dump(config, sort_keys=False).encode())


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


def _make_object(kind: str, api_version: str, name: str, **more: object) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **more}


def _objects(service_address: str, port: int) -> Iterator[tuple[str, str, Json]]:
    """Yield group, plural and object, in the order of creation."""
    for name in NAMESPACES:
        yield "", "namespaces", _make_object("Namespace", "v1", name)
    for name in NAMESPACES:
        account = _make_object("ServiceAccount", "v1", "default")
        account["metadata"]["namespace"] = name
        yield "", "serviceaccounts", account
    labels = {"component": "apiserver", "provider": "kubernetes"}
    https = {"name": "https", "port": api_service_port(), "targetPort": port, "protocol": "TCP"}
    service = _make_object(
        "Service", "v1", "kubernetes",
        spec={
            "type": "ClusterIP",
            "clusterIP": service_address,
            "ports": [https],
        },
    )  # fmt: skip
    service["metadata"] |= {"namespace": "default", "labels": labels}
    yield "", "services", service
    group, values = "scheduling.k8s.io", {"cluster": 2_000_000_000, "node": 2_000_001_000}
    for scope, value in values.items():
        name = f"system-{scope}-critical"
        yield (
            group,
            "priorityclasses",
            _make_object("PriorityClass", f"{group}/v1", name, value=value),
        )


async def create_initial_objects(
    registry: Registry, writer: WritePath, service_address: str, served: tuple[str, int]
) -> None:
    """Create missing initial objects. Existing ones keep the changes of their users.

    Only the endpoints of the server (``served``: host and port) are written at each start.
    """
    _, port = served
    # Tasks start in this order and stage their write without a pause, so that a namespace exists
    # for the objects in it; all of them share one or two commits.
    async with asyncio.TaskGroup() as group:
        for api_group, plural, obj in _objects(service_address, port):
            kind = registry.builtin(api_group, plural)
            group.create_task(_create_missing(writer, kind, obj))
    await _publish_endpoints(writer, registry.builtin("", "endpoints"), served)


async def _create_missing(writer: WritePath, kind: ServedKind, obj: Json) -> None:
    meta = obj["metadata"]
    request = ApiRequest(kind, "create", meta.get("namespace"), meta["name"], "", {})
    try:
        await writer.create(request, obj)
    except StatusError as error:
        if error.status.reason != "AlreadyExists":
            raise


async def _publish_endpoints(writer: WritePath, kind: ServedKind, served: tuple[str, int]) -> None:
    host, port = served
    subsets = [
        {"addresses": [{"ip": host}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}
    ]
    request = ApiRequest(kind, "update", "default", "kubernetes", "", {})
    try:
        await writer.update(
            request, lambda old: {**old, "metadata": dict(old["metadata"]), "subsets": subsets}
        )
    except StatusError as error:
        if error.status.reason != "NotFound":
            raise
        obj = _make_object("Endpoints", "v1", "kubernetes", subsets=subsets)
        request = ApiRequest(kind, "create", "default", "kubernetes", "", {})
        await writer.create(request, obj)
