"""``kubectl auth`` and the RBAC commands of kubectl: its answers agree with what requests get."""

import pytest

from integration.apiserver.conftest import Kubectl

READER = "--as=reader"
QUESTIONS = {
    "list pods": True,
    "get pods --subresource=log": True,
    "watch deployments.apps": True,
    "get secrets": False,
    "create pods --subresource=exec": False,
    "get pods --subresource=exec": False,
    "create deployments.apps": False,
    "list nodes": False,
    "get /version": True,
    "get /apis/apps/v1": True,
    "get /metrics": False,
    "create selfsubjectaccessreviews.authorization.k8s.io": True,
}
BOUND_ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reads-maps, namespace: default}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reads-maps, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reads-maps}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: reader}]
"""


async def test_can_i_answers_as_requests_are_answered(kubectl: Kubectl) -> None:
    await kubectl("create rolebinding v --clusterrole=view --user=reader")
    for question, allowed in QUESTIONS.items():
        code, output = await kubectl.run("auth", "can-i", *question.split(), READER)
        assert (code, output.splitlines()[-1]) == ((0, "yes") if allowed else (1, "no")), question
    assert (await kubectl.run("get", "pods", READER))[0] == 0
    for command in ("get secrets", "get --raw /metrics", "get nodes"):
        code, output = await kubectl.run(*command.split(), READER)
        assert code == 1
        assert 'User "reader" cannot' in output
    assert await kubectl("get --raw /version", READER)


async def test_can_i_lists_the_rules_of_a_user(kubectl: Kubectl) -> None:
    await kubectl("create rolebinding v --clusterrole=view --user=reader")
    lines = [line.split() for line in (await kubectl("auth can-i --list", READER)).splitlines()]
    resources = {line[0] for line in lines}
    assert {"pods", "pods/log", "pytorchjobs.kubeflow.org"} <= resources
    assert not {"secrets", "pods/exec"} & resources
    everything = await kubectl("auth can-i --list")
    assert [line.split()[0] for line in everything.splitlines()].count("*.*") == 1


async def test_a_user_cannot_give_itself_more_by_kubectl(kubectl: Kubectl) -> None:
    await kubectl("create rolebinding a --clusterrole=admin --user=chief")
    await kubectl("create rolebinding v --clusterrole=view --user=friend", "--as=chief")
    for command in (
        "create clusterrolebinding c --clusterrole=cluster-admin --user=chief",
        "create rolebinding c --clusterrole=cluster-admin --user=chief",
        "create role r --verb=get --resource=nodes",
    ):
        code, output = await kubectl.run(*command.split(), "--as=chief")
        assert (code, "forbidden" in output) == (1, True), command
    await kubectl("create role r --verb=get --resource=configmaps", "--as=chief")


async def test_auth_reconcile_writes_a_role_and_its_binding(kubectl: Kubectl) -> None:
    await kubectl("auth reconcile -f -", text=BOUND_ROLE)
    output = await kubectl("auth reconcile -f -", text=BOUND_ROLE)
    assert output.count("unchanged") + output.count("reconciled") >= 2
    assert (await kubectl.run("auth", "can-i", "get", "configmaps", READER))[0] == 0


async def test_whoami_shows_the_impersonated_user(kubectl: Kubectl) -> None:
    if kubectl.is_old:
        pytest.skip("kubectl 1.20 has no whoami")
    output = await kubectl("auth whoami", "--as=bob", "--as-group=team", "--as-uid=7")
    fields = dict(line.split(maxsplit=1) for line in output.splitlines()[1:])
    assert fields == {
        "Username": "bob",
        "UID": "7",
        "Groups": "[team system:authenticated]",
    }
