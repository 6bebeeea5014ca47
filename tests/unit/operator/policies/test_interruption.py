"""What a job reports while pods of it are missing after it ran."""

from typing import Any

import pytest
from msgspec.structs import replace

from gangline.api.failure import DISRUPTION_TARGET, PREEMPTED_CONDITION
from gangline.api.meta.conditions import is_condition_true
from gangline.api.meta.objects import Condition
from gangline.api.volcano.scheduling import PodGroup, PodGroupCondition, PodGroupStatus
from gangline.operator.engine.status import is_minor_change, transition_events
from gangline.operator.model.plan import EngineSettings
from gangline.operator.model.replicas import ObservedPod
from unit.operator.builders import Case, a_job, a_pod, at, conditions, look, message
from unit.operator.kinds import KINDS
from unit.operator.world import World

POLICY = "PyTorchJob team/train waits for"


def disrupted(pod: ObservedPod, reason: str, text: str = "", *, own: bool = False) -> ObservedPod:
    """A terminating pod with a reason; ``own`` as our scheduler writes it beside the API's."""
    found = [Condition(DISRUPTION_TARGET, "True", reason=reason, message=text)]
    if own:
        found[0] = replace(found[0], reason="EvictionByEvictionAPI", message="Eviction API")
        found.append(Condition(PREEMPTED_CONDITION, "True", reason=reason, message=text))
    meta = replace(pod.metadata, deletion_timestamp=at(10))
    return replace(pod, metadata=meta, status=replace(pod.status, conditions=tuple(found)))


PREEMPTED: dict[str, Any] = {
    "reason": "PreemptionByScheduler",
    "text": "Evicted: preempted by team/urgent of higher priority",
    "own": True,
}


def running(*pods: ObservedPod, **extra: Any) -> Case:
    """The next pass over a job whose two workers ran."""
    started = look(a_job(None, 2), a_pod("worker-0"), a_pod("worker-1")).decide().status
    assert conditions(started) == ["Created", "Running"]
    return look(a_job(None, 2), *pods, status=started, now=at(5), **extra)


@pytest.mark.parametrize(
    ("reason", "text", "cause"),
    [
        ("EvictionByEvictionAPI", "Eviction API: evicting", "evicted through the eviction API"),
        ("DeletionByTaintManager", "", "deleted for a taint of the node"),
        ("DeletionByPodGC", "", "deleted because the node does not exist"),
        ("PreemptionByScheduler", "default-scheduler: preempting", "preempted: default-scheduler"),
    ],
)
def test_job_without_pods_says_how_many_it_waits_for_since_when_and_why(
    reason: str, text: str, cause: str
) -> None:
    pods = [disrupted(a_pod(name), reason, text) for name in ("worker-0", "worker-1")]
    status = running(*pods).decide().status
    assert conditions(status) == ["(Running)", "Created"]
    reported = message(status, "Running")
    assert reported.startswith(f"{POLICY} 2 of 2 pods since 2026-11-20T12:00:05Z because 2 pods")
    assert f"train-worker-0, train-worker-1 were {cause}" in reported


def test_event_names_the_preemption_once_while_its_pods_end_one_after_the_other() -> None:
    case = running(
        disrupted(a_pod("worker-0"), **PREEMPTED), disrupted(a_pod("worker-1"), **PREEMPTED)
    )
    (event,) = transition_events(case.status, case.decide().status)
    assert (event.reason, event.warning) == ("PyTorchJobPreempted", True)
    assert "were preempted by team/urgent of higher priority." in event.message
    after = case.later(6, disrupted(a_pod("worker-1"), **PREEMPTED), a_pod("worker-0", "Pending"))
    gone = after.later(7, a_pod("worker-0", "Pending"), a_pod("worker-1", "Pending"))
    for later in (after, gone):
        status = later.decide().status
        assert transition_events(later.status, status) == []
        assert is_minor_change(later.status, status)
        assert "since 2026-11-20T12:00:05Z because 2 pods were lost" in message(status, "Running")
    back = gone.later(9, a_pod("worker-0"), a_pod("worker-1")).decide().status
    assert conditions(back) == ["Created", "Running"]
    assert message(back, "Running") == "PyTorchJob team/train is running."


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_kind_says_running_while_all_pods_are_preempted(kind: str) -> None:
    world = World(KINDS[kind].job(2))
    for _ in range(3):  # some pods follow others
        world.settle()
        world.start_all()
    for pod in list(world.pods.values()):
        if kind == "TrainJob":
            world.succeed(pod)  # the step that the nodes wait for
    world.settle()
    world.start_all()
    assert is_condition_true(world.settle().status.conditions, "Running")
    for pod in list(world.pods.values()):
        world.preempt(pod)
    world.settle()
    world.finish_terminating()
    plan = world.settle()
    assert not is_condition_true(world.status.conditions, "Running")
    assert "preempted by team/urgent" in message(world.status, "Running")
    fields = plan.kind_status or {}
    assert fields.get("gangline", fields).get("phase", "Pending") == "Pending"
    assert "waits for" in fields.get("gangline", {"message": "waits for"})["message"]


def test_job_that_runs_without_one_of_its_pods_says_so() -> None:
    case = running(a_pod("worker-0"), disrupted(a_pod("worker-1"), **PREEMPTED))
    status = case.decide().status
    assert conditions(status) == ["Created", "Running"]
    assert message(status, "Running").startswith(f"{POLICY} 1 of 2 pods since")
    assert [event.reason for event in transition_events(case.status, status)] == [
        "PyTorchJobPreempted"
    ]


def test_preemption_is_named_although_no_pass_saw_the_pods_end() -> None:
    gone = [disrupted(a_pod(name), **PREEMPTED) for name in ("worker-0", "worker-1")]
    status = running(a_pod("worker-0", "Pending"), disrupted=gone).decide().status
    assert "2 pods were lost: train-worker-0, train-worker-1 were preempted by team/urgent" in (
        message(status, "Running")
    )


def test_message_has_what_the_scheduler_reports_about_the_successors() -> None:
    reported = [PodGroupCondition("Unschedulable", "True", message="No node has free GPUs.")]
    group = PodGroup(status=PodGroupStatus(conditions=reported))
    case = running(
        a_pod("worker-0", "Pending"), pod_group=group, settings=EngineSettings(gang_scheduling=True)
    )
    assert message(case.decide().status, "Running") == (
        f"{POLICY} 2 of 2 pods since 2026-11-20T12:00:05Z because they do not run. "
        "Pending: No node has free GPUs."
    )


def test_failed_pod_that_the_operator_replaces_is_not_lost() -> None:
    case = look(a_job(None, 2, restart="ExitCode"), a_pod("worker-0"), a_pod("worker-1"))
    failed = case.later(1, a_pod("worker-0", "Failed", code=137), a_pod("worker-1"))
    ending = failed.later(
        2, a_pod("worker-0", "Failed", code=137, deleted=at(30)), a_pod("worker-1")
    )
    assert conditions(ending.decide().status) == ["Created", "Restarting"]


def test_deadline_names_what_kept_pods_from_running() -> None:
    pending = a_pod("worker-0", "Pending", waiting="CreateContainerConfigError")
    case = look(a_job(None, 1, activeDeadlineSeconds=60), pending).later(61, pending)
    assert message(case.decide().status, "Failed").endswith(
        "its deadline of 0:01:00. Not all pods ran: train-worker-0: CreateContainerConfigError"
    )
