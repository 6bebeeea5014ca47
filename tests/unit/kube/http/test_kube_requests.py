"""Requests as data, the guard of writes, and streams that cannot begin."""

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from contextvars import Context
from typing import TypeVar

import pytest

from gangline.api.meta.objects import ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.http import request as build
from gangline.kube.http.request import PatchKind
from gangline.kube.write_guard import LeadershipExpired, guarded_context
from unit.kube.fake_server import THINGS, Thing, connected

NODES = Resource(dict, "", "v1", "nodes", "Node", namespaced=False)
JOBS = Resource(dict, "kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")


@pytest.mark.parametrize(
    ("request_", "method", "path", "params"),
    [
        pytest.param(
            build.get(THINGS, "a", "ns"), "GET", "/api/v1/namespaces/ns/things/a", (), id="get"
        ),
        pytest.param(
            build.get(NODES, "n-1", None),
            "GET",
            "/api/v1/nodes/n-1",
            (),
            id="get without namespace",
        ),
        pytest.param(
            build.list_page(JOBS, None, labels="a=b,c!=d", limit=5),
            "GET",
            "/apis/kubeflow.org/v1/pytorchjobs",
            (("labelSelector", "a=b,c!=d"), ("limit", "5")),
            id="list in all namespaces",
        ),
        pytest.param(
            build.list_page(JOBS, "ns", continue_="token", limit=5, resource_version="7"),
            "GET",
            "/apis/kubeflow.org/v1/namespaces/ns/pytorchjobs",
            (("limit", "5"), ("continue", "token")),
            id="the next page takes its revision from the token",
        ),
        pytest.param(
            build.watch(THINGS, "ns", fields="spec.nodeName=n", resource_version="9", timeout_s=30),
            "GET",
            "/api/v1/namespaces/ns/things",
            (
                ("watch", "true"),
                ("fieldSelector", "spec.nodeName=n"),
                ("resourceVersion", "9"),
                ("allowWatchBookmarks", "true"),
                ("timeoutSeconds", "30"),
            ),
            id="watch",
        ),
        pytest.param(
            build.create(
                THINGS, {"metadata": {"name": "a", "namespace": "ns"}}, None, dry_run=True
            ),
            "POST",
            "/api/v1/namespaces/ns/things",
            (("dryRun", "All"),),
            id="create uses the namespace of the body",
        ),
        pytest.param(
            build.delete(THINGS, "a", "ns"),
            "DELETE",
            "/api/v1/namespaces/ns/things/a",
            (),
            id="delete",
        ),
        pytest.param(
            build.patch(THINGS, "a", {}, "ns", subresource="status"),
            "PATCH",
            "/api/v1/namespaces/ns/things/a/status",
            (),
            id="patch of the status",
        ),
        pytest.param(
            build.apply(
                THINGS, Thing(metadata=ObjectMeta(name="a")), "ns", manager="m", force=True
            ),
            "PATCH",
            "/api/v1/namespaces/ns/things/a",
            (("fieldManager", "m"), ("force", "true")),
            id="apply",
        ),
        pytest.param(
            build.logs("p", "ns", container="c", follow=True, tail_lines=0, previous=False),
            "GET",
            "/api/v1/namespaces/ns/pods/p/log",
            (("container", "c"), ("follow", "true"), ("tailLines", "0")),
            id="logs: zero lines is not the same as all lines",
        ),
        pytest.param(
            build.get(THINGS, "a/../b?c", "ns"),
            "GET",
            "/api/v1/namespaces/ns/things/a%2F..%2Fb%3Fc",
            (),
            id="a name cannot lead elsewhere",
        ),
    ],
)
def test_a_verb_becomes_a_request(request_, method, path, params):
    assert (request_.method, request_.path, request_.params) == (method, path, params)


@pytest.mark.parametrize(
    "build_it",
    [
        pytest.param(lambda: build.get(THINGS, "", "ns"), id="get without a name"),
        pytest.param(lambda: build.delete(THINGS, "", "ns"), id="delete without a name"),
        pytest.param(lambda: build.get(THINGS, "a", None), id="get without a namespace"),
        pytest.param(lambda: build.create(THINGS, {}, None), id="create without a namespace"),
        pytest.param(lambda: build.update(THINGS, Thing(), "ns"), id="update without a name"),
        pytest.param(lambda: build.bind("p", "", "n", None), id="bind without a namespace"),
    ],
)
def test_an_incomplete_address_is_refused_before_anything_is_sent(build_it):
    with pytest.raises(ValueError, match="name"):
        build_it()


