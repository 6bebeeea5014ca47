"""Client of admission webhooks: address, TLS trust, one POST.

A webhook behind a service is called at the address of one of its ready pods, because a cluster IP
is reachable only inside the pod network. Its certificate must be valid for the service's name, as
in Kubernetes.
"""

import asyncio
import base64
import os
import random
import ssl
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from gangline.api.cluster.admission import ServiceReference
from gangline.kube.http.transport import client_context
from gangline.local.apiserver.admission.webhook_match import CompiledWebhook
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.storage.store import ObjectStore

MAX_RESPONSE_BYTES = 8 << 20
"""Maximum response in bytes; more than a base64 patch that replaces the largest object."""
MAX_CONNECTIONS = 256
"""Connections to all webhooks; deleting a large collection calls them for each object."""
HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}
MAX_SHOWN_CHARS = 300
"""Maximum number of characters of an unexpected response in an error message."""


class WebhookCallError(Exception):
    """The webhook was not called or did not respond. The message contains the reason."""


class WebhookAddress(NamedTuple):
    """The address of a webhook."""

    display_url: str
    """The address as configured, for messages."""
    url: str
    """The address to connect to."""
    server_name: str
    """The host name to verify in the certificate; empty for that of the URL."""


class WebhookClient:
    """Calls webhooks."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, hook: CompiledWebhook, body: bytes, timeout_s: float) -> bytes:
        """Post a review and return the response body.

        Raises:
            WebhookCallError: there was no valid response.
        """
        client, allowed = hook.spec.client_config, hook.spec.timeout_seconds
        query = f"?timeout={allowed}s"
        shown = f"{client.url}{query}"
        try:
            if client.service is not None:
                shown = f"{service_url(client.service)}{query}"
                address = self._service_address(client.service, shown, query)
            else:
                address = WebhookAddress(shown, shown, "")
            async with asyncio.timeout(timeout_s):
                return await self._post(address, tls_context(client.ca_bundle), body)
        except TimeoutError:
            raise WebhookCallError(f'Post "{shown}": context deadline exceeded') from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WebhookCallError(f'Post "{shown}": {describe_error(error)}') from error

    async def _post(self, address: WebhookAddress, context: ssl.SSLContext, body: bytes) -> bytes:
        try:
            return await self._send(address, context, body)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # A keep-alive connection was closed meanwhile. A review may be sent twice.
            return await self._send(address, context, body)

    async def _send(self, address: WebhookAddress, context: ssl.SSLContext, body: bytes) -> bytes:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS)
            self._session = aiohttp.ClientSession(connector=connector)
        headers, options = dict(HEADERS), dict[str, Any]()
        if address.server_name:
            headers["Host"] = urlsplit(address.display_url).netloc
            options["server_hostname"] = address.server_name
        async with self._session.post(
            address.url, data=body, headers=headers, ssl=context, allow_redirects=False, **options
        ) as answer:
            return await _read(answer)

    def _service_address(self, service: ServiceReference, shown: str, query: str) -> WebhookAddress:
        key = f"{service.namespace}/{service.name}"
        record = self._store.cache("services.").records.get(key)
        if record is None:
            raise ValueError(f'service "{service.name}" not found')
        spec: Json = read_json(record.body).get("spec") or {}
        name = f"{service.name}.{service.namespace}.svc"
        path = f"{service.path}{query}" if service.path else f"/{query}"
        if spec.get("type") == "ExternalName":
            return WebhookAddress(
                shown, f"https://{spec.get('externalName')}:{service.port}{path}", name
            )
        port = next((p for p in spec.get("ports") or () if p.get("port") == service.port), None)
        if port is None:
            raise ValueError(f'no service port {service.port} found for service "{service.name}"')
        endpoints = self._store.cache("endpoints.").records.get(key)
        found = read_json(endpoints.body) if endpoints is not None else {}
        ready = ready_addresses(found, port.get("name") or "")
        if not ready:
            raise ValueError(f'no endpoints available for service "{service.name}"')
        return WebhookAddress(shown, f"https://{random.choice(ready)}{path}", name)


def service_url(service: ServiceReference) -> str:
    path = service.path or "/"
    return f"https://{service.name}.{service.namespace}.svc:{service.port}{path}"


def ready_addresses(endpoints: Json, port_name: str) -> list[str]:
    """Return each ready ``address:port`` of a named port."""
    found = []
    for subset in endpoints.get("subsets") or ():
        for port in subset.get("ports") or ():
            if (port.get("name") or "") == port_name:
                ips = [address.get("ip", "") for address in subset.get("addresses") or ()]
                found += [f"[{ip}]:{port['port']}" if ":" in ip else f"{ip}:{port['port']}"
                          for ip in ips]  # fmt: skip
    return found


@lru_cache(maxsize=64)
def tls_context(bundle: str) -> ssl.SSLContext:
    """Return TLS settings that trust a CA bundle, or the system's authorities if it is empty.

    Raises:
        ValueError: the bundle contains no certificates.
    """
    if not bundle:
        return client_context(None)
    try:
        pem = base64.b64decode(bundle, validate=True).decode("ascii")
        context = client_context(pem)
    except (ssl.SSLError, ValueError):
        raise ValueError(
            "unable to load root certificates: unable to parse bytes as PEM block"
        ) from None
    context.hostname_checks_common_name = False
    return context


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    found = bytearray()
    async for part in answer.content.iter_any():
        found += part
        if len(found) > MAX_RESPONSE_BYTES:
            answer.close()
            raise WebhookCallError(f"the response exceeds {MAX_RESPONSE_BYTES} bytes")
    if answer.status == 200:
        return bytes(found)
    if answer.status == 404:
        raise WebhookCallError("the server could not find the requested resource")
    if answer.status >= 500:
        text = bytes(found).decode(errors="replace").strip()[:MAX_SHOWN_CHARS] or "unknown"
        raise WebhookCallError(
            f'an error on the server ("{text}") has prevented the request from succeeding'
        )
    raise WebhookCallError(
        f"the server responded with the status code {answer.status} "
        "but did not return more information"
    )


def describe_error(error: Exception) -> str:
    """Return why a call failed, with the wording of Kubernetes where there is one."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        inner = error.certificate_error
        text = getattr(inner, "verify_message", "") or str(inner)
        return f"tls: failed to verify certificate: x509: {text}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"tls: {error.os_error or error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        text = os.strerror(number).lower() if number and number > 0 else str(error.os_error)
        return f"dial tcp {error.host}:{error.port}: connect: {text}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(error) or type(error).__name__
