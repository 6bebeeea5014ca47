"""One builder for each kind of job, from ``JobFlags``: its roles and their pod templates."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click

from gangline.api.job_resources import TRAIN_JOBS, XGBOOST_JOBS
from gangline.api.jobs.train import TTL_ANNOTATION
from gangline.api.jobs.training_runtime import LAUNCHER, NODE
from gangline.api.meta.resource import Resource
from gangline.api.resources import (
    JAX_JOBS,
    MPI_JOBS,
    MS_JOBS,
    PADDLE_JOBS,
    PYTORCH_JOBS,
    TF_JOBS,
)
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.api.volcano.scheduling import QUEUE_NAME_ANNOTATION
from gangline.cli.submit.code_sync import CODE_VOLUME
from gangline.cli.submit.flags import JobFlags, Manifest, Mount, PodFlags, non_empty, parse_pairs


def pod_template(pod: PodFlags, container: str, port_name: str = "") -> Manifest:
    """Return a pod template whose main container is named ``container``."""
    mounts = [*pod.mounts, *pod.code, *_shared_memory(pod.share_memory)]
    main = non_empty(
        {
            "name": container,
            "image": pod.image,
            "imagePullPolicy": pod.pull_policy,
            "command": list(pod.command),
            "workingDir": pod.working_dir,
            "env": _environment(pod),
            "ports": [{"name": port_name, "containerPort": pod.port}] if pod.port else [],
            "resources": _resources(pod),
            "securityContext": _security(pod),
            "volumeMounts": [mount for _, mount in mounts],
        }
    )
    spec = non_empty(
        {
            "initContainers": list(pod.init_containers),
            "containers": [main],
            "volumes": _distinct([volume for volume, _ in mounts]),
            "nodeSelector": pod.selector,
            "tolerations": list(pod.tolerations),
            "affinity": pod.affinity,
            "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
            "schedulerName": pod.scheduler,
            "priorityClassName": pod.priority,
            "hostNetwork": pod.host_network,
            "dnsPolicy": "ClusterFirstWithHostNet" if pod.host_network else "",
            "hostIPC": pod.host_ipc,
            "hostPID": pod.host_pid,
        }
    )
    metadata = non_empty({"labels": pod.labels, "annotations": pod.annotations})
    return non_empty({"metadata": metadata}) | {"spec": spec}


def _environment(pod: PodFlags) -> list[Manifest]:
    """Return the user's variables; pods without GPUs opt out of a runtime that exposes all GPUs."""
    names = {variable["name"] for variable in pod.environment}
    silent = "NVIDIA_VISIBLE_DEVICES"
    none = [{"name": silent, "value": "void"}]
    return [*pod.environment, *(none if not pod.gpus and silent not in names else [])]


def _resources(pod: PodFlags) -> dict[str, Any]:
    """Return requests and limits; they are equal unless the flags give limits."""
    limits = pod.amounts
    requests = limits | non_empty({"cpu": pod.cpu, "memory": pod.memory})
    return {"requests": requests, "limits": dict(limits)} if limits else {}


def _security(pod: PodFlags) -> Manifest:
    return {"capabilities": {"add": ["IPC_LOCK"]}} if pod.rdma else {}


def _shared_memory(size: str) -> list[Mount]:
    """Mount a larger /dev/shm: data loaders pass batches through it, and 64 MiB are too little."""
    if not size:
        return []
    volume = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return [(volume, {"name": "dshm", "mountPath": "/dev/shm"})]


def _distinct(volumes: list[Manifest]) -> list[Manifest]:
    """Remove duplicates: one volume may have several mounts."""
    return list({volume["name"]: volume for volume in volumes}.values())


Builder = Callable[[JobFlags], Manifest]

_SSH_PORT = 22
ELASTIC_VERSION, ELASTIC_KIND = "elastic.iml.github.io/v1alpha1", "ElasticJob"


def pytorch_job(flags: JobFlags) -> Manifest:
    """Build a PyTorchJob with one master and ``workers - 1`` equal workers."""
    roles = {"Master": (1, flags.pod), "Worker": (flags.workers - 1, flags.pod)}
    spec = _kubeflow(flags, "pytorchReplicaSpecs", roles, "pytorch")
    processes = flags.extra.get("nproc_per_node", "")
    return _job(PYTORCH_JOBS, flags, spec | non_empty({"nprocPerNode": processes}))


