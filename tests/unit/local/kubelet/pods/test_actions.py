"""Pod actions: starts, stops, restarts, ends."""

from datetime import datetime

import pytest

from gangline.api.core.pod import Pod
from gangline.local.kubelet.pods.actions import PodActions, StopContainer, compute_pod_actions
from gangline.local.kubelet.records import (
    BackoffSettings,
    ContainerRecord,
    PodFailureReason,
    PodRecord,
    RestartBackoff,
    StartProblem,
    next_backoff,
    restart_time,
)
from unit.local.kubelet.builders import NOW, a_pod, a_record, ended, later, running

SETTINGS = BackoffSettings(10, 300)


def look(pod: Pod, record: PodRecord, now: datetime = NOW) -> PodActions:
    return compute_pod_actions(pod, record, now, SETTINGS)


def test_a_new_pod_is_prepared_before_anything_is_started() -> None:
    assert look(a_pod(), a_record(prepared=False)) == PodActions(prepare=True)


def test_preparation_in_progress_is_not_started_again() -> None:
    decision = look(a_pod(), a_record(prepared=False, preparing=True))
    assert not decision.prepare


def test_a_failed_preparation_waits_for_its_time() -> None:
    record = a_record(prepared=False, problem=StartProblem("FailedMount", "why", later(3)))
    assert look(a_pod(), record) == PodActions(requeue_at=later(3))
    assert look(a_pod(), record, later(3)).prepare


def test_all_containers_start_together() -> None:
    assert look(a_pod("a", "b"), a_record()).start == ("a", "b")


def test_running_or_starting_container_is_not_started_again() -> None:
    record = a_record({"a": running(), "b": ContainerRecord(starting=True)})
    assert look(a_pod("a", "b"), record) == PodActions()


def test_init_containers_start_one_after_the_other() -> None:
    pod = a_pod("m", inits=("i", "j"))
    assert look(pod, a_record()).start == ("i",)
    assert look(pod, a_record({"i": running()})).start == ()
    assert look(pod, a_record({"i": ended()})).start == ("j",)
    assert look(pod, a_record({"i": ended(), "j": ended()})).start == ("m",)


def test_a_sidecar_must_have_started_but_not_ended() -> None:
    pod = a_pod("m", inits=("i",), sidecars=("s",))
    assert look(pod, a_record()).start == ("s",)
    assert look(pod, a_record({"s": running(started=False)})).start == ()
    assert look(pod, a_record({"s": running()})).start == ("i",)


def test_a_sidecar_restarts_beside_running_containers() -> None:
    pod = a_pod("m", sidecars=("s",), restartPolicy="Never")
    assert look(pod, a_record({"s": ended(1), "m": running()})).start == ("s",)


def test_init_containers_do_not_run_again_when_a_container_restarts() -> None:
    pod = a_pod("m", inits=("i",))
    assert look(pod, a_record({"i": ended(), "m": ended(1)})).start == ("m",)


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_restart_policies(policy: str, code: int, again: bool) -> None:
    decision = look(a_pod(restartPolicy=policy), a_record({"c": ended(code)}))
    assert bool(decision.start) == again
    assert decision.finished == (not again)
    assert decision.release == (not again)


def test_a_restart_waits_for_its_back_off() -> None:
    record = a_record({"c": ended(1, at=NOW, backoff=RestartBackoff(20, later(-60)))})
    assert look(a_pod(), record, later(5)) == PodActions(requeue_at=later(20))
    assert look(a_pod(), record, later(20)).start == ("c",)


def test_a_configuration_problem_is_tried_again_at_its_time() -> None:
    record = a_record({"c": ContainerRecord(problem=StartProblem("X", "m", later(4)))})
    assert look(a_pod(), record) == PodActions(requeue_at=later(4))
    assert look(a_pod(), record, later(4)).start == ("c",)


def test_a_failed_init_container_ends_a_pod_that_may_not_restart() -> None:
    pod = a_pod("m", inits=("i",), sidecars=("s",), restartPolicy="Never")
    record = a_record({"i": ended(1), "s": running()})
    assert look(pod, record).stop == (StopContainer("s", later(30), _others_ended()),)
    assert look(pod, a_record({"i": ended(1), "s": ended()})).finished


