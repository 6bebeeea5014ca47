"""ElasticJob: names and environment of its pods, and its owned objects."""

import json
from typing import Any

import pytest

from gangline.operator.frameworks.elastic.pods import secret_name
from gangline.operator.model.plan import RANDOM_VALUE, TargetKind
from unit.operator.elastic_jobs import MASTER, ElasticWorld, manifest, read, role, variables

PARAMETER_SERVER = "ParameterServerStrategy"


def test_each_rank_and_the_master_have_a_service_of_the_name_that_the_others_know() -> None:
    made = ElasticWorld(2, strategy=PARAMETER_SERVER, roles={"ps": 1})
    services = {
        creation.name: creation.manifest["spec"]
        for creation in made.decide().creations
        if creation.target is TargetKind.SERVICE
    }
    assert {name: spec["ports"][0]["port"] for name, spec in services.items()} == {
        MASTER: 50001,
        "train-edljob-worker-0": 3333,
        "train-edljob-worker-1": 3333,
        "train-edljob-ps-0": 2222,
    }
    assert "publishNotReadyAddresses" not in services[MASTER], "never to a master that is going"
    assert services["train-edljob-ps-0"]["publishNotReadyAddresses"]


def test_workers_get_dlrovers_variables_and_the_masters_address() -> None:
    world = ElasticWorld(2, envs={"DATA": {"value": "/data"}})
    given = variables(world.made(world.decide())["worker-1"])
    expected = {
        "ELASTIC_JOB_NAME": "train",
        "JOB_UID": "job-uid",
        "NODE_TYPE": "worker",
        "NODE_ID": "1",
        "NODE_RANK": "1",
        "NODE_NUM": "2",
        "WORKER_RANK": "1",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "DLROVER_MASTER_ADDR": f"{MASTER}:50001",
        "GANGLINE_MASTER_ADDR": f"{MASTER}:50001",
        "DATA": "/data",
    }
    assert expected.items() <= given.items()
    assert {"POD_IP", "NODE_IP", "POD_NAME", "GANGLINE_JOB_SECRET"} <= given.keys()


def test_workers_get_the_elastic_mode_of_the_job() -> None:
    for notes, mode in (({}, "base"), ({"training_elastic_mode": "ucp"}, "ucp")):
        world = ElasticWorld(1, annotations=notes)
        given = variables(world.made(world.decide())["worker-0"])
        assert given["DLROVER_TRAINING_ELASTIC_MODE"] == mode


def test_labels_are_dlrovers_beside_ours() -> None:
    world = ElasticWorld(2).up().take("worker-1")
    labels = world["worker-2"].metadata.labels
    expected = {
        "app": "dlrover",
        "app.kubernetes.io/name": "elasticjob",
        "elasticjob.dlrover/name": "train",
        "elasticjob.dlrover/replica-type": "worker",
        "elasticjob.dlrover/replica-index": "2",
        "elasticjob.dlrover/rank-index": "1",
        "elasticjob.dlrover/relaunch-count": "1",
        "training.kubeflow.org/replica-index": "1",
    }
    assert expected.items() <= labels.items()


def test_the_secret_is_random_and_pods_read_it() -> None:
    world = ElasticWorld(1)
    decision = world.decide()
    (secret,) = world.made(decision, TargetKind.SECRET).values()
    assert secret["stringData"] == {"secret": RANDOM_VALUE}
    for pod in world.made(decision).values():
        env = {variable["name"]: variable for variable in pod["spec"]["containers"][0]["env"]}
        reference = env["GANGLINE_JOB_SECRET"]["valueFrom"]["secretKeyRef"]
        assert reference == {"name": secret["metadata"]["name"], "key": "secret"}


def test_the_secret_is_made_before_pods_and_never_looked_for() -> None:
    world = ElasticWorld(2).up()
    assert not world.made(world.decide(), TargetKind.SECRET)
    world.remove_pod(world["worker-1"])
    world.carry_out(world.decide())  # the loss is recorded before a pod is created
    targets = [creation.target for creation in world.decide().creations]
    assert targets == [TargetKind.SECRET, TargetKind.POD]


def test_each_job_of_a_name_has_a_secret_of_its_own() -> None:
    first, second = manifest({"worker": 1}), manifest({"worker": 1})
    second["metadata"]["uid"] = "another"
    assert secret_name(read(first)) != secret_name(read(second))


def test_the_master_runs_in_the_workers_image_with_a_journal_that_it_may_write() -> None:
    world = ElasticWorld(2)
    decision = world.decide()
    (container,) = world.made(decision)["master-0"]["spec"]["containers"]
    assert container["image"] == "train:1"
    assert f"--journal-configmap=team/{MASTER}" in container["command"]
    facts, tuning = "elasticjob-train-facts", "elasticjob-train-tuning"
    maps = world.made(decision, TargetKind.CONFIG_MAP)
    assert maps.keys() == {MASTER, facts, tuning}
    assert not any(map_.get("data") for map_ in maps.values())
    (rights,) = world.made(decision, TargetKind.ROLE).values()
    written, read, group, _ = rights["rules"]
    assert written["resourceNames"] == [MASTER, facts]
    assert (read["resourceNames"], read["verbs"]) == ([tuning], ["get", "watch"])
    assert (group["resourceNames"], group["verbs"]) == (["train"], ["get", "watch"])
    assert world.made(decision)["master-0"]["spec"]["serviceAccountName"] == MASTER
    assert not world.made(decision)["worker-0"]["spec"].get("serviceAccountName")


