"""Connections from the API server to kubelets."""

import ipaddress
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from yarl import URL

from gangline.local.apiserver.core.errors import bad_request, not_found, unavailable
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.store import ObjectStore

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
CONNECT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5.0)


class KubeletTarget(NamedTuple):
    """A container, and the address of the kubelet that runs it."""

    base: str
    namespace: str
    pod: str
    container: str

    def url(self, endpoint: str, *, with_container: bool = True) -> URL:
        names = (self.namespace, self.pod, *((self.container,) if with_container else ()))
        return kubelet_url(self.base, endpoint, *names)


def kubelet_url(base: str, endpoint: str, *names: str) -> URL:
    """Return the URL of a kubelet endpoint. Each name is exactly one element of its path.

    Raises:
        StatusError: 400, a name would change the structure of the path.
    """
    for name in names:
        if not name or name in (".", "..") or "/" in name or not name.isprintable():
            raise bad_request(f"{name!r} cannot be an element of a path")
    path = "/".join(quote(name, safe="") for name in (endpoint, *names))
    # Encoded: yarl must not decode, join or normalize elements.
    return URL(f"{base}/{path}", encoded=True)


class KubeletProxyClient:
    """Finds the kubelet of a pod and holds the HTTP session to kubelets."""

    def __init__(self, store: ObjectStore, token: str) -> None:
        self._store = store
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=CONNECT_TIMEOUT,
                headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
                read_bufsize=1 << 18,
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def find_target(
        self, request: ApiRequest, container: str = "", *, any_container: bool = False
    ) -> KubeletTarget:
        """Return the container of a request, or only its pod with ``any_container``.

        Raises:
            StatusError: there is no such pod or container, or the pod has no node.
        """
        record = self._store.cache("pods.").records.get(request.key)
        if record is None:
            raise not_found("pods", "", request.name)
        pod = read_json(record.body)
        chosen = "" if any_container else choose_container(pod, container)
        node = pod["spec"].get("nodeName")
        if not node:
            raise bad_request(f"pod {request.name} does not have a host assigned")
        return KubeletTarget(
            self.kubelet_address(node), request.namespace or "", request.name, chosen
        )

    def any_kubelet_address(self) -> str:
        """Return the address of any kubelet. All kubelets share one server.

        Raises:
            StatusError: there is no node.
        """
        for node in sorted(self._store.cache("nodes.").records):
            return self.kubelet_address(node)
        raise unavailable("there is no node that could have the log")

    def kubelet_address(self, node: str) -> str:
        """Return the address of the kubelet of a node.

        Raises:
            StatusError: the node does not exist, or has not published its kubelet's address.
        """
        record = self._store.cache("nodes.").records.get(node)
        if record is None:
            raise not_found("nodes", "", node)
        status: Json = read_json(record.body).get("status") or {}
        endpoint: Mapping[str, Any] = (status.get("daemonEndpoints") or {}).get(
            "kubeletEndpoint"
        ) or {}
        addresses = {a.get("type"): a.get("address") for a in status.get("addresses") or ()}
        host, port = addresses.get("InternalIP"), endpoint.get("Port")
        if not host or not port:
            raise unavailable(f'the kubelet of node "{node}" has not published its address')
        # The address is written by clients: it must not contain more than an address.
        if not _is_ip_address(host) or not isinstance(port, int) or not 0 < port < 1 << 16:
            raise unavailable(f'the kubelet of node "{node}" has no valid address: {host!r} {port}')
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _is_ip_address(text: object) -> bool:
    try:
        # Without a zone, which may be any text.
        return isinstance(text, str) and "%" not in text and bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def choose_container(pod: Json, requested: str) -> str:
    """Return the requested container, else the default one, else the only one.

    Raises:
        StatusError: 400, the container does not exist or the choice is ambiguous.
    """
    spec, meta = pod["spec"], pod["metadata"]
    every = [*spec.get("initContainers", []), *spec["containers"]]
    names = [container["name"] for container in every]
    if requested:
        if requested not in names:
            raise bad_request(f"container {requested} is not valid for pod {meta['name']}")
        return requested
    default = (meta.get("annotations") or {}).get(DEFAULT_CONTAINER)
    if default in names:
        return str(default)
    main = [container["name"] for container in spec["containers"]]
    if len(main) == 1:
        return str(main[0])
    raise bad_request(
        f"a container name must be specified for pod {meta['name']}, "
        f"choose one of: [{' '.join(main)}]"
    )
