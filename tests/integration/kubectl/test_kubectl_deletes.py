"""kubectl delete: grace, force, selection, and dependents."""

import pytest

from integration.kubectl.manifests import CONFIG, deployment, pod
from integration.kubectl.tool import Kubectl, until

STUBBORN = 'trap "" TERM; while :; do sleep 0.2; done'


def names(kubectl: Kubectl, kinds: str, name: str) -> list[str]:
    return kubectl(f"get {kinds} -l app={name} -o name").split()


@pytest.mark.parametrize("policy", ["background", "foreground"])
def test_dependents_go_with_their_owner(kubectl: Kubectl, policy: str) -> None:
    name = f"goes-{policy}"
    kubectl("create -f -", text=deployment(name))
    kubectl(f"rollout status deployment/{name} --timeout=40s")
    kubectl(f"delete deployment {name} --cascade={policy}")
    left = names(kubectl, "deployment,replicaset,pod", name)
    assert policy == "background" or left == [], "in the foreground the owner is the last to go"
    until(lambda: not names(kubectl, "deployment,replicaset,pod", name))


def test_orphans_stay(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=deployment("parent"))
    kubectl("rollout status deployment/parent --timeout=40s")
    kubectl("delete deployment parent --cascade=orphan")
    (left,) = names(kubectl, "replicaset", "parent")
    assert kubectl.field(left, ".metadata.ownerReferences") == ""
    assert len(names(kubectl, "pod", "parent")) == 1
    kubectl("delete replicaset,pod -l app=parent")


def test_a_pod_has_its_time_to_end(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=pod("ends", STUBBORN))
    kubectl("wait pod/ends --for=condition=Ready --timeout=40s")
    kubectl("delete pod ends --grace-period=40 --wait=false")
    assert kubectl.field("pod ends", ".metadata.deletionGracePeriodSeconds") == "40"
    assert "Terminating" in kubectl("get pod ends")
    kubectl("delete pod ends --now")
    assert "NotFound" in kubectl.refused("get pod ends")


def test_force_does_not_wait_for_the_node(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=pod("forced", STUBBORN))
    kubectl("wait pod/forced --for=condition=Ready --timeout=40s")
    kubectl("delete pod forced --force --grace-period=0")
    assert "NotFound" in kubectl.refused("get pod forced")


def test_many_by_selector_by_file_and_all(kubectl: Kubectl) -> None:
    for name in ("one", "two", "three"):
        kubectl("create -f -", text=CONFIG % (name, "red"))
    kubectl("label configmap one two group=few")
    assert "one" in kubectl("delete configmap -l group=few")
    assert "NotFound" in kubectl.refused("get configmap two")
    kubectl("delete -f -", text=CONFIG % ("three", "red"))
    kubectl("create -f -", text=CONFIG % ("four", "red"))
    assert "four" in kubectl("delete configmap --all")
    assert "NotFound" in kubectl.refused("delete configmap four")
    assert kubectl("delete configmap four --ignore-not-found") == ""
    # The objects that each namespace gets are created again.
    until(lambda: kubectl.run("get", "configmap", "kube-root-ca.crt")[0] == 0)


def test_namespace_is_deleted_with_its_objects(kubectl: Kubectl) -> None:
    name = f"{kubectl.namespace}-doomed"
    kubectl(f"create namespace {name}")
    until(lambda: kubectl.run("get", "serviceaccount", "default", "-n", name)[0] == 0)
    kubectl(f"create configmap settings -n {name}")
    kubectl(f"create -n {name} -f -", text=pod("inside", "sleep 1000"))
    kubectl(f"delete namespace {name}")
    assert "NotFound" in kubectl.refused(f"get namespace {name}")
    assert "No resources found" in kubectl(f"get pods,configmaps -n {name}")
