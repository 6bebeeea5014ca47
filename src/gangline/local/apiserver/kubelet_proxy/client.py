"""Connections from the API server to kubelets, and container logs streamed from them.

They use TLS in both directions: the kubelet must have a certificate of the cluster's authority with
the name of its node, wherever the address in the Node object leads. The API server identifies
itself by a client certificate, so it sends nothing that another server could use.
"""

import contextlib
import ipaddress
import re
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.auth.pki import ServerCertificates
from gangline.local.apiserver.core.errors import (
    StatusError,
    bad_request,
    reason_for_code,
    status_error,
    unavailable,
)
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, write_part
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
        """Return an endpoint. Each element is exactly one element of its path. Raises StatusError:
        400, an element would change the structure of the path.
        """
        for element in elements:
            if not element or element in (".", "..") or "/" in element or not element.isprintable():
                raise bad_request(f"{element!r} cannot be an element of a path")
        path = "/".join(quote(element, safe="") for element in (name, *elements))
        # Encoded: yarl must not decode, join or normalize elements.
        return KubeletEndpoint(self.node, URL(f"{self.base}/{path}", encoded=True))


class KubeletTarget(NamedTuple):
    """A container, and the kubelet that runs it."""

    kubelet: KubeletAddress
    namespace: str
    pod: str
    container: str

    def endpoint(self, name: str, *, with_container: bool = True) -> KubeletEndpoint:
        container = (self.container,) if with_container else ()
        return self.kubelet.endpoint(name, self.namespace, self.pod, *container)


