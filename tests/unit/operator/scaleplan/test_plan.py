"""ScalePlans of an ElasticJob: their effect, their order, and why they fail."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gangline.api.jobs.elastic import ElasticJobRecord, RoleRecord, ScalePlan
from gangline.operator.frameworks.elastic import nodes
from gangline.operator.model import conditions
from gangline.operator.model.plan import TargetKind
from gangline.operator.scaleplan.plan import is_plan_finished, next_step, open_plans
from unit.operator.elastic_jobs import ElasticWorld, role

ELASTIC = "dlrover-run --nnodes=1:10 train.py"
PARAMETER_SERVER = "ParameterServerStrategy"


class Planned(ElasticWorld):
    """A world with plans."""

    plans: dict[str, ScalePlan]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.plans = {}

    def plan(self, name: str = "p", *, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """A user creates a plan."""
        meta = {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": self.now.isoformat(),
            "labels": labels or {},
        }
        written = {"metadata": meta, "spec": {"ownerJob": "train", **spec}}
        self.plans[name] = msgspec.convert(written, ScalePlan)

    def step(self, *, killed: bool = False) -> bool:
        """One step with the plans; an operator that is killed stores only the job's status."""
        observed = self.observe() if self.exists else None
        step = next_step(open_plans(self.plans.values()), observed, self.now)
        if step is None:
            return False
        if step.memory is not None:
            self.status = step.memory
        if not killed:
            plan = self.plans[step.plan.metadata.name]
            self.plans[plan.metadata.name] = replace(plan, status=step.status)
        return True

    def work(self) -> "Planned":
        """Plans and engine run until they have nothing to do."""
        for _ in range(6):
            self.step()
            self.after()
            self.step()
        return self

    def phases(self) -> dict[str, str]:
        return {name: plan.status.phase for name, plan in self.plans.items()}

    def reported(self, name: str = "p") -> str:
        return self.plans[name].status.message


def workers(world: ElasticWorld) -> list[str]:
    return [name for name in world.names if name.startswith("worker")]


def sized(replicas: int | None = None, **resource: str) -> dict[str, Any]:
    given: dict[str, Any] = {} if replicas is None else {"replicas": replicas}
    return {"replicaResourceSpecs": {"worker": {**given, "resource": resource}}}


def up(*args: Any, **options: Any) -> Planned:
    world = Planned(*args, **options)
    world.up()
    return world


def test_plan_changes_the_number_of_workers_and_reports_when_they_run() -> None:
    world = up(role(2, ELASTIC))
    world.plan(**sized(4))
    world.step()
    assert world.phases() == {"p": "Scaling"}
    assert world.plans["p"].status.create_time == world.now
    world.work()
    assert workers(world) == [f"worker-{number}" for number in range(4)]
    assert world.phases() == {"p": "Succeeded"}
    assert world.plans["p"].status.finish_time is not None
    world.plan("down", **sized(1))
    world.work()
    assert workers(world) == ["worker-0"]


def test_plan_is_valid_until_the_specification_changes() -> None:
    world = up(role(2, ELASTIC))
    world.plan(**sized(4))
    world.work()
    assert len(workers(world)) == 4
    world.scale(3)
    world.after()
    assert len(workers(world)) == 3


def test_removed_ranks_come_back_once_the_specification_is_changed() -> None:
    world = up(role(3, ELASTIC))
    world.plan(removePods=[{"rankIndex": 1}])
    world.work()
    assert workers(world) == ["worker-0", "worker-2"]
    world.scale(4)
    world.after()
    assert workers(world) == ["worker-0", "worker-2", "worker-3", "worker-4"]
    ranks = {
        world[name].metadata.labels["elasticjob.dlrover/rank-index"] for name in workers(world)
    }
    assert ranks == {"0", "1", "2", "3"}


def test_plans_are_carried_out_in_order_and_do_not_wait_for_pods_that_find_no_place() -> None:
    world = up(role(2, ELASTIC))
    world.plan("train-scaleplan-10", **sized(3))
    world.plan("train-scaleplan-9", **sized(9))
    for _ in range(8):
        world.step()
        world.settle()
    assert "next plan" in world.reported("train-scaleplan-9")
    assert set(world.phases().values()) <= {"Succeeded", "Scaling"}
    world.work()
    assert len(workers(world)) == 3


def test_new_resources_are_those_of_new_pods() -> None:
    world = up(role(1, ELASTIC, memory="4Gi"))
    world.plan(**sized(2, memory="6Gi", cpu="2"))
    world.step()
    made = world.made(world.decide())["worker-1"]
    asked = made["spec"]["containers"][0]["resources"]
    assert asked["limits"] == asked["requests"] == {"memory": "6Gi", "cpu": "2"}


