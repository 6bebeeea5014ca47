"""Reads of a running cluster with kubectl: get, describe, explain, discovery, top."""

import json
import re

import pytest

from integration.kubectl.manifests import pod
from integration.kubectl.tool import Kubectl, until


def test_get_prints_tables_of_what_runs(web: Kubectl, talker: Kubectl) -> None:
    output = web("get pods")
    assert re.match(r"NAME +READY +STATUS +RESTARTS +AGE\n", output)
    assert re.search(r"^talker +2/2 +Running +0", output, re.MULTILINE)
    wide = web("get pods -o wide")
    assert re.search(r"^talker .* \d+\.\d+\.\d+\.\d+ +node-\d", wide, re.MULTILINE)
    assert re.search(r"deployment.apps/web +2/2 +2 +2", web("get all"))
    assert re.search(r"^node-1 +Ready", web("get nodes -o wide"), re.MULTILINE)


def test_get_prints_tables_of_other_kinds(job: Kubectl) -> None:
    assert re.search(r"^train +Running", job("get pytorchjobs"), re.MULTILINE)
    assert re.search(r"^room +Bound +pvc-\S+ +1Gi +RWO", job("get pvc"), re.MULTILINE)
    assert "train-master-0" in job("get endpoints,services")
    assert re.search(rf"{job.namespace} +pod/train-master-0", job("get all -A"))
    assert "SuccessfulCreatePod" in job("get events")


def test_get_selects_and_sorts(web: Kubectl, talker: Kubectl) -> None:
    assert web("get pods -l", "app in (talker)", "-o", "name") == "pod/talker\n"
    assert "talker" not in web("get pods -l", "app,app!=talker", "-o", "name")
    node = web.field("pod talker", ".spec.nodeName")
    chosen = f"metadata.name=talker,spec.nodeName={node},status.phase=Running"
    assert web("get pods -o name --field-selector", chosen) == "pod/talker\n"
    assert "field label not supported" in web.refused("get pods --field-selector colour=red")
    names = web("get pods -l app -o name --sort-by=.metadata.creationTimestamp").split()
    times = [web.field(name, ".metadata.creationTimestamp") for name in names]
    assert times == sorted(times)
    labelled = web("get pods -L app --show-labels -l app=talker")
    assert re.search(r"talker +app=talker$", labelled.strip())


def test_get_watches_a_life(talker: Kubectl) -> None:
    kubectl = talker
    with kubectl.going("get", "pods", "-w") as watching:
        watching.read_until("talker")  # From the list on nothing is missed.
        kubectl("create -f -", text=pod("mayfly", "exit 0", restartPolicy="Never"))
        watching.read_until("Completed")
        kubectl("delete pod mayfly")
    phases = re.findall(r"^mayfly +\d/1 +(\w+)", watching.output, re.MULTILINE)
    assert phases[0] == "Pending"
    assert "ContainerCreating" in phases


def test_get_says_what_is_not_there(kubectl: Kubectl) -> None:
    output = kubectl.refused("get pod nobody")
    assert 'Error from server (NotFound): pods "nobody" not found' in output
    assert "the server doesn't have a resource type" in kubectl.refused("get gadgets")
    assert "No resources found" in kubectl("get daemonsets")


@pytest.mark.parametrize(
    ("what", "texts"),
    [
        ("pod talker", ["Node: +node-", "State: +Running", "Successfully assigned", "QoS Class"]),
        ("deployment web", ["2 desired", "NewReplicaSetAvailable", "Scaled replica set"]),
        ("replicaset -l app=web", ["Controlled By: +Deployment/web", "2 Running"]),
        ("service web", [r"Endpoints: +\d+\.\d+\.\d+\.\d+:8080,", "TargetPort: +http/TCP"]),
        ("pytorchjob train", ["Pytorch Replica Specs", "PyTorchJobRunning", "SuccessfulCreatePod"]),
        ("pvc room", ["Status: +Bound", "Capacity: +1Gi"]),
        ("node node-1", ["Ready +True", "Allocatable", "Non-terminated Pods", "HolderIdentity"]),
        ("namespace default", ["Status: +Active"]),
        ("serviceaccount default", ["Name: +default"]),
    ],
)
def test_describe(web: Kubectl, talker: Kubectl, job: Kubectl, what: str, texts: list[str]) -> None:
    def missing() -> list[str]:
        output = web(f"describe {what}")
        return [word for word in texts if not re.search(word, output)]

    # Events are written after the change that they report.
    until(lambda: not missing(), lambda: (missing(), web(f"describe {what}")))


