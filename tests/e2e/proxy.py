"""A proxy for an API server: of plain HTTP, and with a clock that seems to be ahead."""

from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from gangline.kube.config.config import load_config
from gangline.kube.http.transport import tls_context

HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host", "content-encoding"}


class FaultyProxy:
    """Serves the cluster of ``kubeconfig`` on a loopback port."""

    def __init__(self, kubeconfig: Path) -> None:
        self.date_skew_s = 0.0
        """Seconds that the server's clock seems to be ahead."""
        self.url = ""
        self._upstream = load_config(str(kubeconfig))
        self._headers: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Start to serve; afterwards ``url`` is set."""
        credential = await self._upstream.credentials.current()
        if credential.authorization:
            self._headers["Authorization"] = credential.authorization
        tls = tls_context(self._upstream, credential)
        self._session = aiohttp.ClientSession(
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
        )
        application = web.Application(client_max_size=16 << 20)
        application.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Stop serving."""
        if self._runner:
            await self._runner.cleanup()
        if self._session:
            await self._session.close()

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig for this proxy."""
        path = folder / "proxy.kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "proxy",
                    "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
                    "users": [{"name": "proxy", "user": {}}],
                    "contexts": [
                        {"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}
                    ],
                }
            )
        )
        return path

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        assert self._session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        async with self._session.request(
            request.method,
            self._upstream.server + request.raw_path,
            headers=headers | self._headers,
            data=body,
        ) as answer:
            response = web.StreamResponse(
                status=answer.status,
                headers={k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP},
            )
            if self.date_skew_s:
                date = parsedate_to_datetime(answer.headers["Date"])
                date += timedelta(seconds=self.date_skew_s)
                response.headers["Date"] = format_datetime(date, usegmt=True)
            if encoding := answer.headers.get("Content-Encoding"):
                response.headers["Content-Encoding"] = encoding
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
