"""Invalid values in every place of an object: refused with a message, never a server error."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from gangline.kube.http.transport import tls_context
from gangline.local.apiserver.server import ApiServer

Json = dict[str, Any]
JUNK: tuple[Any, ...] = (None, True, -1, 1e300, "", "x" * 300, [], {}, [{}], [None], {"": {}})
TEMPLATE: Json = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": "i:1",
                "ports": [{"containerPort": 80, "name": "web"}],
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": "web"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [
                {"key": "k", "operator": "In", "values": ["v"]}]}]}}},
        "priorityClassName": "system-node-critical",
    },
}  # fmt: skip
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
SELECTOR = {"matchLabels": {"a": "b"}}
SAMPLES: dict[str, Json] = {
    "/api/v1/namespaces/default/pods": TEMPLATE,
    "/api/v1/namespaces/default/services": {
        "spec": {"type": "NodePort", "clusterIP": "", "selector": {"a": "b"},
                 "ports": [{"name": "p", "port": 80, "targetPort": "web"}]}},
    "/api/v1/namespaces/default/configmaps": {"data": {"a": "b"}, "binaryData": {"c": "ZA=="}},
    "/api/v1/namespaces/default/secrets": {"stringData": {"a": "b"}, "type": "Opaque"},
    "/api/v1/namespaces": {"spec": {"finalizers": ["kubernetes"]}},
    "/api/v1/nodes": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
                      "status": {"capacity": {"cpu": "1"}}},
    "/api/v1/persistentvolumes": {
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                 "hostPath": {"path": "/x"}}},
    "/api/v1/namespaces/default/persistentvolumeclaims": {
        "spec": {"accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}}},
    "/api/v1/namespaces/default/events": {
        "involvedObject": {"name": "p", "namespace": "default"}, "reason": "r", "count": 1},
    "/apis/apps/v1/namespaces/default/deployments": {
        "spec": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE}},
    "/apis/apps/v1/namespaces/default/replicasets": {
        "spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "/apis/coordination.k8s.io/v1/namespaces/default/leases": {
        "spec": {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.000000Z"}},
    "/apis/scheduling.k8s.io/v1/priorityclasses": {"value": 5, "globalDefault": False},
    "/apis/policy/v1/namespaces/default/poddisruptionbudgets": {
        "spec": {"minAvailable": "50%", "selector": SELECTOR}},
    "/apis/rbac.authorization.k8s.io/v1/clusterroles": {
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]},
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings": {
        "subjects": [{"kind": "User", "name": "u"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}},
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
            "versions": [{
                "name": "v1", "served": True, "storage": True,
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
                "additionalPrinterColumns": [
                    {"name": "N", "type": "string", "jsonPath": ".spec.n"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["n"], "properties": {
                        "n": {"type": "integer", "minimum": 1, "default": 2, "enum": [2, 3]},
                        "m": {"type": "array", "items": {"type": "string", "pattern": "^a"}},
                    }}}}}}],
        }},
    "/apis/batch/v1/namespaces/default/jobs": {"spec": {"template": TEMPLATE}},
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}},
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": {
        "spec": {"user": "u", "groups": ["g"], "nonResourceAttributes": {"path": "/x"}}},
    "/apis/authentication.k8s.io/v1/tokenreviews": {"spec": {"token": "t"}},
    "/api/v1/namespaces/default/pods/it/binding": {"target": {"name": "n"}},
    "/api/v1/namespaces/default/pods/it/eviction": {"deleteOptions": {
        "gracePeriodSeconds": 3, "preconditions": {"uid": "u"}}},
    "/api/v1/namespaces/default/serviceaccounts/default/token": {
        "spec": {"expirationSeconds": 600, "audiences": ["a"]}},
}  # fmt: skip


def spoiled(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the JSON value with each invalid value in each place."""
    if path:
        for junk in JUNK:
            yield path, junk
    if not isinstance(value, (dict, list)):
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from spoiled(item, (*path, key))


def with_junk(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    copied = copy.deepcopy(value)
    inner = copied
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = junk
    return copied


@pytest.fixture
async def session(api_server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    config = api_server.config
    credential = await config.credentials.current()
    connector = aiohttp.TCPConnector(ssl=tls_context(config, credential))
    headers = {"Authorization": credential.authorization, "Content-Type": "application/json"}
    async with aiohttp.ClientSession(config.server, connector=connector, headers=headers) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("path", SAMPLES)
async def test_junk_is_never_a_server_error(session: aiohttp.ClientSession, path: str):
    sample = {"metadata": {"name": "it", "labels": {"a": "b"}, "annotations": {"a": "b"}, **(
        {"finalizers": ["a/b"], "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]})}}  # fmt: skip
    sample |= SAMPLES[path]
    if "/pods/it/" in path:
        made = {"metadata": {"name": "it"}, "spec": TEMPLATE["spec"]}
        async with session.post(path[: path.index("/it/")], data=json.dumps(made)) as answer:
            assert answer.status == 201, await answer.text()
    for place, junk in spoiled(sample):
        body = json.dumps(with_junk(sample, place, junk))
        options = {"dryRun": "All"} if "reviews" not in path else {}
        async with session.post(path, data=body, params=options) as answer:
            text = await answer.text()
            assert answer.status < 500, (place, junk, text)
            json.loads(text)


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THING = {"metadata": {"name": "t"}, "spec": {"n": 2, "m": ["ab"], "unknown": 1}, "status": {"n": 1}}


@pytest.mark.slow
async def test_junk_in_a_definition_is_refused_or_its_kind_still_answers(
    session: aiohttp.ClientSession,
):
    for place, junk in spoiled(SAMPLES[CRDS]["spec"]["versions"][0]):
        definition = copy.deepcopy(SAMPLES[CRDS])
        definition["spec"]["versions"][0] = with_junk(
            definition["spec"]["versions"][0], place, junk
        )
        async with session.post(CRDS, data=json.dumps(definition)) as answer:
            assert answer.status < 500, (place, junk, await answer.text())
            if answer.status != 201:
                continue
        things = "/apis/example.com/v1/namespaces/default/things"
        for method, path, body in (
            ("POST", things, THING),
            ("GET", things, None),
            ("GET", f"{things}/t/scale", None),
            ("GET", "/openapi/v3/apis/example.com/v1", None),
        ):
            headers = {"Accept": TABLE} if path == things else {}
            async with session.request(
                method, path, data=json.dumps(body) if body else None, headers=headers
            ) as answer:
                assert answer.status < 500, (place, junk, method, path, await answer.text())
        async with session.delete(f"{CRDS}/things.example.com") as answer:
            assert answer.status == 200
        async with asyncio.timeout(5):
            while True:
                async with session.get(f"{CRDS}/things.example.com") as answer:
                    if answer.status == 404:
                        break