def test_explain(kubectl: Kubectl) -> None:
    assert re.search(r"containers\s+<\[\]Object>", kubectl("explain pod.spec"))
    assert re.search(r"limits\s+<map", kubectl("explain pod.spec.containers.resources"))
    assert "pytorchReplicaSpecs" in kubectl("explain pytorchjob.spec")
    assert "activeDeadlineSeconds" in kubectl("explain pytorchjob.spec.runPolicy")
    deep = kubectl("explain pytorchjob.spec --recursive")
    assert re.search(r"restartPolicy\s+<string>", deep)
    assert re.search(r"volumeMounts\s+<\[\]Object>", deep)
    assert 'field "colour" does not exist' in kubectl.refused("explain pod.spec.colour")


def test_discovery(kubectl: Kubectl) -> None:
    listed = kubectl("api-resources")
    for plural in ("pods", "deployments", "pytorchjobs", "podgroups", "leases", "endpointslices"):
        assert re.search(rf"^{plural} ", listed, re.MULTILINE), plural
    assert "pytorchjobs.kubeflow.org" in kubectl("api-resources --api-group=kubeflow.org -o name")
    assert {"v1", "apps/v1", "kubeflow.org/v1"} <= set(kubectl("api-versions").split())
    assert "is running at" in kubectl("cluster-info")
    assert "gangline" in kubectl("version")
    assert kubectl("get --raw /healthz") == "ok"


def test_top(talker: Kubectl) -> None:
    assert re.search(r"^node-1 +\d+m +\d+% +\d+Mi +\d+%", talker("top node"), re.MULTILINE)
    until(lambda: talker.run("top", "pod", "talker")[0] == 0)
    assert re.search(r"^talker +\d+m +\d+Mi", talker("top pod"), re.MULTILINE)
    assert "first" in talker("top pod talker --containers")


KINDS_OF_ONE_NAME = """
apiVersion: batch.paddlepaddle.org/v1
kind: PaddleJob
metadata: {name: own}
spec:
  runPolicy: {suspend: true}
  worker: {replicas: 1, template: {spec: {containers: [{name: paddle, image: "train:1"}]}}}
---
apiVersion: kubeflow.org/v1
kind: PaddleJob
metadata: {name: kubeflow}
spec:
  runPolicy: {suspend: true}
  paddleReplicaSpecs:
    Worker: {template: {spec: {containers: [{name: paddle, image: "train:1"}]}}}
---
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: modern}
spec:
  runPolicy: {suspend: true}
  runLauncherAsWorker: true
  mpiReplicaSpecs:
    Launcher: {replicas: 1, template: {spec: {containers: [{name: mpi, image: "train:1"}]}}}
"""


def test_kinds_of_one_name_and_versions_of_one_kind_are_told_apart(kubectl: Kubectl) -> None:
    kubectl("apply -f -", text=KINDS_OF_ONE_NAME)
    own = "paddlejob.batch.paddlepaddle.org/own\n"
    assert kubectl("get paddlejobs -o name") == own
    assert kubectl("get pdj -o name") == own
    other = "paddlejob.kubeflow.org/kubeflow\n"
    assert kubectl("get paddlejobs.kubeflow.org -o name") == other
    assert kubectl("get kpdj -o name") == other
    for version in ("v1", "v2beta1"):
        written = json.loads(kubectl(f"get mpijobs.{version}.kubeflow.org modern -o json"))
        assert written["apiVersion"] == f"kubeflow.org/{version}"
        assert written["spec"]["runLauncherAsWorker"] is True
    assert "unchanged" in kubectl("apply -f -", text=KINDS_OF_ONE_NAME)
    kubectl("delete -f -", text=KINDS_OF_ONE_NAME)
