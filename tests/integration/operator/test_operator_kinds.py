"""The life of the other kinds on a real API server: Kubeflow's, PaddleJob, MSJob."""

from typing import Any

from gangline.api.meta.resource import Resource
from gangline.api.resources import (
    CONFIG_MAPS,
    HORIZONTAL_POD_AUTOSCALERS,
    POD_GROUPS,
    PODS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from gangline.kube.errors import NotFound
from integration.operator.cluster import NAMESPACE, Scene
from unit.operator import paddle_jobs
from unit.operator.kubeflow_jobs import job_manifest, replica

MPI_V2: Resource[Any] = Resource(dict, "kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
PADDLE: Resource[Any] = Resource(dict, "batch.paddlepaddle.org", "v1", "paddlejobs", "PaddleJob")
MINDSPORE: Resource[Any] = Resource(dict, "mindspore.gitee.com", "v1", "msjobs", "MSJob")
VERSION = "gangline.dev/api-version"
JOB_LABEL = "training.kubeflow.org/job-name"
SELECTOR = f"{JOB_LABEL}=train"
CPU = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
}


class Job:
    """One job of any kind, as plain data."""

    def __init__(self, stage: Scene, resource: Resource[Any]) -> None:
        self.stage = stage
        self.resource = resource

    async def submit(self, written: dict[str, Any], **metadata: Any) -> None:
        written["metadata"] = {"name": "train", **metadata}
        await self.stage.client.create(self.resource, written, NAMESPACE)

    async def status(self) -> dict[str, Any]:
        job = await self.stage.client.get(self.resource, "train", NAMESPACE)
        status: dict[str, Any] = job.get("status") or {}
        return status

    async def conditions(self) -> dict[str, dict[str, Any]]:
        listed = (await self.status()).get("conditions") or []
        return {each["type"]: each for each in listed if each["status"] == "True"}

    async def until(self, type_: str) -> dict[str, Any]:
        """Wait until a condition holds."""

        async def holds() -> bool:
            return type_ in await self.conditions()

        await self.stage.until(holds, f"{self.resource.kind} is {type_}")
        return (await self.conditions())[type_]

    async def change(self, spec: dict[str, Any]) -> None:
        await self.stage.client.patch(self.resource, "train", {"spec": spec}, NAMESPACE)


def kubeflow(kind: str) -> Resource[Any]:
    return Resource(dict, "kubeflow.org", "v1", f"{kind.lower()}s", kind)


async def submitted(stage: Scene, kind: str, roles: dict[str, int | None], **spec: Any) -> Job:
    job = Job(stage, kubeflow(kind))
    await stage.start_operator()
    await job.submit(job_manifest(kind, roles, **spec))
    return job


async def test_a_tfjob_runs_and_succeeds_with_its_chief(stage: Scene) -> None:
    job = await submitted(stage, "TFJob", {"Chief": 1, "PS": 1, "Worker": 2, "Evaluator": 1})
    await job.until("Running")
    replicas = ["chief-0", "ps-0", "worker-0", "worker-1", "evaluator-0"]
    await stage.until_pods(dict.fromkeys(replicas, "Running"))
    services = await stage.client.list(SERVICES, NAMESPACE, labels=SELECTOR)
    assert {service.metadata.name for service in services.items} == set(await stage.pods())
    group = await stage.client.get(POD_GROUPS, "train", NAMESPACE)
    assert group.spec.min_member == len(replicas)
    await stage.kubelets.end("train-chief-0", 0)
    assert "TFJob default/train" in (await job.until("Succeeded"))["message"]
    assert "Running" not in await job.conditions()


async def test_an_mpijob_from_its_workers_to_its_end(stage: Scene) -> None:
    stage.kubelets.verdict = lambda pod: None
    job = await submitted(
        stage,
        "MPIJob",
        {"Launcher": 1, "Worker": 2},
        runPolicy={"cleanPodPolicy": "Running"},
    )
    replicas = ["launcher", "worker-0", "worker-1"]
    await stage.until_pods(dict.fromkeys(replicas, "Running"))
    made = {name: pod.metadata for name, pod in (await stage.pods()).items()}
    assert all(
        made[f"train-{name}"].creation_timestamp <= made["train-launcher"].creation_timestamp
        for name in replicas
    )
    assert await stage.client.get(SERVICE_ACCOUNTS, "train-launcher", NAMESPACE)
    assert await exec_names(stage) == ["train-worker-0", "train-worker-1"]

    async def discovered() -> bool:
        files = (await stage.client.get(CONFIG_MAPS, "train-config", NAMESPACE)).data
        return files["discover_hosts.sh"].endswith("echo train-worker-0:1\necho train-worker-1:1\n")

    await stage.until(discovered, "both workers are discovered")
    await job.change({"mpiReplicaSpecs": {"Worker": {"replicas": 3}}})

    async def may_enter_the_third() -> bool:
        files = (await stage.client.get(CONFIG_MAPS, "train-config", NAMESPACE)).data
        return "train-worker-2" in await exec_names(stage) and "train-worker-2" in files["hostfile"]

    await stage.until(may_enter_the_third, "the new worker can be reached")
    await stage.until_pods(dict.fromkeys([*replicas, "worker-2"], "Running"))
    await stage.kubelets.end("train-launcher", 0)
    await job.until("Succeeded")
    await stage.until_pods({"launcher": "Succeeded"})


async def exec_names(stage: Scene) -> list[str]:
    """The pods that the launcher may run commands in."""
    role = await stage.client.get(ROLES, "train-launcher", NAMESPACE)
    return next(rule.resource_names for rule in role.rules if rule.resources == ["pods/exec"])


async def test_an_autoscaler_lives_as_long_as_the_job_runs(stage: Scene) -> None:
    policy = {"minReplicas": 1, "maxReplicas": 3, "metrics": [CPU]}
    job = await submitted(stage, "PyTorchJob", {"Worker": 2}, elasticPolicy=policy)

    async def bounds() -> tuple[int, int]:
        try:
            found = await stage.client.get(HORIZONTAL_POD_AUTOSCALERS, "train", NAMESPACE)
        except NotFound:
            return 0, 0
        return found.spec.min_replicas or 0, found.spec.max_replicas

    async def until_bounds(wanted: tuple[int, int]) -> None:
        async def claim() -> bool:
            return await bounds() == wanted

        await stage.until(claim, f"the autoscaler says {wanted}")

    await until_bounds((1, 3))
    await job.change({"elasticPolicy": {"maxReplicas": 5}})
    await until_bounds((1, 5))
    await job.change({"runPolicy": {"suspend": True}})
    await until_bounds((0, 0))
    await job.change({"runPolicy": {"suspend": False}})
    await until_bounds((1, 5))
    await stage.until_pods({"worker-0": "Running", "worker-1": "Running"})
    await stage.kubelets.end("train-worker-0", 0)
    await job.until("Succeeded")
    await until_bounds((0, 0))


async def test_jobs_of_both_mpi_versions_run_side_by_side(stage: Scene) -> None:
    """The API server returns both as v1; each is run as the version that its user wrote."""
    old, client = Job(stage, kubeflow("MPIJob")), stage.client
    roles: dict[str, int | None] = {"Launcher": 1, "Worker": 1}
    modern = job_manifest("MPIJob", roles, runLauncherAsWorker=True)
    modern |= {"apiVersion": "kubeflow.org/v2beta1", "metadata": {"name": "modern"}}
    await client.create(MPI_V2, modern, NAMESPACE)
    await stage.start_operator()
    await old.submit(job_manifest("MPIJob", roles))

    async def versions() -> dict[str, str]:
        found = (await client.list(old.resource, NAMESPACE)).items
        assert {each["apiVersion"] for each in found} == {"kubeflow.org/v1"}
        return {
            each["metadata"]["name"]: each["metadata"].get("annotations", {}).get(VERSION, "")
            for each in found
        }

    expected = {"train": "kubeflow.org/v1", "modern": "kubeflow.org/v2beta1"}

    async def stored() -> bool:
        return await versions() == expected

    await stage.until(stored, "the versions are stored")
    await stage.until_pods({"launcher": "Running", "worker-0": "Running"})

    async def modern_runs() -> bool:
        pods = (await stage.pods("modern")).values()
        return [pod.status.phase for pod in pods] == ["Running", "Running"]

    await stage.until(modern_runs, "the pods of the modern job run")
    files = {
        name: (await client.get(CONFIG_MAPS, f"{name}-config", NAMESPACE)).data
        for name in ("train", "modern")
    }
    assert "kubexec.sh" in files["train"]
    assert files["modern"]["hostfile"].splitlines() == [
        f"modern-launcher.{NAMESPACE}.svc slots=1",
        f"modern-worker-0.{NAMESPACE}.svc slots=1",
    ]
    (secret,) = (await client.list(SECRETS, NAMESPACE, labels=f"{JOB_LABEL}=modern")).items
    assert set(secret.data) == {"ssh-privatekey", "ssh-publickey"}
    assert not (await client.list(ROLES, NAMESPACE, labels=f"{JOB_LABEL}=modern")).items
    assert not (await client.list(SECRETS, NAMESPACE, labels=f"{JOB_LABEL}=train")).items
    await stage.kill_operator()
    # A client of the other version writes: the version of the job stays.
    more = {"mpiReplicaSpecs": {"Worker": {"replicas": 2}}}
    await client.patch(old.resource, "modern", {"spec": more}, NAMESPACE)
    await stage.start_operator()

    async def grown() -> bool:
        files = (await client.get(CONFIG_MAPS, "modern-config", NAMESPACE)).data
        return "modern-worker-1" in files["hostfile"] and "kubexec.sh" not in files

    await stage.until(grown, "the modern job has another worker")
    assert (await versions())["modern"] == "kubeflow.org/v2beta1"
    for name in ("train", "modern"):
        await stage.kubelets.end(f"{name}-launcher", 0)
    await old.until("Succeeded")

    async def succeeded() -> bool:
        job = await client.get(MPI_V2, "modern", NAMESPACE)
        conditions = job["status"]["conditions"]
        return any((c["type"], c["status"]) == ("Succeeded", "True") for c in conditions)

    await stage.until(succeeded, "the modern job has succeeded")


async def test_a_paddlejob_completes_with_its_workers_and_keeps_its_status(stage: Scene) -> None:
    job = Job(stage, PADDLE)
    await stage.start_operator()
    await job.submit(paddle_jobs.manifest(ps=1, worker=1, intranet="Service"))
    await job.until("Running")
    running = await job.status()
    assert (running["phase"], running["mode"]) == ("Running", "PS")
    assert running["ps"]["running"] == 1
    assert running["ps"]["refs"][0]["name"] == "train-ps-0"
    await stage.kubelets.end("train-worker-0", 0)
    await job.until("Succeeded")
    await stage.until_pods({})
    ended = await job.status()
    assert (ended["phase"], ended["worker"]) == ("Completed", {"succeeded": 1})


async def test_mindspore_workers_get_the_address_of_the_schedulers_service(stage: Scene) -> None:
    job = Job(stage, MINDSPORE)
    await stage.start_operator()
    roles = {"scheduler": replica("mindspore", 1), "Worker": replica("mindspore", 2)}
    await job.submit({"spec": {"msReplicaSpecs": roles}})
    await stage.until_pods(dict.fromkeys(["scheduler-0", "worker-0", "worker-1"], "Running"))
    service = await stage.client.get(SERVICES, "train-scheduler-0", NAMESPACE)
    for name in ("train-worker-0", "train-worker-1"):
        pod = await stage.client.get(PODS, name, NAMESPACE)
        reported = {each.name: each.value for each in pod.spec.containers[0].env}
        assert reported["MS_SCHED_HOST"] == service.spec.cluster_ip
        assert reported["MS_WORKER_NUM"] == "2"
    await job.until("Running")
    await stage.kubelets.end("train-worker-0", 0)
    await job.until("Succeeded")
    await stage.until_pods({"worker-0": "Succeeded"})
