"""What a new cluster has: its first objects, and the administrator's kubeconfig.

The objects are namespaces, their service accounts, the ``kubernetes`` service, priority classes,
and what API servers of others read at their start to authenticate the callers of this one.
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
    group, metadata = "rbac.authorization.k8s.io", {"namespace": "kube-system"}
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [AUTHENTICATION],
        "verbs": ["get", "list", "watch"],
    }
    role = _make_object("Role", f"{group}/v1", f"{AUTHENTICATION}-reader", rules=[rule])
    role["metadata"] |= metadata
    yield group, "roles", role
    users = ("system:kube-controller-manager", "system:kube-scheduler")
    binding = _make_object(
        "RoleBinding", f"{group}/v1", f"{AUTHENTICATION}-reader",
        roleRef={"apiGroup": group, "kind": "Role", "name": f"{AUTHENTICATION}-reader"},
        subjects=[{"apiGroup": group, "kind": "User", "name": user} for user in users],
    )  # fmt: skip
    binding["metadata"] |= metadata
    yield group, "rolebindings", binding


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
    config = _make_object("ConfigMap", "v1", AUTHENTICATION, data=data)
    config["metadata"]["namespace"] = "kube-system"
    return config


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
        for api_group, plural, obj in _objects(service_address, port):
            kind = registry.builtin(api_group, plural)
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
    endpoints = _make_object("Endpoints", "v1", "kubernetes", subsets=subsets)
    endpoints["metadata"]["namespace"] = "default"
    return endpoints


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
