"""Roll-outs stay within their bounds at every step, and always complete."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.workloads import (
    DeploymentStrategy,
    ReplicaSetStatus,
    RollingUpdateDeployment,
)
from gangline.api.meta.objects import LabelSelector, ObjectMeta
from gangline.local.controllers.deployments.plan import (
    RawDeployment,
    RawDeploymentSpec,
    availability_bounds,
    plan_deployment,
    progress_check_time,
    template_hash,
)
from gangline.local.controllers.replica_sets.plan import RawReplicaSet

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROLLING = DeploymentStrategy()


def a_template(image: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": image}]}
    return {"metadata": {"labels": {"app": "web"}}, "spec": spec}


def a_deployment(
    replicas: int = 3,
    image: str = "one",
    strategy: DeploymentStrategy = ROLLING,
    **spec: Any,
) -> RawDeployment:
    return RawDeployment(
        metadata=ObjectMeta(name="web", namespace="ns", uid="d", generation=1),
        spec=RawDeploymentSpec(
            replicas=replicas,
            selector=LabelSelector(match_labels={"app": "web"}),
            template=a_template(image),
            strategy=strategy,
            **spec,
        ),
    )


@dataclass
class World:
    """A server and ReplicaSets whose pods become available on request."""

    deployment: RawDeployment
    sets: dict[str, RawReplicaSet] = field(default_factory=dict)

    def reconcile(self) -> bool:
        """One pass of the deployment controller; returns whether it wrote more than status."""
        done = plan_deployment(self.deployment, list(self.sets.values()), NOW)
        if done.create is not None:
            made = msgspec.convert(done.create, RawReplicaSet)
            self.sets.setdefault(made.metadata.name, made)
        for name, patch in done.patches.items():
            if "replicas" in patch.get("spec", {}):
                self.resize(name, patch["spec"]["replicas"])
            self.sets[name].metadata.annotations.update(
                patch.get("metadata", {}).get("annotations", {})
            )
        for name in done.delete:
            del self.sets[name]
        self.deployment = msgspec.structs.replace(self.deployment, status=done.status)
        return bool(done.create or done.patches or done.delete)

    def resize(self, name: str, size: int) -> None:
        replica_set = self.sets[name]
        spec = msgspec.structs.replace(replica_set.spec, replicas=size)
        available = min(size, replica_set.status.available_replicas)
        status = ReplicaSetStatus(
            replicas=size, ready_replicas=available, available_replicas=available
        )
        self.sets[name] = msgspec.structs.replace(replica_set, spec=spec, status=status)

    def come_up(self, name: str, count: int) -> None:
        """Make some pods of a ReplicaSet available."""
        replica_set = self.sets[name]
        up = min(replica_set.desired_replicas, replica_set.status.available_replicas + count)
        status = ReplicaSetStatus(
            replicas=replica_set.desired_replicas, ready_replicas=up, available_replicas=up
        )
        self.sets[name] = msgspec.structs.replace(replica_set, status=status)

    def update(self, image: str) -> None:
        spec = msgspec.structs.replace(self.deployment.spec, template=a_template(image))
        self.deployment = msgspec.structs.replace(self.deployment, spec=spec)

    @property
    def total(self) -> int:
        return sum(one.desired_replicas for one in self.sets.values())

    @property
    def available(self) -> int:
        return sum(one.status.available_replicas for one in self.sets.values())

    def settle(self) -> None:
        for _ in range(200):
            changed = self.reconcile()
            behind = [
                one
                for one in self.sets.values()
                if one.status.available_replicas < one.desired_replicas
            ]
            for one in behind:
                self.come_up(one.metadata.name, 1)
            if not changed and not behind:
                return
        raise AssertionError("the roll-out does not complete")


def images(world: World) -> dict[str, int]:
    return {
        one.spec.template["spec"]["containers"][0]["image"]: one.desired_replicas
        for one in world.sets.values()
    }


def test_a_new_deployment_gets_one_set_named_by_its_template() -> None:
    done = plan_deployment(a_deployment(), [], NOW)
    assert done.create is not None
    assert done.create["metadata"]["name"] == f"web-{template_hash(a_template('one'))}"
    assert done.create["spec"]["replicas"] == 3
    prefix = "deployment.kubernetes.io"
    assert done.create["metadata"]["annotations"] == {
        f"{prefix}/revision": "1",
        f"{prefix}/desired-replicas": "3",
        f"{prefix}/max-replicas": "4",
    }


def test_roll_back_gets_the_newest_revision() -> None:
    world = World(a_deployment())
    for image in ("one", "two", "one"):
        world.update(image)
        world.settle()
    assert images(world) == {"one": 3, "two": 0}
    done = plan_deployment(world.deployment, list(world.sets.values()), NOW)
    assert done.revision == "3"


def test_old_revisions_beyond_the_limit_are_forgotten() -> None:
    world = World(a_deployment(revision_history_limit=2))
    for image in "abcdef":
        world.update(image)
        world.settle()
    assert set(images(world)) == {"d", "e", "f"}


def test_a_paused_deployment_scales_but_does_not_change_over() -> None:
    world = World(a_deployment())
    world.settle()
    world.update("two")
    spec = msgspec.structs.replace(world.deployment.spec, paused=True, replicas=5)
    world.deployment = msgspec.structs.replace(world.deployment, spec=spec)
    world.settle()
    assert images(world) == {"one": 5}


@pytest.mark.parametrize(
    ("replicas", "unavailable", "surge", "expected"),
    [
        pytest.param(4, None, None, (3, 5), id="a quarter each way by default"),
        pytest.param(10, "25%", "25%", (8, 13), id="missing rounds down, extra rounds up"),
        pytest.param(3, 0, 1, (3, 4), id="numbers are numbers"),
        pytest.param(
            1, "25%", 0, (0, 1), id="zero surge and zero unavailable allow one unavailable pod"
        ),
    ],
)
def test_the_bounds_of_a_change(
    replicas: int, unavailable: int | str | None, surge: int | str | None, expected: tuple[int, int]
) -> None:
    rolling = RollingUpdateDeployment(max_unavailable=unavailable, max_surge=surge)
    deployment = a_deployment(replicas, strategy=DeploymentStrategy(rolling_update=rolling))
    assert availability_bounds(deployment) == expected


@given(
    replicas=st.integers(0, 12),
    unavailable=st.integers(0, 4),
    surge=st.integers(0, 4),
    ups=st.lists(st.integers(0, 3), max_size=30),
)
def test_a_rolling_update_never_leaves_its_bounds(
    replicas: int, unavailable: int, surge: int, ups: list[int]
) -> None:
    rolling = RollingUpdateDeployment(max_unavailable=unavailable, max_surge=surge)
    world = World(a_deployment(replicas, strategy=DeploymentStrategy(rolling_update=rolling)))
    world.settle()
    world.update("two")
    fewest, most = availability_bounds(world.deployment)
    for up in ups:
        world.reconcile()
        assert world.total <= max(most, replicas)
        assert world.available >= fewest
        for name in list(world.sets):
            world.come_up(name, up)
    world.settle()
    assert images(world).get("two", 0) == replicas
    assert world.total == replicas


@pytest.mark.parametrize(
    ("strategy", "replicas", "expected"),
    [
        pytest.param((3, 2), 15, {"one": 11, "two": 7}, id="growth is shared by size"),
        pytest.param((3, 2), 5, {"one": 5, "two": 3}, id="shrinking too"),
        pytest.param((3, 2), 0, {"one": 0, "two": 0}, id="to nothing"),
    ],
)
def test_replicas_changed_in_a_roll_out_are_shared_by_old_and_new_pods(
    strategy: tuple[int, int], replicas: int, expected: dict[str, int]
) -> None:
    """Ten pods, eight old and five new ones during a roll-out, as in Kubernetes' documentation."""
    rolling = RollingUpdateDeployment(max_surge=strategy[0], max_unavailable=strategy[1])
    world = World(a_deployment(10, strategy=DeploymentStrategy(rolling_update=rolling)))
    world.settle()
    world.update("two")
    while world.reconcile():
        pass
    assert images(world) == {"one": 8, "two": 5}
    spec = msgspec.structs.replace(world.deployment.spec, replicas=replicas)
    world.deployment = msgspec.structs.replace(world.deployment, spec=spec)
    world.reconcile()
    assert images(world) == expected
    world.settle()
    assert images(world) == {"one": 0, "two": replicas}


