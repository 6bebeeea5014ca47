"""The server as used by kubectl: every verb that needs no node."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gangline.local.apiserver.server import ApiServer

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "example.com/web:1", env: [{name: A, value: "1"}]}]}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {tier: %s}}
spec: {containers: [{name: main, image: "example.com/web:1"}]}
"""


async def test_get_in_every_form(kubectl: Any):
    await kubectl("create -f -", text=POD % ("a", "one"))
    await kubectl("create -f -", text=POD % ("b", "two"))
    assert "READY   STATUS    RESTARTS   AGE" in await kubectl("get pods")
    assert "NOMINATED NODE" in await kubectl("get pods -o wide")
    assert "name: a" in await kubectl("get pod a -o yaml")
    assert json.loads(await kubectl("get pod a -o json"))["metadata"]["name"] == "a"
    assert (await kubectl("get pods -o name")).split() == ["pod/a", "pod/b"]
    assert await kubectl("get pods", "-o", "jsonpath={.items[*].metadata.name}") == "a b"
    columns = "custom-columns=N:.metadata.name,P:.status.phase"
    assert (await kubectl("get pods -o", columns)).split() == ["N", "P", "a", "Pending", "b",
                                                              "Pending"]  # fmt: skip
    assert (await kubectl("get pods -l tier=two -o name")).split() == ["pod/b"]
    assert (await kubectl("get pods -l", "tier in (one)", "-o", "name")).split() == ["pod/a"]
    named = await kubectl("get pods --field-selector metadata.name=a -o name")
    assert named.split() == ["pod/a"]
    ordered = await kubectl("get pods --sort-by=.metadata.labels.tier --no-headers")
    assert [line.split()[0] for line in ordered.splitlines()] == ["a", "b"]
    assert "kube-system" in await kubectl("get namespaces --show-labels")
    assert "service/kubernetes" in await kubectl("get all")


async def test_get_watches(kubectl: Any):
    await kubectl("create -f -", text=POD % ("a", "one"))
    watching = asyncio.create_task(
        kubectl.run("get", "pods", "-w", "-o", "name", "--request-timeout=4s")
    )
    for _ in range(20):
        await kubectl("label pod a --overwrite", f"turn={_}")
        if watching.done():
            break
    _, output = await watching
    assert output.count("pod/a") > 1


async def test_get_says_what_is_not_there(kubectl: Any):
    code, output = await kubectl.run("get", "pod", "none")
    assert code == 1
    assert 'Error from server (NotFound): pods "none" not found' in output
    code, output = await kubectl.run("get", "gadgets")
    assert code == 1
    assert "the server doesn't have a resource type" in output


async def test_describe(kubectl: Any):
    await kubectl("apply -f -", text=DEPLOYMENT)
    await kubectl("create -f -", text=POD % ("a", "one"))
    assert "example.com/web:1" in await kubectl("describe pod a")
    assert "2 desired" in await kubectl("describe deployment web")
    assert "Type:" in await kubectl("describe service kubernetes")
    assert "Active" in await kubectl("describe namespace default")


async def test_apply_twice_and_with_a_change(kubectl: Any):
    assert "web created" in await kubectl("apply -f -", text=DEPLOYMENT)
    assert "web unchanged" in await kubectl("apply -f -", text=DEPLOYMENT)
    changed = DEPLOYMENT.replace('"1"', '"2"')
    assert "web configured" in await kubectl("apply -f -", text=changed)
    value = "jsonpath={.spec.template.spec.containers[0].env[0].value}"
    assert await kubectl("get deployment web -o", value) == "2"


