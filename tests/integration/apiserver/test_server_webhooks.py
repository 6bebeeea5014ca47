"""Admission webhooks, called over real HTTPS."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gangline.api import resources
from gangline.api.meta.objects import Status
from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from integration.apiserver.webhook_server import (
    Json,
    WebhookServer,
    add_label,
    allow,
    deny,
    patch,
    rule,
)

MAPS = "/api/v1/namespaces/default/configmaps"
KINDS = {
    "validating": ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    "mutating": ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
}


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[WebhookServer]:
    async with WebhookServer(tmp_path / "hooks") as server:
        yield server


def path_of(sort: str) -> str:
    return f"/apis/admissionregistration.k8s.io/v1/{KINDS[sort][1]}"


async def configure(client: ApiClient, sort: str, *webhooks: Json, name: str = "c") -> Json:
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": KINDS[sort][0],
        "metadata": {"name": name},
        "webhooks": list(webhooks),
    }
    return await client.request_json("POST", path_of(sort), body=body)


def config_map(name: str = "a", **meta: Any) -> Json:
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta},
        "data": {"x": "1"},
    }  # fmt: skip


async def create(client: ApiClient, name: str = "a", **meta: Any) -> Json:
    return await client.request_json("POST", MAPS, body=config_map(name, **meta))


async def test_a_validating_webhook_sees_the_object_and_may_deny_it(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers["v"] = lambda r: deny(r, message="not today", code=403, reason="Forbidden")
    await configure(client, "validating", hooks.hook("v"))
    with pytest.raises(errors.Forbidden) as refused:
        await create(client)
    assert refused.value.status.message == (
        'admission webhook "v.hooks.example.com" denied the request: not today'
    )
    (request,) = hooks.asked
    assert request["operation"] == "CREATE"
    assert request["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert (request["name"], request["namespace"]) == ("a", "default")
    assert request["object"]["data"] == {"x": "1"}
    assert request["object"]["metadata"]["uid"]
    assert request["oldObject"] is None
    assert request["dryRun"] is False
    assert "system:masters" in request["userInfo"]["groups"]
    assert request["options"]["kind"] == "CreateOptions"
    assert hooks.paths == ["/v?timeout=10s"]
    with pytest.raises(errors.NotFound):
        await client.get(resources.CONFIG_MAPS, "a", "default")


async def test_webhooks_and_policies_see_streams_into_pods(client: ApiClient, hooks: WebhookServer):
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await client.request_json("POST", "/api/v1/namespaces/default/pods", body=pod)
    hooks.answers["v"] = lambda r: deny(r, message="no shells", code=403, reason="Forbidden")
    rules = [rule("pods/exec", "pods/attach", operations=["CONNECT"])]
    await configure(client, "validating", hooks.hook("v", rules=rules))
    for query in ("exec?command=sh&command=-c&stdout=true&container=c", "attach?stdin=true"):
        with pytest.raises(errors.Forbidden, match="no shells"):
            await client.request_json("POST", f"/api/v1/namespaces/default/pods/p/{query}")
    run, attach = hooks.asked
    assert (run["operation"], run["subResource"], run["name"]) == ("CONNECT", "exec", "p")
    assert run["kind"]["kind"] == "PodExecOptions"
    shown = {"command": ["sh", "-c"], "stdout": True, "container": "c"}
    assert shown.items() <= run["object"].items()
    assert attach["object"] == {"kind": "PodAttachOptions", "apiVersion": "v1", "stdin": True}


async def refused_creation(client: ApiClient) -> Status:
    with pytest.raises(errors.ApiError) as refused:
        await create(client)
    return refused.value.status


async def test_updates_and_deletions_show_the_object_before(
    client: ApiClient, hooks: WebhookServer
):
    await create(client)
    hooks.answers["v"] = allow
    await configure(client, "validating", hooks.hook("v"))
    await client.patch(resources.CONFIG_MAPS, "a", {"data": {"x": "2"}}, "default")
    await client.request_json("DELETE", f"{MAPS}/a", body={"gracePeriodSeconds": 7})
    update, delete = hooks.asked
    assert (update["operation"], update["options"]["kind"]) == ("UPDATE", "UpdateOptions")
    assert update["oldObject"]["data"] == {"x": "1"}
    assert update["object"]["data"] == {"x": "2"}
    assert (delete["operation"], delete["object"]) == ("DELETE", None)
    assert delete["oldObject"]["data"] == {"x": "2"}
    assert delete["options"]["gracePeriodSeconds"] == 7


async def test_a_denied_deletion_leaves_the_object(client: ApiClient, hooks: WebhookServer):
    await create(client)
    hooks.answers["v"] = lambda r: deny(r, message="it stays")
    only_deletions = hooks.hook("v", rules=[rule("configmaps", operations=["DELETE"])])
    await configure(client, "validating", only_deletions)
    with pytest.raises(errors.ApiError, match="it stays"):
        await client.delete(resources.CONFIG_MAPS, "a", "default")
    with pytest.raises(errors.ApiError, match="it stays"):
        await client.request_json("DELETE", MAPS)
    await client.get(resources.CONFIG_MAPS, "a", "default")


async def test_a_mutating_webhook_changes_what_is_stored_and_what_validators_see(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers |= {"m": add_label("touched", "yes"), "v": allow}
    await configure(client, "mutating", hooks.hook("m"))
    await configure(client, "validating", hooks.hook("v"))
    created = await create(client)
    assert created["metadata"]["labels"] == {"touched": "yes"}
    assert hooks.asked[0]["object"]["metadata"].get("uid") is None
    assert hooks.asked[1]["object"]["metadata"]["labels"] == {"touched": "yes"}


async def test_mutating_webhooks_are_asked_in_the_order_of_their_configurations(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers |= {"one": add_label("last", "one"), "two": add_label("last", "two")}
    await configure(client, "mutating", hooks.hook("two"), name="b")
    await configure(client, "mutating", hooks.hook("one"), name="a")
    assert (await create(client))["metadata"]["labels"] == {"last": "two"}
    assert hooks.paths == ["/one?timeout=10s", "/two?timeout=10s"]


async def test_a_webhook_that_wants_so_is_asked_again_after_a_later_change(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers |= {"first": allow, "never": allow, "second": add_label("x", "y")}
    await configure(
        client, "mutating", hooks.hook("first", reinvocationPolicy="IfNeeded"),
        hooks.hook("never"), hooks.hook("second", reinvocationPolicy="IfNeeded"),
    )  # fmt: skip
    await create(client)
    assert [path[1:].split("?")[0] for path in hooks.paths] == [
        "first", "never", "second", "first",
    ]  # fmt: skip
    assert hooks.asked[-1]["object"]["metadata"]["labels"] == {"x": "y"}


async def test_patch_without_change_causes_no_reinvocation(client: ApiClient, hooks: WebhookServer):
    same = {"op": "replace", "path": "/data/x", "value": "1"}
    hooks.answers |= {"first": allow, "second": lambda request: patch(request, same)}
    await configure(
        client, "mutating", hooks.hook("first", reinvocationPolicy="IfNeeded"),
        hooks.hook("second"),
    )  # fmt: skip
    await create(client)
    assert len(hooks.asked) == 2


async def test_bindings_evictions_tokens_and_scales_are_reviewed_as_what_they_are(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers["all"] = allow
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    pods = "/api/v1/namespaces/default/pods"
    await client.request_json("POST", pods, body=pod)
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod["spec"]}
    deployment = {
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    await client.request_json("POST", deployments, body=deployment)
    parts = ("pods/binding", "pods/eviction", "serviceaccounts/token", "*/scale")
    await configure(client, "validating", hooks.hook("all", rules=[rule(*parts)]))
    await client.request_json("POST", f"{pods}/p/binding", body={"target": {"name": "n"}})
    await client.request_json("PATCH", f"{deployments}/d/scale", body={"spec": {"replicas": 3}},
                              content_type="application/merge-patch+json")  # fmt: skip
    token = "/api/v1/namespaces/default/serviceaccounts/default/token"
    await client.request_json("POST", token, body={"spec": {}})
    await client.request_json("POST", f"{pods}/p/eviction", body={"metadata": {"name": "p"}})
    assert [(r["kind"]["kind"], r["subResource"], r["operation"]) for r in hooks.asked] == [
        ("Binding", "binding", "CREATE"),
        ("Scale", "scale", "UPDATE"),
        ("TokenRequest", "token", "CREATE"),
        ("Eviction", "eviction", "CREATE"),
    ]
    assert (hooks.asked[1]["oldObject"]["spec"], hooks.asked[1]["object"]["spec"]) == (
        {"replicas": 1}, {"replicas": 3},
    )  # fmt: skip
    scaled = await client.request_json("GET", f"{deployments}/d")
    assert scaled["spec"]["replicas"] == 3


async def test_a_scale_may_be_patched_by_a_webhook_while_its_object_changes(
    client: ApiClient, hooks: WebhookServer
):
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    deployment = {
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    await client.create(resources.DEPLOYMENTS, deployment, "default")

    async def fewer(request: Json) -> Json:
        await client.patch(resources.DEPLOYMENTS, "d", {"metadata": {"labels": {"x": "y"}}},
                           "default")  # fmt: skip
        return patch(request, {"op": "replace", "path": "/spec/replicas", "value": 2})

    hooks.answers["m"] = fewer
    await configure(client, "mutating", hooks.hook("m", rules=[rule("deployments/scale")]))
    path = "/apis/apps/v1/namespaces/default/deployments/d"
    await client.request_json(
        "PATCH", f"{path}/scale", body={"spec": {"replicas": 9}},
        content_type="application/merge-patch+json",
    )  # fmt: skip
    found = await client.get(resources.DEPLOYMENTS, "d", "default")
    assert (found.spec.replicas, found.metadata.labels) == (2, {"x": "y"})
    with pytest.raises(errors.BadRequest):
        await client.request_json("PUT", f"{path}/scale", body=[1])


async def test_webhooks_have_no_say_in_their_own_configuration(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers["v"] = lambda r: deny(r, message="nothing at all")
    everything = hooks.hook("v", rules=[rule("*/*")])
    await configure(client, "validating", everything)
    with pytest.raises(errors.ApiError, match="nothing at all"):
        await create(client)
    await client.request_json("DELETE", f"{path_of('validating')}/c")
    await create(client)
    assert len(hooks.asked) == 1


async def test_a_generated_name_is_known_to_validators_only(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers |= {"m": allow, "v": allow}
    await configure(client, "mutating", hooks.hook("m"))
    await configure(client, "validating", hooks.hook("v"))
    body = {**config_map(), "metadata": {"generateName": "g-"}}
    created = await client.request_json("POST", MAPS, body=body)
    assert "name" not in hooks.asked[0]
    assert hooks.asked[1]["name"] == created["metadata"]["name"]


async def test_server_side_apply_is_a_creation_and_then_an_update(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers["m"] = add_label("x", "y")
    await configure(client, "mutating", hooks.hook("m"))
    for _ in range(2):
        applied = await client.request_json(
            "PATCH", f"{MAPS}/a", body=config_map(), params={"fieldManager": "me"},
            content_type="application/apply-patch+yaml",
        )  # fmt: skip
    assert [request["operation"] for request in hooks.asked] == ["CREATE", "UPDATE"]
    assert applied["metadata"]["labels"] == {"x": "y"}


async def hang(request: Json) -> Json:
    await asyncio.Event().wait()
    return request


FAILURES = {
    "500": (lambda r: web.Response(status=500, text="boom"), 'an error on the server ("boom")'),
    "404": (lambda r: web.Response(status=404), "could not find the requested resource"),
    "a redirect": (lambda r: web.Response(status=302, headers={"Location": "/x"}), "code 302"),
    "not JSON": (lambda r: web.Response(text="hello"), "not an AdmissionReview"),
    "a huge answer": (lambda r: web.Response(body=b" " * (9 << 20)), "exceeds 8388608 bytes"),
    "silence": (hang, "context deadline exceeded"),
}  # fmt: skip


async def test_a_failed_call_fails_the_write_or_is_ignored_as_the_policy_says(
    client: ApiClient, hooks: WebhookServer
) -> None:
    configured = await configure(client, "validating", hooks.hook("v", timeoutSeconds=1))
    start = 'Internal error occurred: failed calling webhook "v.hooks.example.com": '
    for failure, (hooks.answers["v"], output) in FAILURES.items():
        status = await refused_creation(client)
        assert status.code == 500, failure
        assert status.message.startswith(start), failure
        assert output in status.message
    configured["webhooks"][0]["failurePolicy"] = "Ignore"
    await client.request_json("PUT", f"{path_of('validating')}/c", body=configured)
    for number, (hooks.answers["v"], _) in enumerate(FAILURES.values()):
        await create(client, f"ignored-{number}")


async def test_a_webhook_that_is_down_is_named_with_its_address(client: ApiClient, tmp_path: Path):
    async with WebhookServer(tmp_path / "hooks") as hooks:
        hook = hooks.hook("v")
    await configure(client, "validating", hook)
    with pytest.raises(errors.ApiError) as refused:
        await create(client)
    assert refused.value.status.message == (
        'Internal error occurred: failed calling webhook "v.hooks.example.com": failed to call '
        f'webhook: Post "https://127.0.0.1:{hooks.port}/v?timeout=10s": '
        f"dial tcp 127.0.0.1:{hooks.port}: connect: connection refused"
    )


async def test_a_webhook_that_was_restarted_is_asked_over_a_new_connection(
    client: ApiClient, tmp_path: Path
):
    async with WebhookServer(tmp_path / "hooks", answers={"v": allow}) as hooks:
        await configure(client, "validating", hooks.hook("v"))
        await create(client)
    async with hooks:
        await create(client, "b")
    assert len(hooks.asked) == 2


async def test_a_certificate_that_is_not_trusted_ends_the_call(
    client: ApiClient, hooks: WebhookServer, tmp_path: Path
) -> None:
    hooks.answers["v"] = allow
    async with WebhookServer(tmp_path / "other") as other:
        bundles = ("", base64.b64encode(b"\n").decode(), other.bundle)
    for bundle in bundles:
        address = {**hooks.client("v"), "caBundle": bundle}
        await configure(client, "validating", hooks.hook("v", clientConfig=address))
        assert "certificate" in (await refused_creation(client)).message
        await client.request_json("DELETE", f"{path_of('validating')}/c")
    assert hooks.asked == []


async def serve(client: ApiClient, hooks: WebhookServer, *, ready: bool = True) -> None:
    """Create a service whose only pod is the webhook of the test."""
    service = {"metadata": {"name": "hooks"},
               "spec": {"ports": [{"name": "https", "port": 8443, "targetPort": 1}]}}  # fmt: skip
    addresses = "addresses" if ready else "notReadyAddresses"
    endpoints = {
        "metadata": {"name": "hooks"},
        "subsets": [
            {addresses: [{"ip": "127.0.0.1"}], "ports": [{"name": "https", "port": hooks.port}]}
        ],
    }
    await client.request_json("POST", "/api/v1/namespaces/default/services", body=service)
    await client.request_json("POST", "/api/v1/namespaces/default/endpoints", body=endpoints)


def by_service(hooks: WebhookServer, **more: Any) -> Json:
    reference = {"namespace": "default", "name": "hooks", "port": 8443, "path": "/v", **more}
    return hooks.hook("v", clientConfig={"service": reference, "caBundle": hooks.bundle})


async def test_a_webhook_behind_a_service_is_asked_at_a_ready_endpoint_under_its_name(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers["v"] = allow
    await serve(client, hooks)
    await configure(client, "validating", by_service(hooks))
    await create(client)
    assert hooks.hosts == ["hooks.default.svc:8443"]


async def test_a_webhook_behind_a_service_needs_a_certificate_of_the_services_name(
    client: ApiClient, tmp_path: Path
):
    async with WebhookServer(tmp_path / "hooks", names=["else.default.svc"]) as hooks:
        await serve(client, hooks)
        await configure(client, "validating", by_service(hooks))
        with pytest.raises(errors.ApiError, match=r"x509: .*hooks\.default\.svc"):
            await create(client)


async def test_a_service_that_cannot_answer_is_named(
    client: ApiClient, hooks: WebhookServer
) -> None:
    await serve(client, hooks, ready=False)
    for more, message in (
        ({"name": "away"}, 'service "away" not found'),
        ({"port": 1}, 'no service port 1 found for service "hooks"'),
        ({}, 'no endpoints available for service "hooks"'),
    ):
        await configure(client, "validating", by_service(hooks, **more))
        assert message in (await refused_creation(client)).message
        await client.request_json("DELETE", f"{path_of('validating')}/c")


async def test_a_patch_that_does_not_fit_is_an_error_whatever_the_policy(
    client: ApiClient, hooks: WebhookServer
) -> None:
    operations: Any
    await configure(client, "mutating", hooks.hook("m", failurePolicy="Ignore"))
    for operations in (
        [{"op": "add", "path": "/metadata/labels/a/b", "value": "c"}],
        [{"op": "remove", "path": "/nothing"}],
        [{"op": "unheard-of", "path": "/data"}],
        [{"op": "replace", "path": "", "value": []}],
        {"op": "remove"},
    ):
        hooks.answers["m"] = lambda r, made=operations: patch(r, *made)
        status = await refused_creation(client)
        assert (status.code, "m.hooks.example.com" in status.message) == (500, True), operations


async def test_a_patch_cannot_make_another_object_of_it(
    client: ApiClient, hooks: WebhookServer
) -> None:
    await configure(client, "mutating", hooks.hook("m"))
    for path, value, code in (
        ("/metadata/namespace", "kube-system", 400),
        ("/metadata", "text", 400),
        ("/kind", "Secret", 400),
        ("/metadata/name", "Not A Name", 422),
    ):
        operation = {"op": "replace", "path": path, "value": value}
        hooks.answers["m"] = lambda r, made=operation: patch(r, made)
        assert (await refused_creation(client)).code == code, path


async def test_a_patch_may_name_a_new_object_but_rename_no_old_one(
    client: ApiClient, hooks: WebhookServer
):
    name = {"op": "replace", "path": "/metadata/name", "value": "other"}
    hooks.answers["m"] = lambda r: patch(r, name)
    await create(client, "old")
    await configure(client, "mutating", hooks.hook("m"))
    assert (await create(client))["metadata"]["name"] == "other"
    await client.get(resources.CONFIG_MAPS, "other", "default")
    with pytest.raises(errors.ApiError, match="does not match the name"):
        await client.patch(resources.CONFIG_MAPS, "old", {"data": {"x": "2"}}, "default")


async def test_nothing_can_be_patched_in_a_deletion(client: ApiClient, hooks: WebhookServer):
    await create(client)
    hooks.answers["m"] = lambda r: patch(r, {"op": "remove", "path": "/data"})
    await configure(client, "mutating", hooks.hook("m"))
    with pytest.raises(errors.ApiError, match="attempted to modify the object, which is not"):
        await client.delete(resources.CONFIG_MAPS, "a", "default")


async def test_a_hundred_creations_pass_a_slow_webhook_side_by_side(
    api_server: ApiServer, client: ApiClient, hooks: WebhookServer
):
    arrived, everybody = 0, asyncio.Event()

    async def slow(request: Json) -> Json:
        nonlocal arrived
        arrived += 1
        if arrived == 100:
            everybody.set()
        await everybody.wait()  # which never comes, were they asked one after the other
        return allow(request)

    hooks.answers["v"] = slow
    await configure(client, "validating", hooks.hook("v", timeoutSeconds=30))
    async with ApiClient(api_server.config) as other:  # each has at most 64 requests under way
        both = (client, other)
        await asyncio.gather(*(create(both[number % 2], f"c{number}") for number in range(100)))
    assert len((await client.list(resources.CONFIG_MAPS, "default")).items) == 100


async def test_what_changed_during_the_call_is_looked_at_again(
    client: ApiClient, hooks: WebhookServer
):
    await create(client)

    async def meddle(request: Json) -> Json:
        if len(hooks.asked) == 1:  # only while the first question waits
            await client.patch(resources.CONFIG_MAPS, "a", {"data": {"y": "theirs"}}, "default")
        return allow(request)

    hooks.answers["v"] = meddle
    await configure(client, "validating", hooks.hook("v"))
    await client.patch(resources.CONFIG_MAPS, "a", {"data": {"x": "mine"}}, "default")
    both = await client.get(resources.CONFIG_MAPS, "a", "default")
    assert both.data == {"x": "mine", "y": "theirs"}
    assert len(hooks.asked) == 3


async def test_an_update_of_an_older_state_is_a_conflict_although_it_was_allowed(
    client: ApiClient, hooks: WebhookServer
):
    created = await create(client)

    async def meddle(request: Json) -> Json:
        if len(hooks.asked) == 1:
            await client.patch(resources.CONFIG_MAPS, "a", {"data": {"y": "theirs"}}, "default")
        return allow(request)

    hooks.answers["v"] = meddle
    await configure(client, "validating", hooks.hook("v"))
    created["data"] = {"x": "mine"}
    with pytest.raises(errors.Conflict):
        await client.request_json("PUT", f"{MAPS}/a", body=created)


async def test_a_name_that_was_taken_during_the_call_stays_with_the_faster(
    client: ApiClient, hooks: WebhookServer
):
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def think(request: Json) -> Json:
        if len(hooks.asked) == 1:
            reached.set()
            await go_on.wait()
        return allow(request)

    hooks.answers["v"] = think
    await configure(client, "validating", hooks.hook("v"))
    slow = asyncio.create_task(create(client))
    await reached.wait()
    faster = await create(client)
    go_on.set()
    with pytest.raises(errors.AlreadyExists):
        await slow
    kept = await client.get(resources.CONFIG_MAPS, "a", "default")
    assert kept.metadata.uid == faster["metadata"]["uid"]


async def test_custom_kinds_are_reviewed_in_the_version_that_a_rule_names(
    client: ApiClient, hooks: WebhookServer
):
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [
        {"name": name, "served": True, "storage": name == "v2", "schema": schema}
        for name in ("v1", "v2")
    ]
    definition = {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster", "versions": versions,
            "names": {"plural": "things", "kind": "Thing"},
        },
    }  # fmt: skip
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await client.request_json("POST", crds, body=definition)
    hooks.answers |= {"old": allow, "exact": allow}
    only_v1 = rule("things", apiVersions=["v1"])
    await configure(
        client, "validating", hooks.hook("old", rules=[only_v1]),
        hooks.hook("exact", rules=[only_v1], matchPolicy="Exact"),
    )  # fmt: skip
    thing = {"apiVersion": "example.com/v2", "kind": "Thing", "metadata": {"name": "t"}}
    await client.request_json("POST", "/apis/example.com/v2/things", body=thing)
    (request,) = hooks.asked
    assert request["object"]["apiVersion"] == "example.com/v1"
    assert request["kind"]["version"] == "v1"
    assert request["requestKind"]["version"] == "v2"


async def test_webhooks_outlive_the_server_and_have_no_say_in_its_start(
    tmp_path: Path, hooks: WebhookServer
):
    settings = ApiServerSettings(data=tmp_path / "apiserver")
    server = ApiServer(settings)
    await server.start()
    async with ApiClient(server.config) as client:
        await configure(client, "validating", hooks.hook("v", rules=[rule("*/*")]))
    await server.stop()
    hooks.answers["v"] = lambda r: deny(r, message="still here")
    again = ApiServer(settings)
    await again.start()
    try:
        assert hooks.asked == []
        async with ApiClient(again.config) as client:
            with pytest.raises(errors.ApiError, match="still here"):
                await create(client)
    finally:
        await again.stop()


async def test_warnings_reach_the_client_also_with_a_refusal(
    api_server: ApiServer, client: ApiClient, hooks: WebhookServer
):
    warnings = ['look "out"', "two\nlines", "x" * 5000]
    hooks.answers["v"] = lambda r: {**deny(r, message="no"), "warnings": warnings}
    await configure(client, "validating", hooks.hook("v"))
    headers = {"Authorization": f"Bearer {api_server.admin_token}"}
    trusted = ssl.create_default_context(cafile=str(api_server.ca_path))
    async with aiohttp.ClientSession() as session:
        answer = await session.post(
            f"{api_server.url}{MAPS}", json=config_map(), headers=headers, ssl=trusted
        )
        assert answer.status == 400
        found = answer.headers.getall("Warning")
    assert found[:2] == ['299 - "look \\"out\\""', '299 - "two lines"']
    assert len(found[2]) < 1100
