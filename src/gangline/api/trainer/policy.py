"""The policies of the frameworks: variables and ports of the containers that train.

Names and values are upstream's. Values that differ between the pods of a role come from an
annotation of the pod, so the variables are part of the template. For torchtune the runtime's name
decides the model, and the number of processes the recipe; arguments that the job gives are kept.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from gangline.api.jobs.train import Trainer, TrainJob
from gangline.api.jobs.training_runtime import (
    JAX,
    LAUNCHER,
    MPI,
    NODE,
    TORCH,
    TRAINER,
    XGBOOST,
    MPIPolicy,
    TorchElasticPolicy,
    TrainingRuntimeSpec,
)
from gangline.api.names import free_name
from gangline.api.quantity import QuantityError, parse_quantity
from gangline.api.resource_list import is_extended_resource
from gangline.api.trainer.effective import (
    EffectiveJob,
    EffectiveRole,
    find_container,
    merge_runtime,
    with_container,
)
from gangline.api.trainer.merge import Json, upsert_env

COMMAND = ("tune", "run")

_MODELS = {
    "torchtune-llama3.2-1b": "llama3_2/1B",
    "torchtune-llama3.2-3b": "llama3_2/3B",
    "torchtune-qwen2.5-1.5b": "qwen2_5/1.5B",
}
_LORA_ARGUMENT = "model.lora_attn_modules"
_QUANTIZE_ARGUMENT, _DORA_ARGUMENT = "model.quantize_base", "model.use_dora"
_SINGLE_RECIPES = ("full_finetune_single_device", "lora_finetune_single_device")


def is_torchtune(container: Json) -> bool:
    """Return whether a container starts torchtune without naming a recipe."""
    return tuple(container.get("command") or ()) == COMMAND


def command(container: Json, runtime: str, nodes: int, processes: int | str) -> list[str]:
    """Return the command of a container with recipe and configuration.

    A runtime that is not shipped keeps its command.
    """
    model = _MODELS.get(runtime)
    if model is None:
        return list(COMMAND)
    arguments = container.get("args") or ()
    quantized = _has(arguments, _QUANTIZE_ARGUMENT) and not _has(arguments, _DORA_ARGUMENT)
    method = "lora" if quantized or _has(arguments, _LORA_ARGUMENT) else "full"
    devices = "single_device" if (nodes, processes) == (1, 1) else "distributed"
    config = f"{model}_{'qlora' if quantized else method}"
    config += "_single_device" if devices == "single_device" else ""
    return [*COMMAND, f"{method}_finetune_{devices}", "--config", config]


def _has(arguments: Sequence[str], name: str) -> bool:
    return any(text.startswith(name) for text in arguments)


def missing_recipe(job: EffectiveJob) -> str:
    """Return the configuration of the job that torchtune does not have; empty if it has it."""
    words = _node_container(job).get("command") or []
    config = str(words[-1]) if tuple(words[:2]) == COMMAND else ""
    is_missing = config.endswith("_qlora") or (config.startswith("qwen") and "_qlora" in config)
    return config if is_missing else ""


def with_rendezvous(command: Sequence[str], address: str) -> list[str]:
    """Add the rendezvous address, which recipes for one device do not take."""
    if len(command) == len(COMMAND) or command[2] in _SINGLE_RECIPES:
        return list(command)
    return [*COMMAND, f"--rdzv_endpoint={address}", *command[2:]]


PORT = 29500
PORT_NAME = "trainer"
INDEX_KEY = "batch.kubernetes.io/job-completion-index"
"""Label and annotation with the number of a pod in its role."""
UID_KEY = "jobset.sigs.k8s.io/jobset-uid"
"""Label and annotation with the UID of the job."""
HOST_FILE_PATH = "/etc/mpi/hostfile"
SSH_OPTIONS = "-o ConnectionAttempts=10"
AUTO = "auto"

RESERVED = {
    TORCH: (
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
        "PET_NODE_RANK",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
    ),
    JAX: ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"),
    XGBOOST: ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"),
    MPI: (
        "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_plm_rsh_args",
        "OMPI_MCA_orte_keep_fqdn_hostnames",
        "OMPI_MCA_orte_set_default_slots",
    ),
}
"""Variables of each framework, which a job must not set."""
RENDEZVOUS = ("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID")
"""Variables of an elastic job besides."""
RENDEZVOUS_CONF = "PET_RDZV_CONF"
MAX_RESTARTS = "PET_MAX_RESTARTS"
ELASTIC_DEFAULTS = {MAX_RESTARTS: 3, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}
"""Variables of an elastic job that it may set. Of torchrun's own defaults, no restart of processes
ends every agent when a node leaves, because the connections of the others break, and with a shared
store a node that joins later waits for an address that the others do not write again.
"""


def reserved_variables(job: EffectiveJob) -> tuple[str, ...]:
    """Return the variables of the framework of a job, which it must not set."""
    return (*RESERVED.get(job.framework, ()), *(RENDEZVOUS if job.elastic else ()))


def effective_job(job: TrainJob, runtime: TrainingRuntimeSpec) -> EffectiveJob:
    """Return what a job runs: merged with its runtime, with the variables of the framework."""
    merged = merge_runtime(job, runtime)
    trainer = job.spec.trainer or Trainer()
    name = job.spec.runtime_ref.name
    roles = tuple(_apply(merged, role, trainer, name) for role in merged.roles)
    return replace(merged, roles=roles)


def mpi_slots(job: EffectiveJob, trainer: Trainer) -> int:
    if trainer.num_proc_per_node:
        return trainer.num_proc_per_node
    policy = job.mpi or MPIPolicy()
    given = policy.num_proc_per_node or 1
    return (_accelerators(_node_container(job)) or 1) if given == 1 else given


def mpi_hosts(job: EffectiveJob) -> list[str]:
    """Return the hosts of an MPI job, in order of rank."""
    policy = job.mpi or MPIPolicy()
    own = [job.host(LAUNCHER, 0)] if policy.run_launcher_as_node else []
    nodes = job.find_role(NODE)
    return [*own, *(job.host(NODE, index) for index in range(nodes.replicas if nodes else 0))]


def _apply(job: EffectiveJob, role: EffectiveRole, trainer: Trainer, runtime: str) -> EffectiveRole:
    container = find_container(role.template, NODE)
    trains = role.name == LAUNCHER if job.mpi else role.step == TRAINER
    if trains and container is not None:
        if job.framework == TORCH and is_torchtune(container):
            processes = _processes(container, trainer)
            if processes == AUTO and _accelerators(container) == 1:
                processes = 1
            most = job.elastic.max_nodes if job.elastic else job.nodes
            launch = command(container, runtime, most, processes)
            address = f"{_leader(job)}:{PORT}"
            container = {**container, "command": with_rendezvous(launch, address)}
        container = upsert_env(container, _variables(job, container, trainer))
        if job.framework in (TORCH, JAX, XGBOOST):
            container = _with_port(container, role.template)
        role = replace(role, template=with_container(role.template, container))
    return _inject(job, role, trainer)


def _inject(job: EffectiveJob, role: EffectiveRole, trainer: Trainer) -> EffectiveRole:
    """Add the variables of torch to the containers that the policy names."""
    torch = job.spec.ml_policy.torch
    targets = torch.env_injection.targets if torch and torch.env_injection else []
    names = {
        n for target in targets if target.job_name == role.name for n in target.container_names
    }
    if not names:
        return role
    variables = _variables(job, _node_container(job), trainer)
    pod: Json = role.template.get("spec") or {}
    changed = {
        field: [
            upsert_env(container, variables) if container.get("name") in names else container
            for container in pod[field]
        ]
        for field in ("containers", "initContainers")
        if pod.get(field)
    }
    return replace(role, template={**role.template, "spec": {**pod, **changed}})


def _variables(job: EffectiveJob, container: Json, trainer: Trainer) -> list[Json]:
    match job.framework:
        case name if name == TORCH and job.elastic:
            return _elastic_variables(job, job.elastic, container, trainer)
        case name if name == TORCH:
            return [
                _value("PET_NNODES", job.nodes),
                _value("PET_NPROC_PER_NODE", _processes(container, trainer)),
                _index("PET_NODE_RANK"),
                _value("PET_MASTER_ADDR", _leader(job)),
                _value("PET_MASTER_PORT", PORT),
            ]
        case name if name == JAX:
            return [
                _value("JAX_NUM_PROCESSES", job.nodes),
                _index("JAX_PROCESS_ID"),
                _value("JAX_COORDINATOR_ADDRESS", f"{_leader(job)}:{PORT}"),
            ]
        case name if name == XGBOOST:
            workers = job.nodes * (_accelerators(container) or 1)
            return [
                _value("DMLC_TRACKER_URI", _leader(job)),
                _value("DMLC_TRACKER_PORT", PORT),
                _index("DMLC_TASK_ID"),
                _value("DMLC_NUM_WORKER", workers),
            ]
        case name if name == MPI:
            return _mpi_variables(mpi_slots(job, trainer))
    return []


def _elastic_variables(
    job: EffectiveJob, policy: TorchElasticPolicy, container: Json, trainer: Trainer
) -> list[Json]:
    """Return the variables of the c10d rendezvous, which assigns ranks and the leader's address."""
    given = {variable.get("name") for variable in container.get("env") or []}
    defaults = [_value(name, v) for name, v in ELASTIC_DEFAULTS.items() if name not in given]
    restarts = policy.max_restarts
    return [
        *defaults,
        _value("PET_NNODES", f"{policy.min_nodes}:{policy.max_nodes}"),
        _value("PET_NPROC_PER_NODE", _processes(container, trainer)),
        _value("PET_RDZV_BACKEND", "c10d"),
        _value("PET_RDZV_ENDPOINT", f"{_leader(job)}:{PORT}"),
        _annotation("PET_RDZV_ID", UID_KEY),
        *([] if restarts is None else [_value(MAX_RESTARTS, restarts)]),
    ]


