"""Pods that join a gang when it runs, such as a launcher, have their resources from its start."""

from msgspec import json, structs

from gangline.api.volcano.scheduling import JOINING_PODS_ANNOTATION, PodGroup
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import group_info
from gangline.scheduler.reporting.warnings import unreadable_group_fields
from gangline.scheduler.types.types import CycleResult, NodeInfo, PodInfo, QueueInfo, TaintInfo
from unit.scheduler.builders import cluster, decide, group, node, pod, request

TIGHT = (node("n0", cpu=4), node("n1", cpu=4))
"""Two pods fit."""


def launcher(job: str, age: int = 0, **facts: object) -> PodInfo:
    return pod(f"{job}-launcher", cpu=4, group=job, age=age, role="launcher", **facts)  # type: ignore[arg-type]


def job(name: str, age: int = 0, workers: int = 1, queue: str = "default") -> list[object]:
    """A gang of workers that a launcher joins."""
    expected = structs.replace(launcher(name, age), uid="", is_expected=True)
    facts = {"min_task_member": (("worker", workers),), "joining": (expected,), "queue": queue}
    members = [
        pod(f"{name}-worker-{index}", cpu=4, group=name, age=age, role="worker")
        for index in range(workers)
    ]
    return [group(name, workers, age, **facts), *members]


def bound(decision: CycleResult) -> dict[str, str]:
    return {each.pod.removeprefix("d/"): each.node for each in decision.bindings}


def run(state: SchedulerCache) -> dict[str, str]:
    """Decide, and run what was placed; return the nodes."""
    places = bound(decide(state))
    for key, known in list(state.pods.items()):
        name = key.removeprefix("d/")
        if name in places:
            state.set_pod(structs.replace(known, node=places[name], phase="Running"))
    return places


def two_jobs(*nodes: NodeInfo) -> SchedulerCache:
    return cluster(*(nodes or TIGHT), *job("a"), *job("b", age=1))  # type: ignore[arg-type]


def test_two_tight_jobs_run_one_after_the_other() -> None:
    state = two_jobs()
    assert list(run(state)) == ["a-worker-0"]
    assert run(state) == {}, "the other node is reserved for the launcher"
    state.set_pod(launcher("a"))
    assert list(run(state)) == ["a-launcher"]
    assert run(state) == {}
    for name in ("a-worker-0", "a-launcher"):
        known = state.pods[f"d/{name}"]  # type: ignore[index]
        state.set_pod(structs.replace(known, phase="Succeeded"))
    assert list(run(state)) == ["b-worker-0"]
    state.set_pod(launcher("b", 1))
    assert list(run(state)) == ["b-launcher"]


def test_without_the_launcher_in_the_count_both_jobs_would_start() -> None:
    state = two_jobs()
    for key in ("d/a", "d/b"):
        known = state.groups[key]  # type: ignore[index]
        state.set_group(group(known.key.removeprefix("d/"), known.min_member))
    assert sorted(run(state)) == ["a-worker-0", "b-worker-0"]


def test_reason_names_the_gang_whose_launcher_is_awaited() -> None:
    state = two_jobs(*TIGHT, node("n2", cpu=4))
    run(state)
    (reason,) = decide(state).pending_reasons
    assert reason.group == "d/b"
    assert [pod for pod, _ in reason.pods] == ["d/b-worker-0"], "only pods that exist"
    assert "reserved for d/a" in reason.message


def test_gang_does_not_start_where_its_launcher_would_never_fit() -> None:
    state = cluster(node("n0", cpu=4), *job("a"))  # type: ignore[arg-type]
    decision = decide(state)
    assert not decision.bindings
    assert [reason.group for reason in decision.pending_reasons] == ["d/a"]


def test_two_jobs_that_fit_start_together() -> None:
    state = two_jobs(*TIGHT, node("n2", cpu=4), node("n3", cpu=4))
    assert sorted(run(state)) == ["a-worker-0", "b-worker-0"]
    state.set_pod(launcher("b", 1))
    state.set_pod(launcher("a"))
    assert sorted(run(state)) == ["a-launcher", "b-launcher"]


