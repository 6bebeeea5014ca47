"""Every kind of job on a cluster: the environment of its replicas, and its life cycle.

Takes 50 s: jobs of every kind end, restart, are suspended and run into their deadlines.
"""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.jobs import until
from e2e.kinds import ELASTIC, KINDS, JobKind, Part
from e2e.scenario import Scenario, condition
from gangline.api.resources import SERVICES


def kinds(*names: str) -> pytest.MarkDecorator:
    """Kinds of these names, or all; tests/integration/operator has the life of the others."""
    chosen = [kind for kind in (*KINDS, ELASTIC) if not names or kind.name in names]
    return pytest.mark.parametrize("kind", chosen, ids=lambda kind: kind.name)


different_kinds = kinds("PyTorchJob", "MPIJob.v2beta1", "PaddleJob", "ElasticJob")

TELL = "env > /shared/$(hostname).env"
FOREVER = "sleep 3600"

Environment = dict[str, str]


def told(shared: Path, pod: str) -> Environment:
    """The environment that a pod's container recorded."""
    lines = (shared / f"{pod}.env").read_text().splitlines()
    return dict(line.partition("=")[::2] for line in lines if "=" in line)


def _pytorch(found: dict[str, Environment]) -> None:
    assert found["worker-1"]["RANK"] == "2"
    assert found["worker-1"]["WORLD_SIZE"] == "3"
    assert {each["MASTER_ADDR"] for each in found.values()} == {"told-master-0"}


def _paddle(found: dict[str, Environment]) -> None:
    endpoints = {each["PADDLE_TRAINER_ENDPOINTS"] for each in found.values()}
    assert len(endpoints) == 1
    assert len(endpoints.pop().split(",")) == 2
    assert found["worker-1"]["PADDLE_TRAINER_ID"] == "1"
    assert found["worker-1"]["TRAINING_ROLE"] == "TRAINER"
    assert len(found["worker-0"]["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")) == 1


def _elastic(found: dict[str, Environment]) -> None:
    assert found["edljob-worker-1"]["NODE_RANK"] == "1"
    assert {each["NODE_NUM"] for each in found.values()} == {"2"}
    masters = {each["DLROVER_MASTER_ADDR"] for each in found.values()}
    assert masters == {"elasticjob-told-dlrover-master:50001"}


EXPECTED: dict[str, Callable[[dict[str, Environment]], None]] = {
    "PyTorchJob": _pytorch,
    "PaddleJob": _paddle,
    "ElasticJob": _elastic,
}
"""What every replica is told before it starts, once all have addresses, and of its master.

The variables of each kind are those of tests/unit/operator/frameworks.
"""


@kinds()
async def test_replicas_learn_of_each_other_and_the_job_succeeds(
    scenario: Scenario, kind: JobKind
) -> None:
    scenario = scenario.of(kind.resource)
    ranks = 1 if kind.is_mpi else 2
    await scenario.submit(
        kind.job("told", kind.usual(TELL, ranks), shared=str(scenario.shared), clean=kind.keep_pods)
    )
    assert await scenario.outcome("told") == "Succeeded"
    job = await scenario.job("told")
    assert condition(job, "Created") == "True"
    assert condition(job, "Running") in {None, "False"}
    found = {
        path.stem.removeprefix("told-"): told(scenario.shared, path.stem)
        for path in scenario.shared.glob("told-*.env")
    }
    assert found
    if kind.name in EXPECTED:
        EXPECTED[kind.name](found)


@kinds("PyTorchJob", "MPIJob")
async def test_one_failure_restarts_all_ranks_together_where_the_job_asks_for_it(
    scenario: Scenario, kind: JobKind
) -> None:
    scenario = scenario.of(kind.resource)
    ranks = 1 if kind.is_mpi else 2
    # An MPIJob's launcher pod has no number, as in mpi-operator.
    failing = "launcher" if kind.is_mpi else f"{kind.ranks.lower()}-{ranks - 1}"
    command = (
        f"echo x >> /shared/$(hostname).starts; "
        f"case $(hostname) in *-{failing}) "
        f"[ -e /shared/failed ] || {{ {until('all-run')}; touch /shared/failed; exit 3; }};; esac; "
        f"{until('finish')}"
    )
    together = {"gangline.dev/restart": "gang"}
    await scenario.submit(
        kind.job(
            "gang",
            kind.usual(command, ranks),
            shared=str(scenario.shared),
            annotations=together,
            backoffLimit=1,
        )
    )
    count = sum(part.replicas for part in kind.usual(command, ranks).values())
    before = await scenario.running("gang", count)
    scenario.let("all-run")
    after = await scenario.pods_when(
        "gang",
        lambda pods: (
            len(pods) == count
            and all(pod.status.phase == "Running" for pod in pods.values())
            and not {p.metadata.uid for p in pods.values()}
            & {p.metadata.uid for p in before.values()}
        ),
        "all replicas are new and run",
    )
    placed = {name: pod.spec.node_name for name, pod in before.items()}
    assert {name: pod.spec.node_name for name, pod in after.items()} == placed
    scenario.let("finish")
    assert await scenario.outcome("gang") == "Succeeded"
    job = await scenario.job("gang")
    assert (job.status.restarts.total, job.status.restarts.generation) == (1, 1)
    starts = {path.stem: path.read_text().count("x") for path in scenario.shared.glob("*.starts")}
    assert set(starts.values()) == {2}, starts


