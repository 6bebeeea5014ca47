"""The Brain and real PyTorch jobs: right sizes from the history, and sizes that measurements show.

Segments of two seconds and short pauses are settings of the jobs and of the policy.

Takes 150 s: jobs run long enough for what is measured in segments of two seconds.
"""

import json
from pathlib import Path

import pytest

from e2e.brain_jobs import ObservedTraining, TestedBrain, address, allow_all, brain
from e2e.kubernetes_cluster import Kubernetes
from e2e.scenario import Scenario
from e2e.test_elastic_job import worker_name
from e2e.waiting import eventually
from gangline.api.quantity import parse_quantity
from gangline.api.resources import ELASTIC_JOBS

pytest.importorskip("sqlalchemy", reason="the Brain needs the extra gangline[brain]")
MIB = 2**20
PEAK = (
    "cat /sys/fs/cgroup/memory.peak 2> /dev/null"
    " || cat /sys/fs/cgroup/memory/memory.max_usage_in_bytes"
)
"""Prints the highest memory use of a container, for version 2 and 1 of the interface."""


def cgroup_peaks(scenario: Scenario, job: str, workers: int) -> list[int]:
    """What the kernel has recorded for the workers of a job; empty on the embedded cluster."""
    cluster = scenario.cluster
    if not isinstance(cluster, Kubernetes):
        return []
    names = [worker_name(number, job) for number in range(workers)]
    command = ("--", "sh", "-c", PEAK)
    return [
        int(cluster.kubectl("exec", "-n", scenario.namespace, name, *command)) for name in names
    ]


async def agents_report(peaks: list[int], observed: TestedBrain, job: str) -> None:
    """Check the history of a job: without a metrics API, the peaks are those of its agents."""
    pods = (await observed.run_of(job))["pods"]
    used = {pod["rank"]: pod["peak_memory_bytes"] for pod in pods if pod["role"] == "worker"}
    for rank, peak in enumerate(peaks):
        assert used[rank] == pytest.approx(peak, rel=0.25)


async def test_third_run_starts_with_right_sizes(scenario: Scenario, tmp_path: Path) -> None:
    elastic = scenario.of(ELASTIC_JOBS)
    await allow_all(scenario)
    with brain(scenario, tmp_path) as observed:
        await address(observed)
        first = ObservedTraining(elastic, "numbers-1", "1:2")
        await elastic.submit(first.manifest(1, "2Gi", brain="apply", brain_may="workers"))
        assert await observed.plan_number(first.name, 1) == 2
        await observed.segments(first.name, nodes=2)
        peaks = cgroup_peaks(scenario, first.name, 2)
        await first.ends()
        second = ObservedTraining(elastic, "numbers-2", "1:2")
        await elastic.submit(second.manifest(1, "2Gi", brain="advise"))
        await observed.segments(second.name, nodes=1)
        await second.ends()

        async def known() -> bool:
            runs = [await observed.run_of(each.name) for each in (first, second)]
            return all(run and run["job"].get("complete") for run in runs)

        await eventually(known, f"the history has both runs; {observed.said()}")
        await agents_report(peaks, observed, first.name)
        third = ObservedTraining(elastic, "numbers-3", "1:2")
        manifest = tmp_path / "third.json"
        manifest.write_text(json.dumps(third.manifest(None, "", brain="advise")))
        said = observed.command("submit", "-f", str(manifest), "--like-history")
        print(observed.command("history"), said, sep="\n")
        assert "workers of worker: 2" in said
        assert "memory of worker" in said
        worker = (await elastic.job(third.name)).spec.replica_specs["worker"]
        assert worker.replicas == 2
        (container,) = worker.template["spec"]["containers"]
        memory = parse_quantity(container["resources"]["requests"]["memory"]).value
        assert 64 * MIB < memory < 1024 * MIB
        await eventually(third.trains_with(2), "the third run trains with 2 workers")
        await third.ends()
        pods = (await observed.run_of(third.name))["pods"]
        assert all(not pod.get("oom") for pod in pods)


async def test_w15_a_running_job_is_scaled_and_rolled_back_without_an_effect_on_what_it_learns(
    scenario: Scenario, tmp_path: Path
) -> None:
    elastic = scenario.of(ELASTIC_JOBS)
    fewest, most = (2, 6) if scenario.cluster.kind == "embedded" else (2, 4)  # one real node
    # With this pause there is one change, and a rollback, which waits for none. Steps take long and
    # the price is low, because other load of the machine changes the times of six processes.
    # How many workers are added depends on these times.
    await allow_all(scenario, factor=most / fewest, cooldown_s=3600, last_gpus=0.4)
    with brain(scenario, tmp_path) as observed:
        await address(observed)
        training = ObservedTraining(elastic, "scaled-1", f"{fewest}:{most}", record_s=0.1)
        await elastic.submit(training.manifest(fewest, "512Mi", brain="apply", brain_may="workers"))
        size = await observed.plan_number(training.name, 1)
        assert size is not None
        assert fewest < size <= most
        print("$ gangline advise scaled-1", observed.command("advise", training.name), sep="\n")
        few = await observed.segments(training.name, nodes=fewest)
        await eventually(training.trains_with(size), f"trains with {size} workers")
        many = await observed.segments(training.name, nodes=size, count=2)
        step_s = [segments[-1]["stepSeconds"]["mean"] for segments in (few, many)]
        print(f"a step takes {step_s[0]:.3f} s with {fewest} workers, {step_s[1]:.3f} with {size}")
        assert step_s[1] < step_s[0]
        peaks = cgroup_peaks(scenario, training.name, size)

        (training.folder / "slow").touch()
        assert await observed.plan_number(training.name, 2) == fewest
        (training.folder / "slow").unlink()
        await eventually(training.trains_with(fewest), f"trains with {fewest} workers again")
        await training.ends()
        assert len(await observed.plans(training.name)) == 2
        await agents_report(peaks, observed, training.name)
        for command in (("events", training.name), ("history", training.name)):
            print(f"$ gangline {' '.join(command)}", observed.command(*command), sep="\n")

    steps = {step.number: step for step in training.steps}
    assert {step.world for step in steps.values()} == {fewest, size}
    expected = training.unscaled(tmp_path / "alone", max(steps))
    assert [step.number for step in expected] == sorted(steps)
    for step in expected:
        assert steps[step.number].records == step.records
        assert steps[step.number].loss == pytest.approx(step.loss, rel=1e-9)