def test_a_failed_init_container_is_retried_otherwise() -> None:
    pod = a_pod("m", inits=("i",), restartPolicy="OnFailure")
    assert look(pod, a_record({"i": ended(1)})).start == ("i",)


def test_sidecars_end_after_the_containers_they_serve() -> None:
    pod = a_pod("m", sidecars=("s",), restartPolicy="Never")
    decision = look(pod, a_record({"s": running(), "m": ended()}))
    assert [stop.container for stop in decision.stop] == ["s"]
    assert not decision.finished


def test_an_unhealthy_container_is_stopped_once_with_its_probes_grace() -> None:
    ill = running(unhealthy="failed", unhealthy_grace_s=5)
    assert look(a_pod(), a_record({"c": ill})).stop == (StopContainer("c", later(5), "failed"),)
    stopping = running(unhealthy="failed", kill_at=later(5))
    assert look(a_pod(), a_record({"c": stopping})).stop == ()


def test_the_deadline_counts_from_when_the_node_took_the_pod_up() -> None:
    pod = a_pod(activeDeadlineSeconds=10)
    assert look(pod, a_record({"c": running()})).requeue_at == later(10)
    decision = look(pod, a_record({"c": running()}), later(10))
    assert decision.failure is not None
    assert decision.failure.reason == "DeadlineExceeded"
    assert [stop.container for stop in decision.stop] == ["c"]


def test_a_pod_that_is_over_has_no_deadline() -> None:
    pod = a_pod(activeDeadlineSeconds=10, restartPolicy="Never")
    assert look(pod, a_record({"c": ended()}), later(60)).failure is None


def test_a_refused_pod_is_never_prepared() -> None:
    decision = look(a_pod(), a_record(prepared=False, failure=PodFailureReason("OutOfcpu", "m")))
    assert (decision.prepare, decision.start, decision.finished) == (False, (), True)


def test_a_pod_that_leaves_stops_with_the_grace_it_was_given() -> None:
    pod = a_pod(terminationGracePeriodSeconds=7)
    record = a_record({"c": running()}, terminating_since=NOW)
    assert look(pod, record, later(2)).stop == (
        StopContainer("c", later(7), "the pod is being deleted"),
    )


def test_a_shorter_grace_overrules_a_longer_one_but_not_the_other_way() -> None:
    for given, again in ((5, True), (60, False)):
        pod = a_pod(terminationGracePeriodSeconds=given)
        record = a_record({"c": running(kill_at=later(30))}, terminating_since=NOW)
        assert bool(look(pod, record).stop) == again


def test_a_pod_is_removed_only_when_all_has_ended_and_was_released() -> None:
    record = a_record({"c": ended()}, terminating_since=NOW)
    assert look(a_pod(), record) == PodActions(finished=True, release=True)
    released = a_record({"c": ended()}, terminating_since=NOW, released=True)
    assert look(a_pod(), released) == PodActions(finished=True, remove=True)


def test_a_container_that_is_just_starting_is_awaited_before_removal() -> None:
    record = a_record({"c": ContainerRecord(starting=True)}, terminating_since=NOW)
    assert look(a_pod(), record) == PodActions()


def test_a_pod_that_leaves_during_preparation_is_released_after_it() -> None:
    record = a_record(prepared=False, preparing=True, terminating_since=NOW)
    assert look(a_pod(), record) == PodActions(finished=True)


def test_the_back_off_doubles_up_to_its_limit_and_is_forgotten_after_a_long_run() -> None:
    record, now = ContainerRecord(), NOW
    waits = []
    record = ended(1, at=now, backoff=next_backoff(record, now, SETTINGS))
    assert restart_time(record, SETTINGS) is None, "the first restart is immediate"
    for _ in range(8):
        record = ended(1, at=now, backoff=next_backoff(record, now, SETTINGS))
        due = restart_time(record, SETTINGS)
        assert due is not None
        waits.append((due - now).total_seconds())
        now = due
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    long_run = ended(1, at=later(10_000), backoff=record.backoff)
    assert restart_time(long_run, SETTINGS) is None


def _others_ended() -> str:
    return "all other containers of the pod have ended"
