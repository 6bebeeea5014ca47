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


STARTING = ContainerRecord(starting=True)
UNPREPARED = a_record(prepared=False, problem=StartProblem("FailedMount", "why", later(3)))
CRASHED = a_record({"c": ended(1, at=NOW, backoff=RestartBackoff(20, later(-60)))})
MISCONFIGURED = a_record({"c": ContainerRecord(problem=StartProblem("X", "m", later(4)))})
LEAVING = {"terminating_since": NOW}
RELEASE, REMOVE = PodActions(finished=True, release=True), PodActions(finished=True, remove=True)


@pytest.mark.parametrize(
    ("record", "after_s", "actions"),
    [
        pytest.param(a_record(prepared=False), 0, PodActions(prepare=True), id="preparation first"),
        pytest.param(
            a_record(prepared=False, preparing=True), 0, PodActions(requeue_at=NOW), id="only once"
        ),
        pytest.param(UNPREPARED, 0, PodActions(requeue_at=later(3)), id="it failed: wait"),
        pytest.param(UNPREPARED, 3, PodActions(prepare=True), id="and try again"),
        pytest.param(a_record({"c": running()}), 0, PodActions(), id="running"),
        pytest.param(a_record({"c": STARTING}), 0, PodActions(), id="starting"),
        pytest.param(CRASHED, 5, PodActions(requeue_at=later(20)), id="back-off"),
        pytest.param(CRASHED, 20, PodActions(start=("c",)), id="after the back-off"),
        pytest.param(MISCONFIGURED, 0, PodActions(requeue_at=later(4)), id="configuration problem"),
        pytest.param(MISCONFIGURED, 4, PodActions(start=("c",)), id="is tried again"),
        pytest.param(a_record({"c": ended()}, **LEAVING), 0, RELEASE, id="ended: release"),
        pytest.param(
            a_record({"c": ended()}, **LEAVING, released=True), 0, REMOVE, id="released: remove"
        ),
        pytest.param(a_record({"c": STARTING}, **LEAVING), 0, PodActions(), id="await a start"),
        pytest.param(
            a_record(prepared=False, preparing=True, **LEAVING),
            0,
            PodActions(finished=True),
            id="await the preparation",
        ),
    ],
)
def test_actions_for_a_pod_with_one_container(
    record: PodRecord, after_s: int, actions: PodActions
) -> None:
    assert look(a_pod(), record, later(after_s)) == actions


INIT, INITS = a_pod("m", inits=("i",)), a_pod("m", inits=("i", "j"))
SIDECAR = a_pod("m", inits=("i",), sidecars=("s",))


@pytest.mark.parametrize(
    ("pod", "containers", "start"),
    [
        pytest.param(a_pod("a", "b"), {}, ("a", "b"), id="all together"),
        pytest.param(INITS, {}, ("i",), id="init containers one after the other"),
        pytest.param(INITS, {"i": running()}, (), id="the first runs"),
        pytest.param(INITS, {"i": ended()}, ("j",), id="the first is done"),
        pytest.param(INITS, {"i": ended(), "j": ended()}, ("m",), id="both are done"),
        pytest.param(INIT, {"i": ended(), "m": ended(1)}, ("m",), id="init runs once"),
        pytest.param(
            a_pod("m", inits=("i",), restartPolicy="OnFailure"),
            {"i": ended(1)},
            ("i",),
            id="a failed one is retried",
        ),
        pytest.param(SIDECAR, {}, ("s",), id="a sidecar first"),
        pytest.param(SIDECAR, {"s": running(started=False)}, (), id="until it has started"),
        pytest.param(SIDECAR, {"s": running()}, ("i",), id="then the others"),
        pytest.param(
            a_pod("m", sidecars=("s",), restartPolicy="Never"),
            {"s": ended(1), "m": running()},
            ("s",),
            id="it restarts beside them",
        ),
    ],
)
def test_containers_start_in_order(
    pod: Pod, containers: dict[str, ContainerRecord], start: tuple[str, ...]
) -> None:
    assert look(pod, a_record(containers)).start == start


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


def test_a_failed_init_container_ends_a_pod_that_may_not_restart() -> None:
    pod = a_pod("m", inits=("i",), sidecars=("s",), restartPolicy="Never")
    record = a_record({"i": ended(1), "s": running()})
    assert look(pod, record).stop == (StopContainer("s", later(30), _others_ended()),)
    assert look(pod, a_record({"i": ended(1), "s": ended()})).finished


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
