"""The way from the API server to a webhook: its address, whom to trust, one POST.

A webhook behind a service is asked at the address of one of its ready pods, since the service's own
address means nothing outside the pods' network. Its certificate must be good for the service's
name, as in Kubernetes.
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

from gangline.api.admission import ServiceReference
from gangline.local.apiserver.negotiation import read_json
from gangline.local.apiserver.registry import Json
from gangline.local.apiserver.store import Store
from gangline.local.apiserver.webhook_selection import Hook

LARGEST_ANSWER = 8 << 20
"""Bytes; a patch that replaces the largest object is smaller, also in base64."""
MOST_CONNECTIONS = 256
"""To all webhooks together; deleting a large collection asks about each of its objects."""
HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}
SHOWN = 300
"""How many characters of an unfit answer are repeated."""


class CallFailed(Exception):
    """A webhook was not asked, or has not answered; the message says why."""


class Address(NamedTuple):
    """Where a webhook answers."""

    shown: str
    """The address as its owner knows it."""
    url: str
    """The address to connect to."""
    name: str
    """The name that its certificate must be good for; empty: that of the address."""


class WebhookLink:
    """Asks webhooks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, hook: Hook, body: bytes, timeout_s: float) -> bytes:
        """Post a question and return the answer.

        Raises:
            CallFailed: no answer came.
        """
        client, allowed = hook.spec.client_config, hook.spec.timeout_seconds
        query = f"?timeout={allowed}s"
        shown = f"{client.url}{query}"
        try:
            if client.service is not None:
                shown = f"{service_url(client.service)}{query}"
                address = self._service_address(client.service, shown, query)
            else:
                address = Address(shown, shown, "")
            async with asyncio.timeout(timeout_s):
                return await self._post(address, trust(client.ca_bundle), body)
        except TimeoutError:
            raise CallFailed(f'Post "{shown}": context deadline exceeded') from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CallFailed(f'Post "{shown}": {reason(error)}') from error

    async def _post(self, address: Address, context: ssl.SSLContext, body: bytes) -> bytes:
        try:
            return await self._send(address, context, body)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # A connection that was kept open has ended meanwhile. A question may be put twice.
            return await self._send(address, context, body)

    async def _send(self, address: Address, context: ssl.SSLContext, body: bytes) -> bytes:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS)
            self._session = aiohttp.ClientSession(connector=connector)
        headers, options = dict(HEADERS), dict[str, Any]()
        if address.name:
            headers["Host"] = urlsplit(address.shown).netloc
            options["server_hostname"] = address.name
        async with self._session.post(
            address.url, data=body, headers=headers, ssl=context, allow_redirects=False, **options
        ) as answer:
            return await _read(answer)

    def _service_address(self, wanted: ServiceReference, shown: str, query: str) -> Address:
        key = f"{wanted.namespace}/{wanted.name}"
        record = self._store.topic("services.").records.get(key)
        if record is None:
            raise ValueError(f'service "{wanted.name}" not found')
        spec: Json = read_json(record.body).get("spec") or {}
        name = f"{wanted.name}.{wanted.namespace}.svc"
        path = f"{wanted.path}{query}" if wanted.path else f"/{query}"
        if spec.get("type") == "ExternalName":
            return Address(shown, f"https://{spec.get('externalName')}:{wanted.port}{path}", name)
        port = next((p for p in spec.get("ports") or () if p.get("port") == wanted.port), None)
        if port is None:
            raise ValueError(f'no service port {wanted.port} found for service "{wanted.name}"')
        endpoints = self._store.topic("endpoints.").records.get(key)
        found = read_json(endpoints.body) if endpoints is not None else {}
        ready = ready_addresses(found, port.get("name") or "")
        if not ready:
            raise ValueError(f'no endpoints available for service "{wanted.name}"')
        return Address(shown, f"https://{random.choice(ready)}{path}", name)


def service_url(service: ServiceReference) -> str:
    """The address of a service as messages show it."""
    path = service.path or "/"
    return f"https://{service.name}.{service.namespace}.svc:{service.port}{path}"


def ready_addresses(endpoints: Json, port_name: str) -> list[str]:
    """Each ready ``address:port`` under a port's name."""
    found = []
    for subset in endpoints.get("subsets") or ():
        for port in subset.get("ports") or ():
            if (port.get("name") or "") == port_name:
                ips = [address.get("ip", "") for address in subset.get("addresses") or ()]
                found += [f"[{ip}]:{port['port']}" if ":" in ip else f"{ip}:{port['port']}"
                          for ip in ips]  # fmt: skip
    return found


@lru_cache(maxsize=64)
def trust(bundle: str) -> ssl.SSLContext:
    """The TLS settings that trust a bundle of authorities, or the machine's where there is none.

    Raises:
        ValueError: the bundle holds no certificates.
    """
    if not bundle:
        return ssl.create_default_context()
    try:
        pem = base64.b64decode(bundle, validate=True).decode("ascii")
        context = ssl.create_default_context(cadata=pem)
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
        if len(found) > LARGEST_ANSWER:
            answer.close()
            raise CallFailed(f"the answer is longer than {LARGEST_ANSWER} bytes")
    if answer.status == 200:
        return bytes(found)
    if answer.status == 404:
        raise CallFailed("the server could not find the requested resource")
    if answer.status >= 500:
        said = bytes(found).decode(errors="replace").strip()[:SHOWN] or "unknown"
        raise CallFailed(
            f'an error on the server ("{said}") has prevented the request from succeeding'
        )
    raise CallFailed(
        f"the server responded with the status code {answer.status} "
        "but did not return more information"
    )


def reason(error: Exception) -> str:
    """Why a call failed, in the words of Kubernetes where it has some."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        inner = error.certificate_error
        said = getattr(inner, "verify_message", "") or str(inner)
        return f"tls: failed to verify certificate: x509: {said}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"tls: {error.os_error or error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        said = os.strerror(number).lower() if number and number > 0 else str(error.os_error)
        return f"dial tcp {error.host}:{error.port}: connect: {said}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(error) or type(error).__name__