def test_the_master_image_is_the_administrators_unless_the_job_gives_one() -> None:
    job = read(manifest({"worker": 1}), master_image="master:2")
    assert job.roles[0].template["spec"]["containers"][0]["image"] == "master:2"
    own = {"containers": [{"name": "main", "image": "mine:3", "command": ["run-it"]}]}
    given = {"worker": 1, "dlrover-master": {"template": {"spec": own}}}
    (container,) = read(manifest(given), master_image="m:2").roles[0].template["spec"]["containers"]
    assert (container["image"], container["command"]) == ("mine:3", ["run-it"])
    assert container["resources"]["requests"], "what is not given stays"


@pytest.mark.parametrize("field", ["serviceAccountName", "serviceAccount"])
def test_a_master_with_an_account_of_its_own_gets_no_rights(field: str) -> None:
    own = {field: "boss", "containers": [{"name": "main", "image": "x"}]}
    world = ElasticWorld(1, roles={"master": {"template": {"spec": own}}})
    decision = world.decide()
    assert not world.made(decision, TargetKind.SERVICE_ACCOUNT)
    spec = world.made(decision)["master-0"]["spec"]
    assert {name: spec[name] for name in spec if name.startswith("serviceAccount")} == {
        field: "boss"
    }


def test_tf_config_lists_servers_workers_and_chief_but_no_evaluators() -> None:
    roles = {"ps": 2, "chief": 1, "evaluator": 1}
    world = ElasticWorld(1, strategy=PARAMETER_SERVER, roles=roles)
    made = world.made(world.decide())
    reported = json.loads(variables(made["ps-1"])["TF_CONFIG"])
    assert reported == {
        "cluster": {
            "chief": ["train-edljob-chief-0.team.svc:3333"],
            "worker": ["train-edljob-worker-0.team.svc:3333"],
            "ps": ["train-edljob-ps-0.team.svc:2222", "train-edljob-ps-1.team.svc:2222"],
        },
        "task": {"type": "ps", "index": 1},
    }
    looks_on = json.loads(variables(made["evaluator-0"])["TF_CONFIG"])
    assert looks_on["task"] == {"type": "evaluator", "index": 0}
    assert "TF_CONFIG" not in variables(made["master-0"])


@pytest.mark.parametrize("strategy", ["CustomStrategy", "Local"])
def test_other_strategies_get_neither_ranks_nor_a_cluster(strategy: str) -> None:
    world = ElasticWorld(1, strategy=strategy)
    given = variables(world.made(world.decide())["worker-0"])
    assert not {"TF_CONFIG", "WORLD_SIZE", "RANK"} & given.keys()
    assert given["NODE_RANK"] == "0"


@pytest.mark.parametrize(
    ("priority", "classes"),
    [
        ("0.5", ["high", "high", "low", "low"]),
        ("1", ["high"] * 4),
        ("high", ["high"] * 4),
        ("research", ["research"] * 4),
        ("", [None] * 4),
    ],
)
def test_priority_is_a_class_or_a_share_of_high_ones(priority: str, classes: list) -> None:
    world = ElasticWorld(role(4, priority=priority))
    made = world.made(world.decide())
    assigned = [made[f"worker-{rank}"]["spec"].get("priorityClassName") for rank in range(4)]
    assert assigned == classes


@pytest.mark.parametrize(
    ("command", "annotations", "least"),
    [
        ("dlrover-run --nnodes=1:10 train.py", {}, 1),
        ("dlrover-run --nnodes 2:4 train.py", {}, 2),
        ("dlrover-run --nnodes=5 train.py", {}, 5),
        ('gangline run --nnodes="$NODE_NUM" train.py', {}, 5),
        ("dlrover-run train.py", {"gangline.dev/nodes": "3:8"}, 3),
        ("dlrover-run --nnodes=1:10 train.py", {"gangline.dev/nodes": "4:5"}, 4),
    ],
)
def test_a_gang_starts_with_the_minimum_of_its_node_range(
    command: str, annotations: dict[str, str], least: int
) -> None:
    world = ElasticWorld(role(5, command), annotations=annotations)
    (group,) = world.made(world.decide(), TargetKind.POD_GROUP).values()
    assert group["spec"]["minTaskMember"] == {"dlrover-master": 1, "worker": least}
    assert group["spec"]["minMember"] == least + 1


def test_only_the_main_container_gets_the_environment() -> None:
    pod = {"containers": [{"name": "log", "image": "log:1"}, {"name": "main", "image": "train:1"}]}
    world = ElasticWorld(role(1, pod=pod))
    first, second = world.made(world.decide())["worker-0"]["spec"]["containers"]
    assert "env" not in first
    assert second["env"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"labels": {"some": "label"}},
        {"optimizeMode": "manunal"},
        {"optimizeMode": "cluster", "brainService": "brain:50001"},
        {"enableElasticScheduling": True, "enableDynamicSharding": True},
        {"runPolicy": {"cleanPodPolicy": "All"}},
    ],
)
def test_optional_and_older_fields_may_be_there_or_not(fields: dict[str, Any]) -> None:
    assert ElasticWorld(role(2, restartPolicy="Always"), **fields).up().phase == "Running"
    assert ElasticWorld(role(2, pod={"restartPolicy": "Always"}), **fields).up().phase == "Running"
    assert ElasticWorld(2, **fields).up().phase == "Running"