async def test_apply_on_the_server_and_its_conflict(kubectl: Any):
    await kubectl("apply --server-side -f -", text=DEPLOYMENT)
    changed = DEPLOYMENT.replace('"1"', '"2"')
    code, output = await kubectl.run(
        "apply", "--server-side", "--field-manager=other", "-f", "-", text=changed
    )
    assert code == 1
    assert 'conflict with "kubectl"' in output
    await kubectl("apply --server-side --field-manager=other --force-conflicts -f -", text=changed)
    value = "jsonpath={.spec.template.spec.containers[0].env[0].value}"
    assert await kubectl("get deployment web -o", value) == "2"


async def test_diff_shows_what_would_change_and_changes_nothing(kubectl: Any):
    await kubectl("apply -f -", text=DEPLOYMENT)
    code, output = await kubectl.run("diff", "-f", "-", text=DEPLOYMENT)
    assert (code, output) == (0, "")
    changed = DEPLOYMENT.replace("replicas: 2", "replicas: 5")
    code, output = await kubectl.run("diff", "-f", "-", text=changed)
    assert code == 1
    assert "+  replicas: 5" in output
    assert await kubectl("get deployment web -o", "jsonpath={.spec.replicas}") == "2"


async def test_edit(kubectl: Any, tmp_path: Path):
    await kubectl("apply -f -", text=DEPLOYMENT)
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/replicas: 2/replicas: 4/' \"$1\"\n")
    editor.chmod(0o755)
    assert "edited" in await kubectl("edit deployment web", editor=str(editor))
    assert await kubectl("get deployment web -o", "jsonpath={.spec.replicas}") == "4"


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("json", '[{"op":"replace","path":"/spec/replicas","value":3}]'),
        ("merge", '{"spec":{"replicas":3}}'),
        ("strategic", '{"spec":{"replicas":3,"template":{"spec":{"containers":'
                      '[{"name":"main","env":[{"name":"B","value":"2"}]}]}}}}'),
    ],
)  # fmt: skip
async def test_patch(kubectl: Any, kind: str, patch: str):
    await kubectl("apply -f -", text=DEPLOYMENT)
    await kubectl("patch deployment web --type", kind, "-p", patch)
    stored = json.loads(await kubectl("get deployment web -o json"))
    assert stored["spec"]["replicas"] == 3
    names = [v["name"] for v in stored["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert sorted(names) == (["A", "B"] if kind == "strategic" else ["A"])


async def test_replace(kubectl: Any):
    await kubectl("create -f -", text=DEPLOYMENT)
    changed = DEPLOYMENT.replace("replicas: 2", "replicas: 6")
    assert "replaced" in await kubectl("replace -f -", text=changed)
    assert await kubectl("get deployment web -o", "jsonpath={.spec.replicas}") == "6"
    code, output = await kubectl.run(
        "replace", "-f", "-", text=changed.replace("name: web", "name: none")
    )
    assert code == 1
    assert "NotFound" in output


async def test_label_annotate_and_scale(kubectl: Any):
    await kubectl("apply -f -", text=DEPLOYMENT)
    await kubectl("label deployment web colour=blue")
    code, output = await kubectl.run("label", "deployment", "web", "colour=red")
    assert code == 1
    assert "overwrite" in output
    await kubectl("annotate deployment web", "note=with spaces")
    await kubectl("scale deployment web --replicas=7 --current-replicas=2")
    stored = json.loads(await kubectl("get deployment web -o json"))
    assert stored["metadata"]["labels"]["colour"] == "blue"
    assert stored["metadata"]["annotations"]["note"] == "with spaces"
    assert stored["spec"]["replicas"] == 7
    assert stored["metadata"]["generation"] == 2


@pytest.mark.parametrize("policy", ["background", "orphan", "foreground"])
async def test_delete_with_each_policy(kubectl: Any, policy: str):
    await kubectl("apply -f -", text=DEPLOYMENT)
    await kubectl(f"delete deployment web --wait=false --cascade={policy}")
    code, output = await kubectl.run("get", "deployment", "web", "-o", "json")
    if policy == "background":
        assert code == 1
    else:  # the garbage collector would go on from here
        expected = {"orphan": "orphan", "foreground": "foregroundDeletion"}[policy]
        assert json.loads(output)["metadata"]["finalizers"] == [expected]


async def test_delete_with_grace_waits_for_the_node(kubectl: Any):
    on_node = (POD % ("a", "one")).replace("spec: {", "spec: {nodeName: n1, ")
    await kubectl("create -f -", text=on_node)
    await kubectl("delete pod a --wait=false --grace-period=11")
    stored = json.loads(await kubectl("get pod a -o json"))
    assert stored["metadata"]["deletionGracePeriodSeconds"] == 11
    assert "Terminating" in await kubectl("get pod a")
    await kubectl("delete pod a --grace-period=0 --force")
    assert (await kubectl("get pods -o name")) == ""


async def test_wait(kubectl: Any, api_server: ApiServer):
    await kubectl("create -f -", text=POD % ("a", "one"))
    waiting = asyncio.create_task(kubectl("wait pod/a --for=delete --timeout=20s"))
    async with asyncio.timeout(20):
        while not api_server.broadcasts.count():
            await asyncio.sleep(0.02)
    await kubectl("delete pod a --wait=false")
    await waiting
    code, output = await kubectl.run("wait", "pod/none", "--for=condition=Ready", "--timeout=1s")
    assert code == 1
    assert "NotFound" in output


async def test_explain_and_api_resources(kubectl: Any):
    assert "containers" in await kubectl("explain pod.spec")
    assert "replicas" in await kubectl("explain deployment.spec")
    listed = await kubectl("api-resources")
    assert "deployments" in listed
    assert "customresourcedefinitions" in listed
    assert "apps/v1" in await kubectl("api-versions")
    assert "v1.31" in await kubectl("version")


async def test_cordon_and_drain(kubectl: Any):
    await kubectl("create -f -", text="apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n")
    await kubectl(
        "create -f -", text=(POD % ("a", "one")).replace("spec: {", "spec: {nodeName: n1, ")
    )
    await kubectl("patch pod a --type=merge -p", '{"metadata":{"finalizers":null}}')
    await kubectl("cordon n1")
    assert "SchedulingDisabled" in await kubectl("get node n1")
    code, output = await kubectl.run("drain", "n1", "--force", "--grace-period=0", "--timeout=20s")
    assert code == 0, output
    assert (await kubectl("get pods -o name")) == ""
    await kubectl("uncordon n1")


async def test_auth_can_i(kubectl: Any):
    assert (await kubectl("auth can-i create deployments")).strip() == "yes"
    code, output = await kubectl.run(
        "auth", "can-i", "delete", "pods", "--as=somebody", "--as-group=nobodies"
    )
    assert code == 1
    assert output.strip().splitlines()[-1].startswith("no")
    assert "*.*" in await kubectl("auth can-i --list")


async def test_create_by_command(kubectl: Any):
    await kubectl("create namespace team")
    await kubectl("create configmap settings --from-literal=a=1 -n team")
    await kubectl("create secret generic keys --from-literal=k=v -n team")
    await kubectl("create deployment web --image=example.com/web:1 -n team")
    await kubectl("expose deployment web --port=80 -n team")
    await kubectl("create role reader --verb=get --resource=pods -n team")
    await kubectl("create rolebinding reads --role=reader --user=ann -n team")
    await kubectl("create serviceaccount robot -n team")
    await kubectl("run one --image=example.com/web:1 -n team")
    assert "reader" in await kubectl("get roles -n team")
    assert (await kubectl("auth can-i get pods -n team --as=ann")).strip() == "yes"


async def test_misspelt_fields_are_refused_by_name(kubectl: Any):
    wrong = (POD % ("a", "one")).replace("image:", "imagee:")
    code, output = await kubectl.run("apply", "-f", "-", text=wrong)
    assert code == 1
    assert 'unknown field "' in output
    assert "imagee" in output
