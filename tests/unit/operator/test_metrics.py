"""Metrics of jobs and restarts: each event is counted once, with few label values."""

from dataclasses import replace

import msgspec
import pytest
from prometheus_client import REGISTRY

from gangline.api.jobs.kubeflow import JobStatus, RestartRecord
from gangline.api.meta.objects import Condition
from gangline.operator import metrics
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.metrics import GANG_SCOPE, REPLICA_SCOPE, RestartCause
from gangline.operator.model.plan import ObservedJob
from gangline.operator.model.replicas import (
    ObservedContainerState,
    ObservedContainerStatus,
    ObservedPodSpec,
    ObservedPodStatus,
    ObservedTermination,
)
from unit.operator.builders import SETTINGS, a_job, a_pod, at


def value(metric, /, **labels):
    return REGISTRY.get_sample_value(metric, labels) or 0.0


def after(observed):
    return plan_reconcile(observed, at(0), SETTINGS).status


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        pytest.param({"code": 137}, "Killed", id="a signal"),
        pytest.param({"code": 139}, "SegmentationFault", id="another signal"),
        pytest.param({"code": 200}, "Error", id="a retryable code that is no signal"),
        pytest.param({"reason": "Evicted"}, "Evicted", id="an eviction"),
        pytest.param({"reason": "NodeLost"}, "NodeLost", id="a lost node"),
        pytest.param({"reason": "Preempting"}, "Preempted", id="a preemption"),
        pytest.param({}, "Unknown", id="not reported"),
    ],
)
def test_a_replaced_pod_is_counted_under_its_cause(fields, cause) -> None:
    job = a_job(1, 1, restart="ExitCode")
    observed = ObservedJob(
        job, JobStatus(), pods=[a_pod("master-0"), a_pod("worker-0", "Failed", **fields)]
    )
    assert metrics.count_restart_causes(observed, after(observed)) == {
        RestartCause(REPLICA_SCOPE, cause): 1
    }


def restarted(end, times=1, before=0):
    pod = a_pod("worker-0", restarts=times)
    status = ObservedContainerStatus(
        name="pytorch", restart_count=times, last_state=ObservedContainerState(terminated=end)
    )
    pod = msgspec.structs.replace(
        pod, status=ObservedPodStatus(phase="Running", container_statuses=(status,))
    )
    record = RestartRecord(total=before, pods={pod.uid: before})
    return ObservedJob(a_job(1, 1), JobStatus(restarts=record), pods=[a_pod("master-0"), pod])


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        pytest.param(
            ObservedTermination(exit_code=137, reason="OOMKilled"), "OutOfMemory", id="memory"
        ),
        pytest.param(ObservedTermination(exit_code=1, reason="Error"), "Error", id="the program"),
        pytest.param(
            ObservedTermination(exit_code=0, reason="Completed"), "Completed", id="ended well"
        ),
        pytest.param(None, "Unknown", id="not reported"),
    ],
)
def test_restarts_in_place_are_counted_under_what_ended_the_container(end, cause) -> None:
    observed = restarted(end, times=3, before=1)
    assert metrics.count_restart_causes(observed, after(observed)) == {
        RestartCause(REPLICA_SCOPE, cause): 2
    }


def with_annotations(job, **annotations):
    named = {f"gangline.dev/{name}": word for name, word in annotations.items()}
    return msgspec.structs.replace(job.meta, annotations=named)


def gang_job(**annotations):
    job = a_job(1, 1)
    return replace(job, meta=with_annotations(job, **annotations))


@pytest.mark.parametrize(
    ("job", "worker", "cause"),
    [
        (gang_job(restart="gang"), a_pod("worker-0", "Failed", code=137), "Killed"),
        (gang_job(restart="gang"), a_pod("worker-0", deleted=at(-1)), "Deleted"),
        (gang_job(resize="restart"), a_pod("worker-0"), "Resized"),
    ],
    ids=["the first failure", "a deletion", "another size"],
)
def test_a_restart_of_the_gang_is_counted_once_under_its_cause(job, worker, cause) -> None:
    pods = [a_pod("master-0"), worker]
    for pod in pods:
        pod.metadata.annotations["gangline.dev/world"] = "Master=1,Worker=3"
    observed = ObservedJob(job, JobStatus(), pods=pods)
    assert metrics.count_restart_causes(observed, after(observed)) == {
        RestartCause(GANG_SCOPE, cause): 1
    }


