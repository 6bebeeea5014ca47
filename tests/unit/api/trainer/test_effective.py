"""A TrainJob merged with its runtime: overrides, patches, counts, variables of the frameworks."""

import copy
from typing import Any

import pytest

from gangline.api.jobs.training_runtime import ANCESTOR_LABEL
from unit.api.trainer.jobs import SHIPPED, container, effective, environment, train_job

LEADER = "digits-node-0-0.digits"


def patch(**pod: Any) -> dict[str, Any]:
    """A runtime patch of the pods of job node."""
    job = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "manager": f"example.com/{len(pod)}",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }


def test_torch_variables_are_those_of_upstream_without_a_trainer_too() -> None:
    """trainjob-2: as those of the other frameworks below."""
    assert environment(effective(train_job())) == {
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "INDEX",
        "PET_MASTER_ADDR": LEADER,
        "PET_MASTER_PORT": "29500",
    }


def test_index_of_a_pod_comes_from_its_annotation() -> None:
    env = container(effective(train_job()))["env"]
    rank = next(variable for variable in env if variable["name"] == "PET_NODE_RANK")
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert rank["valueFrom"] == {"fieldRef": {"fieldPath": path}}


@pytest.mark.parametrize(
    ("trainer", "processes"),
    [
        ({"numProcPerNode": 3}, "3"),
        ({"resourcesPerNode": {"limits": {"cpu": "2500m"}}}, "3"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 4, "cpu": 8}}}, "auto"),
        ({"resourcesPerNode": {"limits": {"huawei.com/Ascend910": 4}}}, "auto"),
        ({"resourcesPerNode": {"limits": {"rdma/hca": 1, "cpu": 2}}}, "2"),
    ],
)
def test_processes_of_a_torch_node(trainer: dict[str, Any], processes: str) -> None:
    variables = environment(effective(train_job(trainer=trainer)))
    assert variables["PET_NPROC_PER_NODE"] == processes


