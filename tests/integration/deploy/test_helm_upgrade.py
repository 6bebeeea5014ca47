"""Upgrade from the previous release, rollback, upgrade again, with running jobs.

The previous release is the first commit that has the chart; its operator runs from its sources.

Takes 60 s: releases are installed, upgraded and rolled back while their pods run.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.resources import CUSTOM_RESOURCE_DEFINITIONS, PODS, PYTORCH_JOBS
from gangline.kube.client.client import ApiClient
from integration.cluster.embedded import EmbeddedCluster, until
from integration.deploy.helm_cluster import (
    CHART,
    NAMESPACE,
    RELEASE,
    TIMEOUT_S,
    VALUES,
    cluster_with_images,
    job,
    release_of,
    set_command,
)
from integration.deploy.previous_release import unpack_previous_release

JOBS = 4
PODS_RUN = 5
"""The first job has a worker."""
CRDS = {"pytorchjobs.kubeflow.org", "jobadvice.brain.gangline.dev"}
"""Those of both charts with these values."""
CURRENT = VALUES | {
    "kinds": ["PyTorchJob"],
    "crds": {"volcano": False},
    "operator": {"replicas": 1},
}
PREVIOUS = CURRENT | {"image": {"tag": "previous"}}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that pods see: ``/tmp`` is private to each."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def previous(folder: Path) -> Path:
    """The sources of the previous release."""
    return unpack_previous_release(folder / "previous")


@pytest.fixture
async def cluster(tmp_path: Path, previous: Path) -> AsyncIterator[EmbeddedCluster]:
    """Pods of the image ``gangline:previous`` import the sources of the previous release."""
    variables = {"PYTHONPATH": str(previous / "src")}
    images = {"gangline:previous": {"env": sys.prefix, "variables": variables}}
    async with cluster_with_images(tmp_path, images) as cluster:
        yield cluster


async def delete_crds(client: ApiClient) -> None:
    """The previous release makes its own."""
    for name in CRDS:
        await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name)

    async def are_gone() -> bool:
        found = (await client.list(CUSTOM_RESOURCE_DEFINITIONS)).items
        return CRDS.isdisjoint(each.metadata.name for each in found)

    await until(are_gone)


async def states(client: ApiClient) -> dict[str, tuple[str, int]]:
    """UID and number of restarts of each running pod of the jobs that run all the time."""
    pods = (await client.list(PODS, "default")).items
    return {
        pod.metadata.name: (
            pod.metadata.uid,
            sum(each.restart_count for each in pod.status.container_statuses),
        )
        for pod in pods
        if pod.metadata.name.startswith("long-") and pod.status.phase == "Running"
    }


async def statuses(client: ApiClient) -> dict[str, JobStatus]:
    """The status of each of these jobs, without the record that the previous release lacks."""
    found = (await client.list(PYTORCH_JOBS, "default")).items
    return {
        each.metadata.name: replace(each.status, last_valid_spec=None)
        for each in found
        if each.metadata.name.startswith("long-") and each.status
    }


def has(status: JobStatus | None, condition: str) -> bool:
    conditions = status.conditions if status else None
    return any(each.type == condition and each.status == "True" for each in conditions or ())


async def operator_images(client: ApiClient) -> set[str]:
    pods = (await client.list(PODS, NAMESPACE)).items
    return {pod.spec.containers[0].image for pod in pods if not pod.metadata.deletion_timestamp}


async def create(
    client: ApiClient, name: str, image: str, command: list[str], workers: int | None = None
) -> None:
    manifest = set_command(job(name, 1, workers), image, command)
    await client.create(PYTORCH_JOBS, manifest, "default")


async def wait_for_success(client: ApiClient, *names: str) -> None:
    async def succeeded() -> bool:
        jobs = [await client.get(PYTORCH_JOBS, name, "default") for name in names]
        return all(has(job.status, "Succeeded") for job in jobs)

    await until(succeeded, 60)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_case_2_no_pod_restarts_on_upgrade_rollback_and_upgrade(
    cluster: EmbeddedCluster, previous: Path, folder: Path
) -> None:
    release = release_of(cluster)
    wait = {"wait": "watcher", "timeout": TIMEOUT_S}
    end = folder / "end"
    os.mkfifo(end)
    async with cluster.client() as client:
        await delete_crds(client)
        old_chart = previous / "deploy" / "chart"
        release.install(
            old_chart, RELEASE, PREVIOUS, namespace=NAMESPACE, create_namespace=True, **wait
        )
        assert await operator_images(client) == {"gangline:previous"}
        program = f"import gangline; assert gangline.__file__.startswith('{previous}')"
        await create(client, "previous", "gangline:previous", ["python", "-c", program])
        await wait_for_success(client, "previous")

        names = [f"long-{number}" for number in range(JOBS)]
        for number, name in enumerate(names):
            # It blocks until a writer opens the pipe, and blocks again if it is restarted.
            workers = None if number else 1
            await create(client, name, "any", ["cat", str(end)], workers)

        async def run() -> bool:
            found = (await statuses(client)).values()
            active = sum(role.active for each in found for role in each.replica_statuses.values())
            are_running = [has(each, "Running") for each in found]
            return are_running == [True] * JOBS and active == len(await states(client)) == PODS_RUN

        await until(run, 90)
        before = await states(client), await statuses(client)

        changes = (
            ("upgraded", "0.1.0", lambda: release.upgrade(CHART, RELEASE, CURRENT, **wait)),
            ("back", "previous", lambda: release.rollback(RELEASE, version=1, **wait)),
            ("again", "0.1.0", lambda: release.upgrade(CHART, RELEASE, CURRENT, **wait)),
        )
        for name, tag, change in changes:
            change()
            assert await operator_images(client) == {f"gangline:{tag}"}
            # The operator of this release runs a new job, and has reconciled the others before.
            await create(client, name, "any", ["true"])
            await wait_for_success(client, name)
            assert (await states(client), await statuses(client)) == before

        with end.open("wb"):
            pass
        await wait_for_success(client, *names)
