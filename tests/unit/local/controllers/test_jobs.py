"""Jobs of batch/v1: pods to create and delete, counts, and the conditions of the end."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
)
from gangline.api.jobs.training_runtime import (
    ExitCodeRequirement,
    PodConditionPattern,
    PodFailurePolicy,
    PodFailureRule,
)
from gangline.api.meta.objects import ObjectMeta
from gangline.local.controllers.jobs.controller import build_job_pod
from gangline.local.controllers.jobs.plan import (
    FINALIZER,
    BackoffRecord,
    JobPlan,
    RawBatchJob,
    RawBatchJobSpec,
    RawBatchJobStatus,
    UncountedPods,
    format_indexes,
    plan_job,
)
from gangline.local.controllers.jobs.policies import (
    FAILURE_COUNT,
    INDEX,
    SuccessPolicy,
    SuccessRule,
    match_failure,
    parse_indexes,
)
from unit.local.controllers.builders import NOW, a_pod

STARTED = RawBatchJobStatus(start_time=NOW - timedelta(seconds=60))


def a_job(status: RawBatchJobStatus = STARTED, **spec: Any) -> RawBatchJob:
    return RawBatchJob(
        metadata=ObjectMeta(name="j", namespace="ns", uid="u"),
        spec=RawBatchJobSpec(**spec),
        status=status,
    )


def pod_of(
    name: str, phase: str = "Running", *, held: bool = True, index: int | None = None, **more: Any
) -> Pod:
    pod = a_pod(name, phase=phase, **more)
    annotations = {} if index is None else {INDEX: str(index)}
    metadata = msgspec.structs.replace(
        pod.metadata, finalizers=[FINALIZER] if held else [], annotations=annotations
    )
    return msgspec.structs.replace(pod, metadata=metadata)


def plan(
    job: RawBatchJob, pods: Iterable[Pod] = (), backoff: BackoffRecord | None = None
) -> JobPlan:
    return plan_job(job, list(pods), backoff or BackoffRecord(), NOW)


def conditions(status: RawBatchJobStatus) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, condition.reason) for condition in status.conditions}


def names(pods: Iterable[Pod]) -> list[str]:
    return [pod.metadata.name for pod in pods]


def test_a_new_job_starts_and_creates_its_pods() -> None:
    planned = plan(a_job(RawBatchJobStatus(), parallelism=3, completions=5))
    assert planned.status.start_time == NOW
    assert planned.create == (None, None, None)


@pytest.mark.parametrize(
    ("spec", "succeeded", "running", "created"),
    [
        ({}, 0, 0, 1),
        ({"completions": 5, "parallelism": 3}, 3, 0, 2),
        ({"completions": 5, "parallelism": 3}, 3, 1, 1),
        ({"parallelism": 3}, 0, 1, 2),
        ({"parallelism": 3}, 1, 1, 0),
        ({"parallelism": 0, "completions": 1}, 0, 0, 0),
        ({"parallelism": 9999, "completions": 9999}, 0, 0, 500),
    ],
)
def test_as_many_pods_run_as_are_left(
    spec: dict[str, int], succeeded: int, running: int, created: int
) -> None:
    status = msgspec.structs.replace(STARTED, succeeded=succeeded)
    planned = plan(a_job(status, **spec), [pod_of(f"r{n}") for n in range(running)])
    assert len(planned.create) == created


def test_surplus_pods_are_withdrawn_and_do_not_count_as_failed() -> None:
    pods = [pod_of("old"), pod_of("young", ready_for=1)]
    planned = plan(a_job(parallelism=1, completions=5), pods)
    assert names(planned.withdraw) == ["young"]
    gone = pod_of("young", held=False, going=True)
    assert plan(a_job(parallelism=1, completions=5), [pods[0], gone]).status.failed == 0


def test_an_ended_pod_is_counted_once_although_the_controller_may_end_in_between() -> None:
    job = a_job(completions=2)
    planned = plan(job, [pod_of("a", "Succeeded"), pod_of("b", "Failed")])
    assert planned.status.uncounted_terminated_pods == UncountedPods(["uid-a"], ["uid-b"])
    assert (planned.status.succeeded, planned.status.failed) == (0, 0)
    assert names(planned.release) == ["a", "b"]
    # The status is written, the finalizers are not removed yet.
    job = a_job(planned.status, completions=2)
    again = plan(job, [pod_of("a", "Succeeded"), pod_of("b", "Failed")])
    assert again.status == planned.status
    assert names(again.release) == ["a", "b"]
    # They are removed; one of the pods is deleted.
    last = plan(job, [pod_of("a", "Succeeded", held=False)])
    assert (last.status.succeeded, last.status.failed) == (1, 1)
    assert last.status.uncounted_terminated_pods == UncountedPods()
    job = a_job(last.status, completions=2)
    after = plan(job, [pod_of("a", "Succeeded", held=False)])
    assert (after.status.succeeded, after.status.failed) == (1, 1)


def test_a_job_is_complete_when_no_pod_of_it_is_left() -> None:
    status = msgspec.structs.replace(STARTED, succeeded=2)
    planned = plan(a_job(status, completions=2, parallelism=2), [pod_of("late")])
    assert conditions(planned.status) == {"SuccessCriteriaMet": ("True", "CompletionsReached")}
    assert names(planned.delete) == ["late"]
    planned = plan(a_job(planned.status, completions=2, parallelism=2))
    assert conditions(planned.status)["Complete"] == ("True", "CompletionsReached")
    assert planned.status.completion_time == NOW
    assert [event.reason for event in planned.events] == ["Completed"]
    after = plan(a_job(planned.status, completions=2, parallelism=2))
    assert (after.status, after.create, after.delete_job) == (planned.status, (), False)


def test_a_work_queue_ends_with_its_last_pod() -> None:
    status = msgspec.structs.replace(STARTED, succeeded=1)
    job = a_job(status, parallelism=2)
    assert conditions(plan(job, [pod_of("busy")]).status) == {}
    assert plan(job, [pod_of("busy")]).delete == ()
    assert "Complete" in conditions(plan(job).status)


def test_too_many_failures_end_a_job() -> None:
    status = msgspec.structs.replace(STARTED, failed=1)
    job = a_job(status, backoff_limit=1, completions=3, parallelism=3)
    assert "FailureTarget" not in conditions(plan(job).status)
    planned = plan(job, [pod_of("bad", "Failed"), pod_of("fine")])
    assert conditions(planned.status) == {"FailureTarget": ("True", "BackoffLimitExceeded")}
    assert names(planned.delete) == ["fine"]
    assert planned.create == ()
    status = msgspec.structs.replace(
        planned.status, uncounted_terminated_pods=UncountedPods(), failed=3
    )
    planned = plan(a_job(status, backoff_limit=1, completions=3, parallelism=3))
    assert conditions(planned.status)["Failed"] == ("True", "BackoffLimitExceeded")
    assert planned.events[0].type == "Warning"


@pytest.mark.parametrize(("limit", "restarts", "ends"), [(2, 1, False), (2, 2, True), (0, 1, True)])
def test_restarts_of_containers_count_with_on_failure(
    limit: int, restarts: int, ends: bool
) -> None:
    pod = pod_of("p")
    status = msgspec.structs.replace(
        pod.status, container_statuses=[ContainerStatus(name="c", restart_count=restarts)]
    )
    pods = [msgspec.structs.replace(pod, status=status)]
    for policy, expected in (("OnFailure", ends), ("Never", False)):
        job = a_job(backoff_limit=limit, template={"spec": {"restartPolicy": policy}})
        assert ("FailureTarget" in conditions(plan(job, pods).status)) is expected


def test_a_job_has_a_deadline() -> None:
    planned = plan(a_job(active_deadline_seconds=61), [pod_of("p")])
    assert planned.requeue_at == NOW + timedelta(seconds=1)
    planned = plan(a_job(active_deadline_seconds=60), [pod_of("p")])
    assert conditions(planned.status) == {"FailureTarget": ("True", "DeadlineExceeded")}
    assert names(planned.delete) == ["p"]


def failed_at(name: str, time: datetime, phase: str = "Failed") -> Pod:
    pod = pod_of(name, phase)
    ended = ContainerState(terminated=ContainerStateTerminated(finished_at=time))
    status = msgspec.structs.replace(
        pod.status, container_statuses=[ContainerStatus(name="c", state=ended)]
    )
    return msgspec.structs.replace(pod, status=status)


def test_failed_pods_are_replaced_after_a_growing_delay() -> None:
    job = a_job(completions=1)
    planned = plan(job, [failed_at("a", NOW - timedelta(seconds=3))])
    assert planned.create == ()
    assert planned.requeue_at == NOW + timedelta(seconds=7)
    assert plan(job, [], BackoffRecord(1, NOW - timedelta(seconds=10))).create == (None,)
    second = plan(job, [failed_at("b", NOW)], planned.backoff)
    assert second.requeue_at == NOW + timedelta(seconds=20)
    many = BackoffRecord(40, NOW)
    assert plan(job, [], many).requeue_at == NOW + timedelta(minutes=10)
    success = plan(a_job(completions=2), [failed_at("c", NOW, "Succeeded")], many)
    assert success.backoff == BackoffRecord()
    assert success.create == (None,)


def test_a_suspended_job_has_no_pods_and_starts_anew_when_resumed() -> None:
    planned = plan(a_job(suspend=True, parallelism=2), [pod_of("p")])
    assert names(planned.withdraw) == ["p"]
    assert planned.create == ()
    assert conditions(planned.status) == {"Suspended": ("True", "JobSuspended")}
    assert planned.status.start_time is None
    resumed = plan(a_job(planned.status, suspend=False, parallelism=2))
    assert conditions(resumed.status) == {"Suspended": ("False", "JobResumed")}
    assert resumed.status.start_time == NOW
    assert len(resumed.create) == 2


def test_an_indexed_job_runs_each_index_until_it_has_succeeded() -> None:
    spec: dict[str, Any] = {"completion_mode": "Indexed", "completions": 5, "parallelism": 3}
    pods = [
        pod_of("zero", "Succeeded", index=0),
        pod_of("one", index=1),
        pod_of("again", index=1, ready_for=1),
        pod_of("beyond", index=9),
    ]
    planned = plan(a_job(**spec), pods)
    assert planned.status.completed_indexes == "0"
    assert planned.status.succeeded == 1
    assert names(planned.release) == ["zero"]
    assert sorted(names(planned.withdraw)) == ["again", "beyond"]
    planned = plan(a_job(planned.status, **spec), [pod_of("one", index=1)])
    assert planned.create == (2, 3)
    status = msgspec.structs.replace(STARTED, completed_indexes="0-4", succeeded=5)
    assert "Complete" in conditions(plan(a_job(status, **spec)).status)


@pytest.mark.parametrize(("policy", "created"), [("TerminatingOrFailed", 1), ("Failed", 0)])
def test_a_deleted_pod_is_replaced_by_policy(policy: str, created: int) -> None:
    job = a_job(completions=1, pod_replacement_policy=policy)
    planned = plan(job, [pod_of("p", going=True)], BackoffRecord())
    assert len(planned.status.uncounted_terminated_pods.failed) == created
    assert planned.status.terminating == 1
    # After the delay that follows a failure.
    status = msgspec.structs.replace(planned.status, start_time=STARTED.start_time)
    job = a_job(status, completions=1, pod_replacement_policy=policy)
    assert len(plan(job, [pod_of("p", going=True)]).create) == created


def test_a_finished_job_expires() -> None:
    status = plan(a_job(msgspec.structs.replace(STARTED, succeeded=1))).status
    assert not plan(a_job(status)).delete_job
    assert plan(a_job(status, ttl_seconds_after_finished=30)).requeue_at == NOW + timedelta(
        seconds=30
    )
    assert plan(a_job(status, ttl_seconds_after_finished=0)).delete_job


def test_a_job_in_deletion_only_releases_its_pods() -> None:
    job = a_job(completions=3)
    metadata = msgspec.structs.replace(job.metadata, deletion_timestamp=NOW)
    planned = plan(msgspec.structs.replace(job, metadata=metadata), [pod_of("p")])
    assert names(planned.release) == ["p"]
    assert (planned.create, planned.delete, planned.withdraw) == ((), (), ())


@pytest.mark.parametrize(
    ("text", "indexes"),
    [("", []), ("0", [0]), ("0,2", [0, 2]), ("0,1", [0, 1]), ("0-2,5,7-9", [0, 1, 2, 5, 7, 8, 9])],
)
def test_indexes_have_the_form_of_kubernetes(text: str, indexes: list[int]) -> None:
    assert format_indexes(indexes) == text
    assert parse_indexes(text, 10) == set(indexes)


def test_wrong_indexes_are_ignored() -> None:
    assert parse_indexes(f"0-99999999999,x,-3,²,{'9' * 5000}", 3) == {0, 1, 2}


def test_pods_know_their_job_and_their_index() -> None:
    container = {"name": "c", "image": "i"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    job = a_job(template=template)
    pod = build_job_pod(job, None)
    assert pod["metadata"]["generateName"] == "j-"
    assert pod["metadata"]["finalizers"] == [FINALIZER]
    labels = pod["metadata"]["labels"]
    assert (labels["a"], labels["job-name"], labels["batch.kubernetes.io/controller-uid"]) == (
        "b",
        "j",
        "u",
    )
    pod = build_job_pod(job, 3)
    assert pod["metadata"]["generateName"] == "j-3-"
    assert pod["metadata"]["labels"][INDEX] == pod["metadata"]["annotations"][INDEX] == "3"
    assert pod["spec"]["hostname"] == "j-3"
    (variable,) = pod["spec"]["containers"][0]["env"]
    assert variable["name"] == "JOB_COMPLETION_INDEX"
    assert "env" not in container, "the template stays as it is"


INDEXED: dict[str, Any] = {"completion_mode": "Indexed", "completions": 3, "parallelism": 3}


def exited(name: str, code: int, *, failures: int | None = None, **more: Any) -> Pod:
    pod = pod_of(name, "Failed" if code else "Succeeded", **more)
    end = ContainerState(terminated=ContainerStateTerminated(exit_code=code, finished_at=NOW))
    status = msgspec.structs.replace(
        pod.status, container_statuses=[ContainerStatus(name="main", state=end)]
    )
    annotations = dict(pod.metadata.annotations)
    if failures is not None:
        annotations[FAILURE_COUNT] = str(failures)
    metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
    return msgspec.structs.replace(pod, status=status, metadata=metadata)


def on_exit(action: str, operator: str, *values: int, container: str = "") -> Any:
    codes = ExitCodeRequirement(container_name=container, operator=operator, values=list(values))
    return PodFailureRule(action=action, on_exit_codes=codes)


def on_condition(status: str) -> Any:
    return PodFailureRule("Count", on_pod_conditions=[PodConditionPattern("Ready", status)])


@pytest.mark.parametrize(
    ("rule", "action"),
    [
        (on_exit("FailJob", "In", 3, 4), "FailJob"),
        (on_exit("FailJob", "In", 4), ""),
        (on_exit("Ignore", "NotIn", 4), "Ignore"),
        (on_exit("Ignore", "NotIn", 3), ""),
        (on_exit("FailJob", "In", 3, container="other"), ""),
        (on_condition("True"), "Count"),
        (on_condition("False"), ""),
    ],
)
def test_the_first_rule_that_matches_a_failed_pod_decides(rule: Any, action: str) -> None:
    never = on_exit("FailJob", "In", 99)
    last = on_exit("FailIndex", "In", 3)
    match = match_failure(PodFailurePolicy([never, rule, last]), exited("p", 3))
    assert match.action == (action or "FailIndex")
    assert match.message.endswith(f"rule at index {1 if action else 2}")


def test_a_failure_may_end_the_job_or_not_count() -> None:
    policy = PodFailurePolicy([on_exit("FailJob", "In", 3), on_exit("Ignore", "In", 9)])
    job = a_job(pod_failure_policy=policy, parallelism=2, completions=2)
    planned = plan(job, [exited("a", 3), pod_of("b")])
    assert conditions(planned.status) == {"FailureTarget": ("True", "PodFailurePolicy")}
    assert planned.status.conditions[0].message == (
        "Container main for pod ns/a failed with exit code 3 matching FailJob rule at index 0"
    )
    assert names(planned.delete) == ["b"]
    ignored = plan(job, [exited("a", 9), pod_of("b")])
    assert ignored.status.uncounted_terminated_pods == UncountedPods()
    assert (names(ignored.release), ignored.create) == (["a"], (None,))
    going = plan(job, [pod_of("a", going=True), pod_of("b")])  # it may still succeed
    assert going.status.uncounted_terminated_pods == UncountedPods()


@pytest.mark.parametrize(
    ("rule", "completed", "met"),
    [
        (SuccessRule(succeeded_indexes="0,2"), "0,2", True),
        (SuccessRule(succeeded_indexes="0,2"), "0,1", False),
        (SuccessRule(succeeded_indexes="0-2", succeeded_count=2), "0,2", True),
        (SuccessRule(succeeded_count=1), "1", True),
        (SuccessRule(succeeded_count=2), "1", False),
    ],
)
def test_a_success_policy_ends_a_job(rule: SuccessRule, completed: str, met: bool) -> None:
    status = msgspec.structs.replace(STARTED, completed_indexes=completed)
    job = a_job(
        status, success_policy=SuccessPolicy([SuccessRule(succeeded_count=9), rule]), **INDEXED
    )
    planned = plan(job, [pod_of("p", index=1)])
    reason = conditions(planned.status).get("SuccessCriteriaMet", ("", ""))[1]
    assert reason == ("SuccessPolicy" if met else "")
    if met:
        ended = plan(msgspec.structs.replace(job, status=planned.status))
        assert conditions(ended.status)["Complete"] == ("True", "SuccessPolicy")


def test_each_index_has_its_own_limit_and_delay() -> None:
    job = a_job(backoff_limit_per_index=1, **INDEXED)
    pods = [exited("a", 1, failures=0, index=0), pod_of("b", index=1), pod_of("c", index=2)]
    planned = plan(job, pods)
    # The failed pod alone knows the number of failures, until the next pod of its index has it.
    assert (planned.create, planned.release) == ((), ())
    assert planned.requeue_at == NOW + timedelta(seconds=10)
    again = plan_job(job, pods, BackoffRecord(), NOW + timedelta(seconds=10))
    assert (again.create, again.failures) == ((0,), {0: 1, 1: 0, 2: 0})
    assert build_job_pod(job, 0, 1)["metadata"]["annotations"][FAILURE_COUNT] == "1"
    second = exited("a2", 1, failures=1, index=0)
    failed = plan(job, [*pods, second])
    assert sorted(names(failed.release)) == ["a", "a2"]
    assert failed.status.failed_indexes == "0"
    status = msgspec.structs.replace(failed.status, completed_indexes="1-2")
    uncounted = plan(msgspec.structs.replace(job, status=status), [])
    assert conditions(uncounted.status)["Failed"] == ("True", "FailedIndexes")
    assert (uncounted.status.failed, uncounted.create) == (2, ())


def test_an_index_may_fail_at_once_or_not_count_its_failure() -> None:
    policy = PodFailurePolicy([on_exit("FailIndex", "In", 3), on_exit("Ignore", "In", 9)])
    job = a_job(backoff_limit_per_index=1, pod_failure_policy=policy, **INDEXED)
    pods = [exited("a", 3, failures=0, index=0), exited("b", 9, failures=0, index=1)]
    planned = plan(job, [*pods, pod_of("c", index=2)])
    assert planned.status.failed_indexes == "0"
    assert (planned.create, planned.failures) == ((1,), {0: 1, 1: 0, 2: 0})
    limited = a_job(backoff_limit_per_index=0, max_failed_indexes=0, **INDEXED)
    ended = plan(limited, [exited("a", 1, index=0), pod_of("b", index=1)])
    assert conditions(ended.status)["FailureTarget"] == ("True", "MaxFailedIndexesExceeded")
