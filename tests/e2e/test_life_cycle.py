"""A job's life from submission to its end: outcomes, restarts, limits, clean-up, suspend, scale."""

from datetime import timedelta

import pytest

from e2e.jobs import fails_first, job, replica, until
from e2e.scenario import Scenario, condition
from e2e.waiting import eventually
from gangline.api.resources import PYTORCH_JOBS

FOREVER = "sleep 3600"


async def test_a_job_succeeds_and_its_status_tells_the_story(scenario: Scenario) -> None:
    shared = str(scenario.shared)
    seen = 'echo "$RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT" > /shared/$(hostname)'
    await scenario.submit(
        job("good", replica(seen, shared=shared), replica(seen, 2, shared=shared))
    )
    assert await scenario.outcome("good") == "Succeeded"
    ended = await scenario.job("good")
    assert ended.status.start_time
    assert ended.status.completion_time
    assert condition(ended, "Created") == "True"
    assert condition(ended, "Running") != "True"
    told = {path.name: path.read_text().strip() for path in scenario.shared.iterdir()}
    address = "good-master-0:23456"
    assert told == {
        "good-master-0": f"0/3 {address}",
        "good-worker-0": f"1/3 {address}",
        "good-worker-1": f"2/3 {address}",
    }


@pytest.mark.parametrize("role", ["Master", "Worker"])
@pytest.mark.parametrize("policy", ["OnFailure", "Always"])
async def test_a_failed_container_is_restarted_in_its_pod(
    scenario: Scenario, role: str, policy: str
) -> None:
    shared = str(scenario.shared)
    flaky = replica(fails_first(), restart=policy, shared=shared)
    calm = replica(until("go"), restart="OnFailure", shared=shared)
    roles = {"Master": (flaky, calm), "Worker": (calm, flaky)}[role]
    await scenario.submit(job("flaky", *roles))
    name = f"flaky-{role.lower()}-0"

    def restarted(pods: dict) -> bool:
        statuses = pods[name].status.container_statuses if name in pods else []
        return any(status.restart_count >= 1 for status in statuses)

    await scenario.pods_when("flaky", restarted, f"{name} was restarted")
    scenario.let("go")
    if (role, policy) != ("Master", "Always"):  # this one restarts after every success
        assert await scenario.outcome("flaky") == "Succeeded"


@pytest.mark.parametrize("role", ["Master", "Worker"])
async def test_restart_policy_never_makes_the_first_failure_final(
    scenario: Scenario, role: str
) -> None:
    failing, calm = replica("exit 3", restart="Never"), replica(FOREVER, restart="Never")
    roles = {"Master": (failing, calm), "Worker": (calm, failing)}[role]
    await scenario.submit(job("once", *roles))
    assert await scenario.outcome("once") == "Failed"


async def test_a_retryable_exit_code_replaces_the_pod(scenario: Scenario) -> None:
    shared = str(scenario.shared)
    await scenario.submit(
        job(
            "codes",
            replica(until("go"), shared=shared),
            replica(fails_first(137), restart="ExitCode", shared=shared),
        )
    )
    await eventually(_exists(scenario, "codes-worker-0.seen"), "the worker has failed once")
    pods = await scenario.pods_when(
        "codes",
        lambda pods: (
            "codes-worker-0" in pods and pods["codes-worker-0"].status.phase == "Succeeded"
        ),
        "the worker's second pod has succeeded",
    )
    assert pods["codes-worker-0"].status.container_statuses[0].restart_count == 0
    scenario.let("go")
    assert await scenario.outcome("codes") == "Succeeded"


async def test_a_permanent_exit_code_fails_the_job(scenario: Scenario) -> None:
    await scenario.submit(
        job("wrong", replica(FOREVER), replica("exit 2", restart="ExitCode"), backoffLimit=5)
    )
    assert await scenario.outcome("wrong") == "Failed"


@pytest.mark.parametrize(
    ("policy", "code"), [("OnFailure", 1), ("Always", 1), ("ExitCode", 137)], ids=str
)
async def test_backoff_limit_counts_every_kind_of_restart(
    scenario: Scenario, policy: str, code: int
) -> None:
    await scenario.submit(
        job("hopeless", replica(FOREVER), replica(f"exit {code}", restart=policy), backoffLimit=1)
    )
    assert await scenario.outcome("hopeless") == "Failed"
    ended = await scenario.job("hopeless")
    told = next(entry for entry in ended.status.conditions if entry.type == "Failed")
    assert "backoff" in (told.message + told.reason).lower()


