"""Logging in: the four modes, what each refuses, and with which rights questions are asked."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import ec

from gangline.dashboard.login.sessions import local_path
from gangline.dashboard.rights import MAX_PARALLEL, Identity, Question, Rights, read_scope
from gangline.dashboard.settings import (
    BadDashboardSettings,
    DashboardSettings,
    LoginMode,
    parse_networks,
)
from gangline.kube.config.config import ClusterConfig
from gangline.kube.probes import Address
from unit.dashboard.conftest import MakeSite, Site

ANYWHERE = Address("", 8443)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "[::2]"])
async def test_local_mode_refuses_other_hosts(make_site: MakeSite, host: str) -> None:
    site = await make_site()
    async with site.client.get(f"/?token={site.token}", headers={"Host": host}) as answer:
        assert answer.status == 421
        assert "Set-Cookie" not in answer.headers


async def test_local_token_becomes_a_strict_cookie_and_leaves_the_address(
    make_site: MakeSite,
) -> None:
    site = await make_site()
    async with site.client.get("/jobs") as answer:
        assert answer.status == 401
        assert "gangline dashboard" in await answer.text()
    async with site.client.get("/jobs?token=wrong") as answer:
        assert answer.status == 401
    address = f"/jobs?q=a&token={site.token}"
    async with site.client.get(address, allow_redirects=False) as answer:
        assert answer.headers["Location"] == "/jobs?q=a"
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
    assert "running" in await site.text("/jobs?q=running")
    form = {"csrf": await site.csrf()}
    async with site.client.post("/logout", data=form, allow_redirects=False) as answer:
        assert answer.status == 303
    async with site.client.get("/jobs") as answer:
        assert answer.status == 401


async def test_programs_send_the_token_and_need_no_form(make_site: MakeSite) -> None:
    site = await make_site()
    headers = {"Authorization": f"Bearer {site.token}", "Accept": "application/json"}
    path = "/jobs/default/pytorchjob/running/actions/suspend"
    async with site.client.post(path, data={"generation": "1"}, headers=headers) as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
    async with site.client.get("/jobs", headers={"Accept": "application/json"}) as answer:
        assert (answer.status, (await answer.json())["status"]) == (401, 401)


async def test_token_mode_sends_the_token_of_the_viewer(make_site: MakeSite) -> None:
    site = await make_site(auth=LoginMode.TOKEN)
    async with site.client.post("/login", data={"token": " a\nb ", "next": "/jobs"}) as answer:
        assert answer.url.path == "/jobs"
    assert list(site.viewers.viewers) == [Identity(token="ab")]
    for bad in ("", "é", "x" * 20_000):
        async with site.client.post("/login", data={"token": bad}) as answer:
            assert answer.status == 401
            assert "does not accept this token" in await answer.text()


PROXY = ["127.0.0.0/8"]


@pytest.mark.parametrize(
    ("proxies", "sent", "status"),
    [
        pytest.param(PROXY, [("X-Remote-User", "ann")], 200, id="user"),
        pytest.param(PROXY, [], 403, id="no user"),
        pytest.param(PROXY, [("X-Remote-User", "a"), ("X-Remote-User", "b")], 403, id="two users"),
        pytest.param(PROXY, [("X-Remote-User", "system:admin")], 403, id="reserved user"),
        pytest.param(PROXY, [("X-Remote-User", "ann\u200b")], 403, id="invisible character"),
        pytest.param(
            PROXY,
            [("X-Remote-User", "a"), ("X-Remote-Group", "dev, system:masters")],
            403,
            id="reserved group",
        ),
        pytest.param(
            ["10.0.0.7"],
            [("X-Remote-User", "ann"), ("X-Forwarded-For", "10.0.0.7")],
            403,
            id="not from the proxy",
        ),
    ],
)
async def test_headers_are_believed_of_a_known_proxy_only(
    make_site: MakeSite, proxies: list[str], sent: list[tuple[str, str]], status: int
) -> None:
    trusted = parse_networks(proxies)
    site = await make_site(auth=LoginMode.HEADER, trusted_proxies=trusted, address=ANYWHERE)
    async with site.client.get("/jobs", headers=sent) as answer:
        assert answer.status == status


def test_impersonation_sends_user_and_groups_and_a_token_replaces_all_credentials() -> None:
    server = ClusterConfig("https://k", headers=(("Impersonate-User", "x"),))
    config = Identity(user="ann", groups=("dev", "ops")).config(server)
    assert config.headers == (
        ("Impersonate-User", "ann"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
    )
    assert Identity(token="t").config(server).headers == ()
    assert "secret-token" not in repr(Identity(token="secret-token"))


class Provider:
    """An OpenID Connect provider that logs everybody in."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.signer = self.key
        self.claims: dict[str, Any] = {}
        self.asked: dict[str, list[str]] = {}
        self.forms: list[dict[str, Any]] = []
        self.issuer = ""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self.metadata)
        app.router.add_get("/keys", self.keys)
        app.router.add_post("/token", self.token)
        return app

    async def metadata(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
        )

    async def keys(self, _: web.Request) -> web.Response:
        key = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return web.json_response({"keys": [{**key, "kid": "k1", "alg": "ES256"}]})

    async def token(self, request: web.Request) -> web.Response:
        self.forms.append(dict(await request.post()))
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": "dashboard", "sub": "1", "iat": now, "exp": now + 300,
            "email": "ann@example.org", "groups": ["dev", "system:masters"],
            "nonce": self.asked["nonce"][0], **self.claims,
        }  # fmt: skip
        signed = jwt.encode(claims, self.signer, algorithm="ES256", headers={"kid": "k1"})
        return web.json_response({"id_token": signed})


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    async with TestServer(made.application(), host="127.0.0.1") as server:
        made.issuer = str(server.make_url("")).rstrip("/")
        yield made


