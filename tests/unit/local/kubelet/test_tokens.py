"""Tokens of pods: bound to the pod, renewed in time, used as long as they are valid."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.api.meta.objects import Status
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound
from gangline.local.kubelet.configuration import TokenSpec
from gangline.local.kubelet.settings import KubeletSettings
from gangline.local.kubelet.volumes import PodTokens

POD = msgspec.convert(
    {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [], "serviceAccountName": "robot"},
    },
    Pod,
)


API = TokenSpec(lifetime_s=1000)


class Server:
    """An API server that numbers its tokens, and fails after ``error`` is set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.error: ApiError | None = None

    async def request_json(self, method: str, path: str, *, body: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.requests.append((path, body["spec"]))
        seconds = body["spec"]["expirationSeconds"]
        token = f"token-{len(self.requests)}"
        return {"spec": {"expirationSeconds": seconds}, "status": {"token": token}}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(server: Server, clock: Clock) -> PodTokens:
    settings = KubeletSettings(data=Path("/nowhere"))
    return PodTokens(cast(ApiClient, server), settings, clock)


async def test_a_token_is_bound_to_the_pod_by_uid(tokens: PodTokens, server: Server):
    assert await tokens.get(POD, API) == "token-1"
    assert await tokens.get(POD, TokenSpec("vault", 700)) == "token-2"
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"}
    path = "/api/v1/namespaces/ns/serviceaccounts/robot/token"
    assert server.requests == [
        (path, {"expirationSeconds": 1000, "boundObjectRef": bound}),
        (path, {"expirationSeconds": 700, "boundObjectRef": bound, "audiences": ["vault"]}),
    ]


async def test_a_token_is_renewed_at_four_fifths_of_its_lifetime(tokens: PodTokens, clock: Clock):
    assert tokens.renewal_in_s(API) == 0
    assert await tokens.get(POD, API) == "token-1"
    assert tokens.renewal_in_s(API) == 800
    clock.now += 799
    assert await tokens.get(POD, API) == "token-1"
    clock.now += 1
    assert await tokens.get(POD, API) == "token-2"


async def test_a_long_token_is_renewed_after_a_day(tokens: PodTokens, clock: Clock):
    year = TokenSpec(lifetime_s=365 * 24 * 3600)
    assert await tokens.get(POD, year) == "token-1"
    clock.now += 24 * 3600
    assert await tokens.get(POD, year) == "token-2"


async def test_the_present_token_is_used_until_it_expires_while_the_server_is_away(
    tokens: PodTokens, server: Server, clock: Clock
):
    assert await tokens.get(POD, API) == "token-1"
    server.error = ApiError(Status(code=503))
    clock.now += 900
    assert await tokens.get(POD, API) == "token-1"
    clock.now += 100
    with pytest.raises(ApiError):
        await tokens.get(POD, API)
    server.error = NotFound(Status(code=404))
    assert await tokens.get(POD, API) == ""
