"""Invariants of the engine for random jobs, histories, clocks and crashes."""

import math
from datetime import timedelta
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from gangline.api.meta.conditions import is_condition_true
from gangline.operator.model import conditions
from gangline.operator.model.plan import ReconcilePlan, TargetKind
from gangline.operator.policies.gang_restart import generation_of
from unit.operator.builders import has_writes, manifest
from unit.operator.kinds import KINDS
from unit.operator.world import World

switches = st.fixed_dictionaries(
    {},
    optional={"gangline.dev/restart": st.just("gang"), "gangline.dev/resize": st.just("restart")},
)


def write(kind: str, workers: int, **rest: Any) -> dict[str, Any]:
    """A job of a kind."""
    return KINDS[kind].job(workers, **rest)


policies: dict[str, Any] = {
    "workers": st.integers(1, 4),
    "restart": st.sampled_from(["OnFailure", "Always", "Never", "ExitCode"]),
    "annotations": switches,
    "backoffLimit": st.none() | st.integers(0, 4),
    "activeDeadlineSeconds": st.none() | st.integers(1, 100),
    "ttlSecondsAfterFinished": st.none() | st.integers(0, 100),
    "cleanPodPolicy": st.sampled_from([None, "All", "Running", "None"]),
}
jobs = st.builds(write, kind=st.sampled_from(sorted(KINDS)), **policies) | st.builds(
    manifest,
    master=st.none(),
    **{name: policy for name, policy in policies.items() if name != "annotations"},
)

which = st.integers(0, 7)
kubelet = st.one_of(
    st.tuples(st.just("start"), which),
    st.tuples(st.just("start_all")),
    st.tuples(st.just("succeed"), which),
    st.tuples(st.just("fail"), which, st.sampled_from([1, 127, 137, 143, None])),
    st.tuples(st.just("refuse"), which),
    st.tuples(st.just("restart"), which),
    st.tuples(st.just("finish_terminating")),
)
people = st.one_of(
    st.tuples(st.just("remove_pod"), which),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("scale"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.integers(0, 200)),
    st.tuples(st.just("wait"), st.sampled_from([-3600, 3600])),
)
operator = st.one_of(
    st.tuples(st.just("look")),
    st.tuples(st.just("look")),
    st.tuples(st.just("look"), st.integers(0, 6)),
    st.tuples(st.just("remember")),
    st.tuples(st.just("late")),
)
histories = st.lists(st.one_of(operator, kubelet, people), max_size=40)


