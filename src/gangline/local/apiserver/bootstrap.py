"""What a new cluster has: its first objects, and the administrator's kubeconfig.

The objects are namespaces, their service accounts, the ``kubernetes`` service, priority classes,
and what API servers of others read at their start to authenticate the callers of this one.
"""

import asyncio
import base64
from importlib import resources
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


PUBLISHED = ("Endpoints", "ConfigMap")
"""Kinds of initial objects that are written at each start."""


def _objects(
    service_address: str, served: tuple[str, int], certificates: ServerCertificates
) -> list[Json]:
    """Return the objects of ``initial_objects.yaml``, in the order of creation."""
    text = resources.files(__package__).joinpath("initial_objects.yaml").read_text()
    objects: list[Json] = list(yaml.safe_load_all(text))
    host, port = served
    https = {"name": "https", "port": port, "protocol": "TCP"}
    for obj in objects:
        match obj["kind"]:
            case "Service":
                ports = [{**https, "port": api_service_port(), "targetPort": port}]
                obj["spec"] |= {"clusterIP": service_address, "ports": ports}
            case "Endpoints":
                obj["subsets"] = [{"addresses": [{"ip": host}], "ports": [https]}]
            case "ConfigMap":
                front_proxy = certificates.front_proxy.certificate.read_text()
                obj["data"]["requestheader-client-ca-file"] = front_proxy
                obj["data"]["client-ca-file"] = certificates.authority.certificate.read_text()
    return objects


async def create_initial_objects(
    registry: Registry,
    writer: WritePath,
    service_address: str,
    served: tuple[str, int],
    certificates: ServerCertificates,
) -> None:
    """Create missing initial objects. Existing ones keep the changes of their users.

    Only the endpoints of the server (``served``: host and port) and the authorities that it knows
    are written at each start.
    """
    kinds = {(kind.api_version, kind.kind): kind for kind in registry}
    objects = _objects(service_address, served, certificates)
    written = [(kinds[obj["apiVersion"], obj["kind"]], obj) for obj in objects]
    # Tasks start in this order and stage their write without a pause, so that a namespace exists
    # for the objects in it; all of them share one or two commits.
    async with asyncio.TaskGroup() as group:
        for kind, obj in written:
            if kind.kind not in PUBLISHED:
                group.create_task(_create_missing(writer, kind, obj))
    for kind, obj in written:
        if kind.kind in PUBLISHED:
            await _publish(writer, kind, obj)


async def _create_missing(writer: WritePath, kind: ServedKind, obj: Json) -> None:
    meta = obj["metadata"]
    request = ApiRequest(kind, "create", meta.get("namespace"), meta["name"], "", {})
    try:
        await writer.create(request, obj)
    except StatusError as error:
        if error.status.reason != "AlreadyExists":
            raise


async def _publish(writer: WritePath, kind: ServedKind, obj: Json) -> None:
    """Create an object, or give it this content."""
    meta = obj["metadata"]
    request = ApiRequest(kind, "update", meta["namespace"], meta["name"], "", {})
    try:
        await writer.update(request, lambda old: {**old, **obj, "metadata": dict(old["metadata"])})
    except StatusError as error:
        if error.status.reason != "NotFound":
            raise
        await _create_missing(writer, kind, obj)