def test_bodies_get_the_version_and_kind_of_their_resource():
    assert build.encode_object(JOBS, {"metadata": {}}) == (
        b'{"apiVersion":"kubeflow.org/v1","kind":"PyTorchJob","metadata":{}}'
    )
    assert build.encode_object(THINGS, Thing()) == b'{"apiVersion":"v1","kind":"Thing"}'


def test_a_body_keeps_the_version_that_it_names():
    assert b'"apiVersion":"v2"' in build.encode_object(JOBS, {"apiVersion": "v2"})


def test_deletion_carries_only_the_options_that_were_given():
    assert build.delete(THINGS, "a", "ns").body is None
    assert build.delete(THINGS, "a", "ns", grace_seconds=0, uid="u").body == (
        b'{"apiVersion":"v1","kind":"DeleteOptions",'
        b'"gracePeriodSeconds":0,"preconditions":{"uid":"u"}}'
    )


@pytest.mark.parametrize("kind", list(PatchKind))
def test_the_kind_of_a_patch_is_its_media_type(kind):
    assert build.patch(THINGS, "a", {}, "ns", kind=kind).content_type == kind.value


def test_binding_names_the_pod_that_is_meant():
    assert build.bind("p", "ns", "n", "u").body == (
        b'{"apiVersion":"v1","kind":"Binding",'
        b'"metadata":{"name":"p","namespace":"ns","uid":"u"},'
        b'"target":{"apiVersion":"v1","kind":"Node","name":"n"}}'
    )


T = TypeVar("T")


async def inside(context: Context, work: Awaitable[T]) -> T:
    """Await in a task that is started by a task of this context."""

    async def start() -> T:
        return await asyncio.ensure_future(work)

    return await asyncio.get_running_loop().create_task(start(), context=context)


async def test_only_writes_of_the_former_leader_are_refused() -> None:
    leads = True
    context = guarded_context(lambda: leads)
    async with connected() as (server, client):
        await server.put("a")
        change = {"metadata": {"labels": {"x": "1"}}}
        await inside(context, client.patch(THINGS, "a", change, "default"))
        leads = False
        for write in (
            client.patch(THINGS, "a", change, "default"),
            client.create(THINGS, {"metadata": {"name": "b"}}, "default"),
            client.delete(THINGS, "a", "default"),
        ):
            with pytest.raises(LeadershipExpired):
                await inside(context, write)
        await inside(context, client.get(THINGS, "a", "default"))
        assert len((await inside(context, client.list(THINGS, "default"))).items) == 1
        await client.delete(THINGS, "a", "default")  # not guarded


async def test_guard_is_asked_when_a_connection_is_there() -> None:
    """The time to connect counts: the first answer of the guard may be too old."""
    answers = iter([False])
    async with connected() as (_, client):
        with pytest.raises(LeadershipExpired):
            await inside(
                guarded_context(lambda: next(answers)),
                client.create(THINGS, {"metadata": {"name": "b"}}, "default"),
            )
        assert not (await client.list(THINGS, "default")).items


async def first_of(client):
    async with aclosing(client.watch(THINGS)) as events:
        return await anext(events)


async def test_watch_without_a_server_raises_with_the_cause(unused_tcp_port):
    async with ApiClient(ClusterConfig(f"http://127.0.0.1:{unused_tcp_port}")) as client:
        with pytest.raises(
            errors.Unreachable,
            match=r"cannot be reached: Connection refused\. Is the cluster running",
        ):
            await first_of(client)


async def test_exec_without_a_server_raises_with_the_cause(unused_tcp_port):
    async with ApiClient(ClusterConfig(f"http://127.0.0.1:{unused_tcp_port}")) as client:
        with pytest.raises(errors.Unreachable, match="cannot be reached: Connection refused"):
            await client.exec("a", "default", ["true"])


async def test_a_watch_of_a_server_that_speaks_no_tls_is_refused(server):
    async with ApiClient(ClusterConfig(server.url.replace("http", "https"))) as client:
        with pytest.raises(errors.Unreachable, match="https"):
            await first_of(client)


async def test_a_client_that_is_not_open_has_no_streams():
    with pytest.raises(RuntimeError, match="not open"):
        await first_of(ApiClient(ClusterConfig("http://127.0.0.1:1")))