def test_gpus_of_the_runtime_count_when_the_job_sets_only_memory() -> None:
    job = train_job(
        "torchtune-llama3.2-1b", trainer={"resourcesPerNode": {"limits": {"memory": "8Gi"}}}
    )
    merged = effective(job)
    limits = container(merged)["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 2, "memory": "8Gi"}
    assert environment(merged)["PET_NPROC_PER_NODE"] == "auto"


def test_jax_variables() -> None:
    variables = environment(effective(train_job("jax-distributed", trainer={"numNodes": 3})))
    assert variables == {
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "INDEX",
        "JAX_COORDINATOR_ADDRESS": f"{LEADER}:29500",
    }


def test_xgboost_workers_are_nodes_times_gpus() -> None:
    trainer = {"numNodes": 3, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}
    variables = environment(effective(train_job("xgboost-distributed", trainer=trainer)))
    assert variables == {
        "DMLC_TRACKER_URI": LEADER,
        "DMLC_TRACKER_PORT": "29500",
        "DMLC_TASK_ID": "INDEX",
        "DMLC_NUM_WORKER": "6",
    }


@pytest.mark.parametrize(("nodes", "workers"), [(1, 0), (2, 1), (4, 3)])
def test_mpi_launcher_is_one_of_the_nodes(nodes: int, workers: int) -> None:
    merged = effective(train_job("deepspeed-distributed", trainer={"numNodes": nodes}))
    assert {role.name: role.replicas for role in merged.roles} == {"node": workers, "launcher": 1}
    variables = environment(merged, "launcher")
    assert variables["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"
    assert variables["OMPI_MCA_orte_set_default_slots"] == "1"
    assert environment(merged) == {}


def test_resources_of_an_mpi_job_reach_launcher_and_nodes() -> None:
    amounts = {"limits": {"nvidia.com/gpu": 2}}
    job = train_job("deepspeed-distributed", trainer={"resourcesPerNode": amounts})
    merged = effective(job)
    for role in ("launcher", "node"):
        assert container(merged, role)["resources"] == amounts
    assert environment(merged, "launcher")["OMPI_MCA_orte_set_default_slots"] == "2"


@pytest.mark.parametrize("step", ["", "trainer"])
def test_image_and_variables_of_an_mpi_job_reach_its_nodes_but_not_its_command(step: str) -> None:
    """A node that ran the command of the job would be without its SSH server."""
    runtime = copy.deepcopy(SHIPPED["deepspeed-distributed"])
    nodes = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]
    nodes["template"]["metadata"] = {"labels": {ANCESTOR_LABEL: step}}
    trainer = {
        "image": "mine:1",
        "command": ["python"],
        "args": ["train.py"],
        "env": [{"name": "EPOCHS", "value": "3"}],
    }
    merged = effective(train_job(trainer=trainer), runtime)
    launcher, node = container(merged, "launcher"), container(merged)
    assert (launcher["image"], launcher["command"], launcher["args"]) == (
        "mine:1",
        ["python"],
        ["train.py"],
    )
    assert environment(merged, "launcher")["EPOCHS"] == "3"
    server = SHIPPED["deepspeed-distributed"]["spec"]["template"]["spec"]["replicatedJobs"][0]
    expected = server["template"]["spec"]["template"]["spec"]["containers"][0]
    assert node == {**expected, "image": "mine:1", "env": trainer["env"]}


def test_role_waits_for_what_a_role_without_pods_would_have_waited_for() -> None:
    runtime = copy.deepcopy(SHIPPED["deepspeed-distributed"])
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    fetch = SHIPPED["torchtune-llama3.2-1b"]["spec"]["template"]["spec"]["replicatedJobs"][0]
    jobs[0]["dependsOn"] = [{"name": fetch["name"], "status": "Complete"}]
    jobs.insert(0, fetch)
    launcher = effective(train_job(), runtime).find_role("launcher")
    assert launcher is not None
    assert [(wait.name, wait.status) for wait in launcher.depends_on] == [
        ("dataset-initializer", "Complete")
    ]


def test_patches_apply_in_order_and_before_the_job() -> None:
    """trainjob-6"""
    patches = [
        patch(nodeSelector={"zone": "a", "disk": "ssd"}),
        patch(nodeSelector={"zone": "b"}, containers=[{"name": "node", "securityContext": {}}]),
    ]
    job = train_job(runtimePatches=patches, trainer={"image": "mine:1"})
    role = effective(job).find_role("node")
    assert role is not None
    assert role.template["spec"]["nodeSelector"] == {"zone": "b", "disk": "ssd"}
    assert role.template["spec"]["containers"][0]["image"] == "mine:1"


def test_initializer_gets_source_variables_and_secret() -> None:
    dataset = {
        "storageUri": "s3://bucket/data",
        "env": [{"name": "REGION", "value": "eu"}],
        "secretRef": {"name": "keys"},
    }
    merged = effective(train_job("torchtune-llama3.2-1b", initializer={"dataset": dataset}))
    step = container(merged, "dataset-initializer", "dataset-initializer")
    assert {variable["name"]: variable["value"] for variable in step["env"]} == {
        "STORAGE_URI": "s3://bucket/data",
        "REGION": "eu",
    }
    assert step["envFrom"] == [{"secretRef": {"name": "keys"}}]


def test_a_port_of_the_runtime_stays_under_its_name() -> None:
    added_port = {"name": "trainer-2", "containerPort": 29500}
    for ports, added in (
        ([{"containerPort": 29500, "name": "own"}], []),
        ([{"containerPort": 5, "name": "trainer"}], [added_port]),
    ):
        runtime = copy.deepcopy(SHIPPED["torch-distributed"])
        (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        job["template"]["spec"]["template"]["spec"]["containers"][0]["ports"] = ports
        assert container(effective(train_job(), runtime))["ports"] == [*ports, *added]


def test_claim_of_a_source_is_mounted_in_its_initializer_only() -> None:
    given = {"model": {"storageUri": "pvc://models/net/1"}}
    merged = effective(train_job("torchtune-llama3.2-1b", initializer=given))
    step = container(merged, "model-initializer", "model-initializer")
    mount = {"name": "initializer-source", "mountPath": "/var/run/gangline/source"}
    assert {**mount, "readOnly": True} in step["volumeMounts"]
    claims = {
        role.name: {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in role.template["spec"]["volumes"]
        }
        for role in merged.roles
    }
    assert claims == {
        "dataset-initializer": {"initializer-digits"},
        "model-initializer": {"models", "initializer-digits"},
        "node": {"initializer-digits"},
    }


@pytest.mark.parametrize(
    ("trainer", "command"),
    [
        (
            {},
            [
                f"--rdzv_endpoint={LEADER}:29500",
                "full_finetune_distributed",
                "--config",
                "llama3_2/1B_full",
            ],
        ),
        (
            {"args": ["model.lora_attn_modules=[q_proj]"], "numProcPerNode": 1},
            ["lora_finetune_single_device", "--config", "llama3_2/1B_lora_single_device"],
        ),
        (
            {
                "args": ["model.quantize_base=True"],
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}},
            },
            ["lora_finetune_single_device", "--config", "llama3_2/1B_qlora_single_device"],
        ),
        (
            {"args": ["model.quantize_base=True", "model.use_dora=True"], "numProcPerNode": 1},
            ["full_finetune_single_device", "--config", "llama3_2/1B_full_single_device"],
        ),
    ],
)
def test_torchtune_recipe(trainer: dict[str, Any], command: list[str]) -> None:
    merged = effective(train_job("torchtune-llama3.2-1b", trainer=trainer))
    assert container(merged)["command"] == ["tune", "run", *command]


