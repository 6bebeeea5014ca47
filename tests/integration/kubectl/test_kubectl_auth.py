"""Permissions with kubectl: the answers of ``kubectl auth`` agree with what requests get."""

import re
from collections.abc import Iterator

import pytest

from integration.kubectl.tool import Kubectl

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
metadata: {name: reads-maps, namespace: %s}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reads-maps, namespace: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reads-maps}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: mapper}]
"""


@pytest.fixture
def viewed(kubectl: Kubectl) -> Iterator[Kubectl]:
    """kubectl with a user ``reader`` who may view its namespace."""
    kubectl("create rolebinding v --clusterrole=view --user=reader")
    yield kubectl
    kubectl("delete rolebinding v")


def test_can_i_answers_as_requests_are_answered(viewed: Kubectl) -> None:
    assert viewed("auth can-i create pytorchjobs").strip() == "yes"
    for question, allowed in QUESTIONS.items():
        code, output = viewed.run("auth", "can-i", *question.split(), READER)
        assert (code, output.splitlines()[-1]) == ((0, "yes") if allowed else (1, "no")), question
    assert viewed.run("get", "pods", READER)[0] == 0
    for command in ("get secrets", "get --raw /metrics", "get nodes", "delete pods anything"):
        output = viewed.refused(f"{command} {READER}")
        assert 'User "reader" cannot' in output
    assert viewed("get --raw /version", READER)


def test_can_i_lists_the_rules_of_a_user(viewed: Kubectl) -> None:
    lines = [line.split() for line in viewed("auth can-i --list", READER).splitlines()]
    resources = {line[0] for line in lines}
    assert {"pods", "pods/log", "pytorchjobs.kubeflow.org"} <= resources
    assert not {"secrets", "pods/exec"} & resources
    everything = viewed("auth can-i --list")
    assert [line.split()[0] for line in everything.splitlines()].count("*.*") == 1


def test_auth_reconcile_writes_a_role_and_its_binding(kubectl: Kubectl) -> None:
    text = BOUND_ROLE % (kubectl.namespace, kubectl.namespace)
    kubectl("auth reconcile -f -", text=text)
    output = kubectl("auth reconcile -f -", text=text)
    assert output.count("unchanged") + output.count("reconciled") >= 2
    assert kubectl("auth can-i get configmaps --as=mapper").strip() == "yes"
    assert re.search(r"configmaps +\[\] +\[\] +\[get\]", kubectl("auth can-i --list --as=mapper"))
    kubectl("delete -f -", text=text)