async def test_active_deadline_ends_a_job_in_which_nothing_happens(scenario: Scenario) -> None:
    await scenario.submit(job("slow", replica(FOREVER), activeDeadlineSeconds=4))
    assert await scenario.outcome("slow") == "Failed"
    ended = await scenario.job("slow")
    assert ended.status.completion_time - ended.status.start_time >= timedelta(seconds=4)


async def test_a_finished_job_is_removed_after_its_time_to_live(scenario: Scenario) -> None:
    await scenario.submit(job("brief", replica("true"), ttlSecondsAfterFinished=2))
    await scenario.gone("brief")


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("None", {"tidy-master-0", "tidy-worker-0"}),
        ("Running", {"tidy-master-0"}),
        ("All", set()),
    ],
)
async def test_clean_pod_policy_says_which_pods_stay(
    scenario: Scenario, policy: str, left: set[str]
) -> None:
    shared = str(scenario.shared)
    await scenario.submit(
        job(
            "tidy",
            replica(until("go"), shared=shared),
            replica(FOREVER, shared=shared),
            cleanPodPolicy=policy,
        )
    )
    await scenario.running("tidy", 2)
    scenario.let("go")
    assert await scenario.outcome("tidy") == "Succeeded"
    pods = await scenario.pods_when("tidy", lambda pods: set(pods) == left, f"only {left} stay")
    if policy == "None":
        assert pods["tidy-worker-0"].status.phase == "Running"


async def test_suspend_takes_the_pods_away_and_resume_brings_them_back(
    scenario: Scenario,
) -> None:
    shared = str(scenario.shared)
    await scenario.submit(job("paused", replica(until("go"), shared=shared)))
    first = await scenario.running("paused", 1)
    await scenario.patch("paused", {"spec": {"runPolicy": {"suspend": True}}})
    await scenario.pods_when("paused", lambda pods: not pods, "no pod is left")
    await scenario.job_when(
        "paused", lambda job: condition(job, "Suspended") == "True", "is suspended"
    )
    await scenario.patch("paused", {"spec": {"runPolicy": {"suspend": False}}})
    second = await scenario.running("paused", 1)
    assert first["paused-master-0"].metadata.uid != second["paused-master-0"].metadata.uid
    scenario.let("go")
    assert await scenario.outcome("paused") == "Succeeded"


async def test_a_job_created_suspended_makes_no_pod_until_it_is_resumed(
    scenario: Scenario,
) -> None:
    await scenario.submit(job("later", replica("true"), suspend=True))
    await scenario.job_when(
        "later", lambda job: condition(job, "Suspended") == "True", "is suspended"
    )
    assert not await scenario.pods("later")
    await scenario.patch("later", {"spec": {"runPolicy": {"suspend": False}}})
    assert await scenario.outcome("later") == "Succeeded"


async def test_scaling_up_and_down_adds_and_removes_the_last_workers(scenario: Scenario) -> None:
    await scenario.submit(job("wide", replica(FOREVER), replica(FOREVER, 2)))
    await scenario.running("wide", 3)
    await scenario.client.patch(
        PYTORCH_JOBS, "wide", {"spec": {"replicas": 3}}, scenario.namespace, subresource="scale"
    )
    pods = await scenario.running("wide", 4)
    assert "wide-worker-2" in pods
    workers = {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}
    await scenario.patch("wide", {"spec": workers})
    await scenario.pods_when(
        "wide",
        lambda pods: set(pods) == {"wide-master-0", "wide-worker-0"},
        "only the first worker stays",
    )


async def test_replicas_zero_makes_no_pod_of_that_role(scenario: Scenario) -> None:
    await scenario.submit(job("none", replica("true"), replica(FOREVER, 0)))
    assert await scenario.outcome("none") == "Succeeded"
    assert set(await scenario.pods("none")) == {"none-master-0"}


def _exists(scenario: Scenario, name: str):
    async def probe() -> bool:
        return (scenario.shared / name).exists()

    return probe
