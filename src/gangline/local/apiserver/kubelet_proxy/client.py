"""Connections from the API server to kubelets.

They use TLS in both directions: the kubelet must have a certificate of the cluster's authority with
the name of its node, wherever the address in the Node object leads. The API server identifies
itself by a client certificate, so it sends nothing that another server could use.
"""

import contextlib
import ipaddress
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from yarl import URL

from gangline.local.apiserver.auth.pki import ServerCertificates
from gangline.local.apiserver.core.errors import (
    StatusError,
    bad_request,
    not_found,
    unavailable,
)
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.store import ObjectStore

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
CONNECT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5.0)


class KubeletEndpoint(NamedTuple):
    """A URL of a kubelet, and the node that its certificate must name."""

    node: str
    url: URL


class KubeletAddress(NamedTuple):
    """The address of a node's kubelet."""

    node: str
    base: str
    """The URL without a path."""

    def endpoint(self, name: str, *elements: str) -> KubeletEndpoint:
        """Return an endpoint. Each element is exactly one element of its path.

        Raises:
            StatusError: 400, an element would change the structure of the path.
        """
        return KubeletEndpoint(self.node, kubelet_url(self.base, name, *elements))


class KubeletTarget(NamedTuple):
    """A container, and the kubelet that runs it."""

    kubelet: KubeletAddress
    namespace: str
    pod: str
    container: str

    def endpoint(self, name: str, *, with_container: bool = True) -> KubeletEndpoint:
        container = (self.container,) if with_container else ()
        return self.kubelet.endpoint(name, self.namespace, self.pod, *container)


def kubelet_url(base: str, endpoint: str, *names: str) -> URL:
    """Return a URL with these path elements.

    Raises:
        StatusError: 400, one of them would change the structure of the path.
    """
    for name in names:
        if not name or name in (".", "..") or "/" in name or not name.isprintable():
            raise bad_request(f"{name!r} cannot be an element of a path")
    path = "/".join(quote(name, safe="") for name in (endpoint, *names))
    # Encoded: yarl must not decode, join or normalize elements.
    return URL(f"{base}/{path}", encoded=True)


class KubeletProxyClient:
    """Finds the kubelet of a pod and holds the HTTP session to kubelets."""

    def __init__(self, store: ObjectStore, tls: ssl.SSLContext) -> None:
        self._store = store
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def get(
        self,
        endpoint: KubeletEndpoint,
        params: Mapping[str, str] | None = None,
        limits: aiohttp.ClientTimeout = CONNECT_TIMEOUT,
    ) -> aiohttp.ClientResponse:
        """Send a request to a kubelet.

        Raises:
            aiohttp.ClientError: it is unreachable, or another server is at its address.
            TimeoutError: it does not answer in time.
        """
        return await self._open_session().get(
            endpoint.url,
            params=params,
            timeout=limits,
            server_hostname=endpoint.node,
            allow_redirects=False,
        )

    async def open_websocket(
        self,
        endpoint: KubeletEndpoint,
        options: list[tuple[str, str]],
        protocol: str,
        max_message_bytes: int,
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket to a kubelet.

        Raises:
            aiohttp.ClientError: it refuses or is unreachable, or another server is at its address.
            TimeoutError: it does not answer in time.
        """
        return await self._open_session().ws_connect(
            endpoint.url,
            params=options,
            protocols=(protocol,),
            max_msg_size=max_message_bytes,
            server_hostname=endpoint.node,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls, limit=0),
                timeout=CONNECT_TIMEOUT,
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

    def kubelet_addresses(self) -> list[KubeletAddress]:
        """Return the addresses of all kubelets that have published one."""
        found = []
        for node in sorted(self._store.cache("nodes.").records):
            with contextlib.suppress(StatusError):
                found.append(self.kubelet_address(node))
        return found

    def kubelet_address(self, node: str) -> KubeletAddress:
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
        base = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        return KubeletAddress(node, base)


def make_kubelet_tls(certificates: ServerCertificates) -> ssl.SSLContext:
    """Return the TLS settings of requests to kubelets."""
    context = ssl.create_default_context(cafile=certificates.authority.certificate)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    own = certificates.kubelet_client
    context.load_cert_chain(own.certificate, own.key)
    return context


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
