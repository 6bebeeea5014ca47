"""Nodes with kubectl: cordon, drain, taint."""

import re
from collections.abc import Iterator

import pytest

from integration.kubectl.manifests import deployment, pod
from integration.kubectl.tool import Kubectl

NODE = "node-3"
HERE = f"{{kubernetes.io/hostname: {NODE}}}"
BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guarded}
spec: {minAvailable: 1, selector: {matchLabels: {app: guarded}}}
"""


@pytest.fixture
def node(kubectl: Kubectl) -> Iterator[str]:
    """A node that is schedulable again after the test."""
    yield NODE
    kubectl(f"uncordon {NODE}")


def test_a_cordoned_node_takes_no_new_pods(kubectl: Kubectl, node: str) -> None:
    kubectl(f"cordon {node}")
    assert re.search(rf"^{node} +Ready,SchedulingDisabled", kubectl("get nodes"), re.MULTILINE)
    kubectl("create -f -", text=pod("shut-out", "true", nodeSelector=HERE, restartPolicy="Never"))
    reason = '.status.conditions[?(@.type=="PodScheduled")].reason'
    kubectl.until("pod shut-out", reason, "Unschedulable")
    kubectl(f"uncordon {node}")
    kubectl.until("pod shut-out", ".status.phase", "Succeeded")
    kubectl("delete pod shut-out")


def test_drain_asks_before_it_loses_something(kubectl: Kubectl, node: str) -> None:
    volume = "[{name: scratch, emptyDir: {}}]"
    text = pod("keeps", "sleep 1000", nodeSelector=HERE, volumes=volume)
    kubectl("create -f -", text=text)
    kubectl("wait pod/keeps --for=condition=Ready --timeout=40s")
    assert "--delete-emptydir-data" in kubectl.refused(f"drain {node} --timeout=30s --force")
    output = kubectl.refused(f"drain {node} --timeout=30s --delete-emptydir-data")
    assert "--force" in output
    drain = f"drain {node} --force --ignore-daemonsets --delete-emptydir-data --timeout=50s"
    assert "evicted" in kubectl(drain)
    assert "NotFound" in kubectl.refused("get pod keeps")
    assert "NotFound" in kubectl.refused("drain node-none")


def test_drain_heeds_a_disruption_budget(kubectl: Kubectl, node: str) -> None:
    kubectl("create -f -", text=f"{deployment('guarded', 1, HERE)}---{BUDGET}")
    kubectl("rollout status deployment/guarded --timeout=40s")
    kubectl.until("pdb guarded", ".status.currentHealthy", "1")
    output = kubectl.refused(f"drain {node} --timeout=2s")
    assert "it would violate the pod's disruption budget" in output
    kubectl('patch pdb guarded --type=merge -p {"spec":{"minAvailable":0}}')
    kubectl.until("pdb guarded", ".status.disruptionsAllowed", "1")
    assert "evicted" in kubectl(f"drain {node} --timeout=50s")
    kubectl("delete deployment/guarded pdb/guarded")


def test_taint(kubectl: Kubectl) -> None:
    kubectl(f"taint node {NODE} team=a:NoSchedule")
    assert "team=a:NoSchedule" in kubectl(f"describe node {NODE}")
    assert "already has" in kubectl.refused(f"taint node {NODE} team=a:NoSchedule")
    kubectl(f"taint node {NODE} team=b:NoSchedule --overwrite")
    kubectl(f"taint node {NODE} team-")
    assert "team=" not in kubectl(f"describe node {NODE}")
