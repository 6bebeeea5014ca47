"""Jobs of all kinds as records of the history."""

import hashlib
import json
from typing import Any

import msgspec
import pytest

from gangline.api.job_resources import JOB_KINDS
from gangline.brain.collection.job_digest import DigestSettings, digest_job, parse_image
from gangline.brain.facts.records import Image, Mode, Outcome, PlannedSize, RecordedJob


def digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


SETTINGS = DigestSettings(cluster="c", digest=digest)
KINDS = {kind.identity: kind for kind in JOB_KINDS}


def container(name: str = "pytorch", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "repo/train:1", "command": ["python", "train.py"], **more}


def pytorch(
    name: str = "train-1",
    *,
    replicas: int = 4,
    resources: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    command: list[str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    main = container(resources=resources or {})
    if command is not None:
        main["command"] = command
    worker = {"replicas": replicas, "template": {"spec": {"containers": [main]}}}
    return {
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-20T10:00:00Z",
            "annotations": annotations or {},
        },
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}, **spec},
    }


def elastic(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    main = container("main", command=["gangline", "run", "--nnodes=2:8", "train.py"])
    worker = {"replicas": 4, "template": {"spec": {"containers": [main]}}}
    return {
        "kind": "ElasticJob",
        "metadata": {"name": "train", "namespace": "team", "annotations": annotations or {}},
        "spec": {
            "distributionStrategy": "AllreduceStrategy",
            "replicaSpecs": {"worker": worker},
            **spec,
        },
    }


def record(manifest: dict[str, Any]) -> RecordedJob:
    return digested(manifest)[0]


def digested(manifest: dict[str, Any]) -> tuple[RecordedJob, tuple[str, ...]]:
    kind = KINDS[manifest["kind"]]
    result = digest_job(kind, msgspec.convert(manifest, kind.resource.type), SETTINGS)
    return result.job, result.problems


def test_identity_and_requests_of_a_job() -> None:
    amounts = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"nvidia.com/gpu": "8"}}
    job = record(pytorch(resources=amounts))
    assert (job.namespace, job.name, job.stem, job.kind) == (
        "team",
        "train-1",
        "train",
        "PyTorchJob",
    )
    assert job.image == Image(repository="repo/train", tag="1")
    (role,) = job.roles
    assert (role.role, role.replicas, role.gpus) == ("worker", 4, 8)
    assert (role.cpu_millis, role.memory_bytes) == (2000, 4 << 30)
    assert (job.workers_min, job.workers_max, job.workers_asked) == (4, 4, 4)
    assert job.outcome is Outcome.RUNNING


def test_absent_requests_are_not_known_and_not_zero() -> None:
    (role,) = record(pytorch()).roles
    assert (role.cpu_millis, role.memory_bytes) == (None, None)


def test_equal_commands_have_equal_digests_up_to_the_name_of_the_job() -> None:
    first = record(pytorch("train-1", command=["python", "train.py", "--out=/runs/train-1"]))
    second = record(pytorch("train-2", command=["python", "train.py", "--out=/runs/train-2"]))
    other = record(pytorch("train-3", command=["python", "other.py"]))
    assert first.command_digest == second.command_digest != other.command_digest
    assert "train.py" not in first.command_digest


def test_specification_is_the_same_with_other_memory_but_not_with_other_workers() -> None:
    first = record(pytorch(resources={"requests": {"memory": "4Gi"}}))
    smaller = record(pytorch(resources={"requests": {"memory": "2Gi"}}))
    wider = record(pytorch(replicas=8, resources={"requests": {"memory": "4Gi"}}))
    assert first.spec_digest == smaller.spec_digest != wider.spec_digest


@pytest.mark.parametrize(
    ("annotations", "spec", "mode"),
    [
        pytest.param({}, {}, Mode.ADVISE, id="nothing said"),
        pytest.param({}, {"optimizeMode": "manual"}, Mode.OFF, id="manual"),
        pytest.param({}, {"optimizeMode": "manunal"}, Mode.OFF, id="the spelling of upstream"),
        pytest.param({}, {"optimizeMode": "cluster"}, Mode.APPLY, id="cluster"),
        pytest.param({}, {"optimizeMode": "single-job"}, Mode.ADVISE, id="single-job"),
        pytest.param({"gangline.dev/brain": "apply"}, {}, Mode.APPLY, id="annotation"),
        pytest.param(
            {"gangline.dev/brain": "off"},
            {"optimizeMode": "cluster"},
            Mode.OFF,
            id="annotation first",
        ),
    ],
)
def test_mode_that_a_job_wishes(
    annotations: dict[str, str], spec: dict[str, Any], mode: Mode
) -> None:
    assert record(elastic(annotations, **spec)).wishes.mode is mode