class Player:
    """Plays a history, checking after each plan that nothing forbidden was decided."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.view = world.observe()
        self.view_version = world.version

    def play(self, history: list[tuple]) -> None:
        for move, *details in history:
            self._move(move, details)

    def _move(self, move: str, details: list) -> None:
        world = self.world
        if move in ("start", "succeed", "fail", "refuse", "restart", "remove_pod"):
            number, *rest = details
            pod = world.pod(number)
            if pod:
                getattr(world, move)(pod, *rest)
        elif move in ("look", "remember", "late"):
            getattr(self, move)(*details)
        else:
            getattr(world, move)(*details)

    def remember(self) -> None:
        """Store the current observation, to plan from it later."""
        self.view, self.view_version = self.world.observe(), self.world.version

    def late(self) -> None:
        """Plan from an earlier observation, as with a lagging watch."""
        self.world.carry_out(self.world.decide(self.view), version=self.view_version)
        self.remember()

    def look(self, writes: int | None = None) -> None:
        world = self.world
        if not world.exists:
            return
        before, ended = world.status, world.finished
        decision = world.decide()
        check_harmless(world, decision)
        world.carry_out(decision, writes)
        if ended:
            assert world.status == before, "a finished job is finished for good"


def check_harmless(world: World, decision: ReconcilePlan) -> None:
    pods = [c.name for c in decision.creations if c.target is TargetKind.POD]
    assert len(pods) == len(set(pods))
    assert not set(pods) & set(world.pods), "never two pods of one index"
    assert not (world.held and pods), "never a pod for a finished, suspended or deleted job"
    suspended = is_condition_true(world.status.conditions, conditions.SUSPENDED)
    ending = any(pod.is_terminating for pod in world.pods.values())
    assert not (pods and suspended and ending), "a resumed job waits for its former pods"
    there = {TargetKind.JOB} | ({TargetKind.POD_GROUP} if world.group else set())
    there |= {target for target, _ in world.extras}
    assert {patch.target for patch in decision.patches} <= there, "only what is there is patched"
    former = [p for p in world.pods.values() if generation_of(p) < world.generation]
    assert not (pods and former), "a new generation starts when the former one has gone"
    reported = decision.status.conditions
    assert not (is_condition_true(reported, "Succeeded") and is_condition_true(reported, "Failed"))
    assert not (is_condition_true(reported, "Running") and conditions.is_finished(reported))
    assert len({c.type for c in reported}) == len(reported)
    for deletion in decision.deletions:
        if deletion.target is TargetKind.POD and not deletion.force:
            assert not world.pods[deletion.name].is_terminating, "nothing is deleted twice"


@given(jobs, histories)
def test_a_decision_on_its_own_result_is_empty(written: dict, history: list) -> None:
    world = World(written)
    Player(world).play(history)
    assume(world.exists)
    world.settle()


@given(jobs, histories)
def test_a_job_in_which_nothing_more_fails_comes_to_its_end(written: dict, history: list) -> None:
    world = World(written)
    Player(world).play(history)
    assume(world.exists)
    world.suspend(False)
    world.scale(2)
    world.calm()


@given(jobs, histories, st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_seen_does_not_matter(
    written: dict, history: list, order
) -> None:
    world = World(written)
    Player(world).play(history)
    first, second = world.observe(), world.observe()
    order.shuffle(second.pods)
    order.shuffle(second.services)
    assert world.decide(first) == world.decide(second)


restarting = st.lists(
    st.one_of(
        st.tuples(st.just("look")),
        st.tuples(st.just("look"), st.integers(0, 6)),
        st.tuples(st.just("start_all")),
        st.tuples(st.just("restart"), which),
        st.tuples(st.just("fail"), which, st.sampled_from([137, 143, None])),
        st.tuples(st.just("refuse"), which),
        st.tuples(st.just("finish_terminating")),
        st.tuples(st.just("wait"), st.integers(0, 400)),
    ),
    max_size=60,
)


@given(st.integers(1, 4), st.sampled_from(["OnFailure", "Always", "ExitCode"]), restarting)
def test_each_failed_pod_and_each_restart_is_counted_exactly_once(
    workers: int, policy: str, history: list
) -> None:
    world = World(manifest(1, workers, restart=policy))
    Player(world).play(history)
    world.settle()
    assert world.status.restarts.total == world.failures + world.in_place_restarts
    assert set(world.status.restarts.pods) <= {pod.uid for pod in world.pods.values()}


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 4), restarting)
def test_a_gang_that_restarts_together_counts_each_generation_in_which_something_failed_once(
    kind: str, workers: int, history: list
) -> None:
    together = {"gangline.dev/restart": "gang"}
    world = World(write(kind, workers, restart="OnFailure", annotations=together))
    Player(world).play(history)
    world.settle()
    assert world.status.restarts.total == len(world.failed_generations)
    assert world.generation == world.status.restarts.total, "nothing else restarts it"
    assert {generation_of(pod) for pod in world.pods.values()} <= set(range(world.generation + 1))


failing_rounds = st.lists(
    st.lists(st.tuples(which, st.booleans()), max_size=3), min_size=1, max_size=5
)
"""In each round the pods run, and then some fail; after each of them the operator may look."""


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 4), st.integers(0, 2), failing_rounds)
def test_no_restart_of_a_gang_is_counted_that_does_not_happen(
    kind: str, workers: int, limit: int, rounds: list[list[tuple[int, bool]]]
) -> None:
    together = {"gangline.dev/restart": "gang"}
    job = write(kind, workers, restart="OnFailure", annotations=together, backoffLimit=limit)
    world = World(job)
    for failing in rounds:
        world.settle()
        world.start_all()
        for number, looks in failing:
            if pod := world.pod(number):
                world.fail(pod, 137)
            if looks:
                world.carry_out(world.decide())
        decision = world.settle()
        world.finish_terminating()
        world.now += decision.requeue_after or timedelta(seconds=1)
    world.settle()
    failed = len(world.failed_generations)
    assert (world.status.restarts.total, world.generation) == (min(failed, limit),) * 2
    assert world.finished == (failed > limit)


@given(st.integers(0, 5), st.sampled_from(["OnFailure", "ExitCode"]))
def test_a_job_that_always_fails_ends_after_its_allowed_restarts(limit: int, policy: str) -> None:
    world = World(manifest(1, 1, restart=policy, backoffLimit=limit))
    for _ in range(40):
        decision = world.settle()
        if world.finished:
            break
        for pod in list(world.pods.values()):
            world.start(pod)
        world.settle()
        worker = world.pods.get("train-worker-0")
        if worker:
            world.fail(worker, 137)
        world.settle()
        world.finish_terminating()
        world.now += decision.requeue_after or timedelta(seconds=1)
    assert is_condition_true(world.status.conditions, "Failed")
    assert world.failures == limit + 1


@given(jobs, st.integers(1, 20))
def test_a_job_whose_pods_are_only_refused_never_ends_and_slows_down(
    written: dict, rounds: int
) -> None:
    written["spec"]["runPolicy"].pop("activeDeadlineSeconds", None)
    world = World(written)
    began, refusals = world.now, 0
    for _ in range(rounds):
        decision = world.settle()
        for pod in list(world.pods.values()):
            refusals += pod.status.phase == "Pending"
            world.refuse(pod)
        world.settle()
        world.finish_terminating()
        world.now += max(decision.requeue_after or timedelta(0), timedelta(milliseconds=100))
    assert not world.finished
    assert world.status.restarts.total == 0
    # After n refusals of a rank at least 1 + 2 + 4 + ... seconds have passed, in whole seconds.
    elapsed = (world.now - began).total_seconds()
    assert refusals <= 12 * (2 + math.log2(elapsed + 2))


@given(jobs, histories)
def test_a_deleted_job_is_left_to_the_garbage_collector(written: dict, history: list) -> None:
    world = World(written)
    Player(world).play(history)
    world.delete_job()
    decision = world.decide()
    assert not has_writes(decision)
    assert decision.status == world.status
