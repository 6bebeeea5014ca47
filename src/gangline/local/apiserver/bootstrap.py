"""Objects of a new cluster: namespaces, the ``kubernetes`` service, priority classes.

The kubeconfig of the administrator: address of the cluster and credentials.
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
    service = _make_object(
        "Service", "v1", "kubernetes",
        spec={
            "type": "ClusterIP",
            "clusterIP": service_address,
            "ports": [{"name": "https", "port": 443, "targetPort": port, "protocol": "TCP"}],
        },
    )  # fmt: skip
    service["metadata"] |= {"namespace": "default", "labels": labels}
    yield "", "services", service
    for class_name, value in (
        ("system-cluster-critical", 2_000_000_000),
        ("system-node-critical", 2_000_001_000),
    ):
        api_version = "scheduling.k8s.io/v1"
        yield (
            "scheduling.k8s.io",
            "priorityclasses",
            _make_object("PriorityClass", api_version, class_name, value=value),
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
            kind = registry.by_plural(api_group, plural)
            if kind is not None:
                group.create_task(_create_missing(writer, kind, obj))
    endpoints = registry.by_plural("", "endpoints")
    if endpoints is not None:
        await _publish_endpoints(writer, endpoints, served)


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
        {
            "addresses": [{"ip": host}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }
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
