"""The request of each verb."""

import pytest

from gangline.api.meta.objects import ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.kube.http import request as build
from gangline.kube.http.request import PatchKind
from unit.kube.fake_server import THINGS, Thing

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