def tf_job(flags: JobFlags) -> Manifest:
    """Build a TFJob with workers, parameter servers, and optionally a chief and an evaluator.

    A single worker without other roles becomes the chief, which needs no TF_CONFIG.
    """
    extra = flags.extra
    alone = flags.workers == 1 and not extra["ps"] and not extra["chief"]
    counts = {
        "PS": extra["ps"],
        "Worker": 0 if alone else flags.workers,
        "Chief": 1 if alone or extra["chief"] else 0,
        "Evaluator": int(extra["evaluator"]),
    }
    roles = {
        role: (count, _worker_of_one(flags) if alone and role == "Chief" else _tf_pod(flags, role))
        for role, count in counts.items()
    }
    spec = _kubeflow(flags, "tfReplicaSpecs", roles, "tensorflow", "tfjob-port")
    policy = extra["success_policy"]
    job = _job(
        TF_JOBS,
        flags,
        spec | non_empty({"successPolicy": policy if policy != "ChiefWorker" else ""}),
    )
    notes = non_empty({"job-role-sequence": extra["role_sequence"]})
    notes |= {"arena.kubeflow.org/disable-tf-config": "true"} if alone else {}
    if notes:
        job["metadata"].setdefault("annotations", {}).update(notes)
    return job


def mpi_job(flags: JobFlags) -> Manifest:
    """Build an MPIJob: a launcher that runs the command, and workers that host its processes."""
    pod, extra = flags.pod, flags.extra
    if extra["gputopology"]:
        pod = replace(pod, host_network=True)
    plain = replace(pod, gpus=0, devices={}, rdma=False)
    if not extra["mounts_on_launcher"]:
        plain = replace(plain, mounts=())
    roles = {"Launcher": (1, plain), "Worker": (flags.workers, replace(pod, command=()))}
    slots = non_empty({"slotsPerWorker": extra["slots_per_worker"] or pod.gpus})
    return _job(MPI_JOBS, flags, slots | _kubeflow(flags, "mpiReplicaSpecs", roles, "mpi"))


def deepspeed_job(flags: JobFlags) -> Manifest:
    """Build an MPIJob of v2beta1: DeepSpeed's launcher starts processes in the workers by SSH.

    A single worker starts its processes itself, so it is the launcher: DeepSpeed's launcher uses
    its own machine if the host file has one host.
    """
    pod, extra = flags.pod, flags.extra
    pod = _with_variables(pod, {"NCCL_ASYNC_ERROR_HANDLING": "1"})
    launcher = replace(
        pod,
        selector=extra["launcher_selector"] or pod.selector,
        annotations=pod.annotations | extra["launcher_annotation"],
    )
    worker = replace(pod, command=(), annotations=pod.annotations | extra["worker_annotation"])
    spec: Manifest = {"slotsPerWorker": max(pod.gpus, 1)}
    if flags.workers == 1:
        roles = {"Launcher": (1, launcher)}
        spec["runLauncherAsWorker"] = True
    else:
        idle = replace(
            launcher, gpus=0, devices={}, rdma=False, mounts=(*pod.mounts, _hosts(flags))
        )
        roles = {"Launcher": (1, idle), "Worker": (flags.workers, worker)}
        spec["launcherCreationPolicy"] = "WaitForWorkersReady"
    spec |= _kubeflow(flags, "mpiReplicaSpecs", roles, "mpi")
    if "Worker" in roles:
        workers = spec["mpiReplicaSpecs"]["Worker"]
        workers["restartPolicy"] = "Never"  # the launcher ends when one of its processes does
        container = workers["template"]["spec"]["containers"][0]
        container["readinessProbe"] = {"tcpSocket": {"port": _SSH_PORT}, "periodSeconds": 1}
    return _manifest(f"{MPI_JOBS.group}/v2beta1", MPI_JOBS.kind, flags) | {"spec": spec}


def _hosts(flags: JobFlags) -> Mount:
    """Mount the host file, which the operator writes, where DeepSpeed's launcher looks for it.

    Optional, as it does not exist before the job; the operator's own mount of it is not.
    """
    source = {
        "name": f"{flags.name}-config",
        "items": [{"key": "hostfile", "path": "hostfile"}],
        "optional": True,
    }
    volume = {"name": "hosts", "configMap": source}
    return volume, {"name": "hosts", "mountPath": "/job"}


