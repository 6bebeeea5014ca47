"""The operator as a separate process, started by ``gangline operator``."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from chart_objects import OPERATOR_ONLY, chart_objects
from gangline.kube.client.client import ApiClient

PATIENCE_S = 30.0
ROOT = Path(__file__).parents[3]


class OperatorProcess:
    """A running operator and its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._more = asyncio.Event()

    async def read(self) -> None:
        assert self.process.stderr
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip("\n"))
            self._more.set()

    @property
    def records(self) -> list[dict[str, Any]]:
        """Its log records; each line must be one JSON object."""
        return [json.loads(line) for line in self.lines]

    async def until_logged(self, message: str) -> dict[str, Any]:
        """Wait for a line with this message."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    self._more.clear()
                    for record in self.records:
                        if record["msg"] == message:
                            return record
                    await self._more.wait()
        except TimeoutError:
            reported = "\n".join(self.lines)
            raise AssertionError(f"never logged {message!r}, but:\n{reported}") from None

    async def page(self, path: str) -> tuple[int, str]:
        """Fetch a page that it serves."""
        ports = (await self.until_logged("serving"))["ports"]
        url = f"http://127.0.0.1:{ports[path]}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def metric(self, name: str) -> float:
        """The value of a metric, written with its labels; 0 while there is none."""
        _, text = await self.page("/metrics")
        found = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    async def kill(self) -> None:
        """End it by SIGKILL, without a graceful shutdown."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def operator(
    kubeconfig: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[OperatorProcess]:
    """Run ``gangline operator`` with JSON logs and free ports."""
    addresses = ("--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gangline", "operator", "--kubeconfig", str(kubeconfig)),
        *("--log-format=json", *addresses, *flags),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    running = OperatorProcess(process)
    reading = asyncio.create_task(running.read())
    try:
        yield running
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(10):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        await reading


def deployed(**values: Any) -> list[dict[str, Any]]:
    """The chart's objects for the operator alone."""
    return chart_objects(**{**OPERATOR_ONLY, **values})


async def apply(client: ApiClient, manifest: dict[str, Any], namespace: str = "") -> None:
    """Create an object of any kind that the operator's manifests hold."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    namespace = manifest["metadata"].get("namespace", namespace)
    prefix = f"/apis/{group}/{version}" if group else f"/api/{version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    path = f"{prefix}{scope}/{manifest['kind'].lower()}s"
    await client.request_json("POST", path, body=manifest)


async def kubeconfig_of(client: ApiClient, account: str, admin: Path, file: Path) -> Path:
    """Write a kubeconfig that acts as a service account, given as ``namespace/name``."""
    namespace, name = account.split("/")
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await client.request_json("POST", path, body=request)
    return _with_token(admin, answer["status"]["token"], file)


def _with_token(admin: Path, token: str, file: Path) -> Path:
    config = yaml.safe_load(admin.read_text())
    config["users"][0]["user"] = {"token": token}
    file.write_text(yaml.safe_dump(config))
    return file
