"""Which foreign and orphaned objects are adopted, and by which patch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.meta.objects import ObjectMeta, OwnerReference
from gangline.operator.engine import adoption
from gangline.operator.frameworks import mindspore, pytorch
from gangline.operator.frameworks.paddle import framework
from gangline.operator.model import labels
from gangline.operator.model.plan import TargetKind
from gangline.operator.model.replicas import ObservedPod, ObservedPodStatus
from unit.operator.builders import NOW

KINDS = {
    (kind.resource.group, kind.kind): kind
    for kind in (pytorch.KIND, framework.KIND, mindspore.KIND)
}


def controller(api_version: str, kind: str) -> OwnerReference:
    return OwnerReference(api_version=api_version, kind=kind, name="net", uid="j", controller=True)


PADDLE_OWNER = controller("batch.paddlepaddle.org/v1", "PaddleJob")
KUBEFLOW_OWNER = controller("kubeflow.org/v1", "PyTorchJob")
OLD_LABELS = {
    "group-name": "kubeflow.org",
    "job-name": "net",
    "replica-type": "worker",
    "replica-index": "2",
}


def meta(name="net-worker-2", owner=KUBEFLOW_OWNER, **fields):
    references = [owner] if owner else []
    return ObjectMeta(
        name=name,
        namespace="team",
        uid="item",
        resource_version="7",
        owner_references=references,
        **fields,
    )


def ours(controller, role="worker", index=2):
    return labels.replica_labels("net", controller, role, index)


def test_a_pod_with_old_labels_gets_ours() -> None:
    patch = adoption.label_patch(TargetKind.POD, meta(labels=OLD_LABELS), KINDS)
    assert patch == {
        "metadata": {
            "uid": "item",
            "resourceVersion": "7",
            "labels": ours("pytorchjob-controller"),
        }
    }


def test_the_old_label_of_a_master_is_kept_under_its_new_name() -> None:
    old = {**OLD_LABELS, "job-role": "master"}
    patch = adoption.label_patch(TargetKind.POD, meta("net-master-0", labels=old), KINDS)
    assert patch["metadata"]["labels"][labels.JOB_ROLE] == "master"


def test_an_old_service_comes_to_select_by_our_labels() -> None:
    """Otherwise a pod that replaces an old one would not be found under its name."""
    patch = adoption.label_patch(TargetKind.SERVICE, meta(labels=OLD_LABELS), KINDS, OLD_LABELS)
    assert patch["spec"]["selector"] == {
        **ours("pytorchjob-controller"),
        **dict.fromkeys(OLD_LABELS),
    }


@pytest.mark.parametrize("target", [TargetKind.POD, TargetKind.SERVICE])
def test_what_belongs_to_a_paddle_replica_gets_the_labels_of_its_name(target) -> None:
    seen = meta("net-ps-11", PADDLE_OWNER)
    patch = adoption.label_patch(target, seen, KINDS)
    assert patch["metadata"]["labels"] == ours("paddlejob-controller", "ps", 11)
    assert "spec" not in patch


def test_a_paddle_config_map_gets_the_labels_of_its_job() -> None:
    patch = adoption.label_patch(TargetKind.CONFIG_MAP, meta("net", PADDLE_OWNER), KINDS)
    assert patch["metadata"]["labels"] == {
        labels.JOB_NAME: "net",
        labels.OPERATOR_NAME: "paddlejob-controller",
    }


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(meta(owner=None), id="nobody's"),
        pytest.param(meta(owner=controller("apps/v1", "ReplicaSet")), id="a ReplicaSet's"),
        pytest.param(
            meta(owner=controller("kubeflow.org/v1", "PaddleJob")),
            id="a PaddleJob's of another group",
        ),
        pytest.param(meta("other-worker-2"), id="not named after the job"),
        pytest.param(meta("net-launcher"), id="without an index"),
        pytest.param(meta("net-worker--1"), id="with a strange index"),
    ],
)
def test_what_is_no_replica_of_ours_is_left_alone(seen) -> None:
    assert adoption.label_patch(TargetKind.POD, seen, KINDS) is None


@given(
    job=st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
    role=st.sampled_from(["master", "worker", "ps", "chief", "evaluator", "scheduler", "heter"]),
    index=st.integers(0, 5000),
)
def test_role_and_index_are_read_off_every_name_that_is_built(job, role, index) -> None:
    name = labels.replica_name(job, role, index)
    assert adoption.parse_replica_name(name, job) == (role, index)


def test_orphan_has_our_labels_and_no_controller() -> None:
    named = ours("pytorchjob-controller")
    user = OwnerReference(api_version="v1", kind="ConfigMap", name="x", uid="x")
    assert adoption.is_orphan(meta(owner=None, labels=named))
    assert adoption.is_orphan(meta(owner=user, labels=named))
    assert not adoption.is_orphan(meta(owner=None, labels=named, deletion_timestamp=NOW))
    assert not adoption.is_orphan(meta(labels=named))
    assert not adoption.is_orphan(meta(owner=None, labels={labels.JOB_NAME: "net"}))


def test_a_claim_keeps_the_other_owners() -> None:
    user = OwnerReference(api_version="v1", kind="ConfigMap", name="x", uid="x")
    patch = adoption.owner_patch(meta(owner=user), {"kind": "PyTorchJob", "uid": "j"})
    owners = patch["metadata"]["ownerReferences"]
    assert [owner["kind"] for owner in owners] == ["ConfigMap", "PyTorchJob"]


def test_a_running_pod_without_a_gang_joins_its_jobs() -> None:
    pod = ObservedPod(metadata=meta(labels=ours("pytorchjob-controller")))
    assert adoption.lacks_gang(pod)
    assert adoption.gang_patch(pod)["metadata"]["annotations"] == {
        labels.POD_GROUP_ANNOTATION: "net",
        labels.TASK_SPEC_ANNOTATION: "worker",
    }


def test_other_pods_stay_out_of_the_gang() -> None:
    named = ours("pytorchjob-controller")
    in_own_gang = meta(labels=named, annotations={labels.POD_GROUP_ANNOTATION: "mine"})
    ended = ObservedPodStatus(phase="Succeeded")
    assert not adoption.lacks_gang(ObservedPod(metadata=in_own_gang))
    assert not adoption.lacks_gang(ObservedPod(metadata=meta(labels=named), status=ended))
    assert not adoption.lacks_gang(ObservedPod(metadata=meta())), "no replica"