def _with_variables(pod: PodFlags, variables: Mapping[str, str]) -> PodFlags:
    """Return the pods with further variables; the user's take precedence."""
    given = {variable["name"] for variable in pod.environment}
    added = [{"name": k, "value": v} for k, v in variables.items() if k not in given]
    return replace(pod, environment=(*pod.environment, *added))


def ms_job(flags: JobFlags) -> Manifest:
    """Build an MSJob with workers; several workers need a scheduler for their rendezvous."""
    quiet = replace(flags.pod, gpus=0, devices={}, rdma=False)
    servers = flags.extra["ps"]
    meets = flags.workers > 1 or servers
    roles = {
        "Scheduler": (1 if meets else 0, quiet),
        "PS": (servers, quiet),
        "Worker": (flags.workers, flags.pod),
    }
    spec = _kubeflow(flags, "msReplicaSpecs", roles, "mindspore")
    return _job(MS_JOBS, flags, {**spec, "successPolicy": "AllWorkers"})


def jax_job(flags: JobFlags) -> Manifest:
    """Build a JAXJob with equal processes."""
    roles = {"Worker": (flags.workers, flags.pod)}
    return _job(JAX_JOBS, flags, _kubeflow(flags, "jaxReplicaSpecs", roles, "jax"))


def xgboost_job(flags: JobFlags) -> Manifest:
    """Build an XGBoostJob: a master with the tracker, and ``workers - 1`` equal workers.

    The master trains as well, so its pod has the resources of a worker.
    """
    roles = {"Master": (1, flags.pod), "Worker": (flags.workers - 1, flags.pod)}
    return _job(XGBOOST_JOBS, flags, _kubeflow(flags, "xgbReplicaSpecs", roles, "xgboost"))


_PADDLE_CLEAN = {"None": "Never", "Running": "OnCompletion", "All": "Always"}


def paddle_job(flags: JobFlags) -> Manifest:
    """Build a PaddleJob with workers, and parameter servers if requested."""
    policy = _run_policy(flags)
    scheduling = policy.pop("schedulingPolicy", {})
    policy.pop("cleanPodPolicy")
    spec: Manifest = {"cleanPodPolicy": _PADDLE_CLEAN[flags.clean_task_policy], "runPolicy": policy}
    spec |= non_empty({"schedulingPolicy": scheduling})
    if flags.extra["ps"]:
        spec["withGloo"] = 1
    counts = {"ps": flags.extra["ps"], "worker": flags.workers}
    for role, count in counts.items():
        if count:
            template = pod_template(flags.pod, "paddle")
            template["spec"]["restartPolicy"] = _restart(flags)
            spec[role] = {"replicas": count, "template": template}
    return _job(PADDLE_JOBS, flags, spec)


def elastic_job(flags: JobFlags) -> Manifest:
    """Build an ElasticJob: its number of workers may change; optionally parameter servers."""
    extra = flags.extra
    template = pod_template(flags.pod, "main")
    template["spec"]["restartPolicy"] = "Never"
    roles: Manifest = {"worker": {"replicas": flags.workers, "template": template}}
    if extra["ps"]:
        roles["ps"] = {"replicas": extra["ps"], "template": template}
    if flags.retry:
        for role in roles.values():
            role["restartCount"] = flags.retry
    policy = _run_policy(flags)
    del policy["backoffLimit"]  # the operator counts restarts for each rank, as restartCount
    job = _manifest(ELASTIC_VERSION, ELASTIC_KIND, flags)
    bounds = f"{extra['min_workers']}:{max(extra['max_workers'], flags.workers)}"
    job["metadata"].setdefault("annotations", {})["gangline.dev/nodes"] = bounds
    strategy = "ParameterServerStrategy" if extra["ps"] else extra["strategy"]
    spec = {"distributionStrategy": strategy, "optimizeMode": "single-job", "runPolicy": policy}
    return job | {"spec": spec | {"replicaSpecs": roles}}


PATCH_MANAGER = "gangline.dev/submit"
"""Name of the runtime patch of ``submit train``, beside those of other components."""


