"""Container logs, streamed from the kubelet."""

import re

import aiohttp
from aiohttp import web

from gangline.local.apiserver.core.errors import (
    bad_request,
    reason_for_code,
    status_error,
    unavailable,
)
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.core.response_stream import write_part
from gangline.local.apiserver.kubelet_proxy.client import KubeletProxyClient

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
        """Stream the requested log.

        Raises:
            StatusError: the log does not exist, or its kubelet is unreachable.
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
            return await _forward(request, source)

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


async def _forward(request: web.BaseRequest, source: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    try:
        async for chunk in source.content.iter_any():
            await write_part(request, response, chunk)
    except aiohttp.ClientError:
        # The kubelet disconnected mid-stream: abort, since a normal end would hide that.
        if request.transport is not None:
            request.transport.abort()
    return response


def check_log_options(api_request: ApiRequest) -> None:
    """Refuse invalid or contradictory options.

    Raises:
        StatusError: 400.
    """
    for name in INTEGER_OPTIONS:
        number = api_request.int_param(name)
        if number is not None and number < (name != "tailLines"):
            least = int(name != "tailLines")
            raise bad_request(f"{name}: Invalid value: {number}: must be at least {least}")
    if api_request.params.get("sinceSeconds") and api_request.params.get("sinceTime"):
        raise bad_request("at most one of `sinceTime` or `sinceSeconds` may be specified")