@different_kinds
async def test_a_failure_for_good_is_told_and_the_rest_is_cleaned_up(
    scenario: Scenario, kind: JobKind
) -> None:
    scenario = scenario.of(kind.resource)
    parts = {role: Part(FOREVER, part.replicas) for role, part in kind.usual("").items()}
    ranks = 1 if kind.is_mpi else 2
    parts[kind.ranks] = Part("exit 3", ranks, "Never")
    await scenario.submit(kind.job("doomed", parts, clean=kind.remove_pods))
    assert await scenario.outcome("doomed") == "Failed"
    failed = next(c for c in (await scenario.job("doomed")).status.conditions if c.type == "Failed")
    infix = "edljob-" if kind is ELASTIC else ""
    assert f"doomed-{infix}{kind.ranks.lower()}" in failed.message
    await scenario.pods_when("doomed", lambda pods: not pods, "all pods are gone")


@different_kinds
async def test_suspend_takes_everything_away_and_resume_brings_it_back(
    scenario: Scenario, kind: JobKind
) -> None:
    scenario = scenario.of(kind.resource)
    ranks = 1 if kind.is_mpi else 2
    parts = kind.usual(until("resumed"), ranks)
    count = sum(part.replicas for part in parts.values())
    await scenario.submit(kind.job("held", parts, shared=str(scenario.shared)))
    await scenario.running("held", count)
    await scenario.patch("held", {"spec": {"runPolicy": {"suspend": True}}})
    await scenario.job_when("held", lambda job: condition(job, "Suspended") == "True", "is held")
    await scenario.pods_when("held", lambda pods: not pods, "no pods are left")
    services = await scenario.client.list(SERVICES, scenario.namespace)
    assert not [s for s in services.items if s.metadata.name.startswith("held-")]
    await scenario.patch("held", {"spec": {"runPolicy": {"suspend": False}}})
    await scenario.running("held", count)
    scenario.let("resumed")
    assert await scenario.outcome("held") == "Succeeded"


@different_kinds
async def test_a_quiet_job_ends_at_its_deadline_and_goes_when_its_time_is_over(
    scenario: Scenario, kind: JobKind
) -> None:
    scenario = scenario.of(kind.resource)
    ranks = 1 if kind.is_mpi else 2
    limits = {"activeDeadlineSeconds": 3, "ttlSecondsAfterFinished": 3}
    await scenario.submit(
        kind.job("brief", kind.usual(FOREVER, ranks), clean=kind.remove_pods, **limits)
    )
    assert await scenario.outcome("brief") == "Failed"
    await scenario.gone("brief")


@different_kinds
async def test_an_operator_that_dies_and_comes_back_changes_nothing_for_a_running_job(
    scenario: Scenario, kind: JobKind
) -> None:
    scenario = scenario.of(kind.resource)
    ranks = 1 if kind.is_mpi else 2
    parts = kind.usual(until("done"), ranks)
    count = sum(part.replicas for part in parts.values())
    await scenario.submit(kind.job("steady", parts, shared=str(scenario.shared)))
    before = await scenario.running("steady", count)
    scenario.cluster.stop_component("operator", signal.SIGKILL)
    scenario.let("done")
    await scenario.pods_when(
        "steady",
        lambda pods: any(pod.status.phase == "Succeeded" for pod in pods.values()),
        "the ranks end while nobody is there",
    )
    scenario.cluster.start_component("operator")
    assert await scenario.outcome("steady") == "Succeeded"
    after = await scenario.pods("steady")
    assert {name: pod.metadata.uid for name, pod in before.items()} == {
        name: pod.metadata.uid for name, pod in after.items()
    }
