"""Service account tokens on a running server, requested and used over plain HTTP."""

from typing import Any

import jwt

from security.conftest import AttackedServer

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
PODS = "/api/v1/namespaces/default/pods"
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def request_token(server: AttackedServer, account: str, **spec: Any) -> tuple[int, Any]:
    return await server.request("POST", f"{ACCOUNTS}/{account}/token", json={"spec": spec})


async def use(server: AttackedServer, token: str) -> int:
    """Send a request with a token; returns the status."""
    status, _ = await server.request(
        "POST", WHO_AM_I, headers={"Authorization": f"Bearer {token}"}, json={}
    )
    return status


async def review(server: AttackedServer, token: str, *audiences: str) -> dict[str, Any]:
    spec = {"token": token, "audiences": list(audiences)}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    status, body = await server.request("POST", path, json={"spec": spec})
    assert status == 201, body
    found: dict[str, Any] = body["status"]
    return found


async def test_a_token_dies_with_its_account_also_if_the_account_is_created_again(
    attacked: AttackedServer,
) -> None:
    await attacked.request("POST", ACCOUNTS, json={"metadata": {"name": "robot"}})
    _, answer = await request_token(attacked, "robot")
    token = answer["status"]["token"]
    assert await use(attacked, token) == 201
    await attacked.request("DELETE", f"{ACCOUNTS}/robot")
    assert await use(attacked, token) == 401
    await attacked.request("POST", ACCOUNTS, json={"metadata": {"name": "robot"}})
    assert await use(attacked, token) == 401
    assert (await review(attacked, token))["authenticated"] is False


async def test_a_token_for_another_audience_does_not_open_the_api(
    attacked: AttackedServer,
) -> None:
    _, answer = await request_token(attacked, "default", audiences=["vault"])
    token = answer["status"]["token"]
    assert await use(attacked, token) == 401
    assert (await review(attacked, token))["authenticated"] is False
    reviewed = await review(attacked, token, "vault", "other")
    assert reviewed["authenticated"] is True
    assert reviewed["audiences"] == ["vault"]


async def test_vault_checks_a_token_without_asking_for_a_review(attacked: AttackedServer) -> None:
    _, answer = await request_token(attacked, "default", audiences=["vault"])
    _, own = await request_token(attacked, "default")
    headers = {"Authorization": f"Bearer {own['status']['token']}"}
    pages = {}
    for path in ("/.well-known/openid-configuration", "/openid/v1/jwks"):
        status, pages[path] = await attacked.request("GET", path, headers=headers)
        assert status == 200, pages[path]
    issuer, keys = pages.values()
    (key,) = jwt.PyJWKSet.from_json(keys).keys
    algorithms = issuer["id_token_signing_alg_values_supported"]
    token = answer["status"]["token"]
    claims = jwt.decode(token, key, algorithms, audience="vault", issuer=issuer["issuer"])
    assert claims["sub"] == "system:serviceaccount:default:default"


async def test_a_token_dies_with_the_pod_that_it_is_bound_to(attacked: AttackedServer) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    _, made = await attacked.request("POST", PODS, json=pod)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
    status, answer = await request_token(attacked, "default", boundObjectRef=bound)
    assert status == 201, answer
    assert answer["spec"]["boundObjectRef"]["uid"] == made["metadata"]["uid"]
    token = answer["status"]["token"]
    user = (await review(attacked, token))["user"]
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]
    assert await use(attacked, token) == 201
    await attacked.request("DELETE", f"{PODS}/p?gracePeriodSeconds=0")
    assert await use(attacked, token) == 401
    await attacked.request("POST", PODS, json=pod)
    assert await use(attacked, token) == 401


async def test_a_token_is_bound_to_existing_objects_of_its_account_only(
    attacked: AttackedServer,
) -> None:
    await attacked.request("POST", ACCOUNTS, json={"metadata": {"name": "robot"}})
    spec = {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]}
    await attacked.request("POST", PODS, json={"metadata": {"name": "p"}, "spec": spec})
    pod = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
    for account, bound, expected in (
        ("default", pod, 400),
        ("robot", pod | {"uid": "another"}, 409),
        ("robot", pod | {"name": "none"}, 404),
        ("robot", pod | {"kind": "ConfigMap"}, 400),
        ("robot", pod | {"name": "../default/p"}, 404),
        ("robot", pod | {"name": 7}, 400),
        ("robot", "p", 400),
    ):
        status, body = await request_token(attacked, account, boundObjectRef=bound)
        assert status == expected, body


async def test_the_lifetime_of_a_token_has_the_limits_of_kubernetes(
    attacked: AttackedServer,
) -> None:
    for seconds, expected in ((599, 422), (600, 201), (1 << 32, 201), ((1 << 32) + 1, 422)):
        status, body = await request_token(attacked, "default", expirationSeconds=seconds)
        assert status == expected, body
    status, body = await request_token(attacked, "default", expirationSeconds="long")
    assert status == 400
    _, body = await request_token(attacked, "default")
    assert body["spec"]["expirationSeconds"] == 3600


async def test_an_account_declines_the_mount_of_its_token(attacked: AttackedServer) -> None:
    account = {"metadata": {"name": "quiet"}, "automountServiceAccountToken": False}
    await attacked.request("POST", ACCOUNTS, json=account)
    for name, stated, mounted in (
        ("p", {}, False),
        ("q", {"automountServiceAccountToken": True}, True),
    ):
        containers = [{"name": "c", "image": "i"}]
        spec = {"serviceAccountName": "quiet", "containers": containers, **stated}
        pod = {"metadata": {"name": name}, "spec": spec}
        _, made = await attacked.request("POST", PODS, json=pod)
        assert made["spec"]["automountServiceAccountToken"] is mounted


async def test_a_malformed_token_is_unauthorized(attacked: AttackedServer) -> None:
    for token in (
        b"e30.e30.e30",
        b"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.\xff\xfe",
        b"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\xc3\xa9.\xc3\xa9",
        b"eyJhbGciOiJub25lIn0.e30.",
        b"." * 20000,
        b"\xff" * 20,
    ):
        reader, writer = await attacked.connect()
        writer.write(b"GET /api/v1/pods HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
        writer.write(b"Authorization: Bearer " + token + b"\r\n\r\n")
        status = (await reader.readline()).split()[1]
        writer.close()
        assert status == b"401", token[:40]
