"""Random walks of a job's life: each step leads to a state that the model allows.

The model knows what the user asked for last in a valid specification, whether the job is suspended,
and which pods run. Edits, kubelets, losses of pods and restarts of the operator come in any order.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gangline.api.meta.conditions import find_condition, is_condition_true
from gangline.api.validation.validate import MAX_JOB_REPLICAS
from gangline.operator.engine.slots import assign_slots
from gangline.operator.model import conditions
from gangline.operator.model.labels import parse_replica_labels
from gangline.operator.policies.replica_tracker import tracker_of
from unit.operator.kinds import KINDS
from unit.operator.world import World

numbers = st.integers(0, 9)


class JobLife(RuleBasedStateMachine):
    """A job, its cluster and its users, beside the model of what they asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.workers = 0
        """The workers in the last valid specification that the operator has seen."""
        self.written = 0
        self.is_valid = True
        self.is_up = True

    @initialize(
        kind=st.sampled_from(sorted(KINDS)),
        workers=st.integers(1, 4),
        restart=st.sampled_from(["OnFailure", "Never", "ExitCode"]),
        deadline=st.none() | st.integers(60, 600),
    )
    def submit(self, kind: str, workers: int, restart: str, deadline: int | None) -> None:
        policy: dict[str, Any] = {} if deadline is None else {"activeDeadlineSeconds": deadline}
        self.world = World(KINDS[kind].job(workers, restart=restart, **policy))
        self.workers = self.written = workers
        assert not self.world.observe().spec_errors
        self.world.settle()

    # Users

    @rule(workers=st.integers(1, 4))
    def scale(self, workers: int) -> None:
        self.world.scale(workers)
        self.written, self.is_valid = workers, True

    @rule()
    def scale_beyond_the_limit(self) -> None:
        self.world.scale(MAX_JOB_REPLICAS + 1)
        self.is_valid = False

    @rule()
    def write_what_cannot_be_decoded(self) -> None:
        self.world.scale("many")  # type: ignore[arg-type]
        self.is_valid = False

    @rule(on=st.booleans())
    def suspend(self, on: bool) -> None:
        self.world.suspend(on)

    # The cluster

    @rule(number=numbers, event=st.sampled_from(["start", "succeed", "preempt", "remove_pod"]))
    def pod_event(self, number: int, event: str) -> None:
        if pod := self.world.pod(number):
            getattr(self.world, event)(pod)

    @rule(number=numbers)
    def lose_pod(self, number: int) -> None:
        if pod := self.world.pod(number):
            self.world.vanish(pod)

    @rule(number=numbers, code=st.sampled_from([1, 137, None]))
    def fail(self, number: int, code: int | None) -> None:
        if pod := self.world.pod(number):
            self.world.fail(pod, code)

    @rule()
    def start_all(self) -> None:
        self.world.start_all()

    @rule()
    def end_terminating(self) -> None:
        self.world.finish_terminating()

    @rule(seconds=st.integers(1, 400))
    def wait(self, seconds: int) -> None:
        self.world.wait(seconds)

    # The operator

    @rule()
    def stop_operator(self) -> None:
        self.is_up = False

    @rule()
    def start_operator(self) -> None:
        """It knows only what is stored."""
        self.is_up = True

    @invariant()
    def state_is_allowed(self) -> None:
        """The operator works until nothing is left to do; then the model agrees with it."""
        if not self.is_up:
            return
        if self.is_valid:
            self.workers = self.written
        before = self.world.status if self.world.finished else None
        self.world.settle()
        if before is not None:
            assert self.world.status == before, "a finished job is finished for good"
            return
        self._check_replicas()
        if not self.world.finished:
            self._check_status()

    def _check_replicas(self) -> None:
        """There are no other replicas than those of the last valid specification."""
        role = self.world.kind.scaled.lower()
        for pod in self.world.pods.values():
            named = parse_replica_labels(pod.metadata)
            if named and named[0] == role and not pod.is_terminating:
                assert self.world.finished or named[1] < self.workers

    def _check_status(self) -> None:
        world, reported = self.world, self.world.status.conditions
        assert is_condition_true(reported, conditions.INVALID_SPEC) is not self.is_valid
        suspended = world.written["spec"]["runPolicy"].get("suspend", False)
        resumes = find_condition(reported, conditions.SUSPENDED)
        waits = any(pod.is_terminating for pod in world.pods.values())
        if suspended:
            assert is_condition_true(reported, conditions.SUSPENDED)
            assert all(pod.is_terminating for pod in world.pods.values())
        elif resumes is not None and resumes.status == "True":
            assert waits, "a resumed job only waits for its former pods"
        observed = world.observe()
        job = tracker_of(observed.job).restore_from_status(observed.job, world.status)
        gang = assign_slots(replace(observed, job=job), world.status)
        if is_condition_true(reported, conditions.RUNNING):
            assert any(pod.is_active for pod in gang.pods), "Running while no pod runs"
            assert not job.rules.has_succeeded(job, gang)
        deadline, start = job.policy.active_deadline, world.status.start_time
        if deadline is not None and start is not None:
            assert world.now < start + deadline

    def teardown(self) -> None:
        """Whatever the specification is: the job ends once pods start and succeed."""
        self.world.suspend(False)
        self.world.finish_terminating()
        self.world.now += timedelta(seconds=1)
        self.world.calm()
        assert self.world.finished


TestJobLife = JobLife.TestCase
TestJobLife.settings = settings(max_examples=30, stateful_step_count=25)
