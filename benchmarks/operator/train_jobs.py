"""1,000 TrainJobs and 1,000 PyTorchJobs of 8 pods on a real Kubernetes: how fast are pods created?

A TrainJob is merged with its runtime in each reconcile, has a copy of the runtime in a ConfigMap,
and one service for all pods, where a PyTorchJob has one for each. Measured is the time from the
first submission until all pods exist. Each kind has its own namespace and its own operator, and
starts when Kubernetes is idle.
"""

import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster.connection import Target
from benchmarks.cluster.servers import install_definitions, real_kubernetes, settle
from benchmarks.operator.creation import create_all
from benchmarks.operator.volume import Operator, made_all, prepare
from gangline.api.trainer.builtin_runtimes import builtin_runtimes

JOBS = 1000
PODS = 8
RUNTIME = "torch-distributed"
TRAINER = "/apis/trainer.kubeflow.org/v1alpha1"
COMMAND = ["sleep", "60"]


@dataclass(frozen=True)
class Kind:
    """A kind of job that is measured."""

    name: str
    path: str
    """Of the jobs of a namespace."""
    spec: dict[str, Any]
    services: int
    """Of one job."""

    def request(self, number: int, namespace: str) -> tuple[str, bytes]:
        group_version = self.path.removeprefix("/apis/").partition("/namespaces")[0]
        job = {
            "apiVersion": group_version,
            "kind": self.name,
            "metadata": {"name": f"bench-{number}"},
            "spec": self.spec,
        }
        return self.path.format(namespace), json.dumps(job).encode()


def _role(replicas: int) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "busybox:1", "command": COMMAND}
    template = {"spec": {"containers": [container]}}
    return {"replicas": replicas, "restartPolicy": "OnFailure", "template": template}


KINDS = (
    Kind(
        "PyTorchJob",
        "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
        {"pytorchReplicaSpecs": {"Master": _role(1), "Worker": _role(PODS - 1)}},
        PODS,
    ),
    Kind(
        "TrainJob",
        f"{TRAINER}/namespaces/{{}}/trainjobs",
        {
            "runtimeRef": {"name": RUNTIME},
            "trainer": {"image": "busybox:1", "command": COMMAND, "numNodes": PODS},
        },
        1,
    ),
)


@dataclass
class Figures:
    """The result for one kind."""

    pods_s: float
    """Until all pods exist."""
    created_s: float
    """Until all services exist too."""
    cpu_s: float
    """Processor time of the operator until then."""
    memory_mb: float


async def measure(kubeconfig: Path, kind: Kind, operator: Operator) -> Figures:
    target = await Target.of(kubeconfig)
    namespace = kind.name.lower()
    await prepare(target, namespace)
    cpu, writes, begun = operator.cpu_s(), operator.writes(), time.monotonic()
    requests = [kind.request(number, namespace) for number in range(JOBS)]
    expected = {"Pod": JOBS * PODS, "Service": JOBS * kind.services}
    await create_all(target, requests)
    pods_at, all_at = await made_all(operator, writes, expected)
    return Figures(
        pods_at - begun, all_at - begun, operator.cpu_s() - cpu, operator.memory_mb("VmHWM")
    )


async def install_runtime(kubeconfig: Path) -> None:
    target = await Target.of(kubeconfig)
    runtime = next(each for each in builtin_runtimes() if each["metadata"]["name"] == RUNTIME)
    path = f"{TRAINER}/clustertrainingruntimes"
    await create_all(target, [(path, json.dumps(runtime).encode())])


def main() -> None:
    found: dict[str, Figures] = {}
    with real_kubernetes() as kubeconfig, tempfile.TemporaryDirectory() as folder:
        install_definitions(kubeconfig)
        asyncio.run(install_runtime(kubeconfig))
        for kind in KINDS:
            operator = Operator(kubeconfig, Path(folder))
            try:
                operator.wait()
                settle(kubeconfig)
                found[kind.name] = asyncio.run(measure(kubeconfig, kind, operator))
            finally:
                operator.stop()
    print(f"{JOBS} jobs of {PODS} pods")
    for name, each in found.items():
        print(
            f"  {name}: all pods {each.pods_s:.1f} s ({JOBS / each.pods_s:.1f} jobs/s), "
            f"services too {each.created_s:.1f} s; operator {1000 * each.cpu_s / JOBS:.1f} ms of "
            f"processor time a job, {each.memory_mb:.0f} MB at most"
        )
    ratio = found["PyTorchJob"].pods_s / found["TrainJob"].pods_s
    print(f"  ratio of rates: {ratio:.2f} (to reach: 1.00)")


if __name__ == "__main__":
    main()
