"""Owned objects of a job: created, updated, deleted; never changed if upstream created them."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from gangline.api.meta.objects import ObjectMeta
from gangline.operator.engine.manifests import CONTENT_ANNOTATION
from gangline.operator.frameworks.pytorch import PyTorchRules
from gangline.operator.model.job import Manifest, NormalizedJob
from gangline.operator.model.plan import OwnedObject, ReconcilePlan, TargetKind
from gangline.operator.model.replicas import ReplicaGang
from unit.operator.builders import a_job, a_pod, created, deleted, has_writes, look

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "train"}}
SCALER = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "train"},
    "spec": {"maxReplicas": 3},
}
RUNNING = (a_pod("master-0"), a_pod("worker-0"))


@dataclass(frozen=True)
class WithObjects(PyTorchRules):
    """A kind that needs objects."""

    listed: tuple[Manifest, ...] = ()

    def owned_objects(self, job: NormalizedJob, gang: ReplicaGang) -> list[Manifest]:
        return list(self.listed)


def a_job_with(*objects: Manifest, **options: Any) -> NormalizedJob:
    job = a_job(1, 1, **options)
    assert isinstance(job.rules, PyTorchRules)
    return replace(job, rules=WithObjects(job.rules.spec, "", objects))


def an_extra(manifest: Manifest, **meta: Any) -> OwnedObject:
    metadata = ObjectMeta(
        name=manifest["metadata"]["name"], namespace="team", uid="uid-extra", **meta
    )
    return OwnedObject(kind=manifest["kind"], metadata=metadata)


def made(decision: ReconcilePlan) -> Manifest:
    return next(c.manifest for c in decision.creations if c.target is TargetKind.CONFIG_MAP)


def as_made(job: NormalizedJob, manifest: Manifest) -> OwnedObject:
    written = made(look(job).decide())["metadata"]
    return an_extra(manifest, annotations=written["annotations"])


def test_an_object_is_made_as_the_jobs_own_before_its_pods():
    job = a_job_with({**MAP, "data": {"key": "value"}})
    decision = look(job).decide()
    meta = made(decision)["metadata"]
    assert meta["ownerReferences"][0]["uid"] == "job-uid"
    assert meta["namespace"] == "team"
    assert meta["labels"]["training.kubeflow.org/job-name"] == "train"
    assert meta["annotations"][CONTENT_ANNOTATION]
    targets = [creation.target for creation in decision.creations]
    assert targets.index(TargetKind.CONFIG_MAP) < targets.index(TargetKind.POD)


def test_changed_content_is_written_with_its_digest():
    before = a_job_with({**MAP, "data": {"key": "old"}})
    now = a_job_with({**MAP, "data": {"key": "new"}})
    decision = look(now, *RUNNING, owned_objects=[as_made(before, MAP)]).decide()
    (patch,) = decision.patches
    written = {operation["path"]: operation["value"] for operation in patch.operations}
    assert written["/data"] == {"key": "new"}
    digest = written[f"/metadata/annotations/{CONTENT_ANNOTATION.replace('/', '~1')}"]
    assert digest == made(look(now).decide())["metadata"]["annotations"][CONTENT_ANNOTATION]


def test_an_object_that_upstream_made_is_neither_changed_nor_removed():
    theirs = an_extra(MAP)
    job = a_job_with({**MAP, "data": {}})
    assert not has_writes(look(job, *RUNNING, owned_objects=[theirs]).decide())
    assert not has_writes(look(a_job_with(), *RUNNING, owned_objects=[theirs]).decide())


def test_object_that_is_no_longer_needed_is_deleted():
    job = a_job_with({**MAP, "data": {}})
    decision = look(a_job_with(), *RUNNING, owned_objects=[as_made(job, MAP)]).decide()
    assert deleted(decision, TargetKind.CONFIG_MAP) == ["train"]


def test_suspension_takes_them_away():
    decision = look(a_job_with(MAP, suspend=True), owned_objects=[an_extra(MAP)]).decide()
    assert deleted(decision, TargetKind.CONFIG_MAP) == ["train"]
    assert not decision.creations


@pytest.mark.parametrize(("policy", "gone"), [("All", ["train"]), ("Running", []), ("None", [])])
def test_retained_pods_keep_their_objects_but_autoscaler_is_deleted(policy: str, gone: list[str]):
    job = a_job_with(MAP, SCALER, cleanPodPolicy=policy)
    ended = look(job, a_pod("master-0", "Succeeded", code=0))
    after = replace(ended.later(1), extra={"owned_objects": [an_extra(MAP), an_extra(SCALER)]})
    assert deleted(after.decide(), TargetKind.CONFIG_MAP) == gone
    assert deleted(after.decide(), TargetKind.AUTOSCALER) == ["train"]


def test_occupied_name_is_not_created():
    taken = frozenset({(TargetKind.CONFIG_MAP, "train")})
    decision = look(a_job_with(MAP), occupied=taken).decide()
    assert created(decision, TargetKind.CONFIG_MAP) == []
    assert created(decision)


def test_the_digest_does_not_depend_on_the_order_of_keys():
    one = made(look(a_job_with({**MAP, "data": {"a": "1", "b": "2"}})).decide())
    other = made(look(a_job_with({**MAP, "data": {"b": "2", "a": "1"}})).decide())
    assert one["metadata"]["annotations"] == other["metadata"]["annotations"]
    assert msgspec.json.encode(one)
