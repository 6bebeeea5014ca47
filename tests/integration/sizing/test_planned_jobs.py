"""Planned jobs on a running cluster: accepted, planned again, and checked."""

import json
import subprocess
import sys

import pytest
import yaml

from gangline.cli.commands.plan import NOTHING_FITS
from integration.cluster.embedded import EmbeddedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODEL = ("--params", "7B", "--seq", "4096", "--tokens", "300B")
JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"


def planned_job(*options: str) -> str:
    command = [sys.executable, "-m", "gangline", "plan", *MODEL, *options, "-o", "job"]
    done = subprocess.run(
        [*command, "--", "train.py"], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


async def test_a_planned_job_is_accepted_and_knows_its_training(
    shared_cluster: EmbeddedCluster,
) -> None:
    manifest = yaml.safe_load(planned_job("--gpus", "16", "--name", "seven"))
    async with shared_cluster.client() as client:
        shown = await client.request_json("POST", JOBS, body=manifest, params={"dryRun": "All"})
        assert shown["spec"]["nprocPerNode"] == "8"
        await client.request_json("POST", JOBS, body=manifest)

    run = shared_cluster.run
    like = run("plan", "--like", "seven", "-o", "json")
    assert like.returncode == 0, like.stderr
    plan = json.loads(like.stdout)
    assert plan["model"]["parameters"] == 7e9
    assert plan["training"]["tokens"] == 300e9
    assert plan["hardware"] | {"efficiency": 0, "peak_flops_per_s": 0} == {
        "device": "H100-80GB", "devices": 16, "memory_bytes": 80e9, "efficiency": 0,
        "peak_flops_per_s": 0, "nodes": 2, "node_devices": 8,
    }  # fmt: skip
    larger = json.loads(run("plan", "--like", "seven", "--gpus", "32", "-o", "json").stdout)
    assert larger["hardware"]["devices"] == 32

    fits = run("plan", "--check", "seven")
    assert fits.returncode == 0, fits.stdout + fits.stderr
    small = run("plan", "--check", "seven", "--params", "400B")
    assert small.returncode == NOTHING_FITS
    assert "too small" in small.stdout


async def test_a_job_that_does_not_exist_or_has_no_model_is_explained(
    shared_cluster: EmbeddedCluster,
) -> None:
    missing = shared_cluster.run("plan", "--like", "missing")
    assert missing.returncode != 0
    assert "missing" in missing.stderr
    manifest = yaml.safe_load(planned_job("--gpus", "8", "--name", "plain"))
    del manifest["metadata"]["annotations"]
    async with shared_cluster.client() as client:
        await client.request_json("POST", JOBS, body=manifest)
    unknown = shared_cluster.run("plan", "--check", "plain")
    assert "the model is missing" in unknown.stderr
    known = shared_cluster.run("plan", "--check", "plain", "--params", "7B", "-o", "json")
    assert {each["resource"] for each in json.loads(known.stdout)} >= {"GPUs", "memory of a pod"}
