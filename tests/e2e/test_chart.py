"""The chart on a real Kubernetes: its pods run the built image, and train.

Takes 100 s: a real Kubernetes starts the components, upgrades them, and trains with them.
"""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_objects import list_objects
from e2e.clusters import ClusterUnderTest
from e2e.helm_release import (
    CHART,
    NAMESPACE,
    RELEASE,
    TIMEOUT_S,
    app_version,
    built_images,
    components_as_pods,
)
from e2e.jobs import Manifest, job, replica, until
from e2e.kubernetes_cluster import Kubernetes
from e2e.scenario import Scenario
from e2e.test_admission import spoilt
from e2e.waiting import eventually
from gangline.api.resources import PYTORCH_JOBS
from gangline.kube.errors import Invalid
from integration.deploy.previous_release import unpack_previous_release

helm = pytest.importorskip("helm_python", reason="the Helm library has no build for this platform")

SCRIPT = Path(__file__).parents[2] / "examples" / "pytorch" / "digits.py"
# Pods that train have what is left of the node's two processors.
SMALL = {"resources": {"requests": {"cpu": "20m", "memory": "128Mi"}}}
# Each CRD costs an API server seconds; tests/integration/deploy has all of them.
VALUES = {"operator": SMALL, "scheduler": SMALL, "kinds": ["PyTorchJob"]}

pytestmark = [
    pytest.mark.kubernetes_only("tests/integration/deploy has those of the embedded cluster"),
    pytest.mark.last,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="session")