def test_recreate_waits_for_pods_that_are_being_deleted() -> None:
    world = World(a_deployment(strategy=DeploymentStrategy(type="Recreate")))
    world.settle()
    world.update("two")
    world.reconcile()
    [(name, old)] = world.sets.items()
    status = ReplicaSetStatus(terminating_replicas=1)
    world.sets[name] = msgspec.structs.replace(old, status=status)
    assert not world.reconcile()
    world.sets[name] = msgspec.structs.replace(old, status=ReplicaSetStatus())
    world.settle()
    assert images(world) == {"one": 0, "two": 3}


def test_a_complete_deployment_that_loses_pods_is_no_roll_out() -> None:
    world = World(a_deployment(progress_deadline_seconds=1))
    world.settle()
    [(name, one)] = world.sets.items()
    world.sets[name] = msgspec.structs.replace(one, status=ReplicaSetStatus(replicas=3))
    world.reconcile()
    progress = next(c for c in world.deployment.status.conditions if c.type == "Progressing")
    assert (progress.status, progress.reason) == ("True", "NewReplicaSetAvailable")
    assert progress_check_time(world.deployment, world.deployment.status) is None


def test_annotations_and_ready_seconds_of_a_deployment_reach_its_sets() -> None:
    world = World(a_deployment())
    world.settle()
    world.deployment.metadata.annotations["kubernetes.io/change-cause"] = "why"
    spec = msgspec.structs.replace(world.deployment.spec, min_ready_seconds=7)
    world.deployment = msgspec.structs.replace(world.deployment, spec=spec)
    [patch] = plan_deployment(world.deployment, list(world.sets.values()), NOW).patches.values()
    assert patch["metadata"]["annotations"] == {"kubernetes.io/change-cause": "why"}
    assert patch["spec"] == {"minReadySeconds": 7}