class LazySession:
    """A session of HTTP requests, opened at the first use."""

    def __init__(self, limit: int = 0, tls: ssl.SSLContext | bool = True, **options: Any) -> None:
        """Args: the number of connections (0: any), and the options of the session."""
        self._connect = partial(aiohttp.TCPConnector, limit=limit, ssl=tls)
        self._options = options
        self._session: aiohttp.ClientSession | None = None

    def get(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=self._connect(), **self._options)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class KubeletProxyClient:
    """Finds the kubelet of a pod and holds the HTTP session to kubelets."""

    def __init__(self, store: ObjectStore, tls: ssl.SSLContext) -> None:
        self._store = store
        self._session = LazySession(tls=tls, timeout=CONNECT_TIMEOUT, read_bufsize=1 << 18)
        self.close = self._session.close

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
        return await self._session.get().get(
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
        return await self._session.get().ws_connect(
            endpoint.url,
            params=options,
            protocols=(protocol,),
            max_msg_size=max_message_bytes,
            server_hostname=endpoint.node,
        )

    def find_target(
        self, request: ApiRequest, container: str = "", *, any_container: bool = False
    ) -> KubeletTarget:
        """Return the container of a request, or only its pod with ``any_container``. Raises
        StatusError: there is no such pod or container, or the pod has no node.
        """
        pod = self._store.named("pods", request.namespace or "", request.name)
        chosen = "" if any_container else choose_container(pod, container)
        node = pod["spec"].get("nodeName")
        if not node:
            raise bad_request(f"pod {request.name} does not have a host assigned")
        return KubeletTarget(
            self.kubelet_address(node), request.namespace or "", request.name, chosen
        )

    def kubelet_addresses(self) -> list[KubeletAddress]:
        """Return the addresses of all kubelets that have published one."""
        addresses = []
        for node in sorted(self._store.cache("nodes.").records):
            with contextlib.suppress(StatusError):
                addresses.append(self.kubelet_address(node))
        return addresses

    def kubelet_address(self, node: str) -> KubeletAddress:
        """Return the address of the kubelet of a node. Raises StatusError: the node does not exist,
        or has not published its kubelet's address.
        """
        status = subobject(self._store.named("nodes", "", node), "status")
        endpoint = subobject(status, "daemonEndpoints", "kubeletEndpoint")
        addresses = {a.get("type"): a.get("address") for a in objects_in(status.get("addresses"))}
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
    """Return the requested container, else the default one, else the only one. Raises StatusError:
    400, the container does not exist or the choice is ambiguous.
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


BOOLEAN_OPTIONS = ("follow", "timestamps", "previous")
FORWARDED_OPTIONS = ("tailLines", "sinceSeconds", "sinceTime", "limitBytes")
INTEGER_OPTIONS = ("tailLines", "sinceSeconds", "limitBytes")
ARCHIVE_OWNER_OPTION = "keptFor"
"""Gangline's own option: UID of the owner of a deleted pod whose archived log is requested."""
UID_PATTERN = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
ALL_PODS = "-"
"""Pod name that, with ``keptFor``, requests the list of archived pods, one JSON line for each."""


class LogHandler:
    """Handles requests for logs."""

    def __init__(self, link: KubeletProxyClient) -> None:
        self._link = link

    async def __call__(
        self, request: web.BaseRequest, api_request: ApiRequest
    ) -> web.StreamResponse:
        """Stream the requested log. Raises StatusError: the log does not exist, or its kubelet is
        unreachable.
        """
        check_log_options(api_request)
        options = {
            name: api_request.params[name]
            for name in FORWARDED_OPTIONS
            if api_request.params.get(name)
        }
        options |= {name: "true" for name in BOOLEAN_OPTIONS if api_request.bool_param(name)}
        source = await self._open_log(api_request, options)
        async with source:
            if source.status >= 400:
                text = (await source.text()).strip()
                raise status_error(source.status, reason_for_code(source.status), text)
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            return await forward_response(request, response, source)

    async def _open_log(
        self, api_request: ApiRequest, options: dict[str, str]
    ) -> aiohttp.ClientResponse:
        container = api_request.params.get("container", "")
        owner = api_request.params.get(ARCHIVE_OWNER_OPTION)
        if not owner:
            target = self._link.find_target(api_request, container)
            kubelets = [target.kubelet]
            path = ["containerLogs", target.namespace, target.pod, target.container]
        else:
            if not UID_PATTERN.fullmatch(owner):
                raise bad_request(f"{ARCHIVE_OWNER_OPTION}: Invalid value: {owner!r}: not a UID")
            # All kubelets of this machine share one server: each of them has the log.
            kubelets = self._link.kubelet_addresses()
            path = ["keptLogs", api_request.namespace or "", owner]
            options |= {"container": container}
            options |= {"pod": api_request.name} if api_request.name != ALL_PODS else {}
        why = "no node has published the address of its kubelet"
        for kubelet in kubelets:
            try:
                return await self._link.get(kubelet.endpoint(*path), options)
            except (aiohttp.ClientError, TimeoutError) as error:
                why = f"the kubelet of pod {api_request.name} is unreachable: {error}"
        raise unavailable(why)


async def forward_response(
    request: web.BaseRequest, response: web.StreamResponse, source: aiohttp.ClientResponse
) -> web.StreamResponse:
    """Send the body of another server's response as it comes."""
    await response.prepare(request)
    try:
        async for chunk in source.content.iter_any():
            await write_part(request, response, chunk)
    except aiohttp.ClientError:
        # That server disconnected mid-stream: abort, since a normal end would hide that.
        if request.transport is not None:
            request.transport.abort()
    return response


def check_log_options(api_request: ApiRequest) -> None:
    """Refuse invalid or contradictory options. Raises StatusError: 400."""
    for name in INTEGER_OPTIONS:
        number = api_request.int_param(name)
        if number is not None and number < (name != "tailLines"):
            least = int(name != "tailLines")
            raise bad_request(f"{name}: Invalid value: {number}: must be at least {least}")
    if api_request.params.get("sinceSeconds") and api_request.params.get("sinceTime"):
        raise bad_request("at most one of `sinceTime` or `sinceSeconds` may be specified")