def test_mistaken_wishes_are_named_and_allow_nothing_more() -> None:
    job, problems = digested(
        elastic(
            {
                "gangline.dev/brain": "yes",
                "gangline.dev/brain-may": "workers,everything",
                "gangline.dev/brain-max-global-batch": "-4",
                "gangline.dev/brain-learning-rate": "cubic",
            },
            optimizeMode="cluster",
        )
    )
    assert job.wishes.mode is Mode.ADVISE
    assert job.wishes.may == {"workers"}
    assert job.wishes.max_global_batch is None
    assert job.wishes.learning_rate_rule == ""
    assert [problem.partition(":")[0] for problem in problems] == [
        "gangline.dev/brain",
        "gangline.dev/brain-max-global-batch",
        "gangline.dev/brain-learning-rate",
        "gangline.dev/brain-may",
    ]


def test_auto_scale_false_withdraws_the_fields_of_its_role() -> None:
    manifest = elastic()
    manifest["spec"]["replicaSpecs"]["worker"]["autoScale"] = False
    wishes = record(manifest).wishes
    assert wishes.may is not None
    assert not wishes.may & {"workers", "memory", "cpu"}
    assert "checkpoints" in wishes.may
    # To forbid some fields is not to consent to the others.
    assert not wishes.named
    manifest["metadata"].setdefault("annotations", {})["gangline.dev/brain-may"] = "memory, ps"
    wishes = record(manifest).wishes
    assert (wishes.may, wishes.named) == ({"ps"}, {"memory", "ps"})


def test_what_plans_have_set_is_known_beside_the_specification() -> None:
    job = record(elastic() | {"status": {"roles": {"worker": {
        "resources": {"memory": "2Gi", "cpu": "a lot"},
        "nodes": {"1": {"resources": {"cpu": "3"}}, "2": {"memory": "8Gi"}},
    }, "dlrover-master": {}}}})  # fmt: skip
    assert job.planned == (
        PlannedSize(role="worker", memory_bytes=2 << 30),
        PlannedSize(role="worker", rank=1, cpu_millis=3000),
    )
    assert [size.memory_bytes for size in job.roles] == [None]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--nnodes=2:3", "--node-unit=2"], (2, 2, 3)),
        (["--nnodes", "3:8", "--node_unit", "4"], (4, 4, 8)),
        (["--nnodes=2:8", "--rdzv-conf", "timeout=60,node_unit=2"], (2, 2, 8)),
        (["--nnodes=2:8"], (1, 2, 8)),
    ],
)
def test_workers_are_counted_in_node_units(
    arguments: list[str], expected: tuple[int, int, int]
) -> None:
    main = container("main", command=["gangline", "run", *arguments, "train.py"])
    worker = {"replicas": 2, "template": {"spec": {"containers": [main]}}}
    job = record(elastic(replicaSpecs={"worker": worker}))
    assert (job.unit, job.workers_min, job.workers_max) == expected


def test_range_of_workers_comes_from_nnodes_or_the_elastic_policy() -> None:
    job = record(elastic())
    assert (job.workers_min, job.workers_max, job.workers_asked) == (2, 8, 4)
    policy = {"minReplicas": 1, "maxReplicas": 6}
    job = record(pytorch(elasticPolicy=policy))
    assert (job.workers_min, job.workers_max) == (1, 6)


@pytest.mark.parametrize(
    ("written", "image"),
    [
        ("train", Image(repository="train")),
        ("repo/train:1", Image(repository="repo/train", tag="1")),
        ("reg:5000/repo/train", Image(repository="reg:5000/repo/train")),
        (
            "reg:5000/a@sha256:0123456789abcdef",
            Image(repository="reg:5000/a", digest="sha256:0123456789abcdef"),
        ),
        (
            "a:1@sha256:0123456789abcdef",
            Image(repository="a", tag="1", digest="sha256:0123456789abcdef"),
        ),
    ],
)
def test_parts_of_an_image(written: str, image: Image) -> None:
    assert parse_image(written) == image


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_can_be_digested_with_an_empty_specification(kind: str) -> None:
    job = record({"kind": kind, "metadata": {"name": "a", "namespace": "b"}, "spec": {}})
    assert job.kind == kind
    assert job.roles == ()
    assert job.workers_asked is None
