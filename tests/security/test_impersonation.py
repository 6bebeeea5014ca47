"""Requests that act as another user by their ``Impersonate-`` headers."""

from typing import Any

import aiohttp
import pytest

from security.conftest import AttackedServer
from security.rbac_objects import bind, grant, rule

SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
TOKEN = "/api/v1/namespaces/default/serviceaccounts/default/token"


class Sender:
    """A service account, which sends requests with its own token."""

    def __init__(self, attacked: AttackedServer, token: str) -> None:
        self._attacked = attacked
        self._token = token

    async def who(self, *headers: tuple[str, str]) -> tuple[int, Any]:
        """Ask the server as whom it sees a request. Returns the status and the user."""
        sent = [("Authorization", f"Bearer {self._token}"), *headers]
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                self._attacked.url + SELF, headers=sent, json={}, ssl=self._attacked.tls
            ) as answer,
        ):
            body = await answer.json()
            return answer.status, body["status"]["userInfo"] if answer.ok else body


@pytest.fixture
async def sender(attacked: AttackedServer) -> Sender:
    _, answer = await attacked.request("POST", TOKEN, json={})
    return Sender(attacked, answer["status"]["token"])


ROBOT = "system:serviceaccount:default:default"


async def test_every_attribute_needs_a_right_of_its_own(
    attacked: AttackedServer, sender: Sender
) -> None:
    await grant(attacked, ROBOT, rule("", "users", "impersonate", "bob"))
    bob = ("Impersonate-User", "bob")
    status, user = await sender.who(bob)
    assert (status, user["username"], user["groups"]) == (201, "bob", ["system:authenticated"])
    for headers in (
        [("Impersonate-User", "alice")],
        [("Impersonate-User", "system:serviceaccount:kube-system:default")],
        [bob, ("Impersonate-Group", "system:masters")],
        [bob, ("Impersonate-Uid", "1")],
        [bob, ("Impersonate-Extra-scopes", "all")],
    ):
        status, answer = await sender.who(*headers)
        assert (status, answer["reason"]) == (403, "Forbidden"), headers
    for headers in (
        [("Impersonate-Group", "system:masters")],
        [("Impersonate-Uid", "1")],
        [("Impersonate-Extra-scopes", "all")],
    ):
        status, answer = await sender.who(*headers)
        assert (status, answer["reason"]) == (400, "BadRequest"), headers


async def test_uid_and_extra_values_are_those_of_the_headers(
    attacked: AttackedServer, sender: Sender
) -> None:
    group = "authentication.k8s.io"
    await grant(
        attacked, ROBOT,
        rule("", "users,groups", "impersonate", "bob", "team"),
        rule(group, "uids", "impersonate", "7"),
        rule(group, "userextras/example.com/scopes", "impersonate", "read"),
    )  # fmt: skip
    headers = [
        ("Impersonate-User", "bob"), ("Impersonate-Group", "team"), ("Impersonate-Uid", "7"),
        ("Impersonate-Extra-Example.com%2fScopes", "read"),
    ]  # fmt: skip
    status, user = await sender.who(*headers)
    assert status == 201
    assert user == {
        "username": "bob", "uid": "7", "groups": ["team", "system:authenticated"],
        "extra": {"example.com/scopes": ["read"]},
    }  # fmt: skip
    status, _ = await sender.who(*headers, ("Impersonate-Extra-Example.com%2fScopes", "write"))
    assert status == 403


async def test_an_editor_impersonates_service_accounts_of_its_namespace(
    attacked: AttackedServer, sender: Sender
) -> None:
    await bind(attacked, ROBOT, "edit", "default")
    other = "system:serviceaccount:default:builder"
    status, user = await sender.who(("Impersonate-User", other))
    assert status == 201
    assert user["groups"] == [
        "system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated",
    ]  # fmt: skip
    elsewhere = "system:serviceaccount:kube-system:default"
    assert (await sender.who(("Impersonate-User", elsewhere)))[0] == 403
    assert (await sender.who(("Impersonate-User", "system:admin")))[0] == 403


async def test_the_anonymous_user_is_not_authenticated(attacked: AttackedServer) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    status, _ = await attacked.request("POST", path, user="system:anonymous", json={})
    assert status == 403
    status, _ = await attacked.request("GET", "/version", user="system:anonymous")
    assert status == 200