def train_job(flags: JobFlags) -> Manifest:
    """Build a TrainJob: its trainer, and a runtime patch with what a trainer cannot express."""
    extra, pod = flags.extra, _in_command(flags.pod)
    job = _job(TRAIN_JOBS, flags, {})
    notes = non_empty({QUEUE_NAME_ANNOTATION: flags.queue})
    if flags.ttl_after_finished_s:
        notes[TTL_ANNOTATION] = str(flags.ttl_after_finished_s)
    if notes:
        job["metadata"].setdefault("annotations", {}).update(notes)
    trainer = {
        "image": pod.image,
        "command": list(pod.command),
        "env": list(pod.environment),
        "numNodes": flags.workers,
        "elasticPolicy": _elastic_policy(extra["min_nodes"], extra["max_nodes"]),
        "numProcPerNode": extra["nproc_per_node"],
        "resourcesPerNode": _resources(pod),
    }
    sources = {"dataset": extra["dataset_uri"], "model": extra["model_uri"]}
    secret = extra["initializer_secret"]
    if secret and not any(sources.values()):
        problem = f"{secret!r} has no effect without --dataset-uri or --model-uri"
        raise click.BadParameter(problem, param_hint="--initializer-secret")
    fetched = {
        step: {"storageUri": uri, **({"secretRef": {"name": secret}} if secret else {})}
        for step, uri in sources.items()
        if uri
    }
    patch = _runtime_patch(pod, extra)
    spec = {
        "initializer": fetched,
        "trainer": non_empty(trainer),
        "runtimePatches": [patch] if patch else [],
        "activeDeadlineSeconds": flags.running_timeout_s,
    }
    ref = {"name": extra["runtime"], "kind": extra["runtime_kind"]}
    return job | {"spec": {"runtimeRef": ref, **non_empty(spec)}}


def _elastic_policy(least: int | None, most: int | None) -> Manifest:
    if least and not most:
        raise click.BadParameter("has no effect without --max-nodes", param_hint="--min-nodes")
    return {"minNodes": least or 1, "maxNodes": most} if most else {}


def _in_command(pod: PodFlags) -> PodFlags:
    """Let the command itself fetch its code and change to the working folder.

    A TrainJob cannot change the working folder of its runtime, nor add init containers to it. The
    variables of the fetch, such as passwords, are removed before the command starts.
    """
    if not pod.working_dir:
        return pod
    *shell, command = pod.command
    lines, code, environment = (
        [],
        [*pod.code],
        {variable["name"]: variable for variable in pod.environment},
    )
    for init in pod.init_containers:
        own = {entry["name"]: entry for entry in init["env"] if entry["name"] not in environment}
        environment |= own
        lines += [f"{shlex.join(init['command'])} || exit", f"unset {' '.join(own)}"]
        [volume] = (volume for volume, _ in pod.code if volume["name"] == CODE_VOLUME)
        written = init["volumeMounts"][0]
        if written["mountPath"] not in {mount["mountPath"] for _, mount in code}:
            code.append((volume, written))
    text = "\n".join([*lines, f"cd {shlex.quote(pod.working_dir)} || exit", command])
    return replace(
        pod,
        command=(*shell, text),
        code=tuple(code),
        environment=tuple(environment.values()),
    )


def _runtime_patch(pod: PodFlags, extra: Mapping[str, Any]) -> Manifest:
    """Return the patch with the volumes, labels and placement of the pods; empty if none differ."""
    mounts = [*pod.mounts, *pod.code, *_shared_memory(pod.share_memory)]
    container = {"volumeMounts": [mount for _, mount in mounts], "securityContext": _security(pod)}
    spec = {
        "volumes": _distinct([volume for volume, _ in mounts]),
        "containers": [{"name": NODE, **non_empty(container)}] if any(container.values()) else [],
        "nodeSelector": pod.selector,
        "tolerations": list(pod.tolerations),
        "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
    }
    metadata = {
        "labels": parse_pairs("--label", extra["label"]),
        "annotations": parse_pairs("--annotation", extra["annotation"]),
    }
    template = non_empty({"metadata": non_empty(metadata), "spec": non_empty(spec)})
    if not template:
        return {}
    jobs = training_jobs(extra) or [NODE]
    patches = [{"name": name, "template": {"spec": {"template": template}}} for name in jobs]
    change = {"template": {"spec": {"replicatedJobs": patches}}}
    return {"manager": PATCH_MANAGER, "trainingRuntimeSpec": change}


def training_jobs(options: Mapping[str, Any]) -> list[str]:
    """Return the jobs of a runtime that train: given, or of a shipped runtime; empty if unknown."""
    specs = {entry["metadata"]["name"]: entry["spec"] for entry in builtin_runtimes()}
    runtime = options["runtime"]
    if options["runtime_jobs"] or runtime not in specs:
        return list(options["runtime_jobs"])
    return [NODE, LAUNCHER] if "mpi" in specs[runtime]["mlPolicy"] else [NODE]


