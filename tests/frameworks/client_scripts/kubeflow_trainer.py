"""What programs do with the Kubeflow SDK and TrainJobs: usage: kubeflow_trainer.py NAMESPACE.

trainjob-3: also after suspend and resume.
"""

import contextlib
import io
import sys
import time

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, CustomTrainerContainer, TrainerClient
from kubeflow.trainer.options import Name

SPACE = sys.argv[1]
PATIENCE_S = 120
SAYS_RANK = ["sh", "-c", "echo $GREETING from $PET_NODE_RANK of $PET_NNODES"]
RUNTIMES = ("trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes")
trainer = TrainerClient(KubernetesBackendConfig(namespace=SPACE))


def fit(steps):
    """Data-parallel regression: each process has half of the data."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = torch.arange(4.0).unsqueeze(1)
    for _ in range(steps):
        inputs = torch.randn(64, 4)
        loss = ((model(inputs) - inputs @ weights) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank} of {size}: loss {loss.item():.4f}", flush=True)
    distributed.destroy_process_group()


def sleep():
    import time

    print("ready", flush=True)
    time.sleep(600)


def lists() -> None:
    names = {runtime.name for runtime in trainer.list_runtimes()}
    assert {"torch-distributed", "jax-distributed", "deepspeed-distributed"} <= names, names
    assert trainer.get_runtime("torch-distributed").trainer.framework == "torch"


def trains() -> None:
    custom = CustomTrainer(func=fit, func_args={"steps": 200}, num_nodes=2)
    name = trainer.train(runtime=trainer.get_runtime("torch-distributed"), trainer=custom)
    job = trainer.wait_for_job_status(name, timeout=PATIENCE_S, polling_interval=1)
    assert (job.status, job.num_nodes) == ("Complete", 2), job
    assert [step.name for step in job.steps] == ["node-0", "node-1"], job.steps
    for rank in range(2):
        lines = list(trainer.get_job_logs(name, step=f"node-{rank}"))
        found = [line for line in lines if f"rank {rank} of 2: loss 0.0" in line]
        assert found, lines
    kinds = {event.involved_object_kind for event in trainer.get_job_events(name)}
    assert {"TrainJob", "Pod"} <= kinds, kinds
    trainer.delete_job(name)


def reads_packages() -> None:
    """The SDK runs a job of its own, and prints its log."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        trainer.get_runtime_packages(trainer.get_runtime("torch-distributed"))
    assert "Python: 3." in printed.getvalue(), printed.getvalue()
    assert trainer.list_jobs() == [], trainer.list_jobs()


def add_runtime(prefix, command, **torch):
    """Create a runtime for all namespaces; return its name."""
    pod = {"containers": [{"name": "node", "image": "busybox:1", "command": command}]}
    labels = {"trainer.kubeflow.org/framework": "torch"}
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = {"name": "node", "template": {"metadata": {"labels": step}, "spec": {"template": {}}}}
    node["template"]["spec"]["template"]["spec"] = pod
    body = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": f"{prefix}-{SPACE}", "labels": labels},
        "spec": {"mlPolicy": {"torch": torch}, "template": {"spec": {"replicatedJobs": [node]}}},
    }
    trainer.backend.custom_api.create_cluster_custom_object(*RUNTIMES, body)
    return f"{prefix}-{SPACE}"


def trains_container() -> None:
    """The command is that of the runtime; image, nodes and environment are those of the job."""
    runtime = trainer.get_runtime(add_runtime("says-rank", SAYS_RANK))
    custom = CustomTrainerContainer(image="busybox:1", num_nodes=2, env={"GREETING": "hello"})
    name = trainer.train(runtime=runtime, trainer=custom)
    job = trainer.wait_for_job_status(name, timeout=PATIENCE_S, polling_interval=1)
    assert (job.status, job.num_nodes) == ("Complete", 2), job
    for rank in range(2):
        lines = list(trainer.get_job_logs(name, step=f"node-{rank}"))
        assert lines == [f"hello from {rank} of 2"], lines
    trainer.delete_job(name)
    trainer.backend.custom_api.delete_cluster_custom_object(*RUNTIMES, runtime.name)


def resizes() -> None:
    """A job of an elastic runtime has as many steps as it has nodes."""
    policy = {"minNodes": 1, "maxNodes": 2}
    runtime = trainer.get_runtime(add_runtime("elastic", ["sleep", "600"], elasticPolicy=policy))
    custom = CustomTrainerContainer(image="busybox:1", num_nodes=1)
    name = trainer.train(runtime=runtime, trainer=custom)
    place = ("trainer.kubeflow.org", "v1alpha1", SPACE, "trainjobs", name)
    for nodes in (1, 2):
        change = {"spec": {"trainer": {"numNodes": nodes}}}
        trainer.backend.custom_api.patch_namespaced_custom_object(*place, change)
        for _ in range(PATIENCE_S):
            steps = [(step.name, step.status) for step in trainer.get_job(name).steps]
            if steps == [(f"node-{index}", "Running") for index in range(nodes)]:
                break
            time.sleep(1)
        job = trainer.get_job(name)
        assert (job.status, job.num_nodes, len(job.steps)) == ("Running", nodes, nodes), job
    trainer.delete_job(name)
    trainer.backend.custom_api.delete_cluster_custom_object(*RUNTIMES, runtime.name)


def waits() -> None:
    custom = CustomTrainer(func=sleep, num_nodes=1)
    name = trainer.train(trainer=custom, options=[Name("sleeper")])
    job = trainer.wait_for_job_status(
        name, status={"Running"}, timeout=PATIENCE_S, polling_interval=1
    )
    assert job.status == "Running", job
    first = next(iter(trainer.get_job_logs(name, follow=True)))
    assert first == "ready", first
    assert [each.name for each in trainer.list_jobs()] == [name]


def resumes() -> None:
    """A resumed job is Running again: the SDK takes other conditions for one not started."""
    api = trainer.backend.custom_api
    place = ("trainer.kubeflow.org", "v1alpha1", SPACE, "trainjobs", "sleeper")
    for suspended, awaited in ((True, "Suspended"), (False, "Running")):
        api.patch_namespaced_custom_object(*place, {"spec": {"suspend": suspended}})
        for _ in range(PATIENCE_S):
            status = api.get_namespaced_custom_object(*place).get("status", {})
            if status.get("gangline", {}).get("phase") == awaited:
                break
            trainer.backend.core_api.list_namespace(watch=False, timeout_seconds=1)
    job = trainer.wait_for_job_status(
        "sleeper", status={"Running"}, timeout=PATIENCE_S, polling_interval=1
    )
    assert job.status == "Running", job


def deletes() -> None:
    trainer.delete_job("sleeper")
    core = trainer.backend.core_api
    selector = "jobset.sigs.k8s.io/jobset-name=sleeper"
    deadline = time.monotonic() + PATIENCE_S
    while pods := core.list_namespaced_pod(SPACE, label_selector=selector).items:
        assert time.monotonic() < deadline, [pod.metadata.name for pod in pods]
        time.sleep(0.5)
    assert trainer.list_jobs() == [], trainer.list_jobs()


for step in (lists, trains, reads_packages, trains_container, resizes, waits, resumes, deletes):
    step()
    print(step.__name__, flush=True)