async def site_of(make_site: MakeSite, provider: Provider) -> Site:
    """A dashboard whose viewers log in with the provider."""
    return await make_site(
        auth=LoginMode.OIDC,
        oidc_issuer=provider.issuer,
        oidc_client_id="dashboard",
        oidc_redirect_url="http://127.0.0.1/oidc/callback",
        address=ANYWHERE,
    )


async def log_in(site: Any, provider: Provider) -> tuple[int, str]:
    """Log in as a browser does; return the status and the text of the callback."""
    async with site.client.get("/login?next=/jobs", allow_redirects=False) as answer:
        provider.asked = parse_qs(urlsplit(answer.headers["Location"]).query)
    state = provider.asked["state"][0]
    async with site.client.get(f"/oidc/callback?code=c&state={state}") as answer:
        return answer.status, answer.headers.get("Refresh", "") or await answer.text()


async def test_oidc_logs_in_with_pkce_and_impersonates_unreserved_groups(
    make_site: MakeSite, provider: Provider
) -> None:
    site = await site_of(make_site, provider)
    assert await log_in(site, provider) == (200, "0; url=/jobs")
    assert provider.asked["code_challenge_method"] == ["S256"]
    assert len(provider.forms[0]["code_verifier"]) >= 43
    assert "running" in await site.text("/jobs")
    assert list(site.viewers.viewers) == [Identity(user="ann@example.org", groups=("dev",))]


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        pytest.param({"nonce": "other"}, "begun in another browser", id="nonce"),
        pytest.param({"aud": "another"}, "not valid", id="audience"),
        pytest.param({"iss": "https://evil"}, "not valid", id="issuer"),
        pytest.param({"exp": 1}, "not valid", id="expired"),
        pytest.param({"email": "system:admin"}, "no usable claim", id="reserved name"),
        pytest.param({"email_verified": False}, "not verified", id="unverified address"),
    ],
)
async def test_oidc_refuses_tokens_that_are_not_for_this_login(
    make_site: MakeSite, provider: Provider, claims: dict[str, Any], reason: str
) -> None:
    provider.claims = claims
    site = await site_of(make_site, provider)
    status, text = await log_in(site, provider)
    assert status == 401
    assert reason in text


async def test_oidc_refuses_foreign_signatures_and_states_of_other_browsers(
    make_site: MakeSite, provider: Provider
) -> None:
    site = await site_of(make_site, provider)
    provider.signer = ec.generate_private_key(ec.SECP256R1())
    assert (await log_in(site, provider))[0] == 401
    async with site.client.get("/login", allow_redirects=False) as answer:
        state = parse_qs(urlsplit(answer.headers["Location"]).query)["state"][0]
    site.client.session.cookie_jar.clear()
    for given in (state, "ä", ""):
        async with site.client.get("/oidc/callback", params={"state": given}) as answer:
            assert answer.status == 401


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/jobs?q=a", "/jobs?q=a"), ("https://evil", "/"), ("//evil", "/"), ("/\\evil", "/"),
        ("/a\r\nSet-Cookie: x", "/"), ("", "/"), ("javascript:x", "/"),
    ],
)  # fmt: skip
def test_continuing_stays_on_this_server(text: str, path: str) -> None:
    assert local_path(text) == path


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        pytest.param({"address": ANYWHERE}, "--auth local", id="local on all addresses"),
        pytest.param({"base_path": "gangline"}, "--base-path", id="base path without slash"),
        pytest.param({"tls_cert_file": "a"}, "--tls-key-file", id="certificate without key"),
        pytest.param({"auth": LoginMode.HEADER}, "--trusted-proxy", id="headers of everybody"),
        pytest.param({"auth": LoginMode.OIDC}, "--oidc-issuer", id="no provider"),
        pytest.param(
            {"auth": LoginMode.OIDC, "oidc_issuer": "http://x", "oidc_client_id": "c",
             "oidc_redirect_url": "https://y"},
            "https://",
            id="provider without TLS",
        ),
    ],
)  # fmt: skip
def test_settings_that_are_not_safe_are_refused(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(BadDashboardSettings, match=names):
        DashboardSettings(**settings).check()


class Reviewer:
    """Answers questions about rights when it is told to."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.running = self.most = 0

    async def is_allowed(self, **asked: str) -> bool:
        self.asked.append(asked)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return asked.get("namespace") == "n7"


async def test_rights_are_asked_in_parallel_once_and_remembered_also_if_denied() -> None:
    reviewer, now = Reviewer(), [0.0]
    client: Any = reviewer
    rights = Rights(client, lambda: now[0])
    kind = ("kubeflow.org", "pytorchjobs")
    namespaces = {kind: frozenset(f"n{number}" for number in range(100))}
    scopes = await asyncio.gather(*(read_scope(rights, [kind], namespaces) for _ in range(5)))
    assert all(scope.kinds[kind] == {"n7"} for scope in scopes)
    assert scopes[0].sees(("", "pods"), "n7")
    assert not scopes[0].sees(("", "pods"), "n8")
    # Once for each kind everywhere, then for the namespaces; what belongs to jobs in n7 only.
    assert len(reviewer.asked) == 1 + 4 + 3 + 100 + 4
    assert reviewer.most == MAX_PARALLEL
    now[0] = 29.0
    await read_scope(rights, [kind], namespaces)
    assert len(reviewer.asked) == 112
    now[0] = 31.0
    assert not await rights.may(Question("list", *kind, "n8"))
    assert len(reviewer.asked) == 113