def test_a_pod_is_removed_by_name_number_or_rank_and_the_others_keep_theirs() -> None:
    world = up(role(5, ELASTIC)).take("worker-1")
    world.plan(removePods=[{"name": "train-edljob-worker-5"}, {"id": 0}, {"rankIndex": 4}])
    world.work()
    assert workers(world) == ["worker-2", "worker-3"]
    record = world.status.roles["worker"]
    assert (record.replicas, record.absent) == (4, "0-1")
    world.end("worker-2", "worker-3")
    assert world.phase == "Succeeded", "who was removed is not missed"


def test_pods_are_created_at_a_rank_or_the_first_free_one_with_their_resources() -> None:
    world = up(role(2, ELASTIC))
    pods = [{"type": "worker", "rankIndex": 3, "resource": {"cpu": "4"}}, {"type": "worker"}]
    world.plan(createPods=pods)
    world.step()
    made = world.made(world.decide())
    ranks = {
        pod["metadata"]["labels"]["elasticjob.dlrover/rank-index"]: pod for pod in made.values()
    }
    assert set(ranks) == {"2", "3"}
    asked = ranks["3"]["spec"]["containers"][0]["resources"]
    assert asked == {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}}
    assert "resources" not in ranks["2"]["spec"]["containers"][0]


def test_a_parameter_server_that_is_migrated_serves_until_the_next_one_runs() -> None:
    world = up(1, strategy=PARAMETER_SERVER, roles={"ps": 2})
    world.plan(migratePods=[{"type": "ps", "id": 1, "resource": {"memory": "8Gi"}}])
    world.step()
    world.settle()
    assert {"ps-0", "ps-1", "ps-2"} <= set(world.names), "old and new side by side"
    world.start_all()
    world.settle()
    assert [name for name in world.names if name.startswith("ps")] == ["ps-0", "ps-2"]
    world.work()
    assert world.phases() == {"p": "Succeeded"}
    assert world["ps-2"].metadata.labels["elasticjob.dlrover/rank-index"] == "1"


def test_addresses_of_servers_are_listed_in_the_plans_order() -> None:
    world = up(1, strategy=PARAMETER_SERVER, roles={"ps": 1})
    world.plan(psHosts=["b:2222", "a:2222"])
    world.work()
    world.take("worker-0")
    assert world.status.ps_hosts == ["b:2222", "a:2222"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"replicaResourceSpecs": {"ps": {"replicas": 1}}}, "spec.replicaResourceSpecs.ps: 'ps'"),
        (sized(1), "the job needs at least 2"),
        (sized(9999), "spec.replicaResourceSpecs.worker.replicas: 9999 is more than 5000"),
        ({"removePods": [{"name": "stranger"}]}, "spec.removePods[0].name: 'stranger'"),
        ({"migratePods": [{"id": 77}]}, "spec.migratePods[0].id: 77"),
        ({"createPods": [{"rankIndex": 1}]}, "spec.createPods[0].rankIndex: 1"),
        ({"psHosts": ["a:1"]}, "spec.psHosts"),
        (sized(8), "requests 32Gi of memory in total; the job's resourceLimits: 20Gi"),
        ({}, "spec: changes nothing"),
        ({"ownerJob": "", **sized(3)}, "spec.ownerJob: is missing"),
    ],
)
def test_a_bad_plan_fails_with_its_field_and_changes_nothing(
    spec: dict[str, Any], expected: str
) -> None:
    worker = role(3, "run --nnodes=2:8 x", memory="4Gi")
    world = up(worker, resourceLimits={"memory": "20Gi"})
    before = world.status
    world.plan(**spec)
    world.step()
    assert world.phases() == {"p": "Failed"}
    assert expected in world.reported()
    assert world.plans["p"].status.finish_time == world.now
    assert world.status == before


def test_a_program_may_not_scale_what_only_people_may() -> None:
    auto = {"scale-type": "auto"}
    world = up(role(2, ELASTIC, autoScale=False))
    world.plan("one", labels=auto, **sized(3))
    world.step()
    assert "autoScale: false" in world.reported("one")
    world = up(role(2, ELASTIC), optimizeMode="manunal")
    world.plan("one", labels=auto, **sized(3))
    world.plan("two", labels={"scale-type": "manual"}, **sized(3))
    world.work()
    assert world.phases() == {"one": "Failed", "two": "Succeeded"}
    assert "metadata.labels.scale-type" in world.reported("one").replace("[", ".").replace("]", "")


def test_plan_without_owner_job_takes_the_job_of_its_label() -> None:
    world = up(role(2, ELASTIC))
    world.plan(labels={"elasticjob-name": "train"}, ownerJob="", **sized(3))
    assert world.plans["p"].job_name == "train"
    world.work()
    assert world.phases() == {"p": "Succeeded"}
    other = {"elasticjob-name": "other"}
    world.plan("q", labels=other, **sized(4))
    assert world.plans["q"].job_name == "train", "the field takes precedence"


