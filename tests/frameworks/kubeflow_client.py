"""Typical use of the Kubeflow SDK for Python on the cluster of KUBECONFIG, step by step.

Runs in the environment of ``examples/clients``, where neither pytest nor gangline is.
"""

import time
from collections.abc import Callable

from kubeflow.training import KubeflowOrgV1PyTorchJob, TrainingClient
from kubeflow.training import models as kinds
from kubernetes import client as kubernetes

PATIENCE_S = 300
POLLED_EVERY_S = 1


def count(parameters):
    import os

    for step in range(int(parameters["steps"])):
        print(f"step {step} of {os.environ['TF_CONFIG'][:1]}", flush=True)


def until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.2)


def refused(call: Callable[[], object], text: str) -> None:
    """Check that the SDK raises its documented errors."""
    try:
        call()
    except RuntimeError as error:
        if text not in str(error):
            raise
    else:
        raise AssertionError(f"the error does not contain {text!r}")


def job(name: str, script: str, workers: int = 1) -> KubeflowOrgV1PyTorchJob:
    """A job as written by programs that do not ship functions."""
    limits = kubernetes.V1ResourceRequirements(requests={"cpu": "50m"})
    container = kubernetes.V1Container(
        name="pytorch", image="any", command=["sh", "-c", script], resources=limits
    )
    template = kubernetes.V1PodTemplateSpec(spec=kubernetes.V1PodSpec(containers=[container]))
    role = kinds.KubeflowOrgV1ReplicaSpec(template=template, restart_policy="Never", replicas=1)
    rest = kinds.KubeflowOrgV1ReplicaSpec(
        template=template, restart_policy="Never", replicas=workers
    )
    spec = kinds.KubeflowOrgV1PyTorchJobSpec(
        run_policy=kinds.KubeflowOrgV1RunPolicy(clean_pod_policy="None"),
        pytorch_replica_specs={"Master": role, "Worker": rest},
    )
    return KubeflowOrgV1PyTorchJob(
        api_version="kubeflow.org/v1",
        kind="PyTorchJob",
        metadata=kubernetes.V1ObjectMeta(name=name),
        spec=spec,
    )


def watched_and_changed(client: TrainingClient) -> None:
    # As process 1 of its pod the shell would ignore a SIGTERM without a handler.
    script = "trap exit TERM; echo here; while :; do sleep 0.1; done"
    client.create_job(job("lasting", script), labels={"team": "a"})
    running = client.wait_for_job_conditions(
        "lasting", expected_conditions={"Running"}, polling_interval=POLLED_EVERY_S
    )
    assert running.spec.pytorch_replica_specs["Worker"].replicas == 1
    assert client.is_job_created("lasting")
    assert client.is_job_running(job=running)
    assert not client.is_job_restarting("lasting")
    assert client.get_job_pod_names("lasting", is_master=True) == ["lasting-master-0"]
    (worker,) = client.get_job_pods("lasting", replica_type="worker", replica_index=0)
    assert worker.metadata.name == "lasting-worker-0"
    until(lambda: "here" in str(client.get_job_logs("lasting")[0]), "the master's log")

    def given_a_second_worker() -> bool:
        current = client.get_job("lasting")
        current.spec.pytorch_replica_specs["Worker"].replicas = 2
        try:
            client.update_job(current, "lasting")
        except RuntimeError as error:  # the operator has written its status since it was read
            if "(409)" not in str(error):
                raise
            return False
        return True

    until(given_a_second_worker, "the job is not changed by others meanwhile")
    expected = ["lasting-master-0", "lasting-worker-0", "lasting-worker-1"]
    until(lambda: sorted(client.get_job_pod_names("lasting")) == expected, "a second worker")
    client.delete_job("lasting")
    until(lambda: not client.get_job_pod_names("lasting"), "no pod is left")


def found_failed(client: TrainingClient) -> None:
    client.create_job(job("broken", "echo no; exit 3"))
    refused(
        lambda: client.wait_for_job_conditions("broken", polling_interval=POLLED_EVERY_S), "Failed"
    )
    assert client.is_job_failed("broken")
    assert not client.is_job_succeeded("broken")
    refused(lambda: client.create_job(job("broken", "true")), "409")
    logs, events = client.get_job_logs("broken", is_master=False, verbose=True)
    assert set(logs) == {"broken-master-0", "broken-worker-0"}
    assert events, "no events"
    client.delete_job("broken")


def shipped_for_tensorflow(client: TrainingClient) -> None:
    client.create_job(
        name="counting",
        job_kind="TFJob",
        base_image="any",
        train_func=count,
        parameters={"steps": "3"},
        num_workers=2,
        resources_per_worker={"cpu": "500m", "memory": "512Mi"},
    )
    done = client.wait_for_job_conditions(
        "counting", job_kind="TFJob", polling_interval=POLLED_EVERY_S
    )
    conditions = client.get_job_conditions(job=done, job_kind="TFJob")
    assert [each.type for each in conditions if each.status == "True"][-1] == "Succeeded"
    assert client.is_job_succeeded("counting", job_kind="TFJob")
    logs, _ = client.get_job_logs("counting", job_kind="TFJob", is_master=False, follow=True)
    assert "step 2 of {" in logs["counting-worker-0"], logs
    assert [each.metadata.name for each in client.list_jobs(job_kind="TFJob")] == ["counting"]
    client.delete_job("counting", job_kind="TFJob")
    until(lambda: not client.list_jobs(job_kind="TFJob"), "the job is gone")
    refused(lambda: client.get_job("counting", job_kind="TFJob"), "404")


def main() -> None:
    client = TrainingClient(namespace="default")
    watched_and_changed(client)
    found_failed(client)
    shipped_for_tensorflow(client)


if __name__ == "__main__":
    main()