def test_variables_of_torch_reach_the_containers_that_the_policy_names() -> None:
    runtime = SHIPPED["torch-distributed"]
    pod = {
        "containers": [{"name": "node", "image": "a"}, {"name": "monitor", "image": "b"}],
        "initContainers": [{"name": "preflight", "image": "c"}],
    }
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]
    changed = {**job, "template": {**job["template"], "spec": {"template": {"spec": pod}}}}
    targets = [{"jobName": "node", "containerNames": ["monitor", "preflight"]}]
    spec = {
        "mlPolicy": {"torch": {"envInjection": {"targets": targets}}},
        "template": {"spec": {"replicatedJobs": [changed]}},
    }
    merged = effective(train_job(), {**runtime, "spec": spec})
    made = merged.roles[0].template["spec"]
    for injected in (made["containers"][1], made["initContainers"][0]):
        assert "PET_MASTER_ADDR" in [variable["name"] for variable in injected["env"]]


def test_startup_policy_makes_each_role_wait_for_the_one_before() -> None:
    runtime = SHIPPED["torchtune-llama3.2-1b"]
    job_set = runtime["spec"]["template"]["spec"]
    jobs = [
        {name: value for name, value in replicated_job.items() if name != "dependsOn"}
        for replicated_job in job_set["replicatedJobs"]
    ]
    order = {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": jobs}
    spec = {**runtime["spec"], "template": {"spec": {**job_set, **order}}}
    merged = effective(train_job(), {**runtime, "spec": spec})
    waits = {role.name: [(d.name, d.status) for d in role.depends_on] for role in merged.roles}
    assert waits == {
        "dataset-initializer": [],
        "model-initializer": [("dataset-initializer", "Ready")],
        "node": [("model-initializer", "Ready")],
    }


def test_a_runtime_without_policy_adds_nothing() -> None:
    runtime = SHIPPED["torch-distributed"]
    spec = {**runtime["spec"], "mlPolicy": {"numNodes": 2}}
    merged = effective(train_job(), {**runtime, "spec": spec})
    assert merged.nodes == 2
    assert "env" not in container(merged)


TORCH_NAMES = {
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
}
MPI_NAMES = {
    "OMPI_MCA_orte_default_hostfile",
    "OMPI_MCA_plm_rsh_args",
    "OMPI_MCA_orte_keep_fqdn_hostnames",
    "OMPI_MCA_orte_set_default_slots",
}
OPEN_MPI_5_NAMES = {"PRTE_MCA_prte_default_hostfile", "PRTE_MCA_plm_ssh_args"}


@pytest.mark.parametrize("runtime", sorted(SHIPPED))
def test_variables_of_each_shipped_runtime_by_name(runtime: str) -> None:
    expected = {
        "jax-distributed": {"JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"},
        "xgboost-distributed": {
            "DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER",
        },
        "deepspeed-distributed": MPI_NAMES | OPEN_MPI_5_NAMES,
        "mlx-distributed": MPI_NAMES | OPEN_MPI_5_NAMES,
    }.get(runtime, TORCH_NAMES)  # fmt: skip
    merged = effective(train_job(runtime, trainer={"numNodes": 2}))
    mpi = merged.mpi is not None
    assert set(environment(merged, "launcher" if mpi else "node")) == expected
    assert not (mpi and environment(merged, "node")), "workers get none: mpirun passes its own"