def test_a_plan_waits_a_little_for_its_job() -> None:
    world = Planned(role(2, ELASTIC))
    world.exists = False
    world.plan(**sized(3))
    world.step()
    assert world.phases() == {"p": "Pending"}
    world.now += timedelta(seconds=61)
    world.step()
    assert world.phases() == {"p": "Failed"}
    assert "spec.ownerJob: 'train' is not an ElasticJob of this namespace" in world.reported()


def test_a_plan_for_a_job_that_has_ended_fails() -> None:
    world = up(1)
    world.end("worker-0")
    assert conditions.is_finished(world.status.conditions)
    world.plan(**sized(3))
    world.step()
    assert world.phases() == {"p": "Failed"}


which = st.integers(0, 7)
plans = st.one_of(
    st.builds(sized, st.integers(0, 5)),
    st.builds(lambda rank: {"createPods": [{"rankIndex": rank}]}, st.integers(0, 6)),
    st.builds(lambda rank: {"removePods": [{"rankIndex": rank}]}, st.integers(0, 6)),
    st.builds(lambda rank: {"migratePods": [{"rankIndex": rank}]}, st.integers(0, 6)),
)
moves = st.one_of(
    st.tuples(st.just("plan"), plans),
    st.tuples(st.just("step"), st.booleans()),
    st.tuples(st.just("look"), st.none() | st.integers(0, 5)),
    st.tuples(st.just("start_all")),
    st.tuples(st.just("fail"), which, st.sampled_from([1, 137, 201, None])),
    st.tuples(st.just("remove_pod"), which),
    st.tuples(st.just("vanish"), which),
    st.tuples(st.just("finish_terminating")),
    st.tuples(st.just("scale"), st.integers(1, 5)),
    st.tuples(st.just("wait"), st.integers(0, 700)),
)


@given(st.lists(moves, max_size=25))
def test_random_plans_end_and_use_no_number_twice(
    history: list[tuple],
) -> None:
    world = Planned(role(2, ELASTIC, restartPolicy="Always", restartCount=1000))
    used: dict[str, set[str]] = {}
    for place, (move, *details) in enumerate(history):
        if move == "plan":
            world.plan(f"p-{place}", **details[0])
        elif move == "step":
            world.step(killed=details[0])
        elif move == "look":
            check_numbers(world, used)
            world.carry_out(world.decide(), details[0])
        elif move in ("fail", "remove_pod", "vanish"):
            pod = world.pod(details[0])
            if pod and move == "vanish":
                del world.pods[pod.name]
            elif pod:
                getattr(world, move)(pod, *details[1:])
        else:
            getattr(world, move)(*details)
        forget_unseen(world, used)
    for _ in range(30):
        if not world.step() and all(map(is_plan_finished, world.plans.values())):
            break
        world.after()
    assert all(is_plan_finished(plan) for plan in world.plans.values()), world.phases()
    world.after()
    check_end(world)


def check_numbers(world: Planned, used: dict[str, set[str]]) -> None:
    """A name stands for one pod, once it has been seen, and a rank has one present pod."""
    made = [c.name for c in world.decide().creations if c.target is TargetKind.POD]
    for name in made:
        assert not used.get(name), f"{name} was there before"
    for pod in world.pods.values():
        uids = used.setdefault(pod.name, set())
        uids.add(pod.uid)


def forget_unseen(world: Planned, used: dict[str, set[str]]) -> None:
    """A pod that went before the operator could note that it was there has not been there."""
    assert isinstance(world.status, ElasticJobRecord)
    for name in set(used) - set(world.pods):
        kind = "worker" if "worker" in name else "dlrover-master"
        record = world.status.roles.get(kind, RoleRecord())
        number = int(name.rpartition("-")[2])
        present = {nodes.node_of_rank(record, rank).id for rank in range(20)}
        seen = {nodes.node_of_rank(record, rank).id for rank in nodes.created_ranks(record)}
        if number in present - seen:
            del used[name]


def check_end(world: Planned) -> None:
    """After everything there is just one pod for each rank that shall be there."""
    if conditions.is_finished(world.status.conditions):
        return
    assert isinstance(world.status, ElasticJobRecord)
    ranks = [
        pod.metadata.labels["elasticjob.dlrover/rank-index"]
        for pod in world.pods.values()
        if "worker" in pod.name
    ]
    assert len(ranks) == len(set(ranks))
    record = world.status.roles["worker"]
    specified = world.written["spec"]["replicaSpecs"]["worker"]["replicas"]
    valid = record.over in (None, specified)
    assert (
        len(ranks) == specified
        if not valid or record.replicas is None
        else record.replicas >= len(ranks) > 0
    )
    assert sum("master" in name for name in world.names) == 1
