"""The subresource ``proxy``: HTTP requests to pods, and to the ready pods behind services.

The name may have a scheme and a port, as in ``https:web:443``; that of a service is one of its
ports, by number or by name. The answer is passed on as it comes, without a check of certificates.
Connections that change their protocol, such as WebSockets, are not passed on.
"""

import ipaddress
import random
import re
from typing import NamedTuple

import aiohttp
from aiohttp import web
from yarl import URL

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.core.errors import bad_request, unavailable
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.kubelet_proxy.client import (
    CONNECT_TIMEOUT,
    LazySession,
    forward_response,
)
from gangline.local.apiserver.kubelet_proxy.port_forward import check_port
from gangline.local.apiserver.storage.store import ObjectStore

_PATH = re.compile(r"(?P<prefix>/api/v1/namespaces/[^/]+/[^/]+/[^/]+/proxy)(?P<rest>[/?].*)?")
_OF_ONE_CONNECTION = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_OF_THIS_SERVER = ("authorization", "host", "impersonate-")
"""Headers, or their beginnings, that are no business of a pod."""
_OWN_ADDRESSES = ipaddress.ip_network("127.0.0.0/10")
"""Loopback addresses of this machine's programs; pods without a network have later ones."""


class _Name(NamedTuple):
    scheme: str
    name: str
    port: str


class HttpProxyHandler:
    """Handles requests for the subresource."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._session = LazySession(tls=False, auto_decompress=False)
        self.close = self._session.close

    async def __call__(
        self, request: web.BaseRequest, api_request: ApiRequest
    ) -> web.StreamResponse:
        """Pass a request on. Raises StatusError: there is no such object, or its pod cannot be
        reached.
        """
        path = _PATH.fullmatch(request.raw_path)
        if path is None or "upgrade" in request.headers.get("Connection", "").lower():
            raise bad_request("connections that change their protocol are not proxied")
        prefix, rest = path["prefix"], path["rest"] or ""
        if not rest.startswith("/"):
            rest = f"/{rest}"
            if request.method in ("GET", "HEAD"):  # relative links need the slash
                return web.Response(status=301, headers={"Location": prefix + rest})
        name = _parse_name(api_request.name)
        find = self._pod if api_request.kind.plural == "pods" else self._endpoint
        address = find(api_request.namespace or "", name)
        headers = [
            (header, value)
            for header, value in request.headers.items()
            if header.lower() not in _OF_ONE_CONNECTION
            and not header.lower().startswith(_OF_THIS_SERVER)
        ]
        try:
            async with self._session.get().request(
                request.method,
                URL(f"{name.scheme}://{address}{rest}", encoded=True),
                headers=[*headers, ("X-Forwarded-Uri", prefix + rest.partition("?")[0])],
                data=request.content if request.body_exists else None,
                timeout=CONNECT_TIMEOUT,
                allow_redirects=False,
            ) as answer:
                return await _pass_on(request, answer, prefix)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unavailable(f"error trying to reach service: {error}") from None

    def _pod(self, namespace: str, name: _Name) -> str:
        pod = self._store.named("pods", namespace, name.name)
        port = name.port
        for container in objects_in(subobject(pod, "spec").get("containers")):
            for declared in objects_in(container.get("ports")):
                port = port or str(declared.get("containerPort"))
        check_port(port := port or "80")
        ip = str(subobject(pod, "status").get("podIP") or "")
        if not ip:
            raise unavailable(f"pod {name.name} has no address")
        return _checked(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}")

    def _endpoint(self, namespace: str, name: _Name) -> str:
        service, port = self._store.named("services", namespace, name.name), name.port
        ports = objects_in(subobject(service, "spec").get("ports"))
        # Without a port: the one that has no name, or the only one.
        fits = [p for p in ports if port in (str(p.get("port")), p.get("name") or "")]
        if not port and len(ports) == 1:
            fits = ports
        if not fits:
            raise unavailable(f'no service port "{port}" found for service "{name.name}"')
        ready = ready_addresses(self._store, namespace, name.name, fits[0].get("name") or "")
        if not ready:
            raise unavailable(f'no endpoints available for service "{name.name}"')
        return _checked(random.choice(ready))


def _parse_name(text: str) -> _Name:
    """Parse ``NAME``, ``NAME:PORT`` or ``SCHEME:NAME:PORT``. Raises StatusError: 400."""
    match text.split(":"):
        case [name]:
            return _Name("http", name, "")
        case [name, port]:
            return _Name("http", name, port)
        case ["http" | "https" | "" as scheme, name, port]:
            return _Name(scheme or "http", name, port)
    raise bad_request(f"invalid name {text[:80]!r}: give NAME, NAME:PORT or SCHEME:NAME:PORT")


def _checked(target: str) -> str:
    """Refuse an address that no pod has: clients write statuses and endpoints. Raises StatusError:
    400.
    """
    host = target.rpartition(":")[0].strip("[]")
    try:
        ip = ipaddress.ip_address(host)
        is_pod = not (ip.is_link_local or ip.is_multicast or ip.is_unspecified)
        if ip.is_loopback:
            is_pod = ip.version == 4 and ip not in _OWN_ADDRESSES
    except ValueError:
        is_pod = False
    if not is_pod:
        raise bad_request(f"address not allowed: {host[:80]!r}")
    return target


async def _pass_on(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, prefix: str
) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for header, value in answer.headers.items():
        moved = header.lower() == "location" and re.match("/(?!/)", value)
        if header.lower() not in _OF_ONE_CONNECTION:
            response.headers.add(header, prefix + value if moved else value)
    return await forward_response(request, response, answer)


def ready_addresses(store: ObjectStore, namespace: str, name: str, port_name: str) -> list[str]:
    """Return each ready ``address:port`` of a named port of a service."""
    endpoints = store.committed("endpoints.", f"{namespace}/{name}") or {}
    addresses = []
    for subset in endpoints.get("subsets") or ():
        for port in subset.get("ports") or ():
            if (port.get("name") or "") == port_name:
                ips = [address.get("ip", "") for address in subset.get("addresses") or ()]
                addresses += [f"[{ip}]:{port['port']}" if ":" in ip else f"{ip}:{port['port']}"
                          for ip in ips]  # fmt: skip
    return addresses
