"""Errors and warnings for ElasticJobs and ScalePlans, each with its field."""

from typing import Any

import pytest

from gangline.api.jobs.elastic import (
    parse_critical_ranks,
    parse_node_range,
    parse_priority_fraction,
    priority_class,
)
from gangline.api.validation.validate import check_manifest, validate_manifest

API = "elastic.iml.github.io/v1alpha1"


def replica(count: int | None = 2, command: str = "run", **fields: Any) -> dict[str, Any]:
    containers = fields.pop("containers", None)
    main = {"name": "main", "image": "x", "command": [command]}
    template = {"spec": {"containers": containers or [main]}}
    return {"template": template, **({} if count is None else {"replicas": count}), **fields}


def job(roles: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": "train", **spec.pop("meta", {})}
    roles = {"worker": replica()} if roles is None else roles
    strategy = {"distributionStrategy": "AllreduceStrategy"}
    return {
        "apiVersion": API,
        "kind": "ElasticJob",
        "metadata": meta,
        "spec": {**strategy, "replicaSpecs": roles, **spec},
    }


def plan(**spec: Any) -> dict[str, Any]:
    owned = {"ownerJob": "train", **spec}
    return {"apiVersion": API, "kind": "ScalePlan", "metadata": {"name": "p"}, "spec": owned}


def test_every_optional_field_may_be_missing() -> None:
    master = {"template": {"spec": {"containers": [{"name": "main", "command": ["run"]}]}}}
    assert validate_manifest(job({"worker": replica(), "dlrover-master": master})) == []
    assert validate_manifest(job({"worker": replica(None)})) == []


@pytest.mark.parametrize(
    ("written", "path", "text"),
    [
        (job({}), "spec.replicaSpecs", "is missing"),
        (job({"wroker": replica()}), "spec.replicaSpecs.wroker", "did you mean 'worker'?"),
        (job({"master": {}}), "spec.replicaSpecs", "no role that trains"),
        (job({"worker": replica(0)}), "spec.replicaSpecs.worker.replicas", "without pods"),
        (
            job({"worker": replica(), "master": {"replicas": 2}}),
            "spec.replicaSpecs.master.replicas",
            "is not 1",
        ),
        (
            job({"worker": replica(), "master": {}, "dlrover-master": {}}),
            "spec.replicaSpecs.master",
            "means the same",
        ),
        (
            job({"worker": replica(), "ps": replica()}),
            "spec.replicaSpecs.ps",
            "not used by AllreduceStrategy",
        ),
        (
            job({"worker": replica(2, "dlrover-run --nnodes=3:5 x")}),
            "spec.replicaSpecs.worker.replicas",
            "less than the minimum of --nnodes, 3",
        ),
        (
            job({"worker": replica(2, "dlrover-run --nnodes=5:3 x")}),
            "spec.replicaSpecs.worker.template",
            "--nnodes 5:3",
        ),
        (
            job(meta={"annotations": {"pending_timeout": "soon"}}),
            "metadata.annotations.pending_timeout",
            "is not a number of seconds",
        ),
        (
            job(meta={"annotations": {"pending_fail_strategy": "3"}}),
            "metadata.annotations.pending_fail_strategy",
            "is not allowed",
        ),
        (
            job(meta={"annotations": {"gangline.dev/nodes": "many"}}),
            "metadata.annotations[gangline.dev/nodes]",
            "not a node range",
        ),
        (
            job({"worker": replica(priority="1.5")}),
            "spec.replicaSpecs.worker.priority",
            "is not a fraction",
        ),
        (
            job({"worker": replica(priority="Very High")}),
            "spec.replicaSpecs.worker.priority",
            "is not a DNS name",
        ),
        (
            job({"worker": replica(criticalNodes="first")}),
            "spec.replicaSpecs.worker.criticalNodes",
            "is not a list of ranks",
        ),
        (
            job({"worker": replica(2, criticalNodes="2:1")}),
            "spec.replicaSpecs.worker.criticalNodes",
            "has rank 2",
        ),
        (
            job({"worker": replica(restartCount=-1)}),
            "spec.replicaSpecs.worker.restartCount",
            "",
        ),
        (
            job({"worker": replica(containers=[{"name": n, "image": "x"} for n in "ab"])}),
            "spec.replicaSpecs.worker.template.spec.containers",
            "none is named 'main'",
        ),
        (job(resourceLimits={"memory": "10 Gi"}), "spec.resourceLimits.memory", "has spaces"),
        (job(distributionStrategy="Ring"), "spec.distributionStrategy", ""),
        (job(optimizeMode="magic"), "spec.optimizeMode", ""),
        (job(meta={"name": "a" * 50}), "metadata.name", "is too long"),
        (job(meta={"name": "a" * 39}), "metadata.name", "at most 37 characters"),
    ],
)
def test_a_mistake_is_named_with_its_field(written: dict, path: str, text: str) -> None:
    errors = validate_manifest(written)
    assert [error.path for error in errors] == [path], list(map(str, errors))
    assert text in str(errors[0])


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (job({"Worker": replica()}), "spec.replicaSpecs.Worker"),
        (job(enableDynamicSharding=True), "spec.enableDynamicSharding"),
        (
            job(meta={"annotations": {"service_type": "grpc"}}),
            "metadata.annotations.service_type",
        ),
        (job({"worker": replica(4, "--nnodes=1:2")}), "spec.replicaSpecs.worker.replicas"),
        (job(distributionStrategy=""), "spec.distributionStrategy"),
        (
            job({"worker": replica(batchScheduler="volcano")}),
            "spec.replicaSpecs.worker.batchScheduler",
        ),
        (
            job(
                {
                    "worker": replica(
                        containers=[
                            {
                                "name": "main",
                                "image": "x",
                                "env": [{"name": "NODE_RANK", "value": "0"}],
                            }
                        ]
                    )
                }
            ),
            "spec.replicaSpecs.worker.template.spec.containers[0].env[0]",
        ),
    ],
)
def test_what_is_hardly_meant_is_a_warning_only(written: dict, path: str) -> None:
    assert validate_manifest(written) == []
    assert path in [warning.path for warning in check_manifest(written).warnings]


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (plan(), "spec"),
        (plan(ownerJob="", psHosts=["a:1"]), "spec.ownerJob"),
        (
            plan(replicaResourceSpecs={"wroker": {"replicas": 1}}),
            "spec.replicaResourceSpecs.wroker",
        ),
        (
            plan(replicaResourceSpecs={"worker": {"resource": {"memory": "x"}}}),
            "spec.replicaResourceSpecs.worker.resource.memory",
        ),
        (
            plan(replicaResourceSpecs={"worker": {"resource": {"cpus": "2"}}}),
            "spec.replicaResourceSpecs.worker.resource.cpus",
        ),
        (
            plan(migratePods=[{"name": "x", "resource": {"Memory": "2Gi"}}]),
            "spec.migratePods[0].resource.Memory",
        ),
        (
            plan(replicaResourceSpecs={"worker": {"replicas": -1}}),
            "spec.replicaResourceSpecs.worker.replicas",
        ),
        (plan(removePods=[{"type": "worker"}]), "spec.removePods[0]"),
        (plan(migratePods=[{"name": "x", "type": "master"}]), "spec.migratePods[0].type"),
        (plan(psHosts=["nowhere"]), "spec.psHosts[0]"),
    ],
)
def test_a_plans_mistakes_are_named_with_their_field(written: dict, path: str) -> None:
    assert [error.path for error in validate_manifest(written)] == [path]