def images(cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The names of both images, which the node has."""
    assert isinstance(cluster, Kubernetes)
    folder = built_images(tmp_path_factory.mktemp("images"))
    names = {name: f"{name}:{app_version()}" for name in ("gangline", "gangline-init")}
    for name, image in names.items():
        cluster.load(folder / f"{name}.tar", image)
    return names


def training(cluster: Kubernetes, image: str, shared: Path) -> Manifest:
    """A job of two replicas whose launcher comes from an init container, into an image without."""
    spec = cluster.python(SCRIPT)
    (container,) = spec["containers"]
    launcher = {"name": "launcher", "mountPath": "/opt/gangline"}
    # An interpreter without Gangline, which reads no .pth files of this folder.
    path = f"{sys.base_prefix}/bin:/usr/bin:/bin"
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    packages = str(Path(torch.origin).parents[1])
    limits = {"name": "OMP_NUM_THREADS", "value": "1"}
    arguments = ["--steps", "200", "--checkpoint", "/shared/digits.pt"]
    container |= {
        "command": ["/opt/gangline/bin/gangline", "run", str(SCRIPT), *arguments],
        "env": [
            {"name": "PATH", "value": path},
            {"name": "PYTHONPATH", "value": packages},
            limits,
        ],
    }
    container["volumeMounts"] += [
        launcher,
        {"name": "packages", "mountPath": packages, "readOnly": True},
        {"name": "shared", "mountPath": "/shared"},
    ]
    spec["volumes"] += [
        {"name": "launcher", "emptyDir": {}},
        {"name": "packages", "hostPath": {"path": packages}},
        {"name": "shared", "hostPath": {"path": str(shared)}},
    ]
    spec["initContainers"] = [
        {
            "name": "launcher",
            "image": image,
            "imagePullPolicy": "Never",
            "volumeMounts": [launcher],
        }
    ]
    role = {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": spec}}
    return job("digits", role, role)


def pods_of_the_release(cluster: Kubernetes) -> list[dict[str, Any]]:
    listed = cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", "json")
    found: list[dict[str, Any]] = json.loads(listed)["items"]
    return [
        each
        for each in found
        if each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]
    ]


def test_case_10_the_image_runs_without_network_as_any_user_on_a_read_only_root(
    cluster: ClusterUnderTest, images: dict[str, str], tmp_path: Path
) -> None:
    assert isinstance(cluster, Kubernetes)
    root = tmp_path / "root"
    root.mkdir()
    cluster.containerd("images", "mount", f"docker.io/library/{images['gangline']}", str(root))
    try:
        inside = ["chroot", "--userspec=12345:54321", str(root), "/usr/local/bin/gangline"]
        shown = subprocess.run(
            ["unshare", "--net", *inside, "version"],
            env={"PATH": "/usr/local/bin:/usr/bin:/usr/sbin"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    finally:
        cluster.containerd("images", "unmount", str(root))
    assert app_version() in shown.stdout


async def is_refused(scenario: Scenario) -> bool:
    try:
        await scenario.client.create(
            PYTORCH_JOBS, spoilt("probe"), scenario.namespace, dry_run=True
        )
    except Invalid:
        return True
    return False


def previous_chart(folder: Path) -> Path:
    """The previous chart, with the protocols that Helm 4 needs in requests to Kubernetes 1.20."""
    chart = unpack_previous_release(folder) / "deploy" / "chart"
    for template in (chart / "templates").rglob("*.*"):
        text = template.read_text()
        text = re.sub(
            r"^( +)((?:containerPort|targetPort): .*)$", r"\1\2\n\1protocol: TCP", text, flags=re.M
        )
        text = text.replace('"containerPort" 9443', '"containerPort" 9443 "protocol" "TCP"')
        template.write_text(text)
    return chart


def rollback_by_client(release: Any, version: int) -> None:
    """``helm rollback --server-side=false``, an option that the library does not name.

    Server-side apply of Kubernetes 1.20 refuses to remove a probe: the defaults of its fields have
    no owner, stay, and are no valid probe.
    """
    options = {
        "version": version,
        "timeout_seconds": TIMEOUT_S,
        "wait": "watcher",
        "server_side_apply": "false",
    }
    helm._native.call_status("helm_rollback", release._raw(), RELEASE, json.dumps(options))


async def pod_states(scenario: Scenario, jobs: list[str]) -> dict[str, tuple[str, int]]:
    """UID and restarts of the only pod of each job."""
    return {
        name: (pod.metadata.uid, pod.status.container_statuses[0].restart_count)
        for job_name in jobs
        for name, pod in (await scenario.running(job_name, 1)).items()
    }


async def test_cases_1_to_3_a_release_is_upgraded_runs_as_pods_trains_and_leaves_what_must_stay(
    scenario: Scenario, images: dict[str, str], tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    cluster = scenario.cluster
    assert isinstance(cluster, Kubernetes)
    release = helm.Config(kubeconfig_path=str(cluster.kubeconfig), namespace=NAMESPACE)
    options = {"namespace": NAMESPACE, "wait": "watcher", "timeout": TIMEOUT_S}
    with components_as_pods(cluster):
        # CRDs and rights of the other scenarios were made by kubectl: Helm refuses them.
        with pytest.raises(helm.HelmError, match="cannot be imported into the current release"):
            release.install(CHART, RELEASE, VALUES, **options)
        before = await list_objects(scenario.client)
        adopted = cluster.run("deploy", "adopt", "--values", str(values)).stdout
        assert "adopted CustomResourceDefinition pytorchjobs.kubeflow.org" in adopted
        assert "adopted ClusterRole gangline-operator" in adopted
        assert await list_objects(scenario.client) == before
        # The chart of the previous release, with the image of this one.
        release.install(previous_chart(tmp_path), RELEASE, VALUES, **options)
        long = [f"long-{number}" for number in range(3)]
        for name in long:
            await scenario.submit(job(name, replica(until("end"), shared=str(scenario.shared))))
        states = await pod_states(scenario, long)
        wait = {"wait": "watcher", "timeout": TIMEOUT_S}
        release.upgrade(CHART, RELEASE, VALUES, **wait)
        rollback_by_client(release, version=1)
        release.upgrade(CHART, RELEASE, VALUES, **wait)
        assert await pod_states(scenario, long) == states
        scenario.let("end")
        for name in long:
            assert await scenario.outcome(name) == "Succeeded"

        pods = pods_of_the_release(cluster)
        assert len(pods) == 4
        for pod in pods:
            (status,) = pod["status"]["containerStatuses"]
            assert status["image"] == f"docker.io/library/{images['gangline']}"

        tested = release.test(RELEASE, logs=True, timeout=TIMEOUT_S)
        assert "has succeeded" in tested["logs"]
        await eventually(lambda: is_refused(scenario), "the webhook refuses mistakes")
        await scenario.submit(training(cluster, images["gangline-init"], scenario.shared))
        assert await scenario.outcome("digits") == "Succeeded"
        lines = [
            line.decode()
            async for line in scenario.client.logs("digits-master-0", scenario.namespace)
        ]
        accuracy = re.search(r"test accuracy (\d\.\d+)", "".join(lines))
        assert accuracy is not None, lines
        assert float(accuracy[1]) >= 0.9

        release.uninstall(RELEASE, wait="watcher", timeout=TIMEOUT_S)
        after = await list_objects(scenario.client)
        # Pods end later, and the garbage collector deletes ReplicaSets and the Secret, which have
        # owners, within minutes where definitions have changed. Leases stay.
        passing = ("ReplicaSet ", "Pod ", "Secret ", "Lease ")
        job_objects = f" {scenario.namespace}/"
        left = {each for each in after - before if job_objects not in each}
        assert {each for each in left if not each.startswith(passing)} == set()
        kept = {each for each in before if each.startswith("CustomResourceDefinition ")}
        assert kept <= after
        assert await scenario.job("digits")
