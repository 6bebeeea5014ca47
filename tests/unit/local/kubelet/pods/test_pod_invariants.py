"""Invariants of pods under random sequences of events."""

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import PodStatus
from gangline.api.meta.objects import Condition
from gangline.local.kubelet.pods.actions import PodActions, compute_pod_actions, has_initialized
from gangline.local.kubelet.pods.pod_status import StatusInputs, build_pod_status, pod_status_patch
from gangline.local.kubelet.records import BackoffSettings, ContainerRecord, PodRecord, next_backoff
from unit.local.kubelet.builders import NOW, a_pod, a_record, ended, later, running

BACKOFF = BackoffSettings(10, 300)
AROUND = StatusInputs("10.0.0.9", BACKOFF)
FINAL = ("Succeeded", "Failed")


class Life:
    """Simulates a pod: executes the actions, and applies events."""

    def __init__(self, pod: Pod, draw: st.DrawFn) -> None:
        self.pod = pod
        self.draw = draw
        self.second = 0.0
        self.record = a_record(prepared=False)
        self.status = PodStatus()
        self.gone = False

    def turn(self) -> PodActions:
        now = later(self.second)
        decision = compute_pod_actions(self.pod, self.record, now, BACKOFF)
        assert decision == compute_pod_actions(self.pod, self.record, now, BACKOFF)
        self._check(decision)
        self._carry_out(decision)
        before = self.status
        self.status = build_pod_status(self.pod, self.record, decision, before, AROUND, now)
        self._check_status(before)
        return decision

    def happen(self) -> None:
        """Something happens: time passes, a run begins, ends or turns ill, the pod is deleted."""
        self.second += self.draw(st.sampled_from([0, 1, 11, 400]))
        if self.record.preparing:
            self.record = replace(self.record, preparing=False, prepared=True)
        for name in sorted(self.record.containers):
            container = self.record.container(name)
            if container.starting:
                self._put(name, self._begun(container))
            elif container.running:
                self._put(name, self._next(container))
        if self.draw(st.integers(0, 15)) == 0 and self.record.terminating_since is None:
            self.record = replace(self.record, terminating_since=later(self.second))

    def _begun(self, container: ContainerRecord) -> ContainerRecord:
        number = container.instance.number + 1 if container.instance else 0
        backoff = next_backoff(container, later(self.second), BACKOFF)
        return running(number, backoff=backoff, started=self.draw(st.booleans()))

    def _next(self, container: ContainerRecord) -> ContainerRecord:
        assert container.instance is not None
        choice = self.draw(st.sampled_from(["go on", "go on", "start", "end", "fail", "ill"]))
        number, now = container.instance.number, later(self.second)
        if container.kill_at is not None or choice in ("end", "fail"):
            code = 0 if choice == "end" else 1
            return ended(code, number, now, backoff=container.backoff)
        if choice == "start":
            return replace(container, started=True)
        return replace(container, unhealthy="ill") if choice == "ill" else container

    def _carry_out(self, decision: PodActions) -> None:
        if decision.prepare:
            self.record = replace(self.record, preparing=True)
        for name in decision.start:
            self._put(name, replace(self.record.container(name), starting=True))
        for stop in decision.stop:
            self._put(
                stop.container, replace(self.record.container(stop.container), kill_at=stop.kill_at)
            )
        if decision.release:
            self.record = replace(self.record, released=True)
        if decision.failure is not None:
            self.record = replace(self.record, failure=decision.failure)
        self.gone = decision.remove

    def _check(self, decision: PodActions) -> None:
        record = self.record
        mains = {container.name for container in self.pod.spec.containers}
        for name in decision.start:
            assert record.container(name).idle
            assert record.prepared
            assert not record.released
            assert record.terminating_since is None
            if name in mains:
                assert has_initialized(self.pod, record)
        for stop in decision.stop:
            assert record.container(stop.container).running
        if decision.finished:
            assert all(container.idle for container in record.containers.values())
            assert not decision.start
        if decision.remove:
            assert decision.finished
            assert record.released

    def _check_status(self, before: PodStatus) -> None:
        if before.phase in FINAL:
            assert self.status.phase == before.phase
        counts = {shown.name: shown.restart_count for shown in before.container_statuses}
        for shown in self.status.container_statuses:
            assert shown.restart_count >= counts.get(shown.name, 0)
            states = (
                shown.state.waiting,
                shown.state.running,
                shown.state.terminated,
            )
            assert sum(state is not None for state in states) == 1
        patch = pod_status_patch(self.status, "u")
        assert msgspec.json.decode(msgspec.json.encode(patch)) == patch

    def _put(self, name: str, container: ContainerRecord) -> None:
        self.record = replace(self.record, containers={**self.record.containers, name: container})


PODS = st.builds(
    lambda policy, mains, inits, sidecars, deadline: a_pod(
        *("a", "b")[:mains],
        inits=("i", "j")[:inits],
        sidecars=("s",)[:sidecars],
        restartPolicy=policy,
        **({"activeDeadlineSeconds": deadline} if deadline else {}),
    ),
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from([0, 0, 5, 1000]),
)


@given(pod=PODS, data=st.data())
def test_a_pods_life_keeps_the_laws_and_can_always_be_ended(pod: Pod, data: st.DataObject) -> None:
    life = Life(pod, data.draw)
    for _ in range(12):
        life.turn()
        if life.gone:
            return
        life.happen()
    life.record = replace(life.record, terminating_since=later(life.second))
    for _ in range(20):
        life.turn()
        if life.gone:
            return
        life.happen()
    raise AssertionError(f"the pod never went: {life.record}")


def test_pod_without_events_ends_or_has_a_requeue_time() -> None:
    for policy in ("Always", "OnFailure", "Never"):
        pod = a_pod(restartPolicy=policy)
        record: PodRecord = a_record({"c": ended(1, backoff=next_backoff(ended(1), NOW, BACKOFF))})
        decision = compute_pod_actions(pod, record, NOW, BACKOFF)
        assert decision.finished or decision.start or decision.requeue_at


def test_a_pod_that_nothing_scheduled_is_scheduled_and_other_writers_condition_stays() -> None:
    def scheduled(previous: PodStatus) -> Condition:
        pod, record = a_pod(), a_record()
        status = build_pod_status(pod, record, PodActions(), previous, AROUND, NOW)
        return next(c for c in status.conditions if c.type == "PodScheduled")

    assert scheduled(PodStatus()).status == "True"
    written = Condition(type="PodScheduled", status="True", reason="Placed")
    assert scheduled(PodStatus(conditions=[written])) == written


def test_a_pod_is_ready_when_its_containers_and_its_readiness_gates_are() -> None:
    def ready(gate: str, *, containers: bool = True) -> tuple[str, str]:
        status = PodStatus(conditions=[Condition(type="gate", status=gate)])
        pod = msgspec.structs.replace(
            a_pod(readinessGates=[{"conditionType": "gate"}]), status=status
        )
        record = a_record({"c": running(ready=containers)})
        status = build_pod_status(pod, record, PodActions(), status, AROUND, NOW)
        (found,) = (c for c in status.conditions if c.type == "Ready")
        return found.status, found.reason

    assert ready("True") == ("True", "")
    assert ready("False") == ("False", "ReadinessGatesNotReady")
    assert ready("False", containers=False) == ("False", "ContainersNotReady")