@pytest.mark.parametrize(
    ("phase", "paths"), [("", []), ("Pending", []), ("Scaling", ["spec"]), ("Failed", ["spec"])]
)
def test_a_plan_that_has_been_carried_out_cannot_be_changed(phase: str, paths: list) -> None:
    old = {**plan(replicaResourceSpecs={"worker": {"replicas": 3}}), "status": {"phase": phase}}
    new = {**old, **plan(replicaResourceSpecs={"worker": {"replicas": 4}})}
    assert [error.path for error in validate_manifest(new, old=old)] == paths
    labelled = {**old, "metadata": {"name": "p", "labels": {"team": "a"}}}
    assert validate_manifest(labelled, old=old) == []


def test_an_unknown_resource_of_a_plan_is_refused_with_those_that_are_known() -> None:
    misspelt, other = (
        str(validate_manifest(plan(replicaResourceSpecs={"worker": {"resource": {name: "1"}}}))[0])
        for name in ("cpus", "gpu")
    )
    assert "'cpus' is not the name of a resource; did you mean 'cpu'?" in misspelt
    assert "use cpu, memory, ephemeral-storage or a name with a domain" in other


def test_a_plan_without_mistakes_has_none() -> None:
    resource = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1}
    written = plan(
        replicaResourceSpecs={"worker": {"replicas": 3, "resource": resource}},
        createPods=[{"type": "worker", "rankIndex": 4}],
        removePods=[{"name": "train-edljob-worker-1"}],
        psHosts=["train-edljob-ps-0:2222"],
    )
    assert validate_manifest(written) == []


def test_the_small_languages_read_what_they_should() -> None:
    assert parse_node_range("2:8") == (2, 8)
    assert parse_node_range("4") == (4, 4)
    assert [parse_node_range(text) for text in ("", "0:2", "3:1", "a", "1:2:3")] == [None] * 5
    assert [parse_priority_fraction(text) for text in ("0.5", "1", "2", "high")] == [
        0.5,
        1.0,
        None,
        None,
    ]
    assert priority_class("0.25", 0, 4) == "high"
    assert priority_class("0.25", 1, 4) == "low"
    critical = parse_critical_ranks("0:3, 2")
    assert critical is not None
    assert (0 in critical, 1 in critical, 2 in critical) == (True, False, True)
    assert parse_critical_ranks("0-2") is None
