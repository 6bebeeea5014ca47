"""Visitors of a dashboard: accounts of the cluster, their rights, and the pages that they get."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from gangline.dashboard.run import run
from gangline.dashboard.settings import DashboardSettings, LoginMode
from gangline.kube.client.client import ApiClient

BY_TOKEN = DashboardSettings(auth=LoginMode.TOKEN)
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Visitor:
    """Reads pages with a token."""

    def __init__(
        self, session: aiohttp.ClientSession, base: str, page: str, **headers: str
    ) -> None:
        self.session = session
        self.base = base
        self.page = page
        self.headers = headers

    async def json(self, path: str) -> tuple[int, dict[str, Any]]:
        headers = {**self.headers, "Accept": "application/json"}
        async with self.session.get(f"{self.base}{path}", headers=headers) as answer:
            return answer.status, await answer.json()

    async def html(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"{self.base}{path}", headers=self.headers) as answer:
            return answer.status, await answer.text()

    async def act(self, action: str, **fields: str) -> int:
        """Open the confirming page of an action and send its form."""
        status, view = await self.json(f"{self.page}/actions/{action}")
        if status != 200:
            return status
        form = {"generation": str(view["generation"]), **fields}
        address = f"{self.base}{self.page}/actions/{action}"
        headers = {**self.headers, "Accept": "application/json"}
        async with self.session.post(address, data=form, headers=headers) as answer:
            return answer.status

    async def state(self) -> str:
        return str((await self.json(self.page))[1].get("head", {}).get("row", {}).get("state"))


async def token_of(client: ApiClient, name: str, namespace: str = "default") -> str:
    """Make a service account, and return a token of it."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await client.request_json("POST", path, body=account)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await client.request_json("POST", f"{path}/{name}/token", body=request)
    return str(answer["status"]["token"])


async def bind(client: ApiClient, name: str, role: str, subject: dict[str, str]) -> None:
    """Give a role of all namespaces to an account or a user."""
    await _bind(client, "clusterrolebindings", "ClusterRole", name, role, subject)


async def bind_in(
    client: ApiClient,
    namespace: str,
    name: str,
    rules: list[dict[str, Any]],
    subject: dict[str, str],
) -> None:
    """Give rights in one namespace only."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name},
        "rules": rules,
    }
    await client.request_json("POST", f"{RBAC}/namespaces/{namespace}/roles", body=role)
    path = f"namespaces/{namespace}/rolebindings"
    await _bind(client, path, "Role", name, name, subject)


async def _bind(
    client: ApiClient, path: str, kind: str, name: str, role: str, subject: dict[str, str]
) -> None:
    body = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [subject],
    }
    await client.request_json("POST", f"{RBAC}/{path}", body=body)


def account(name: str, namespace: str = "default") -> dict[str, str]:
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


@asynccontextmanager
async def dashboard(
    client: ApiClient, settings: DashboardSettings = BY_TOKEN
) -> AsyncIterator[str]:
    """Run a dashboard; yield its address."""
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(run(client, settings, stop, address.set_result))
    try:
        await asyncio.wait({serving, address}, return_when=asyncio.FIRST_COMPLETED)
        yield (await address).rstrip("/")
    finally:
        stop.set()
        await serving