def test_a_roll_out_without_progress_times_out() -> None:
    deployment = a_deployment(2, progress_deadline_seconds=60)

    def progress(at: datetime, ready: int) -> tuple[str, str]:
        nonlocal deployment
        made = plan_deployment(deployment, [], NOW).create
        owned = msgspec.convert(made, RawReplicaSet)
        status = ReplicaSetStatus(replicas=2, ready_replicas=ready, available_replicas=ready)
        owned = msgspec.structs.replace(owned, status=status)
        status = plan_deployment(deployment, [owned], at).status
        deployment = msgspec.structs.replace(deployment, status=status)
        [found] = [c for c in status.conditions if c.type == "Progressing"]
        return found.status, found.reason

    second = timedelta(seconds=1)
    assert progress(NOW, 0) == ("True", "ReplicaSetUpdated")
    assert progress_check_time(deployment, deployment.status) == NOW + 60 * second
    assert progress(NOW + 50 * second, 1) == ("True", "ReplicaSetUpdated")
    assert progress(NOW + 109 * second, 1) == ("True", "ReplicaSetUpdated")  # one came at 50
    assert progress(NOW + 110 * second, 1) == ("False", "ProgressDeadlineExceeded")
    assert progress(NOW + 200 * second, 1) == ("False", "ProgressDeadlineExceeded")
    assert progress_check_time(deployment, deployment.status) is None
    assert progress(NOW + 300 * second, 2) == ("True", "NewReplicaSetAvailable")