def takes_code(options: Mapping[str, Any]) -> bool:
    """False if only the launcher of a runtime would have fetched code, not the nodes (MPI)."""
    return "runtime" not in options or LAUNCHER not in training_jobs(options)


def _tf_pod(flags: JobFlags, role: str) -> PodFlags:
    """Return the pods of one role: its own flags, or else the flags of the job."""
    extra, name = flags.extra, role.lower()
    image = extra["ps_image"] if role == "PS" else extra["worker_image"]
    return replace(
        flags.pod,
        image=image or flags.pod.image,
        gpus=extra["ps_gpus"] if role == "PS" else flags.pod.gpus,
        cpu=extra[f"{name}_cpu"],
        memory=extra[f"{name}_memory"],
        cpu_limit=extra[f"{name}_cpu_limit"],
        memory_limit=extra[f"{name}_memory_limit"],
        selector=extra[f"{name}_selector"] or flags.pod.selector,
        port=extra.get(f"{name}_port", 0),
        affinity=_affinity(flags, role),
    )


def _worker_of_one(flags: JobFlags) -> PodFlags:
    """Return the pod of a single worker that becomes the chief, with the resources of a worker."""
    chief, worker = _tf_pod(flags, "Chief"), _tf_pod(flags, "Worker")
    given_to_chief = {
        name: getattr(chief, name) for name in ("cpu", "memory", "cpu_limit", "memory_limit")
    }
    return replace(worker, **non_empty(given_to_chief))


def _affinity(flags: JobFlags, role: str) -> Manifest:
    """Spread the pods of a role over nodes, or pack them on few nodes."""
    policy = flags.extra.get(f"{role.lower()}_affinity_policy", "none")
    if policy == "none":
        return {}
    labels = {
        "training.kubeflow.org/job-name": flags.name,
        "training.kubeflow.org/replica-type": role.lower(),
    }
    term = {
        "labelSelector": {"matchLabels": labels},
        "topologyKey": "kubernetes.io/hostname",
    }
    which = "podAntiAffinity" if policy == "spread" else "podAffinity"
    if flags.extra[f"{role.lower()}_affinity_constraint"] == "required":
        return {which: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    weighted = {"weight": 100, "podAffinityTerm": term}
    return {which: {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}}


def _kubeflow(
    flags: JobFlags,
    field: str,
    roles: Mapping[str, tuple[int, PodFlags]],
    container: str,
    port_name: str = "",
) -> Manifest:
    replicas = {
        role: {
            "replicas": count,
            "restartPolicy": _restart(flags),
            "template": pod_template(pod, container, port_name),
        }
        for role, (count, pod) in roles.items()
        if count
    }
    return {"runPolicy": _run_policy(flags), field: replicas}


def _restart(flags: JobFlags) -> str:
    # backoffLimit 0 forbids restarts already; Never makes this visible in the job.
    return "OnFailure" if flags.retry else "Never"


def _run_policy(flags: JobFlags) -> Manifest:
    scheduling = non_empty(
        {
            "queue": flags.queue,
            "priorityClass": flags.pod.priority,
            "scheduleTimeoutSeconds": flags.extra.get("starting_timeout"),
        }
    )
    optional = non_empty(
        {
            "activeDeadlineSeconds": flags.running_timeout_s,
            "ttlSecondsAfterFinished": flags.ttl_after_finished_s,
            "schedulingPolicy": scheduling,
        }
    )
    return {"cleanPodPolicy": flags.clean_task_policy, "backoffLimit": flags.retry, **optional}


def _job(resource: Resource[Any], flags: JobFlags, spec: Manifest) -> Manifest:
    return _manifest(resource.api_version, resource.kind, flags) | {"spec": spec}


def _manifest(api_version: str, kind: str, flags: JobFlags) -> Manifest:
    metadata = {
        "name": flags.name,
        "labels": dict(flags.pod.labels),
        "annotations": dict(flags.pod.annotations),
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": non_empty(metadata)}


BUILDERS: Mapping[str, Builder] = {
    "pytorch": pytorch_job,
    "tf": tf_job,
    "mpi": mpi_job,
    "deepspeed": deepspeed_job,
    "mindspore": ms_job,
    "paddle": paddle_job,
    "jax": jax_job,
    "xgboost": xgboost_job,
    "elastic": elastic_job,
    "train": train_job,
}
"""Builders by the name of the ``submit`` subcommand."""
