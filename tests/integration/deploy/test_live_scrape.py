"""Debian's Prometheus scrapes a cluster with a job: targets, boards and alerts are as shipped."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gangline.api.jobs.elastic import MASTER, master_name
from gangline.api.resources import ELASTIC_JOBS, PODS, PYTORCH_JOBS
from gangline.deploy.monitoring import boards, rules
from gangline.kube.client.client import ApiClient
from integration.cluster.embedded import EmbeddedCluster, embedded, until
from integration.deploy.replicas import Replica, free_port, replicas
from integration.elastic.elastic_jobs import elastic_job
from prometheus_tools import program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = """
import os, pathlib, sys, time
from gangline.elastic.progress import SaveReporter, StepReporter
steps, saves, step = StepReporter(), SaveReporter(), 0
saves.report_times(0.01, 1.0, adapts=False)
while True:
    step += 1
    steps.report_step(step)
    saves.report_saved(step)
    time.sleep(0.05)
"""


LAUNCHER = "--nnodes=1 --nproc-per-node=1 --no-standby"


def too_large_job() -> dict[str, Any]:
    """A gang that stays pending."""
    container = {
        "name": "pytorch",
        "image": "x",
        "resources": {"requests": {"cpu": "1000"}},
    }
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "large"},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


class Prometheus:
    """A running Prometheus, asked by its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    async def ask(self, path: str, **parameters: str) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self._url}/{path}", params=parameters) as answer,
        ):
            body = await answer.json()
            assert body["status"] == "success", body
            return body["data"]

    async def series(self, expression: str) -> list[Any]:
        """The series that an expression returns now."""
        concrete = expression.replace("$__rate_interval", "20s")
        concrete = re.sub(r"\$(queue|namespace|pod)\b", ".+", concrete)
        found = await self.ask("query", query=concrete)
        assert isinstance(found["result"], list)
        return found["result"]

    async def up(self) -> dict[str, str]:
        """The health of each target."""
        targets = (await self.ask("targets", state="active"))["activeTargets"]
        return {each["labels"]["instance"]: each["health"] for each in targets}


def configuration(folder: Path, targets: dict[str, list[str]]) -> Path:
    """Write what Prometheus reads: one-second scrapes, and the rules with short windows."""
    # Windows of an hour would need an hour; delta() of some seconds is computed in the same way.
    text = yaml.safe_dump(rules()).replace("[1h]", "[20s]")
    (folder / "rules.yaml").write_text(text)
    jobs = [
        {
            "job_name": name,
            "static_configs": [
                {
                    "targets": addresses,
                    "labels": {"namespace": "default", "pod": "master"} if "master" in name else {},
                }
            ],
        }
        for name, addresses in targets.items()
    ]
    written = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": jobs,
    }
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(written))
    return path


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """An embedded cluster whose operator and scheduler the test starts."""
    without = ("--without", "operator", "--without", "scheduler")
    async with embedded(tmp_path / "home", "--nodes", "1", *without) as started:
        yield started


async def master_address(client: ApiClient) -> str:
    """The address at which the job's master serves its metrics; empty while it does not run."""
    for pod in (await client.list(PODS, "default")).items:
        if pod.metadata.name.startswith(master_name("train")) and pod.status.phase == "Running":
            return f"{pod.status.pod_ip}:50001"
    return ""


async def test_all_targets_are_up_and_boards_return_series(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    server = program("prometheus")
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "train.py").write_text(SCRIPT)
    kubeconfig, webhook = cluster.home.default_kubeconfig, free_port()
    operator = Replica(
        "operator", kubeconfig, tmp_path / "operator.log", "--webhook=on",
        f"--webhook-bind-address=127.0.0.1:{webhook}", f"--webhook-url=https://127.0.0.1:{webhook}",
        "--webhook-namespace=kube-system",
    )  # fmt: skip
    scheduler = Replica("scheduler", kubeconfig, tmp_path / "scheduler.log")
    with replicas(operator, scheduler):
        async with cluster.client() as client:
            await until(operator.leads, 60, (tmp_path / "operator.log").read_text)

            async def webhook_reviews() -> bool:
                # Until the API server has its configuration, jobs are created without a review.
                await client.create(PYTORCH_JOBS, too_large_job(), "default", dry_run=True)
                return bool(await operator.metric("gangline_webhook_reviews_total"))

            await until(webhook_reviews, 60, (tmp_path / "operator.log").read_text)
            await client.create(
                ELASTIC_JOBS, elastic_job(folder, f"{LAUNCHER} {folder}/train.py", 1), "default"
            )
            await client.create(PYTORCH_JOBS, too_large_job(), "default")
            master = await until(lambda: master_address(client), 60, cluster.said)
            assert MASTER in master_name("train")
            port = free_port()
            components = [f"127.0.0.1:{each.metrics_port}" for each in (operator, scheduler)]
            config = configuration(tmp_path, {"gangline": components, "gangline-masters": [master]})
            with (tmp_path / "prometheus.log").open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    server, f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}",
                    f"--storage.tsdb.path={tmp_path / 'data'}",
                    stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
            try:
                await compare(Prometheus(port), [*components, master], tmp_path)
            finally:
                process.kill()
                await process.wait()


async def compare(prometheus: Prometheus, targets: list[str], folder: Path) -> None:
    """Wait until all targets are up and all expressions return series."""

    async def all_up() -> bool:
        try:
            return await prometheus.up() == dict.fromkeys(targets, "up")
        except (OSError, aiohttp.ClientError):
            return False

    await until(all_up, 30, (folder / "prometheus.log").read_text)
    missing = {
        expression: f"{board.name}: {panel.title}"
        for board in boards()
        for row in board.rows
        for panel in row.panels
        if not panel.needs_fault
        for expression in panel.queries.values()
    }

    async def all_return_series() -> bool:
        answers = await asyncio.gather(*map(prometheus.series, missing))
        for expression, found in zip(list(missing), answers, strict=True):
            if found:
                del missing[expression]
        return not missing

    await until(all_return_series, 60, lambda: json.dumps(missing, indent=1))
    (pending,) = await prometheus.series(
        'gangline_scheduler_pending_gangs{queue="default",reason="NotEnoughResources"}'
    )
    assert pending["value"][1] == "1"
    (goodput,) = await prometheus.series('gangline:queue_goodput:ratio1h{queue="default"}')
    assert 0 < float(goodput["value"][1]) <= 1.01
    assert {group["name"] for group in (await prometheus.ask("rules"))["groups"]} == {
        "gangline.recordings",
        "gangline.alerts",
    }
    for group in (await prometheus.ask("rules"))["groups"]:
        assert [rule["lastError"] for rule in group["rules"] if rule.get("lastError")] == []
