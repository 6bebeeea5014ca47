"""``gangline get --effective`` shows what the pods of a TrainJob run."""

import json

import pytest

from gangline.cli.errors import ExitCode
from integration.cli.test_changing_jobs import report, typed, waited
from integration.cluster.embedded import EmbeddedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_effective_job_is_what_its_pods_run(shared_cluster: EmbeddedCluster) -> None:
    cluster = shared_cluster
    typed(
        cluster, "submit", "train", "--name", "merged", "--nodes", "2", "--image", "any",
        "--cpu", "50m", "-e", "GREETING=hello", "exec sleep 100",
    )  # fmt: skip
    assert waited(cluster, "merged", "--for", "running").returncode == ExitCode.DONE
    shown = json.loads(typed(cluster, "get", "merged", "--effective", "-o", "json"))
    (role,) = shown["replicatedJobs"]
    (container,) = role["template"]["spec"]["containers"]
    assert role["replicas"] == 2
    assert shown["runtime"] == "configmap/merged-runtime-snapshot"
    async with cluster.client() as client:
        listed = await client.request_json("GET", "/api/v1/namespaces/default/pods")
    pods = listed["items"]
    assert len(pods) == 2
    for pod in pods:
        (started,) = pod["spec"]["containers"]
        assert (started["image"], started["command"]) == ("any", container["command"])
        assert {"name": "GREETING", "value": "hello"} in container["env"]
        # The operator adds variables; the server adds the version of a field that is referred to.
        values = {each["name"]: each.get("value") for each in started["env"]}
        assert all(values[each["name"]] == each.get("value") for each in container["env"])
        assert started["resources"] == container["resources"]

    yaml = typed(cluster, "get", "merged", "--effective")
    assert "image: any" in yaml
    typed(cluster, "delete", "merged")
    typed(cluster, "submit", "pytorch", "--name", "plain", "--image", "any", "exec sleep 100")
    refused = cluster.run("get", "plain", "--effective")
    assert refused.returncode != ExitCode.DONE, report(refused)
    assert "pytorchjob/plain has no runtime: 'gangline get --spec' prints" in refused.stderr
    typed(cluster, "delete", "plain")
