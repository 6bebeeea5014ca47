"""``--pod-groups kubernetes``: a job's gang is a PodGroup of ``scheduling.k8s.io``."""

from gangline.api.resources import KUBERNETES_POD_GROUPS, POD_GROUPS, PYTORCH_JOBS
from gangline.operator.settings import PodGroupKind
from integration.operator.cluster import NAMESPACE, Scene, pytorch_stage

stage = pytorch_stage


async def test_job_has_a_group_of_kubernetes_from_its_pods_to_its_end(stage: Scene) -> None:
    client = stage.client
    await stage.start_operator(pod_groups=PodGroupKind.KUBERNETES)
    await stage.submit(1, 2, schedulingPolicy={"queue": "team"})
    await stage.until_condition("Running")
    group = await client.get(KUBERNETES_POD_GROUPS, "train", NAMESPACE)
    gang = group.spec.scheduling_policy.gang
    assert gang is not None
    assert gang.min_count == 3
    assert group.metadata.annotations == {"scheduling.volcano.sh/queue-name": "team"}
    owner = group.metadata.controller
    assert owner is not None
    assert (owner.kind, owner.name) == ("PyTorchJob", "train")
    for pod in (await stage.pods()).values():
        assert pod.spec.scheduling_group is not None
        assert pod.spec.scheduling_group.pod_group_name == "train"
        assert "scheduling.k8s.io/group-name" not in pod.metadata.annotations
    await stage.until_gone(POD_GROUPS, "train")

    # A change of the number of workers changes the one field of a group that may change.
    change = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}}
    await client.patch(PYTORCH_JOBS, "train", change, NAMESPACE)

    async def has_grown() -> bool:
        found = await client.get(KUBERNETES_POD_GROUPS, "train", NAMESPACE)
        grown = found.spec.scheduling_policy.gang
        return found.metadata.uid == group.metadata.uid and bool(grown and grown.min_count == 4)

    await stage.until(has_grown, "the group counts the new worker")
    await stage.kubelets.end("train-master-0", 0)
    await stage.until_condition("Succeeded")
    await stage.until_gone(KUBERNETES_POD_GROUPS, "train")