def test_launcher_that_is_replaced_keeps_its_resources() -> None:
    state = two_jobs()
    run(state)
    state.set_pod(launcher("a"))
    run(state)
    state.set_pod(structs.replace(state.pods["d/a-launcher"], phase="Failed"))  # type: ignore[index]
    assert run(state) == {}
    state.remove_pod("d/a-launcher")  # type: ignore[arg-type]
    assert run(state) == {}
    state.set_pod(launcher("a"))
    assert list(run(state)) == ["a-launcher"]


def test_launcher_that_succeeded_needs_no_resources() -> None:
    state = two_jobs()
    run(state)
    state.set_pod(launcher("a", on="n1", phase="Succeeded"))
    state.set_pod(pod("single", cpu=4))
    assert list(run(state)) == ["single"]


def test_launcher_of_an_earlier_release_has_another_name() -> None:
    state = two_jobs(*TIGHT, node("n2", cpu=4))
    run(state)
    state.set_pod(pod("a-launcher-0", cpu=4, group="a", role="launcher", on="n1"))
    state.set_pod(pod("single", cpu=4, priority=5))
    assert list(run(state)) == ["single"]


def test_broken_gang_gets_its_worker_and_its_launcher_back_together() -> None:
    state = cluster(*TIGHT, node("n2", cpu=4), *job("a", workers=2))  # type: ignore[arg-type]
    assert len(run(state)) == 2
    lost = state.pods["d/a-worker-1"]  # type: ignore[index]
    state.remove_pod(lost.key)
    state.record_lost_member(lost, 0.0, 60.0)
    state.set_pod(pod("single", cpu=4, priority=5))
    assert run(state) == {}, "one node for the worker, one for the launcher"
    state.set_pod(structs.replace(lost, node=None, phase="Pending"))
    assert list(run(state)) == ["a-worker-1"]


def test_queue_keeps_the_share_of_the_launcher() -> None:
    queue = QueueInfo("q", capability=request(cpu=8, pods=0))
    nodes = [node(f"n{index}", cpu=4) for index in range(4)]
    state = cluster(*nodes, queue, *job("a", queue="q"), *job("b", age=1, queue="q"))  # type: ignore[arg-type]
    assert list(run(state)) == ["a-worker-0"]
    assert run(state) == {}
    state.set_pod(launcher("a"))
    assert list(run(state)) == ["a-launcher"]


def test_launcher_is_reserved_where_it_may_run() -> None:
    tainted = node("n1", cpu=4, taints=(TaintInfo("gpu", "", "NoSchedule"),))
    state = cluster(node("n0", cpu=4), tainted, *job("a"))  # type: ignore[arg-type]
    assert run(state) == {}


def annotated(written: str) -> PodGroup:
    group = PodGroup()
    metadata = structs.replace(
        group.metadata, name="a", namespace="d", annotations={JOINING_PODS_ANNOTATION: written}
    )
    return structs.replace(group, metadata=metadata)


def test_annotation_lists_the_pods() -> None:
    container = {"name": "node", "resources": {"requests": {"cpu": "4"}}}
    spec = {"containers": [container], "nodeSelector": {"zone": "a"}, "schedulerName": "other"}
    written = json.encode([{"names": ["a-launcher"], "role": "launcher", "spec": spec}]).decode()
    (found,) = group_info(annotated(written), {}).joining
    assert (found.key, found.group, found.role) == ("d/a-launcher", "d/a", "launcher")
    assert dict(found.shape.request) == {"cpu": 4000, "pods": 1}
    assert found.shape.constraints.selector == (("zone", "a"),)
    assert found.is_expected
    assert found.is_pending


def test_annotation_that_cannot_be_read_is_reported() -> None:
    for written in (
        "{",
        '[{"role": "launcher"}]',
        "[1]",
        '[{"names": ["a"], "spec": {"volumes": 1}}]',
    ):
        group = annotated(written)
        assert group_info(group, {}).joining == ()
        assert "joining-pods does not list pods" in unreadable_group_fields(group)
