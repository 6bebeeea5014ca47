"""Deployments and jobs with kubectl: scale, rollout, set, autoscale, run, expose."""

import re

from integration.kubectl.manifests import JOB, WITH_SIDECAR, deployment
from integration.kubectl.tool import Kubectl, until


def test_scale_a_deployment(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=deployment("grows"))
    kubectl("scale deployment grows --replicas=3")
    kubectl("rollout status deployment/grows --timeout=40s")
    assert kubectl.field("deployment grows", ".status.readyReplicas") == "3"
    output = kubectl.refused("scale deployment grows --current-replicas=9 --replicas=1")
    assert "Expected replicas to be 9, was 3" in output
    kubectl("scale deployment grows --replicas=0")
    until(lambda: kubectl("get pods -l app=grows -o name") == "")
    kubectl("delete deployment grows")


def test_scale_a_job(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=JOB.replace("name: train", "name: elastic"))
    kubectl("wait pytorchjob/elastic --for=condition=Running --timeout=40s")
    kubectl("scale pytorchjob elastic --replicas=2")
    workers = "training.kubeflow.org/job-name=elastic,training.kubeflow.org/replica-type=worker"
    until(lambda: len(kubectl(f"get pods -l {workers} -o name").split()) == 2)
    kubectl("scale pytorchjob elastic --replicas=1")
    until(lambda: len(kubectl(f"get pods -l {workers} -o name").split()) == 1)
    assert kubectl.field("pytorchjob elastic", ".spec.pytorchReplicaSpecs.Worker.replicas") == "1"
    kubectl("delete pytorchjob elastic")


def test_rollout(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=deployment("rolls"))
    kubectl("rollout status deployment/rolls --timeout=40s")
    kubectl("set image deployment/rolls main=busybox:2")
    output = kubectl("rollout status deployment/rolls --timeout=40s")
    assert "successfully rolled out" in output
    kubectl("rollout restart deployment/rolls")
    kubectl("rollout status deployment/rolls --timeout=40s")
    history = kubectl("rollout history deployment/rolls")
    assert re.findall(r"^(\d+) +<none>", history, re.MULTILINE) == ["1", "2", "3"]
    assert "busybox:1" in kubectl("rollout history deployment/rolls --revision=1")
    kubectl("rollout undo deployment/rolls --to-revision=1")
    kubectl("rollout status deployment/rolls --timeout=40s")
    image = ".spec.template.spec.containers[0].image"
    assert kubectl.field("deployment rolls", image) == "busybox:1"
    kubectl("rollout pause deployment/rolls")
    assert kubectl.field("deployment rolls", ".spec.paused") == "true"
    kubectl("rollout resume deployment/rolls")
    kubectl("delete deployment rolls")


def test_autoscale_brings_replicas_into_bounds(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=deployment("alone", replicas=0))
    kubectl("autoscale deployment alone --min=2 --max=3 --cpu-percent=70")
    assert re.search(r"^alone +Deployment/alone +\S.*<unknown>/70% +2 +3", kubectl("get hpa"), re.M)
    why = ".status.conditions[0].reason"
    until(
        lambda: (
            kubectl.field("horizontalpodautoscalers.v2.autoscaling alone", why) == "ScalingDisabled"
        )
    )
    kubectl("scale deployment alone --replicas=1")
    until(lambda: kubectl.field("deployment alone", ".spec.replicas") == "2")
    kubectl("delete deployment/alone hpa/alone")


def test_run_and_expose(kubectl: Kubectl) -> None:
    kubectl("run single --image=busybox:1 --port=8080 --command -- sleep 1000")
    kubectl("wait pod/single --for=condition=Ready --timeout=40s")
    kubectl("expose pod single --port=80 --target-port=8080")
    until(lambda: re.search(r"^single +\S+:8080", kubectl("get endpoints single"), re.MULTILINE))
    kubectl("delete pod/single service/single --now")


def test_debug_copies_a_pod_with_its_sidecar(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=WITH_SIDECAR)
    command = "debug helped --copy-to=copy --container=shell --image=busybox:1 --attach=false"
    kubectl(f"{command} -- sleep 1000")
    if not kubectl.old:  # its structs lack these fields, so that it cannot copy them
        # Without the restart policy, the sidecar would be an init container that never ends.
        kubectl("wait pod/copy --for=condition=Ready --timeout=40s")
        assert kubectl.field("pod copy", ".spec.initContainers[0].restartPolicy") == "Always"
        resize = ".spec.containers[0].resizePolicy[0].resourceName"
        assert kubectl.field("pod copy", resize) == "cpu"
    kubectl("delete pod helped copy --now")