def _mpi_variables(slots: int) -> list[Json]:
    return [
        _value("OMPI_MCA_orte_default_hostfile", HOST_FILE_PATH),
        _value("OMPI_MCA_plm_rsh_args", SSH_OPTIONS),
        _value("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
        _value("OMPI_MCA_orte_set_default_slots", slots),
        # Upstream's list ends here. Open MPI 5 reads other names. It connects to the names of the
        # host file in any case; keeping their domains would hide that one is the launcher itself.
        _value("PRTE_MCA_prte_default_hostfile", HOST_FILE_PATH),
        _value("PRTE_MCA_plm_ssh_args", SSH_OPTIONS),
    ]


def _processes(container: Json, trainer: Trainer) -> int | str:
    """Return torchrun's processes of a node: without accelerators, one for each processor."""
    if trainer.num_proc_per_node:
        return trainer.num_proc_per_node
    return AUTO if _accelerators(container) else max(1, math.ceil(_amount(container, "cpu")))


def _accelerators(container: Json) -> int:
    """Return the devices of a container: its extended resources, such as ``nvidia.com/gpu``."""
    resources = container.get("resources") or {}
    names = {*(resources.get("limits") or {}), *(resources.get("requests") or {})}
    devices = [name for name in sorted(names) if _is_accelerator(name)]
    return math.ceil(_amount(container, devices[0])) if devices else 0


_NETWORK_WORDS = ("rdma", "hca", "efa", "roce", "ib-", "nic", "vf")
"""Extended resources of these names are network devices."""


def _is_accelerator(name: str) -> bool:
    domain, _, device = name.rpartition("/")
    network = any(word in device for word in _NETWORK_WORDS)
    return is_extended_resource(name) and bool(domain) and not network


def _amount(container: Json, resource: str) -> float:
    resources = container.get("resources") or {}
    for field in ("requests", "limits"):
        written = (resources.get(field) or {}).get(resource)
        if written is not None:
            try:
                return parse_quantity(written).nano / 1e9
            except QuantityError:
                return 0
    return 0


def _node_container(job: EffectiveJob) -> Json:
    for role in job.training_roles:
        if (container := find_container(role.template, NODE)) is not None:
            return container
    return {}


def _leader(job: EffectiveJob) -> str:
    role = next((stage.name for stage in job.roles if stage.step == TRAINER), NODE)
    return job.host(role, 0)


def _with_port(container: Json, template: Json) -> Json:
    """Declare the port, unless the pod declares it under any name."""
    ports = container.get("ports") or []
    containers = (template.get("spec") or {}).get("containers") or []
    declared = [port for other in containers for port in other.get("ports") or []]
    if any((p.get("containerPort"), p.get("protocol") or "TCP") == (PORT, "TCP") for p in declared):
        return container
    name = free_name(PORT_NAME, {port.get("name") for port in ports})
    return {**container, "ports": [*ports, {"name": name, "containerPort": PORT}]}


def _value(name: str, value: object) -> Json:
    return {"name": name, "value": str(value)}


def _index(name: str) -> Json:
    return _annotation(name, INDEX_KEY)


def _annotation(name: str, key: str) -> Json:
    path = f"metadata.annotations['{key}']"
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
