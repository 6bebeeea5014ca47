"""The guides state "with every field": our definitions have each field of the upstream ones."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

CRDS = Path(__file__).parents[3] / "deploy/crds"
RUN_POLICY = (
    "cleanPodPolicy ttlSecondsAfterFinished activeDeadlineSeconds backoffLimit schedulingPolicy"
)
SCHEDULING = "minAvailable queue priorityClass minResources"
REPLICA = "replicas restartPolicy template"
FIELDS = {
    "batch.paddlepaddle.org_paddlejobs": {
        "spec": "cleanPodPolicy intranet withGloo ps worker heter elastic schedulingPolicy",
        "spec.worker": "replicas requests limits template",
        "spec.schedulingPolicy": SCHEDULING,
        "status": "phase mode ps worker heter elastic startTime completionTime observedGeneration",
    },
    "mindspore.gitee.com_msjobs": {
        "spec": "runPolicy successPolicy msReplicaSpecs enableDynamicWorker",
        "spec.runPolicy": RUN_POLICY,
        "spec.runPolicy.schedulingPolicy": SCHEDULING,
        "spec.msReplicaSpecs.*": REPLICA,
        "status": "conditions replicaStatuses startTime completionTime lastReconcileTime",
    },
    "elastic.iml.github.io_elasticjobs": {
        "spec": "distributionStrategy resourceLimits optimizeMode brainService replicaSpecs envs "
        "suspend enableDynamicSharding enableElasticScheduling",
        "spec.replicaSpecs.*": f"{REPLICA} restartCount autoScale restartTimeout priority",
        "status": "phase conditions replicaStatuses startTime completionTime lastReconcileTime",
    },
    "elastic.iml.github.io_scaleplans": {
        "spec": "ownerJob replicaResourceSpecs createPods removePods migratePods psHosts",
        "spec.replicaResourceSpecs.*": "replicas resource",
        "spec.createPods[]": "name id type rankIndex service resource",
        "status": "createTime finishTime phase",
    },
    "kubeflow.org_pytorchjobs": {
        "spec": "runPolicy pytorchReplicaSpecs nprocPerNode elasticPolicy",
        "spec.runPolicy": f"{RUN_POLICY} suspend managedBy",
        "spec.runPolicy.schedulingPolicy": f"{SCHEDULING} scheduleTimeoutSeconds",
        "spec.elasticPolicy": "minReplicas maxReplicas rdzvBackend rdzvPort rdzvHost rdzvId "
        "rdzvConf standalone nProcPerNode maxRestarts metrics",
    },
    "kubeflow.org_tfjobs": {"spec": "runPolicy tfReplicaSpecs successPolicy enableDynamicWorker"},
    "kubeflow.org_mpijobs": {
        "spec": "runPolicy mpiReplicaSpecs slotsPerWorker cleanPodPolicy mainContainer"
    },
    "kubeflow.org_xgboostjobs": {"spec": "runPolicy xgbReplicaSpecs"},
    "kubeflow.org_jaxjobs": {"spec": "runPolicy jaxReplicaSpecs"},
    "kubeflow.org_paddlejobs": {
        "spec": "runPolicy paddleReplicaSpecs elasticPolicy",
        "spec.elasticPolicy": "minReplicas maxReplicas maxRestarts metrics",
    },
    "scheduling.volcano.sh_podgroups": {
        "spec": "minMember minTaskMember queue priorityClassName minResources networkTopology "
        "subGroupPolicy",
        "spec.networkTopology": "mode highestTierAllowed highestTierName",
        "spec.subGroupPolicy[]": "name networkTopology subGroupSize minSubGroups labelSelector "
        "matchLabelKeys",
        "status": "phase conditions running succeeded failed",
    },
    "scheduling.volcano.sh_queues": {
        "spec": "weight capability deserved guarantee reclaimable parent priority affinity "
        "dequeueStrategy",
        "status": "state pending inqueue running unknown completed allocated reservation",
    },
    "topology.volcano.sh_hypernodes": {
        "spec": "tier tierName members",
        "spec.members[]": "type selector",
    },
}
"""Fields of the upstream definitions: Kubeflow's training operator 1.9, ms-operator,
paddle-operator 0.3.5, DLRover 0.6.1 and Volcano of August 2026; without those of pod templates.
"""


@cache
def schemas(definition: str) -> dict[str, Any]:
    """The schema of the stored version."""
    text = (CRDS / f"{definition}.yaml").read_text(encoding="utf-8")
    (version,) = (
        each for each in yaml.load(text, yaml.CSafeLoader)["spec"]["versions"] if each["storage"]
    )
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The part of a schema at a path such as ``spec.replicaSpecs.*`` or ``spec.members[]``."""
    for part in path.replace("[]", ".[]").split("."):
        if part == "*":
            schema = schema["additionalProperties"]
        elif part == "[]":
            schema = schema["items"]
        else:
            schema = schema["properties"][part]
    return schema


@pytest.mark.parametrize(
    ("definition", "path"),
    [(definition, path) for definition, paths in FIELDS.items() for path in paths],
    ids=str,
)
def test_definition_has_every_upstream_field(definition: str, path: str) -> None:
    declared = set(at(schemas(definition), path)["properties"])
    assert set(FIELDS[definition][path].split()) <= declared
