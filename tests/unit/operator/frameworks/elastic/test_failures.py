"""ElasticJob failures: which pods are replaced, how often, where, with how much memory."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from gangline.operator.model.replicas import (
    ObservedContainerState,
    ObservedContainerStatus,
    ObservedPod,
    ObservedPodSpec,
    ObservedPodStatus,
    ObservedTermination,
)
from unit.operator.elastic_jobs import ElasticWorld, full_name, role

PARAMETER_SERVER = "ParameterServerStrategy"
ELASTIC = "dlrover-run --nnodes=1:10 train.py"


def test_a_deleted_worker_comes_back_with_the_next_number_and_its_rank() -> None:
    world = ElasticWorld(role(5, ELASTIC)).up().take("worker-3")
    assert world.names == ["master-0", *(f"worker-{number}" for number in (0, 1, 2, 4, 5))]
    assert world["worker-5"].metadata.labels["elasticjob.dlrover/rank-index"] == "3"
    assert world.status.restarts.total == 0, "somebody took it away: no failure of the job"


def test_replacement_does_not_wait_for_the_deletion_of_the_old_pod() -> None:
    world = ElasticWorld(2).up()
    world.remove_pod(world["worker-1"])
    world.settle()
    assert "train-edljob-worker-1" in world.pods
    assert world.names == ["master-0", "worker-0", "worker-2"]


def test_a_pod_that_vanished_without_a_trace_gets_the_next_number_too() -> None:
    world = ElasticWorld(2).up().vanish("worker-0")
    assert world.names == ["master-0", "worker-1", "worker-2"]


def test_a_deleted_master_comes_back_and_no_worker_is_touched() -> None:
    world = ElasticWorld(2).up()
    before = {name: world[name].uid for name in ("worker-0", "worker-1")}
    for number in range(3):
        world.take(f"master-{number}")
    assert world.names == ["master-3", "worker-0", "worker-1"]
    assert {name: world[name].uid for name in before} == before
    assert world.phase == "Running"


def test_a_master_that_fails_now_and_then_never_fails_the_job() -> None:
    world = ElasticWorld(2).up()
    for number in range(20):
        world.break_(f"master-{number}", 1)
    assert "master-20" in world.names
    assert not world.finished


def test_image_without_gangline_is_reported_with_its_python_error() -> None:
    world = ElasticWorld(1).up()
    for number in range(31):
        name = full_name(f"master-{number}")
        world.pods[name] = with_message(world.pods[name], "/bin/python: No module named gangline")
        world.after()
    assert "dlrover-master-30: Error (exit code 1)" in world.message
    assert "Message: /bin/python: No module named gangline" in world.message


def with_message(pod: ObservedPod, text: str) -> ObservedPod:
    """The pod, failed with this termination message."""
    ended = ObservedContainerState(terminated=ObservedTermination(1, "Error", text))
    status = ObservedPodStatus(
        phase="Failed", container_statuses=(ObservedContainerStatus("main", 0, ended),)
    )
    return replace(pod, status=status)


def test_master_that_ends_before_the_job_is_replaced_a_limited_number_of_times() -> None:
    world = ElasticWorld(2).up()
    for number in range(31):
        assert f"master-{number}" in world.names
        world.end(f"master-{number}")
        world.after()
    assert world.names == ["master-30", "worker-0", "worker-1"]
    assert not world.finished
    assert world.end("worker-0", "worker-1").phase == "Succeeded"


def test_evictions_are_not_counted() -> None:
    world = ElasticWorld(1).up()
    for number in range(10):
        world.break_(f"worker-{number}", None, of_pod="Evicted")
    assert world.names == ["master-0", "worker-10"]


@pytest.mark.parametrize(("given", "allowed"), [(None, 3), (0, 0), (1, 1), (7, 7)])
def test_each_rank_has_its_own_restarts(given: int | None, allowed: int) -> None:
    spec = role(2) if given is None else role(2, restartCount=given)
    world = ElasticWorld(spec).up()
    number = 0
    for _ in range(allowed):
        world.break_(f"worker-{number}")
        number = max(int(name.rpartition("-")[2]) for name in world.names)
    assert not world.finished
    world.break_(f"worker-{number}")
    assert world.finished
    assert f"replaced {allowed} times" in world.message
    assert "worker-1" in world.message or "Killed" in world.message


def test_failed_program_is_not_restarted_unless_the_policy_restarts() -> None:
    assert ElasticWorld(1).up().break_("worker-0", 1).finished
    for policy in ("Always", "OnFailure"):
        world = ElasticWorld(role(1, restartPolicy=policy)).up().break_("worker-0", 1)
        assert world.names == ["master-0", "worker-1"]
    world = ElasticWorld(role(1, pod={"restartPolicy": "Always"})).up().break_("worker-0", 1)
    assert world.names == ["master-0", "worker-1"]


def test_job_continues_while_its_minimum_is_active() -> None:
    world = ElasticWorld(role(3, "run --nnodes=2:3 x", restartCount=0)).up()
    world.break_("worker-1")
    assert not world.finished
    world.end("worker-0", "worker-2")
    assert world.phase == "Succeeded"

    world = ElasticWorld(role(3, "run --nnodes=2:3 x", restartCount=0)).up()
    assert world.break_("worker-1").break_("worker-2").finished
    assert "2 of worker are needed and 1 left" in world.message


@pytest.mark.parametrize("strategy", ["AllreduceStrategy", PARAMETER_SERVER, "CustomStrategy"])
@pytest.mark.parametrize(
    "flags",
    [
        "--nnodes 3",
        "--nnodes=$NODE_NUM",
        "--nnodes ${N:-3}",
        "--auto-config",
        "--nnodes 2:3 --node-unit 3",
    ],
)
def test_a_launcher_below_its_own_minimum_ends_the_job(strategy: str, flags: str) -> None:
    worker = role(3, f"gangline run {flags} x", restartCount=0)
    world = ElasticWorld(worker, strategy=strategy).up().break_("worker-1")
    assert world.finished
    assert "3 of worker are needed and 2 left" in world.message


@pytest.mark.parametrize("command", ["train", "run --nnodes=$MIN:$MAX x", "run --nnodes 2:3 x"])
def test_workers_of_parameter_servers_without_such_a_minimum_go_on(command: str) -> None:
    worker = role(3, command, restartCount=0)
    world = ElasticWorld(worker, strategy=PARAMETER_SERVER).up().break_("worker-1")
    assert not world.finished


def test_a_job_that_runs_again_says_why_it_was_restarted() -> None:
    world = ElasticWorld(role(2, restartCount=1)).up().break_("worker-1", 134).up()
    assert world.message.startswith("ElasticJob team/train runs again. It was restarted because")
    assert "edljob-worker-1: Aborted (exit code 134)" in world.message


def test_a_job_of_fixed_size_needs_all_of_its_workers() -> None:
    assert ElasticWorld(role(2, restartCount=0)).up().break_("worker-1").finished
    world = ElasticWorld(2).up().end("worker-0")
    assert not world.finished
    assert world.end("worker-1").phase == "Succeeded"


@pytest.mark.parametrize("nodes", ["1:10", "1:$NODE_NUM", "1:$(NODE_NUM)", "1:${NODE_NUM:-3}"])
def test_an_elastic_job_does_not_wait_for_a_worker_that_never_found_a_place(nodes: str) -> None:
    world = ElasticWorld(role(3, f"dlrover-run --nnodes={nodes} train.py"))
    world.settle()
    for name in ("master-0", "worker-0", "worker-1"):
        world.start(world[name])
    world.settle()
    assert not world.end("worker-0").finished, "worker-1 is still at work"
    assert world.end("worker-1").phase == "Succeeded"


def test_no_worker_starts_alone_when_the_others_finish() -> None:
    world = ElasticWorld(role(4, ELASTIC))
    world.settle()
    for name in ("master-0", "worker-0", "worker-1", "worker-2"):
        world.start(world[name])
    world.settle()
    world.end("worker-0")
    assert not world.finished
    assert "worker-3" not in world.names, "it has waited for a node until now"
    world.take("worker-2")
    assert world.names == ["master-0", "worker-0", "worker-1"], "too late to be made anew"
    assert world.end("worker-1").phase == "Succeeded"


def test_master_is_deleted_when_the_job_has_ended() -> None:
    world = ElasticWorld(1).up().end("worker-0")
    world.after()
    assert world.names == ["worker-0"]


def test_a_worker_that_ended_well_is_not_run_again_when_its_pod_is_removed() -> None:
    world = ElasticWorld(2).up().end("worker-0").take("worker-0")
    assert world.names == ["master-0", "worker-1"]
    assert world.end("worker-1").phase == "Succeeded"


def test_running_out_of_memory_doubles_it_under_every_strategy() -> None:
    for strategy in ("AllreduceStrategy", PARAMETER_SERVER, "CustomStrategy", "Local"):
        world = ElasticWorld(role(2, memory="4Gi"), strategy=strategy).up()
        number = 1
        for after in ("8Gi", "16Gi", "32Gi"):
            world.break_(f"worker-{number}", 137, reason="OOMKilled")
            assert world.status.roles["worker"].nodes["1"].memory == after
            number += 1
        assert f"worker-{number}" in world.names


def test_the_new_pod_asks_for_the_memory_as_request_and_limit() -> None:
    world = ElasticWorld(role(1, memory="4Gi")).up()
    world.fail(world["worker-0"], 247)
    seen = []
    for _ in range(3):
        decision = world.decide()
        seen += [pod for name, pod in world.made(decision).items() if name == "worker-1"]
        world.carry_out(decision)
    (pod,) = seen
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"memory": "8Gi"}, "requests": {"memory": "8Gi"}}


def test_memory_grows_within_the_jobs_limits() -> None:
    limits = {"memory": "9Gi"}
    world = ElasticWorld(role(2, memory="4Gi"), resourceLimits=limits).up()
    world.break_("worker-0", 137, reason="OOMKilled")
    # 9 Gi less the other worker's 4.
    assert world.status.roles["worker"].nodes["0"].memory == "5Gi"
    assert world.break_("worker-2", 137, reason="OOMKilled").finished


def test_a_node_with_a_fault_is_avoided_and_never_used_again_after_two() -> None:
    def terms(world: ElasticWorld) -> dict:
        world.remove_pod(world["worker-0"])
        for _ in range(4):
            decision = world.decide()
            for name, pod in world.made(decision).items():
                if name.startswith("worker"):
                    return pod["spec"].get("affinity", {}).get("nodeAffinity", {})
            world.carry_out(decision)
        raise AssertionError("no pod was made")

    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    once = ElasticWorld(4).up().break_("worker-1", 201, node="bad")
    assert set(terms(once)) == {preferred}
    twice = ElasticWorld(4).up().break_("worker-1", 201, node="bad")
    twice.break_("worker-2", 202, node="bad")
    required_terms = terms(twice)
    assert set(required_terms) == {required}
    (term,) = required_terms[required]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["bad"]}
    ]
    unlucky = ElasticWorld(4).up().break_("worker-1", 139, node="odd")
    assert not terms(unlucky), "once is nothing"


def test_two_failures_of_the_program_make_another_node_preferred_only() -> None:
    world = ElasticWorld(4).up().break_("worker-1", 139, node="odd")
    world.break_("worker-2", 139, node="odd")
    assert world.status.node_faults["odd"].failures == 2
    assert world.status.node_faults["odd"].faults == 0


@pytest.mark.parametrize(
    ("critical", "broken", "ends"),
    [
        ("", 0, True),
        ("", 1, False),
        ("none", 0, False),
        ("all", 1, True),
        ("1", 1, True),
        ("1", 0, False),
    ],
)
def test_a_critical_rank_that_is_lost_ends_the_job(critical: str, broken: int, ends: bool) -> None:
    worker = role(3, restartCount=0, criticalNodes=critical)
    world = ElasticWorld(worker, strategy=PARAMETER_SERVER, roles={"ps": 1}).up()
    assert world.break_(f"worker-{broken}").finished == ends


def test_a_critical_rank_may_have_restarts_of_its_own() -> None:
    worker = role(2, restartCount=0, criticalNodes="1:2")
    world = ElasticWorld(worker, strategy=PARAMETER_SERVER, roles={"ps": 1}).up()
    world.break_("worker-1").break_("worker-2")
    assert not world.finished
    assert world.break_("worker-3").finished
    assert "is critical" in world.message


def test_a_parameter_server_is_always_needed_and_an_evaluator_never() -> None:
    roles = {"ps": role(2, restartCount=0), "evaluator": role(1, restartCount=0)}
    world = ElasticWorld(1, strategy=PARAMETER_SERVER, roles=roles).up()
    assert not world.break_("evaluator-0").finished
    assert world.break_("ps-1").finished


def test_a_job_with_parameter_servers_has_succeeded_with_its_chief_and_workers() -> None:
    roles = {"ps": 1, "chief": 1, "evaluator": 1}
    world = ElasticWorld(1, strategy=PARAMETER_SERVER, roles=roles).up().end("worker-0")
    assert not world.finished
    assert world.end("chief-0").phase == "Succeeded"


def test_too_few_pods_that_find_no_node_in_time_end_the_job() -> None:
    world = ElasticWorld(role(2, restartTimeout=600))
    decision = world.settle()
    assert decision.requeue_after == timedelta(seconds=600)
    world.wait(601)
    world.settle()
    assert world.finished
    assert "restartTimeout of 600 s" in world.message


@pytest.mark.parametrize(
    ("strategy", "command", "ends"),
    [
        (None, "train", True),
        ("1", "run --nnodes=1:2 x", False),
        ("2", "run --nnodes=1:2 x", True),
        ("0", "train", False),
        ("-1", "train", False),
    ],
)
def test_dlrovers_annotations_limit_the_pending_time(
    strategy: str | None, command: str, ends: bool
) -> None:
    notes = {"pending_timeout": "60"} | ({"pending_fail_strategy": strategy} if strategy else {})
    world = ElasticWorld(role(2, command), annotations=notes)
    world.settle()
    world.start(world["worker-0"])
    world.wait(61)
    world.settle()
    assert world.finished is ends
    if ends:
        assert "pending_timeout of 60 s" in world.message


def test_pods_beyond_the_minimum_may_wait_as_long_as_they_like() -> None:
    world = ElasticWorld(role(2, "run --nnodes=1:2 x", restartTimeout=600))
    world.settle()
    world.start(world["worker-0"])
    world.wait(10_000)
    world.settle()
    assert not world.finished


def test_a_pod_of_a_former_number_is_removed_when_it_shows_up_late() -> None:
    world = ElasticWorld(1).up()
    old = world["worker-0"]
    world.take("worker-0")
    world.pods[old.name] = replace(
        old,
        spec=ObservedPodSpec("node-1"),
        status=ObservedPodStatus(phase="Running", pod_ip="10.1.0.9"),
    )
    world.after()
    assert world.names == ["master-0", "worker-1"]


def test_a_role_that_shrinks_and_grows_again_uses_new_numbers() -> None:
    world = ElasticWorld(3).up()
    world.scale(1)
    world.after()
    assert world.names == ["master-0", "worker-0"]
    world.scale(3)
    world.after()
    assert world.names == ["master-0", "worker-0", "worker-3", "worker-4"]