def test_a_status_counts_what_is_new_in_it() -> None:
    def counted():
        labels = {"job_namespace": "team", "framework": "pytorch"}
        names = ("created", "successful", "failed", "restarted")
        reported = {word: value(f"training_operator_jobs_{word}_total", **labels) for word in names}
        by_cause = {
            "framework": "pytorch",
            "scope": "replica",
            "cause": "Killed",
            "blame": "platform",
        }
        return reported | {"by cause": value("gangline_operator_restarts_total", **by_cause)}

    before = counted()
    job = a_job(1, 1, restart="ExitCode")
    pods = [a_pod("master-0"), a_pod("worker-0", "Failed", code=137)]
    first = ObservedJob(job, JobStatus(), pods=pods)
    stored = after(first)
    metrics.count_transitions(first, stored)
    second = ObservedJob(job, stored, pods=[a_pod("master-0", "Succeeded", code=0)])
    metrics.count_transitions(second, after(second))
    metrics.count_transitions(ObservedJob(job, after(second)), after(second))
    gained = {name: amount - before[name] for name, amount in counted().items()}
    assert gained == {
        "created": 1,
        "successful": 1,
        "failed": 0,
        "restarted": 1,
        "by cause": 1,
    }


def on_node(name, **fields):
    pod = a_pod("worker-0", "Failed", **fields)
    return msgspec.structs.replace(pod, spec=ObservedPodSpec(node_name=name))


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        pytest.param({"code": 203}, {("n7", "NodeFault"): 1}, id="a proved fault"),
        pytest.param({"reason": "NodeLost"}, {("n7", "NodeLost"): 1}, id="a lost node"),
        pytest.param({"code": 137}, {}, id="a kill"),
        pytest.param({"code": 139}, {}, id="the program"),
        pytest.param({}, {}, id="not reported"),
    ],
)
def test_only_faults_of_the_node_are_counted_by_node(fields, counted) -> None:
    job = a_job(1, 1, restart="ExitCode")
    observed = ObservedJob(job, JobStatus(), pods=[a_pod("master-0"), on_node("n7", **fields)])
    assert metrics.count_node_failures(observed, after(observed)) == counted


def test_number_of_node_labels_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(metrics, "MAX_BLAMED_NODES", 1)
    monkeypatch.setattr(metrics, "_blamed_nodes", set())
    job = a_job(1, 1, restart="ExitCode")
    for name in ("n1", "n2", "n3", "n1"):
        pods = [a_pod("master-0"), on_node(name, code=203)]
        observed = ObservedJob(job, JobStatus(), pods=pods)
        metrics.count_transitions(observed, after(observed))
    name = "gangline_operator_node_failures_total"
    assert value(name, node="n1", cause="NodeFault") == 2
    assert value(name, node="(others)", cause="NodeFault") == 2
    assert value(name, node="n2", cause="NodeFault") == 0


def test_recovery_is_the_time_between_the_conditions() -> None:
    restarting = Condition(type="Restarting", status="True", last_transition_time=at(0))
    running = Condition(type="Running", status="True", last_transition_time=at(42))
    job = a_job(1, 1)
    before, ended = JobStatus(conditions=[restarting]), JobStatus(conditions=[running])
    assert metrics.recovery_s(ObservedJob(job, before), ended) == 42
    assert metrics.recovery_s(ObservedJob(job, ended), ended) is None
    assert metrics.recovery_s(ObservedJob(job, before), before) is None


def test_no_metric_is_labelled_by_job() -> None:
    used = {
        label
        for metric in REGISTRY.collect()
        for sample in metric.samples
        for label in sample.labels
    }
    assert not used & {"job", "job_name", "pod", "pod_name", "uid"}
