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


def _make_object(kind: str, api_version: str, name: str, namespace: str, **more: object) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def _objects(service_address: str, port: int) -> list[Json]:
    """Return the objects of ``initial_objects.yaml``, in the order of creation."""
    text = resources.files(__package__).joinpath("initial_objects.yaml").read_text()
    objects: list[Json] = list(yaml.safe_load_all(text))
    https = {"name": "https", "port": api_service_port(), "targetPort": port, "protocol": "TCP"}
    for obj in objects:
        if obj["kind"] == "Service":
            obj["spec"] |= {"clusterIP": service_address, "ports": [https]}
    return objects


AUTHENTICATION = "extension-apiserver-authentication"


def _authentication(certificates: ServerCertificates) -> Json:
    """Return the ConfigMap that Kubernetes' libraries for API servers read at their start."""
    data = {
        "client-ca-file": certificates.authority.certificate.read_text(),
        "requestheader-client-ca-file": certificates.front_proxy.certificate.read_text(),
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-username-headers": '["X-Remote-User"]',
    }
    return _make_object("ConfigMap", "v1", AUTHENTICATION, "kube-system", data=data)


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
    _, port = served
    # Tasks start in this order and stage their write without a pause, so that a namespace exists
    # for the objects in it; all of them share one or two commits.
    async with asyncio.TaskGroup() as group:
        kinds = {(kind.api_version, kind.kind): kind for kind in registry}
        for obj in _objects(service_address, port):
            kind = kinds[obj["apiVersion"], obj["kind"]]
            group.create_task(_create_missing(writer, kind, obj))
    await _publish(writer, registry.builtin("", "endpoints"), _endpoints(served))
    await _publish(writer, registry.builtin("", "configmaps"), _authentication(certificates))


async def _create_missing(writer: WritePath, kind: ServedKind, obj: Json) -> None:
    meta = obj["metadata"]
    request = ApiRequest(kind, "create", meta.get("namespace"), meta["name"], "", {})
    try:
        await writer.create(request, obj)
    except StatusError as error:
        if error.status.reason != "AlreadyExists":
            raise


def _endpoints(served: tuple[str, int]) -> Json:
    host, port = served
    https = {"name": "https", "port": port, "protocol": "TCP"}
    subsets = [{"addresses": [{"ip": host}], "ports": [https]}]
    return _make_object("Endpoints", "v1", "kubernetes", "default", subsets=subsets)


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
